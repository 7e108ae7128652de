"""Positions of the boxes of a directed graph: in layers from top to bottom, with few crossings and straight edges.

The method is that of Sugiyama, Tagawa and Toda (IEEE Transactions on Systems, Man, and Cybernetics 11, 1981):

1. Edges that close cycles are reversed.
2. Each box is placed below all its predecessors. Edges over several layers get a point in each layer between.
3. Each layer is sorted by the mean positions of the neighbors.
4. Boxes move as near to these means as their widths allow. That is an isotonic regression, solved exactly by pooling
   neighbors that are too near.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

_SWEEPS: Final = 12
_MOVES: Final = 40
_STRAIGHT: Final = 8.0  # weight of keeping a long edge straight, relative to centering a box
_POINT: Final = 10.0  # width of an edge at a layer that it passes

_Node: TypeAlias = str | tuple[str, str, int]
_Layers: TypeAlias = list[list[_Node]]


class BoxPosition(NamedTuple):
    """The center of a box, and its layer."""

    x: float
    layer: int


@dataclass(frozen=True, slots=True)
class PictureLayout:
    """The positions of boxes and edges.

    Attributes:
        places: Positions of the boxes.
        paths: For each edge, the points at which it passes the layers between its ends, in its own direction.
        turned: Edges that point upwards.
    """

    places: Mapping[str, BoxPosition]
    paths: Mapping[tuple[str, str], Sequence[BoxPosition]]
    turned: Collection[tuple[str, str]]


def laid_out(widths: Mapping[str, float], edges: Collection[tuple[str, str]], gap: float) -> PictureLayout:
    """Return the positions of boxes of these widths.

    Args:
        widths: Width of each box. The order is that of boxes side by side unless other rules decide.
        edges: Pairs of source and target; no box has an edge to itself.
        gap: Space between two boxes.
    """
    # Reversed edges keep their direction in the picture; only the layers treat them as pointing down.
    turned = _closing(widths, edges)
    down = {(target, source) if (source, target) in turned else (source, target) for source, target in edges}
    layer_of = _ranks(widths, down)
    layers, links = _cut(widths, sorted(down), layer_of)
    above, below = _neighbours(links)
    layers = _sorted(layers, above, below)
    sizes: dict[_Node, float] = {}
    sizes.update(widths)
    x = _moved(layers, above, below, sizes, gap)
    places = {name: BoxPosition(x[name], layer_of[name]) for name in widths}
    paths = {}
    for source, target in edges:
        pair = (target, source) if (source, target) in turned else (source, target)
        steps = range(layer_of[pair[0]] + 1, layer_of[pair[1]])
        points = [BoxPosition(x[(*pair, step)], step) for step in steps]
        paths[source, target] = points[::-1] if (source, target) in turned else points
    return PictureLayout(places, paths, turned)


def _closing(boxes: Collection[str], edges: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the edges that close a cycle in a depth-first walk."""
    after: defaultdict[str, list[str]] = defaultdict(list)
    for source, target in edges:
        after[source].append(target)
    entered = {target for _, target in edges}
    found: set[tuple[str, str]] = set()
    state: dict[str, bool] = {}  # True while the box is on the walk's path
    # Sources first: a walk that starts inside a cycle would turn another edge than a reader expects.
    for root in sorted(boxes, key=lambda box: box in entered):
        if root in state:
            continue
        state[root] = True
        # A stack of iterators instead of recursion: graphs are deeper than Python's stack.
        stack = [(root, iter(after[root]))]
        while stack:
            box, rest = stack[-1]
            for target in rest:
                if state.get(target):
                    found.add((box, target))
                elif target not in state:
                    state[target] = True
                    stack.append((target, iter(after[target])))
                    break
            else:
                state[box] = False
                stack.pop()
    return found


def _ranks(boxes: Collection[str], down: Collection[tuple[str, str]]) -> dict[str, int]:
    """Return the layer of each box: below all its predecessors; without any, right above its first successor."""
    before: dict[str, list[str]] = {box: [] for box in boxes}
    after: dict[str, list[str]] = {box: [] for box in boxes}
    for source, target in down:
        before[target].append(source)
        after[source].append(target)
    left = {box: len(sources) for box, sources in before.items()}
    ready = [box for box in boxes if not left[box]]
    found = dict.fromkeys(boxes, 0)
    # Kahn's algorithm: a box is ready when all its predecessors have a layer.
    for box in ready:  # the list grows within the loop
        for target in after[box]:
            found[target] = max(found[target], found[box] + 1)
            left[target] -= 1
            if not left[target]:
                ready.append(target)
    # Sources move down next to their readers, which shortens their edges.
    for box in reversed(ready):
        if after[box] and not before[box]:
            found[box] = min(found[target] for target in after[box]) - 1
    return found


def _cut(
    boxes: Collection[str], down: Collection[tuple[str, str]], layer_of: Mapping[str, int]
) -> tuple[_Layers, list[tuple[_Node, _Node]]]:
    """Return the layers with the points at which edges pass them, and the links from each layer to the next."""
    layers: _Layers = [[] for _ in range(max(layer_of.values(), default=-1) + 1)]
    for box in boxes:
        layers[layer_of[box]].append(box)
    links: list[tuple[_Node, _Node]] = []
    for source, target in down:
        last: _Node = source
        for step in range(layer_of[source] + 1, layer_of[target]):
            # (source, target, layer) identifies a point, and differs from all names of boxes.
            point = (source, target, step)
            layers[step].append(point)
            links.append((last, point))
            last = point
        links.append((last, target))
    return layers, links


_Near: TypeAlias = Mapping[_Node, Sequence[_Node]]


def _neighbours(links: Collection[tuple[_Node, _Node]]) -> tuple[_Near, _Near]:
    above: defaultdict[_Node, list[_Node]] = defaultdict(list)
    below: defaultdict[_Node, list[_Node]] = defaultdict(list)
    for upper, lower in links:
        below[upper].append(lower)
        above[lower].append(upper)
    return above, below


# ── the order in a layer ──────────────────────────────────────────────────────────────────────────────────────────────


def _sorted(layers: _Layers, above: _Near, below: _Near) -> _Layers:
    """Return the layers in the order with the fewest crossings found by some sweeps."""
    best, fewest = layers, _crossings(layers, below)
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        near, order = (above, layers) if downwards else (below, layers[::-1])
        made = [order[0]] if order else []
        # Each layer is sorted by the one that was sorted before it in this sweep.
        for layer in order[1:]:
            positions = {node: index for index, node in enumerate(made[-1])}
            made.append(_by_means(layer, near, positions))
        layers = made if downwards else made[::-1]
        count = _crossings(layers, below)
        if count < fewest:
            best, fewest = layers, count
    return best


def _by_means(layer: Sequence[_Node], near: _Near, positions: Mapping[_Node, int]) -> list[_Node]:
    """Sort by the mean position of the neighbors; nodes without neighbors keep their position."""
    means: dict[_Node, float] = {}
    for index, node in enumerate(layer):
        found = [positions[other] for other in near.get(node, ())]
        means[node] = sum(found) / len(found) if found else float(index)
    # The sort is stable: equal means keep their order.
    return sorted(layer, key=means.__getitem__)


def _crossings(layers: _Layers, below: _Near) -> int:
    count = 0
    for upper, lower in pairwise(layers):
        positions = {node: index for index, node in enumerate(lower)}
        seen: list[int] = []
        for node in upper:
            targets = sorted(positions[other] for other in below.get(node, ()))
            # Edges cross if their ends are in the opposite order, so these are inversions.
            count += sum(len(seen) - bisect_right(seen, target) for target in targets)
            for target in targets:
                insort(seen, target)
    return count


# ── coordinates ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _moved(
    layers: _Layers, above: _Near, below: _Near, widths: Mapping[_Node, float], gap: float
) -> dict[_Node, float]:
    """Return the center of each node, near the centers of its neighbors."""
    x: dict[_Node, float] = {}
    for layer in layers:
        left = 0.0
        for node in layer:
            x[node] = left + widths.get(node, _POINT) / 2
            left += widths.get(node, _POINT) + gap
    # The first moves align each layer with one neighbor in turn. The later ones use both, so that the positions settle.
    for move in range(_MOVES):
        order = layers if move % 2 == 0 else layers[::-1]
        for layer in order:
            _move(
                layer,
                x,
                (above, below) if move >= _MOVES // 2 else (above,) if move % 2 == 0 else (below,),
                widths,
                gap,
            )
    # The picture begins at 0.
    least = min((x[node] - widths.get(node, _POINT) / 2 for node in x), default=0.0)
    return {node: value - least for node, value in x.items()}


def _move(
    layer: Sequence[_Node],
    x: dict[_Node, float],
    near: Sequence[_Near],
    widths: Mapping[_Node, float],
    gap: float,
) -> None:
    """Move a layer towards the means of its neighbors, as far as its order and widths allow."""
    offsets, offset = [], 0.0
    wishes, weights = [], []
    for index, node in enumerate(layer):
        if index:
            # The distance from the layer's first box if all boxes were packed. x − offset must not decrease.
            offset += (widths.get(layer[index - 1], _POINT) + widths.get(node, _POINT)) / 2 + gap
        others = [other for each in near for other in each.get(node, ())]
        is_point = isinstance(node, tuple)
        pulls = [_STRAIGHT if is_point and isinstance(other, tuple) else 1.0 for other in others]
        wish = sum(p * x[other] for p, other in zip(pulls, others, strict=True)) / sum(pulls) if others else x[node]
        wishes.append(wish - offset)
        weights.append(sum(pulls) or 0.01)  # a box without neighbors gives way to the others
        offsets.append(offset)
    for node, value, shift in zip(layer, _monotone(wishes, weights), offsets, strict=True):
        x[node] = value + shift


def _monotone(wishes: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the nondecreasing sequence nearest to these numbers by weighted least squares."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, number of elements
    for wish, weight in zip(wishes, weights, strict=True):
        pools.append((wish, weight, 1))
        # Pool adjacent violators: two pools in the wrong order become one at their weighted mean.
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (left, heavy, many), (right, light, few) = pools[-2:]
            pools[-2:] = [((left * heavy + right * light) / (heavy + light), heavy + light, many + few)]
    return [mean for mean, _, count in pools for _ in range(count)]
