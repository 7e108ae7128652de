"""A predicted step as a picture: a lane for each device, a bar for each node, an arc for each transfer.

The result is one self-contained SVG file. Names and sizes that do not fit appear as tooltips.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import floor, log10
from typing import Final, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from aioflow.compiler.place.simulate import Interval, Schedule, Transfer
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.opdef import traits_of

_ONE: Final = 0.9995  # rounds to 1 at three digits
_WIDTH: Final = 1280
_LEFT: Final = 120  # left end of the time axis, moved right if lane labels are long
_MOST_LEFT: Final = 400
_RIGHT: Final = 40
_TOP: Final = 104
_LANE: Final = 92  # distance between lanes
_BAR: Final = 34
_CHARACTER: Final = 6.7  # pixels per character in labels of bars and arcs
_LANE_CHARACTER: Final = 8.5  # the same for labels of lanes
_TITLE_CHARACTER: Final = 11.8
_LINE: Final = 14  # height of a row of labels between two lanes
_NARROW: Final = 2.0  # pixels: narrower bars are drawn together with their neighbors
_MOST_ARCS: Final = 200
_MOST_ARC_LABELS: Final = 12
_TICKS: Final = 8

# Fill color, readable under black text, and name in the legend, by the rate of an op's cost.
_FILLS: Final = {
    "product": ("#8ecae6", "matrix product"),
    "convolution": ("#e5989b", "convolution"),
    "elementwise": ("#ffd166", "elementwise"),
    "transcendental": ("#f4a261", "exp, tanh, random …"),
    "reduction": ("#cdb4db", "reduction"),
    "movement": ("#b7e4c7", "copy"),
}
_SEVERAL: Final = "#d0d0d0"


class _Bar(NamedTuple):
    start: float
    finish: float
    nodes: tuple[Interval, ...]


class _Axis(NamedTuple):
    """The left end of the time axis, and its scale in pixels per second."""

    left: float
    scale: float

    def x(self, seconds: float) -> float:
        return self.left + seconds * self.scale


class _Arc(NamedTuple):
    """A transfer, from the border of one lane to that of another."""

    transfer: Transfer
    x1: float
    y1: float
    x2: float
    y2: float


class _Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: _Box) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


def draw_timeline(schedule: Schedule, title: str) -> str:
    """Return the SVG of a schedule, with lanes in the order of its timeline."""
    devices = list(schedule.timeline)
    labels = device_labels(devices)
    lanes = {device: _TOP + i * _LANE for i, device in enumerate(devices)}
    bottom = _TOP + (len(devices) - 1) * _LANE + _BAR
    height = bottom + 84
    left = min(max(_LEFT, 26 + _LANE_CHARACTER * max(map(len, labels.values()), default=0)), _MOST_LEFT)
    axis = _Axis(left, (_WIDTH - left - _RIGHT) / (schedule.seconds or 1.0))
    bars = {device: list(_bars(nodes, axis.scale)) for device, nodes in schedule.timeline.items()}
    largest = sorted(schedule.transfers, key=lambda t: (-t.size, t.start, t.node))[:_MOST_ARCS]
    arcs = [_arc(transfer, lanes, axis) for transfer in largest]
    # XML allows hardly any control characters, not even escaped ones.
    title = _fitted("".join(c if c.isprintable() else "\ufffd" for c in title), _WIDTH - 32, _TITLE_CHARACTER)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" '
        f'font-family="system-ui, sans-serif" font-size="13" role="img" aria-label={quoteattr(title)}>',
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0L8 4L0 8z" fill="#9b2226"/></marker></defs>',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="16" y="30" font-size="18" font-weight="600">{escape(title)}</text>',
        f'<text x="16" y="52" fill="#444">{escape(_subtitle(schedule, len(arcs)))}</text>',
        *_legend([bar for found in bars.values() for bar in found]),
        *_ticks(schedule.seconds, axis, bottom),
    ]
    for device in devices:
        parts += _lane(labels[device], lanes[device], left)
    # Arcs are below the bars: the names in the bars matter more than a passing arc.
    parts += [_curve(arc, labels) for arc in arcs]
    parts += _arc_labels(arcs) if len(arcs) <= _MOST_ARC_LABELS else ()
    for device in devices:
        parts += [_drawn(bar, lanes[device], axis) for bar in bars[device]]
    return "\n".join([*parts, "</svg>\n"])


def _subtitle(schedule: Schedule, arcs: int) -> str:
    moved = sum(transfer.size for transfer in schedule.transfers)
    noun = "transfer" if len(schedule.transfers) == 1 else "transfers"
    text = f"predicted step {time_text(schedule.seconds)}, {len(schedule.transfers)} {noun}, {byte_text(moved)}"
    return text if arcs == len(schedule.transfers) else f"{text}; the largest {arcs} are drawn"


def _legend(bars: Sequence[_Bar]) -> Iterator[str]:
    used = {_fill(bar) for bar in bars}
    x = 16.0
    for fill, name in (*_FILLS.values(), (_SEVERAL, "several short nodes")):
        if fill in used:
            yield f'<rect x="{x:.0f}" y="66" width="14" height="14" rx="2" fill="{fill}" stroke="#555"/>'
            yield f'<text x="{x + 20:.0f}" y="78" fill="#333">{escape(name)}</text>'
            x += 44 + 7.2 * len(name)


def _ticks(seconds: float, axis: _Axis, bottom: float) -> Iterator[str]:
    """Yield ticks at round numbers of milliseconds."""
    y = bottom + 24
    step = _round_step(seconds * 1e3 / _TICKS) if seconds else 1.0
    digits = max(0, -floor(log10(step)))
    yield f'<line x1="{axis.left}" y1="{y}" x2="{_WIDTH - _RIGHT}" y2="{y}" stroke="#333"/>'
    # The small summand keeps a last tick that rounding would lose.
    for i in range(int(seconds * 1e3 / step + 1e-9) + 1):
        x = axis.x(i * step * 1e-3)
        yield f'<line x1="{x:.1f}" y1="{_TOP - 10}" x2="{x:.1f}" y2="{y + 5}" stroke="#e4e4e4"/>'
        yield f'<text x="{x:.1f}" y="{y + 20}" text-anchor="middle" fill="#333">{i * step:.{digits}f}</text>'
    middle = (axis.left + _WIDTH - _RIGHT) / 2
    yield f'<text x="{middle:.0f}" y="{y + 42}" text-anchor="middle" fill="#333">time (ms)</text>'


def _round_step(least: float) -> float:
    """Return the smallest of 1, 2, 5, 10, … that is not below `least`."""
    power = 10.0 ** floor(log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))


def _lane(label: str, y: float, left: float) -> Iterator[str]:
    label = _fitted(label, left - 20, _LANE_CHARACTER)
    yield f'<rect x="{left}" y="{y}" width="{_WIDTH - left - _RIGHT}" height="{_BAR}" fill="#f4f4f4" opacity="0.7"/>'
    yield f'<text x="{left - 10}" y="{y + _BAR / 2 + 5}" text-anchor="end" font-weight="600">{escape(label)}</text>'


def _bars(intervals: Sequence[Interval], scale: float) -> Iterator[_Bar]:
    """Yield bars for nodes that take time, in order. Neighbors that are too narrow to be visible become one bar."""
    run: list[Interval] = []
    for interval in intervals:
        if interval.finish <= interval.start:
            continue
        narrow = (interval.finish - interval.start) * scale < _NARROW
        if run and (not narrow or (interval.start - run[-1].finish) * scale > _NARROW / 2):
            yield _Bar(run[0].start, run[-1].finish, tuple(run))
            run = []
        if narrow:
            run.append(interval)
        else:
            yield _Bar(interval.start, interval.finish, (interval,))
    if run:
        yield _Bar(run[0].start, run[-1].finish, tuple(run))


def _fill(bar: _Bar) -> str:
    return _FILLS[traits_of(bar.nodes[0].op).cost.rate or "elementwise"][0] if len(bar.nodes) == 1 else _SEVERAL


def _drawn(bar: _Bar, y: float, axis: _Axis) -> str:
    first = bar.nodes[0]
    alone = len(bar.nodes) == 1
    names = f"{first.node} ({first.op})" if alone else f"{len(bar.nodes)} nodes: {first.node} … {bar.nodes[-1].node}"
    tip = f"{names}\n{time_text(bar.start)} to {time_text(bar.finish)}, {time_text(bar.finish - bar.start)}"
    x, width = axis.x(bar.start), max((bar.finish - bar.start) * axis.scale, 0.5)
    label = _fitted(first.node if alone else f"{len(bar.nodes)} nodes", width - 6)
    text = (
        f'<text x="{x + width / 2:.1f}" y="{y + _BAR / 2 + 4}" text-anchor="middle" font-size="11" '
        f'font-family="ui-monospace, monospace">{escape(label)}</text>'
        if label
        else ""
    )
    return (
        f'<g><title>{escape(tip)}</title><rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_BAR}" '
        f'fill="{_fill(bar)}" stroke="#555" stroke-width="{0.7 if width > _NARROW else 0}"/>{text}</g>'
    )


def _fitted(name: str, width: float, character: float = _CHARACTER) -> str:
    """Return as much of the end of a name as fits, because names of nodes differ at their ends."""
    room = int(width / character)
    if len(name) <= room:
        return name
    return "…" + name[len(name) - room + 1 :] if room >= 4 else ""


def _arc(transfer: Transfer, lanes: Mapping[str, float], axis: _Axis) -> _Arc:
    source, destination = lanes[transfer.source], lanes[transfer.destination]
    y1, y2 = (source + _BAR, destination) if source < destination else (source, destination + _BAR)
    return _Arc(transfer, axis.x(transfer.start), y1, axis.x(transfer.finish), y2)


def _curve(arc: _Arc, labels: Mapping[str, str]) -> str:
    transfer, x1, y1, x2, y2 = arc
    middle = (y1 + y2) / 2
    name = f"^{transfer.node}" if transfer.port < 0 else f"{transfer.node}:{transfer.port}"
    tip = (
        f"{name}, {byte_text(transfer.size)}, {labels[transfer.source]} → {labels[transfer.destination]}\n"
        f"{time_text(transfer.start)} to {time_text(transfer.finish)}"
    )
    return (
        f'<path d="M{x1:.1f} {y1}C{x1:.1f} {middle} {x2:.1f} {middle} {x2:.1f} {y2}" fill="none" stroke="#9b2226" '
        f'stroke-width="1.3" opacity="0.75" marker-end="url(#arrow)"><title>{escape(tip)}</title></path>'
    )


def _arc_labels(arcs: Sequence[_Arc]) -> Iterator[str]:
    """Yield the sizes of transfers beside their arcs, where these leave a lane. Labels without room are left out."""
    taken = [_head(arc) for arc in arcs]
    for arc in arcs:
        label = byte_text(arc.transfer.size)
        box = next((box for box in _places(arc, len(label) * _CHARACTER) if not any(map(box.overlaps, taken))), None)
        if box is None:
            continue
        taken.append(box)
        # A white background, since other arcs may cross the label.
        yield (
            f'<rect x="{box.left:.1f}" y="{box.top}" width="{box.right - box.left:.1f}" height="{_LINE}" fill="white" '
            f'opacity="0.8"/><text x="{(box.left + box.right) / 2:.1f}" y="{box.bottom - 3}" text-anchor="middle" '
            f'font-size="11" fill="#9b2226">{escape(label)}</text>'
        )


def _head(arc: _Arc) -> _Box:
    """Return the box of the arrow head."""
    top = arc.y2 - 8 if arc.y1 < arc.y2 else arc.y2
    return _Box(arc.x2 - 5, top, arc.x2 + 5, top + 8)


def _places(arc: _Arc, width: float) -> Iterator[_Box]:
    """Yield the possible boxes of an arc's label, best first: in rows between its lane and the next, on both sides."""
    down = arc.y1 < arc.y2
    for row in range((_LANE - _BAR) // _LINE):
        top = arc.y1 + 2 + row * _LINE if down else arc.y1 - 2 - (row + 1) * _LINE
        for left in (arc.x1 + 6, arc.x1 - 6 - width):
            if left >= 0 and left + width <= _WIDTH:
                yield _Box(left, top, left + width, top + _LINE)


def device_labels(devices: Sequence[str]) -> dict[str, str]:
    """Return short names: "CPU:0" if all devices belong to one task, otherwise with the task: "worker/1 CPU:0"."""
    specs = {device: DeviceSpec.from_string(device) for device in devices}
    tasks = {(spec.job, spec.replica, spec.task) for spec in specs.values()}
    return {
        device: f"{spec.device_type}:{spec.device_index}"
        if len(tasks) == 1
        else f"{spec.job}/{spec.task} {spec.device_type}:{spec.device_index}"
        for device, spec in specs.items()
    }


def time_text(seconds: float) -> str:
    """Return a time with its unit: "1.25 ms"."""
    factor, unit = next(((f, u) for f, u in ((1.0, "s"), (1e3, "ms")) if seconds * f >= _ONE), (1e6, "µs"))
    return f"{seconds * factor:.3g} {unit}"


def byte_text(size: float) -> str:
    """Return a number of bytes with its unit: "4.2 MB"."""
    for power, unit in ((9, "GB"), (6, "MB"), (3, "kB")):
        if size >= _ONE * 10**power:
            return f"{size / 10**power:.3g} {unit}"
    return f"{size:.0f} B"
