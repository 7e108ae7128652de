"""`python -m benchmarks.charts`: draw the charts of README and documentation from the stored tables.

Each chart is an SVG in `docs/pictures`, in a light and a dark variant. The same tables give the same bytes with the
same version of matplotlib. A bar without a number in the tables is left out.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.history import Run, latest, runs
from benchmarks.tables import Row

__all__ = ["CHARTS", "FOLDER", "draw"]

FOLDER: Final = Path(__file__).parent.parent / "docs" / "pictures"
_INSTALL: Final = (
    "charts need matplotlib: pip install 'aioflow-engine[bench]', or in a checkout pip install -e '.[bench]'"
)
_WIDTH: Final = 8.6  # inches; the column of a README is about as wide
_ROW: Final = 0.235  # inches of a row
_FONT: Final = 8.5

# Names of series, as in the legends.
_ONEDNN: Final = "with oneDNN"
_ONNXRUNTIME: Final = "with onnxruntime"
_NUMPY: Final = "with NumPy alone"
_KERNELS: Final = "with aioflow's kernels"
_OTHER: Final = "other programs"
_OURS: Final = "aioflow"

# Colors of text and of the series. Blue, orange and gray differ for color-blind readers, too.
_THEMES: Final[Mapping[str, Mapping[str, str]]] = {
    "light": {"text": "#1f2328"}
    | dict.fromkeys((_OURS, _ONEDNN, _KERNELS), "#0969da")
    | {_ONNXRUNTIME: "#e16f24"}
    | dict.fromkeys((_OTHER, _NUMPY), "#8c959f"),
    "dark": {"text": "#e6edf3"}
    | dict.fromkeys((_OURS, _ONEDNN, _KERNELS), "#58a6ff")
    | {_ONNXRUNTIME: "#f0883e"}
    | dict.fromkeys((_OTHER, _NUMPY), "#848d97"),
}

# Short names of steps, in the order of the chart; others keep the names and the order of their rows.
_SHORT: Final = {
    "`run` of one scalar add, fed and fetched": "run of a scalar add",
    "chain of 2,000 scalar operations": "chain of 2,000 scalar ops",
    "random DAG of 4,000 adds on 32-vectors": "random graph of 4,000 adds",
    "`while_loop` of 1,000 iterations, counter and accumulator": "while_loop of 1,000 iterations",
    "the same `while_loop` in primitive form, not lifted": "while_loop in primitive form",
    "enqueue and dequeue of a scalar in one step": "enqueue and dequeue",
    "MLP 784-512-512-10, training step, batch 128": "MLP, training, batch 128",
    "MLP 784-512-512-10, inference, batch 128": "MLP, inference, batch 128",
    "MLP 784-1024-1024-10, training step, batch 1024": "wide MLP, training, batch 1024",
    "LeNet, training step, batch 64": "LeNet, training, batch 64",
    "LeNet, inference, batch 64": "LeNet, inference, batch 64",
    "LSTM of 128 units in a `while_loop`, 50 steps, batch 32, training step": "LSTM in a while_loop, training",
}


@dataclass(frozen=True, slots=True)
class Panel:
    """Horizontal bars: rows of one table, or of several with the same rows.

    Attributes:
        title: Title.
        tables: Names of tables in the history, with the name of each in the legend.
        column: The column to draw. `ratio` is drawn as speed: its inverse, on a logarithmic scale around 1.
        rows: Which rows to draw.
        factor: Factor for the values of the column.
        unit: Unit of the labels.
        baseline: Label of the line at 1.
        ours: The word by which labels of aioflow's rows are known; "" if all are.
    """

    title: str
    tables: Mapping[str, str]
    column: str = "ratio"
    rows: Callable[[Row], bool] = lambda row: not row.case.startswith("geometric mean")
    factor: float = 1.0
    unit: str = ""
    baseline: str = ""
    ours: str = "aioflow"


@dataclass(frozen=True, slots=True)
class Chart:
    """A file with panels, one line of them after another.

    Attributes:
        title: Title, and the text for readers who do not see the picture.
        lines: Lines of panels. Those of a line have the same rows, or stand alone.
    """

    title: str
    lines: Sequence[Sequence[Panel]]


_SERVING: Final = {"serving": _OURS}
_HTTP: Final = {"serving-http": _OURS}

CHARTS: Final = {
    "tensorflow": Chart(
        "Steps and image nets in aioflow: times as fast as TensorFlow, logarithmic scale",
        [
            [Panel("Steps in aioflow", {"steps-onednn": _ONEDNN, "steps-numpy": _NUMPY}, baseline="TensorFlow")],
            [
                Panel(
                    "Nets in aioflow, one picture",
                    {"nets-onnxruntime": _ONNXRUNTIME, "nets-onednn": _ONEDNN, "nets-numpy": _NUMPY},
                    baseline="TensorFlow",
                )
            ],
        ],
    ),
    "onnxruntime": Chart(
        "Calls of models in aioflow: times as fast as onnxruntime alone, logarithmic scale",
        [
            [
                Panel(
                    "Models in aioflow, batch 1",
                    {"models-onnxruntime": _ONNXRUNTIME, "models": _KERNELS},
                    rows=lambda row: row.case.startswith("call of "),
                    baseline="onnxruntime",
                )
            ]
        ],
    ),
    "serving": Chart(
        "An MLP that serves single rows to 64 clients: requests per second, latency and event loop lag",
        [
            [
                Panel("Requests/s in one process", _SERVING, "requests/s"),
                Panel("Event loop lag, p99: less is better", _SERVING, "loop lag p99", factor=1e3, unit=" ms"),
            ],
            [
                Panel("Requests/s over HTTP", _HTTP, "requests/s"),
                Panel("Latency, p99: less is better", _HTTP, "p99", factor=1e3, unit=" ms"),
            ],
            [
                Panel(
                    "Event loop lag while a network trains, p99 (busy: two other processes compute)",
                    {"lag": _OURS},
                    "99th percentile",
                    factor=1e3,
                    unit=" ms",
                    ours="",
                )
            ],
        ],
    ),
}


def draw(stored: Sequence[Run], folder: Path = FOLDER) -> list[Path]:
    """Draw all charts of which there are tables, and return their files. Report if matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        print(_INSTALL, file=sys.stderr)
        return []
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    style: dict[Any, Any] = {
        "svg.hashsalt": "aioflow",
        "font.size": _FONT,
        "font.family": "DejaVu Sans",
        "backend": "svg",
    }
    for name, chart in CHARTS.items():
        for theme, colors in _THEMES.items():
            ink = {f"{part}.color": colors["text"] for part in ("text", "xtick", "ytick")}
            with mpl.rc_context(style | ink):
                figure = _figure(chart, stored, colors)
                if figure is None:
                    continue
                files.append(folder / f"{name}-{theme}.svg")
                metadata = {"Title": chart.title, "Date": None, "Creator": None}
                figure.savefig(files[-1], transparent=True, metadata=metadata)
    return files


@dataclass(frozen=True, slots=True)
class _Bars:
    """The values of a panel: the label of each row, the values of each series or None, and the runs of the tables."""

    labels: list[str]
    series: Mapping[str, Sequence[float | None]]
    runs: Mapping[str, Run]


def _bars(panel: Panel, stored: Sequence[Run]) -> _Bars | None:
    found = {name: run for name in panel.tables if (run := latest(name, stored)) is not None}
    cases = list(
        dict.fromkeys(row.case for name, run in found.items() for row in run.tables[name].rows if panel.rows(row))
    )
    if not cases:
        return None
    order = list(_SHORT)
    cases.sort(key=lambda case: order.index(case) if case in order else len(order))
    series = {}
    for name, run in found.items():
        values = {row.case: row.value(panel.column) for row in run.tables[name].rows}
        series[panel.tables[name]] = [_scaled(panel, values.get(case)) for case in cases]
    return _Bars([_label(case) for case in cases], series, found)


def _scaled(panel: Panel, value: float | None) -> float | None:
    if value is None:
        return None
    return 1 / value if panel.column == "ratio" else value * panel.factor


def _label(case: str) -> str:
    short = _SHORT.get(case) or re.sub(r" \([A-Z][^)]*\d{4}\)", "", case).removeprefix("call of ")
    short = short.replace("`session.batched`", "aioflow session.batched")
    short = re.sub(r", beside \d+ busy processes$", ", busy", short)
    return "\n".join(textwrap.wrap(short.replace("`", "").rpartition(": ")[2], 32))


def _number(value: float) -> str:
    return f"{value:,.{2 if value < 10 else 1 if value < 100 else 0}f}"


def _figure(chart: Chart, stored: Sequence[Run], colors: Mapping[str, str]) -> Any:
    """Return the figure of a chart; None without any of its tables."""
    from matplotlib.figure import Figure

    lines = [[(panel, bars) for panel in line if (bars := _bars(panel, stored))] for line in chart.lines]
    lines = [line for line in lines if line]
    if not lines:
        return None
    caption = _caption(lines)
    heights = [_height(line[0][1]) for line in lines]
    foot = 0.16 * len(caption) + 0.12
    figure = Figure((_WIDTH, sum(heights) + foot))
    figure.text(0.01, 0.06 / figure.get_figheight(), "\n".join(caption), fontsize=_FONT - 2, va="bottom")
    total, top = figure.get_figheight(), figure.get_figheight()
    for line, height in zip(lines, heights, strict=True):
        left, gap = 0.285, 0.03
        width = (0.985 - left - gap * (len(line) - 1)) / len(line)
        for number, (panel, bars) in enumerate(line):
            box = (left + number * (width + gap), (top - height + 0.12) / total, width, (height - 0.52) / total)
            _draw_panel(figure.add_axes(box), panel, bars, colors, has_labels=number == 0)
        top -= height
    return figure


def _height(bars: _Bars) -> float:
    """Return the inches of a line of panels. Rows with several series, or labels of two lines, are higher."""
    row = _ROW * (1.3 if any("\n" in label for label in bars.labels) else max(1.0, 0.55 * len(bars.series)))
    return len(bars.labels) * row + 0.58


def _caption(lines: Sequence[Sequence[tuple[Panel, _Bars]]]) -> list[str]:
    """Return the environments of the tables, with the names of the tables if there are several environments."""
    tables: dict[str, list[str]] = {}
    for _, bars in (pair for line in lines for pair in line):
        for name, run in bars.runs.items():
            tables.setdefault(run.head(), []).append(name)
    found = [
        f"{', '.join(dict.fromkeys(names))}: {head}" if len(tables) > 1 else head for head, names in tables.items()
    ]
    if any(panel.column == "ratio" for line in lines for panel, _ in line):
        found.append("The scales are logarithmic.")
    return [part for text in found for part in textwrap.wrap(text, 150)]


def _draw_panel(axes: Any, panel: Panel, bars: _Bars, colors: Mapping[str, str], *, has_labels: bool) -> None:
    count = len(bars.series)
    thickness = 0.72 / count
    values = [value for series in bars.series.values() for value in series if value is not None]
    is_speed = panel.column == "ratio"
    if is_speed:
        axes.set_xscale("log", base=2)
        axes.set_xlim(min(values) / 1.6, max(2.0, max(values) * 1.6))
        axes.axvline(1, color=colors["text"], linewidth=0.8, zorder=3)
    else:
        axes.set_xlim(0, max(values) * 1.25)
    for number, (name, series) in enumerate(bars.series.items()):
        for row, value in enumerate(series):
            if value is None:
                continue
            place = row + (number - (count - 1) / 2) * thickness
            is_ours = is_speed or panel.ours in bars.labels[row]
            start = 1.0 if is_speed else 0.0
            axes.barh(place, value - start, thickness * 0.9, left=start, color=colors[name if is_ours else _OTHER])
            text = f"{_number(value)}{'×' if is_speed else panel.unit}"
            is_left = is_speed and value < 1
            axes.annotate(
                text,
                (value, place),
                (-3 if is_left else 3, 0),
                textcoords="offset points",
                ha="right" if is_left else "left",
                va="center_baseline",
                fontsize=_FONT - (1.5 if count > 1 else 0.5),
            )
        axes.plot([], [], "s", color=colors[name], label=name)
    axes.set_yticks(range(len(bars.labels)), bars.labels if has_labels else [""] * len(bars.labels))
    axes.set_ylim(len(bars.labels) - 0.45, -0.55)
    axes.tick_params(length=0)
    axes.minorticks_off()
    axes.set_xticks(
        [1.0] if is_speed else [],
        [f"← slower   1 = {panel.baseline}   faster →"] if is_speed else [],
        fontsize=_FONT - 1,
    )
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)
    if is_speed:
        _draw_heading(axes, panel, count)
    else:
        axes.set_title(panel.title, loc="left", fontsize=_FONT + 0.5, fontweight="bold", pad=4)


def _draw_heading(axes: Any, panel: Panel, series: int) -> None:
    figure, box = axes.figure, axes.get_position()
    title = f"{panel.title}: times as fast as {panel.baseline}"
    place = box.y1 + 0.07 / figure.get_figheight()
    figure.text(0.01, place, title, fontsize=_FONT + 0.5, fontweight="bold")
    at = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0, "ncols": series}
    axes.legend(frameon=False, fontsize=_FONT - 0.5, handletextpad=0.1, columnspacing=1.2, borderpad=0.3, **at)


def main() -> int:
    """Draw the charts from the stored tables. Return the exit status."""
    files = draw(runs())
    print("\n".join(str(file) for file in files))
    return 0 if files else 1


if __name__ == "__main__":
    sys.exit(main())
