"""Branches and loops."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import ShapeLike
from aioflow.interop.onnx.sequences import (
    OptionalKind,
    TensorKind,
    ValueKind,
    kind_of,
    placed,
    stored,
    widened,
)
from aioflow.interop.onnx.sizes import axis_of, int64, sizes_of
from aioflow.interop.onnx.translating import OnnxNode, OnnxValue, Subgraph, translation
from aioflow.interop.onnx.translations.sequences import stacked
from aioflow.ops import public as ops
from aioflow.ops.apply import constant
from aioflow.ops.array.tensor_list import empty_list, push


@translation("If")
def if_(node: OnnxNode, condition: Tensor) -> tuple[OnnxValue, ...]:
    then, otherwise = node.body("then_branch"), node.body("else_branch")
    known = node.constant(condition)
    # A constant condition needs no branch in the graph, and the other side may be unsupported.
    if known is not None:
        return tuple(then() if known.reshape(-1)[0] else otherwise())
    declared = [*zip(then.declared, otherwise.declared, strict=True)]
    common: list[ValueKind | None] = [None] * len(declared)
    # Both branches must store optionals if one of them returns an optional.
    if any(isinstance(kind, OptionalKind) for pair in declared for kind in pair):
        common = [_either(node, *pair) for pair in zip(then.kinds(), otherwise.kinds(), strict=True)]
    found_kinds: list[list[ValueKind]] = []

    def branch(body: Subgraph) -> list[Tensor]:
        made = body()
        found_kinds.append([kind_of(value) for value in made])
        return [stored(value, kind) for value, kind in zip(made, common, strict=True)]

    found = ops.cond(ops.reshape(condition, []), lambda: branch(then), lambda: branch(otherwise), strict=True)
    kinds = [known or _either(node, *pair) for known, *pair in zip(common, *found_kinds, strict=True)]
    return tuple(placed(*pair) for pair in zip(kinds, found, strict=True))


def _either(node: OnnxNode, one: ValueKind, other: ValueKind) -> ValueKind:
    found = widened(one, other)
    if found is None:
        raise node.wrong("the branches", f"results of one type, {one}", other)
    return found


@translation("Loop")
def loop(node: OnnxNode, count: Tensor | None, condition: Tensor | None, *start: OnnxValue) -> tuple[OnnxValue, ...]:
    body = node.body("body")
    carried, given_back, scanned = _stable_kinds(node, body, start)
    limit = None if count is None else ops.reshape(int64(count), [])

    def goes_on(i: Tensor, going: Tensor, *_: Tensor) -> Tensor:
        # ONNX's Loop ends at the trip count or when the condition is false, whichever comes first.
        return going if limit is None else ops.logical_and(going, ops.less(i, limit))

    def step(i: Tensor, going: Tensor, *values: Tensor) -> list[Tensor]:
        given = [placed(kind, value) for kind, value in zip(carried, values, strict=False)]
        again, *made = body(i, going, *given)
        lists = [push(*pair) for pair in zip(values[len(carried) :], made[len(carried) :], strict=True)]
        return [i + 1, ops.reshape(again, []), *map(stored, made[: len(carried)], carried), *lists]

    going = constant(True) if condition is None else ops.reshape(condition, [])
    first = [int64(0), going, *map(stored, start, carried), *(empty_list(kind.dtype) for kind in scanned)]
    found = ops.while_loop(goes_on, step, first, shape_invariants=_invariants(carried, len(scanned)))[2:]
    values = [placed(kind, value) for kind, value in zip(carried, found, strict=False)]
    # A start that is a plain value is carried as an optional if the body returns one; it is unwrapped if the body's
    # result is plain.
    for i, kind in enumerate(given_back):
        if isinstance(carried[i], OptionalKind) and not isinstance(kind, OptionalKind):
            values[i] = values[i].at(0)
    return (*values, *(stacked(*pair) for pair in zip(found[len(carried) :], scanned, strict=True)))


def _invariants(carried: Items[ValueKind], lists: int) -> list[ShapeLike | None]:
    """Return the static shapes that hold in every iteration."""
    return [(), (), *(kind.dims if isinstance(kind, TensorKind) else () for kind in carried), *[()] * lists]


def _stable_kinds(
    node: OnnxNode, body: Subgraph, start: Items[OnnxValue]
) -> tuple[list[ValueKind], list[ValueKind], list[TensorKind]]:
    """Return the kinds of the carried values in every iteration, of their new values, and of scan outputs.

    The kinds are widened until the new values fit them.
    """
    carried = [kind_of(value) for value in start]
    while True:
        _, *made = body.kinds(TensorKind(dtypes.int64, ()), TensorKind(dtypes.bool_, ()), *carried)
        if len(made) < len(carried):
            raise node.wrong("the body", f"at least {len(carried) + 1} outputs", len(made) + 1)
        wider = [_either(node, *pair) for pair in zip(carried, made, strict=False)]
        if wider == carried:
            scanned = [kind for kind in made[len(carried) :] if isinstance(kind, TensorKind)]
            return carried, made[: len(carried)], scanned
        carried = wider


@translation("Scan", since=9)
def scan(node: OnnxNode, *inputs: Tensor) -> tuple[Tensor, ...]:
    count = node.required("num_scan_inputs")
    body, states, rows = node.body("body"), inputs[: len(inputs) - count], inputs[len(inputs) - count :]
    outputs = len(body.outputs) - len(states)
    axes = [axis_of(node, x, a) for x, a in zip(rows, node.attr("scan_input_axes", []) or [0] * count, strict=True)]
    found = _scanned(node, body, states, rows, axes, node.attr("scan_input_directions", []) or [0] * count)
    results = list(found[: len(states)])
    directions = node.attr("scan_output_directions", []) or [0] * outputs
    places = node.attr("scan_output_axes", []) or [0] * outputs
    for made, backward, axis in zip(found[len(states) :], directions, places, strict=True):
        made = ops.reverse(made, [0]) if backward else made
        # The stack has its rows in axis 0; another axis is wanted at `place`.
        place = axis_of(node, made, axis)
        rank = len(made.dims or ())
        if place:
            made = ops.transpose(made, [*range(1, place + 1), 0, *range(place + 1, rank)])
        results.append(made)
    return tuple(results)


@translation("Scan")
def scan_of_batches(node: OnnxNode, lengths: Tensor | None, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Translate opset 8's Scan, whose inputs and outputs all have a batch axis in front."""
    if lengths is not None:
        return node.refuse("sequences of different lengths")
    count = node.required("num_scan_inputs")
    body, states, rows = node.body("body"), inputs[: len(inputs) - count], inputs[len(inputs) - count :]
    batch = (inputs[0].dims or (None,))[0]
    # Each entry of the batch gets its own copy of the body, so the number is limited.
    if batch is None or batch > 256:
        return node.refuse(f"batches of size {batch}")
    directions = node.attr("directions", []) or [0] * count
    each = [
        _scanned(node, body, [s[i] for s in states], [r[i] for r in rows], [0] * count, directions)
        for i in range(batch)
    ]
    return tuple(ops.stack(list(values)) for values in zip(*each, strict=True))


def _scanned(
    node: OnnxNode, body: Subgraph, states: Items[Tensor], rows: Items[Tensor], axes: list[int], directions: list[int]
) -> list[Tensor]:
    """Return the last states, and the scan outputs stacked along a new first axis."""
    size = int64(sizes_of(rows[0])[axes[0]])
    parts = [
        TensorKind(x.dtype, None if x.dims is None else tuple(d for i, d in enumerate(x.dims) if i != axis))
        for x, axis in zip(rows, axes, strict=True)
    ]
    carried: list[Any] = [kind_of(state) for state in states]
    while True:
        made = body.kinds(*carried, *parts)
        wider = [_either(node, *pair) for pair in zip(carried, made, strict=False)]
        if wider == carried:
            break
        carried = wider
    scanned = [kind for kind in made[len(carried) :] if isinstance(kind, TensorKind)]

    def step(i: Tensor, *values: Tensor) -> list[Tensor]:
        given = [
            ops.gather(x, size - 1 - i if backward else i, axis=axis)
            for x, axis, backward in zip(rows, axes, directions, strict=True)
        ]
        new = body(*values[: len(carried)], *given)
        lists = [push(*pair) for pair in zip(values[len(carried) :], new[len(carried) :], strict=True)]
        return [i + 1, *new[: len(carried)], *lists]

    first = [int64(0), *states, *(empty_list(kind.dtype) for kind in scanned)]
    invariants = [(), *(kind.dims for kind in carried), *[()] * len(scanned)]
    found = ops.while_loop(lambda i, *_: i < size, step, first, shape_invariants=invariants)[1:]
    return [*found[: len(carried)], *(stacked(*pair) for pair in zip(found[len(carried) :], scanned, strict=True))]
