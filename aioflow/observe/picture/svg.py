"""A graph picture as one self-contained SVG file, with names and counts as tooltips.

A page that embeds the picture can use the classes `box`, `scope` and `edge`. A scope has its name as `data-scope`,
and the names of its nodes as `data-nodes`, for a search.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from aioflow.observe.picture.columns import Sheet, arranged
from aioflow.observe.picture.layers import BoxPosition, PictureLayout, laid_out
from aioflow.observe.picture.outline import Box, Outline

_MARGIN: Final = 24.0
_GAP: Final = 22.0  # between boxes of a layer
_HEIGHT: Final = {1: 28.0, 2: 44.0, 3: 58.0}  # height of a box by its number of lines
_LINE: Final = 14.0
_TITLE: Final = 7.6  # pixels per letter
_TEXT: Final = 6.0
_LEAST: Final = 64.0
_LONGEST: Final = 34  # letters of a label
_HEAD: Final = 30.0
_LEGEND: Final = 22.0
_OPS: Final = 12  # ops listed in the tooltip of a scope

# Fills on which black text is readable: by device, or by the role of a box if nothing is placed.
COLOURS: Final = ("#8ecae6", "#ffd166", "#b7e4c7", "#e5989b", "#cdb4db", "#f4a261", "#d4e09b", "#a3c4f3")
_ROLES: Final = {"input": "#d8f3dc", "output": "#ffe5b4", "scope": "#e7ecef", "node": "#ffffff"}
# Each color with the one that replaces it on a dark ground.
_DARK: Final = (
    *zip(
        COLOURS,
        ("#1f5673", "#6b5210", "#2c5e3f", "#7a3b3f", "#57406e", "#7a4a1f", "#56602a", "#33507a"),
        strict=True,
    ),
    *zip(_ROLES.values(), ("#1f4a2c", "#5a4312", "#2b333b", "#1d2329"), strict=True),
    ("white", "#14181c"),
    ("#f4f4f4", "#2b3036"),
    ("#405060", "#aab6c2"),
    ("#607080", "#8796a5"),
    ("#8090a0", "#667482"),
)


class _Drawn(NamedTuple):
    """A box with its text and size."""

    box: Box
    lines: Sequence[str]
    width: float
    height: float


def as_svg(outline: Outline, title: str, embedded: bool = False) -> str:
    """Return the outline as the text of an SVG file.

    If it is not embedded, it has a style for programs and systems with dark colors. If it is, it has no style, which a
    page may forbid within pictures, and scopes list the names of their nodes.
    """
    title = "".join(sign if sign.isprintable() else "\ufffd" for sign in title)  # XML cannot express all the others
    drawn = {name: _sized(box) for name, box in outline.boxes.items()}
    edges = list(outline.edges)
    layout = laid_out({name: each.width for name, each in drawn.items()}, edges, _GAP)
    sheet = arranged(layout, {name: (each.width, each.height) for name, each in drawn.items()}, _HEAD + _MARGIN)
    fills = colours(outline)
    # About 9 pixels per letter of the title, in 16-pixel type.
    notes = _notes(outline)
    widest = max(map(len, notes), default=0) * _TEXT
    width = max(sheet.width, len(title) * 9.0, _legend_width(fills), widest) + 2 * _MARGIN
    y = sheet.bottom + _MARGIN
    bottom = y + _LINE * len(notes) + (_LEGEND if fills else 0.0)
    body = chain(
        _edges(outline, layout, drawn, sheet),
        *(_box(each, layout.places[name], sheet, fills, embedded) for name, each in drawn.items()),
        _legend(fills, bottom - _LEGEND),
        (
            f'<text x="{_MARGIN:.0f}" y="{y + _LINE * at:.0f}" fill="#405060">{note}</text>'
            for at, note in enumerate(notes)
        ),
    )
    return "\n".join([*_head(width, bottom, title, not embedded), *body, "</svg>", ""])


def colours(outline: Outline) -> dict[str, str]:
    """Return a fill for each device; empty unless there are at least two devices."""
    devices = sorted({box.device for box in outline.boxes.values() if box.device})
    if len(devices) < 2:
        return {}
    return {device: COLOURS[number % len(COLOURS)] for number, device in enumerate(devices)}


# ── sizes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _sized(box: Box) -> _Drawn:
    second = box.name
    if box.role == "scope":
        second = f"{box.name} · {box.nodes:,} nodes" if "/" in box.name else f"{box.nodes:,} nodes"
    elif second.rpartition("/")[2].lower() == box.title.lower() and "/" not in second:
        # A name that only repeats the op tells nothing.
        second = ""
    if box.outputs and box.role == "output":
        second = ", ".join(box.outputs)
    if box.role in ("input", "output"):
        second = f"{box.role} · {second}" if second else box.role
    weights = f"+{box.weights}" if box.weights else ""
    third = "  ".join(text for text in (box.output, weights) if text)
    lines = [_short(text) for text in (box.title, second, third) if text]
    wide = max(len(lines[0]) * _TITLE, *(len(line) * _TEXT for line in lines[1:]), 0.0)
    return _Drawn(box, lines, max(_LEAST, wide + 20.0), _HEIGHT[len(lines)])


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else "…" + text[1 - _LONGEST :]


# ── shapes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _head(width: float, height: float, title: str, dark: bool) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="Helvetica, Arial, sans-serif" font-size="10.5">'
    )
    yield f"<title>{escape(title)}</title>"
    if dark:
        rules = [f'[fill="{light}"]{{fill:{other}}}[stroke="{light}"]{{stroke:{other}}}' for light, other in _DARK]
        yield f"<style>@media (prefers-color-scheme:dark){{text{{fill:#e6e9ec}}{''.join(rules)}}}</style>"
    yield (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,1 L7,4 L0,7 z" fill="#607080"/></marker></defs>'
    )
    yield f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>'
    yield f'<text x="{_MARGIN:.0f}" y="{_HEAD:.0f}" font-size="16" font-weight="bold">{escape(title)}</text>'


def _box(drawn: _Drawn, place: BoxPosition, sheet: Sheet, fills: Mapping[str, str], embedded: bool) -> Iterator[str]:
    box = drawn.box
    center = sheet.x(place) + _MARGIN
    left = center - drawn.width / 2
    top = sheet.tops[place.layer] + (sheet.heights[place.layer] - drawn.height) / 2
    fill = fills.get(box.device, "#f4f4f4") if fills else _ROLES[box.role]
    round_ = drawn.height / 2 if box.role in ("input", "output") else 5.0
    shape = f'x="{left:.1f}" y="{top:.1f}" width="{drawn.width:.1f}" height="{drawn.height:.1f}" rx="{round_:.1f}"'
    kind = f'class="scope" data-scope={quoteattr(box.name)}' if box.role == "scope" else 'class="box"'
    if embedded and box.role == "scope":
        names = "\n".join(box.contents)
        kind += f" data-nodes={quoteattr(names)}"
    yield f"<g {kind}><title>{escape(_tooltip(box))}</title>"
    if box.role == "scope":
        # A second outline, shifted by 3 pixels, suggests a stack of nodes.
        behind = f'x="{left + 3:.1f}" y="{top + 3:.1f}" width="{drawn.width:.1f}" height="{drawn.height:.1f}" rx="5"'
        yield f'<rect {behind} fill="white" stroke="#8090a0"/>'
    yield f'<rect {shape} fill="{fill}" stroke="#405060"/>'
    y = top + drawn.height / 2 - (len(drawn.lines) - 1) * _LINE / 2 + 4
    for number, line in enumerate(drawn.lines):
        style = 'font-size="12.5" font-weight="bold"' if not number else 'fill="#405060"'
        yield (
            f'<text x="{center:.1f}" y="{y + number * _LINE:.1f}" text-anchor="middle" {style}>{escape(line)}</text>'
        )
    yield "</g>"


def _tooltip(box: Box) -> str:
    lines = [box.name]
    if box.role == "scope":
        lines += [f"{count} {op}" for op, count in box.ops.most_common(_OPS)]
    if box.output:
        lines.append(box.output)
    if box.weights:
        lines.append(f"{box.weights} constants and weights")
    if box.device:
        lines.append(box.device)
    return "\n".join(lines)


def _edges(outline: Outline, layout: PictureLayout, drawn: Mapping[str, _Drawn], sheet: Sheet) -> Iterator[str]:
    for (source, target), tensors in outline.edges.items():
        begin, end = layout.places[source], layout.places[target]
        down = (source, target) not in layout.turned
        points = [(begin, sheet.side(begin, drawn[source].height, bottom=down))]
        for point in layout.paths[source, target]:
            sides = (sheet.side(point, None, bottom=False), sheet.side(point, None, bottom=True))
            points += [(point, side) for side in (sides if down else sides[::-1])]
        points.append((end, sheet.side(end, drawn[target].height, bottom=not down)))
        dash = "" if tensors else ' stroke-dasharray="4 3"'
        what = ", ".join(tensor.name for tensor in tensors) or "waits"
        yield (
            f'<path class="edge" d="{_curve(points, sheet, (source, target))}" fill="none" stroke="#607080"{dash} '
            f'marker-end="url(#tip)"><title>{escape(what)}</title></path>'
        )


def _curve(points: Sequence[tuple[BoxPosition, float]], sheet: Sheet, edge: tuple[str, str]) -> str:
    """Return an SVG path through the points, vertical at each."""
    last, y = points[0]
    x = sheet.x(last) + _MARGIN
    parts = [f"M{x:.1f},{y:.1f}"]
    for place, to_y in points[1:]:
        to_x = sheet.x(place) + _MARGIN
        if sheet.columns[last.layer] != sheet.columns[place.layer]:
            # Between two columns: below the one, up or down between them, and above the other.
            corners = sheet.around(last, place, edge)
            parts += [f"L{corner_x + _MARGIN:.1f},{corner_y:.1f}" for corner_x, corner_y in corners]
            parts.append(f"L{to_x:.1f},{to_y:.1f}")
        # Half a pixel looks straight, and a line is shorter in the file.
        elif abs(to_x - x) < 0.5:
            parts.append(f"L{to_x:.1f},{to_y:.1f}")
        else:
            # Control points above and below the ends make the curve leave and arrive vertically.
            middle = (y + to_y) / 2
            parts.append(f"C{x:.1f},{middle:.1f} {to_x:.1f},{middle:.1f} {to_x:.1f},{to_y:.1f}")
        last, x, y = place, to_x, to_y
    return " ".join(parts)


# ── the legend ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _notes(outline: Outline) -> list[str]:
    """Return the lines that explain the signs of the picture."""
    found = []
    if any(box.weights for box in outline.boxes.values()):
        found.append("+N: reads N constants and weights")
    if any(box.role == "scope" for box in outline.boxes.values()):
        found.append("Box with a second one behind: a scope, or repeated blocks")
    return found


def _legend_width(fills: Mapping[str, str]) -> float:
    return sum(len(device) * _TEXT + 34 for device in fills)


def _legend(fills: Mapping[str, str], y: float) -> Iterator[str]:
    x = _MARGIN
    for device, fill in fills.items():
        yield f'<rect x="{x:.0f}" y="{y:.0f}" width="12" height="12" fill="{fill}" stroke="#405060"/>'
        yield f'<text x="{x + 17:.0f}" y="{y + 10:.0f}">{escape(device)}</text>'
        x += len(device) * _TEXT + 34
