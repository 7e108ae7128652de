"""Places of the layers of a picture: one below another, and in several columns if one would be too long to read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from aioflow.observe.picture.layers import BoxPosition, PictureLayout

_ROOM: Final = 34.0  # between layers
_CROWD: Final = 3.0  # extra room for each edge that passes
_MOST_ROOM: Final = 90.0
_LONG: Final = 1400.0  # height of a single column that needs no second one
_TALL: Final = 1.25  # height of a picture with several columns, as a multiple of its width
_MOST: Final = 40  # columns
_LANE: Final = 6.0  # between edges from one column to the next
_EDGE: Final = 14.0  # between these edges and the boxes
_SLACK: Final = 0.2  # of the height of a column, within which it may end where the fewest edges pass


@dataclass(frozen=True, slots=True)
class Sheet:
    """The places of the layers.

    Attributes:
        tops: Top of each layer.
        heights: Height of each layer.
        columns: Column of each layer.
        shifts: Distance by which each column is moved to the right.
        gutters: Left end of the space after each column.
        lanes: Number of each edge among those that lead from a column to the next, by column and edge.
        begin: Top of the columns.
        width: Right end of the last column.
        bottom: Lower end of the longest column.
    """

    tops: Sequence[float]
    heights: Sequence[float]
    columns: Sequence[int]
    shifts: Sequence[float]
    gutters: Sequence[float]
    lanes: Mapping[tuple[int, tuple[str, str]], int]
    begin: float
    width: float
    bottom: float

    def x(self, place: BoxPosition) -> float:
        """Return the horizontal position of the center of a box, or of an edge at a layer."""
        return place.x + self.shifts[self.columns[place.layer]]

    def side(self, place: BoxPosition, height: float | None, bottom: bool) -> float:
        """Return the top or the bottom of a box of that height; None for that of the whole layer."""
        high = self.heights[place.layer] if height is None else height
        middle = self.tops[place.layer] + self.heights[place.layer] / 2
        return middle + high / 2 if bottom else middle - high / 2

    def around(self, source: BoxPosition, target: BoxPosition, edge: tuple[str, str]) -> Iterator[tuple[float, float]]:
        """Yield the corners of an edge from a layer to one in the next or previous column."""
        upper, lower = (source, target) if source.layer < target.layer else (target, source)
        column = self.columns[upper.layer]
        lane = self.lanes[column, edge] * _LANE + _EDGE
        across = self.gutters[column] + lane
        below = self.tops[upper.layer] + self.heights[upper.layer] + lane
        above = self.begin - lane
        corners = [(self.x(upper), below), (across, below), (across, above), (self.x(lower), above)]
        yield from corners if upper is source else corners[::-1]


def arranged(layout: PictureLayout, sizes: Mapping[str, tuple[float, float]], top: float) -> Sheet:
    """Return the places of the layers.

    Args:
        layout: Positions in the layers.
        sizes: Width and height of each box.
        top: Space to leave above.
    """
    count = 1 + max((place.layer for place in layout.places.values()), default=-1)
    heights = [0.0] * count
    spans = [(0.0, 0.0)] * count  # left and right end of each layer
    for name, place in layout.places.items():
        wide, high = sizes[name]
        heights[place.layer] = max(heights[place.layer], high)
        spans[place.layer] = _joined(spans[place.layer], (place.x - wide / 2, place.x + wide / 2))
    for path in layout.paths.values():
        for point in path:
            spans[point.layer] = _joined(spans[point.layer], (point.x, point.x))
    crossing: list[list[tuple[str, str]]] = [[] for _ in range(count)]  # the edges that pass the gap below each layer
    for edge in layout.paths:
        first, last = sorted(layout.places[name].layer for name in edge)
        for layer in range(first, last):
            crossing[layer].append(edge)
    rows = [high + min(_MOST_ROOM, _ROOM + _CROWD * len(crossing[i])) for i, high in enumerate(heights)]
    crossings = [len(each) for each in crossing]
    sheet = _sheet(heights, rows, spans, crossing, [], top)
    for number in range(2, _MOST + 1):
        if sheet.bottom <= max(_LONG, _TALL * sheet.width):
            break
        sheet = _sheet(heights, rows, spans, crossing, _ends(rows, crossings, number), top)
    return sheet


def _joined(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    # (0, 0) is that of a layer without boxes.
    return other if one == (0.0, 0.0) else (min(one[0], other[0]), max(one[1], other[1]))


def _ends(rows: Sequence[float], crossings: Sequence[int], number: int) -> list[int]:
    """Return the last layers of the columns but the last: near equal parts of the height, where few edges pass."""
    total = sum(rows)
    starts = [0.0, *accumulate(rows)]
    found: list[int] = []
    for part in range(1, number):
        wanted, slack = total * part / number, total / number * _SLACK
        near = [i for i in range(len(rows) - 1) if abs(starts[i] + rows[i] - wanted) <= slack and i not in found]
        if near:
            found.append(min(near, key=lambda i: (crossings[i], abs(starts[i] + rows[i] - wanted))))
    return sorted(found)


def _sheet(
    heights: Sequence[float],
    rows: Sequence[float],
    spans: Sequence[tuple[float, float]],
    crossing: Sequence[Sequence[tuple[str, str]]],
    ends: Sequence[int],
    top: float,
) -> Sheet:
    most = max((len(crossing[end]) for end in ends), default=0)
    begin = top + (most * _LANE + _EDGE if ends else 0.0)
    tops, columns, y = [], [], begin
    for layer, row in enumerate(rows):
        tops.append(y)
        columns.append(sum(end < layer for end in ends))
        y = begin if layer in ends else y + row
    shifts, gutters, right = [], [], 0.0
    extents: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for column, span in zip(columns, spans, strict=True):
        extents[column].append(span)
    for column, found in sorted(extents.items()):
        left = min(span[0] for span in found)
        # A single column keeps the positions of the layout.
        shifts.append(right - left if ends else 0.0)
        right = shifts[-1] + max(span[1] for span in found)
        gutters.append(right)
        if column < len(ends):
            right += len(crossing[ends[column]]) * _LANE + 2 * _EDGE
    lanes = {(column, edge): lane for column, end in enumerate(ends) for lane, edge in enumerate(crossing[end])}
    below = [tops[i] + heights[i] + (len(crossing[i]) * _LANE + _EDGE if i in ends else 0.0) for i in range(len(tops))]
    return Sheet(tops, heights, columns, shifts, gutters, lanes, begin, right, max(below, default=top - _EDGE))
