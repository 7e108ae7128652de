"""What ops give where all that they read is known: NumPy's own functions on arrays of a few elements.

An entry may give None, or raise what NumPy raises: then the value is not known, and what is wrong with it is said by
the step that runs the op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from aioflow.graph.shapes import num_elements
from aioflow.graph.strided import strided_index

if TYPE_CHECKING:
    from aioflow.graph.arrays import Array
    from aioflow.graph.operation import Operation
    from aioflow.graph.tensor import Tensor

__all__ = ["ELEMENTS", "FACTS", "RULES"]

Fact: TypeAlias = "Callable[[Tensor], Array | None]"
Rule: TypeAlias = "Callable[[Operation, list[Array]], Array | list[Array] | None]"

_LONGEST: Final = 4096  # elements of a range or a fill: more is data


# -- without the inputs' values; None stands for a size that is not known -----------------------------------------


def _const(tensor: Tensor) -> Array | None:
    value: Array = tensor.op.attrs["value"]
    return value


def _shape(tensor: Tensor) -> Array | None:
    dims = tensor.op.inputs[tensor.value_index].dims
    return None if dims is None else np.array(dims, dtype=object if None in dims else tensor.dtype.np_dtype)


def _rank(tensor: Tensor) -> Array | None:
    dims = tensor.op.inputs[0].dims
    return None if dims is None else np.array(len(dims), dtype=np.int32)


def _size(tensor: Tensor) -> Array | None:
    count = num_elements(tensor.op.inputs[0].dims)
    return None if count is None else np.array(count, dtype=tensor.dtype.np_dtype)


FACTS: Final[Mapping[str, Fact]] = {"Const": _const, "Shape": _shape, "ShapeN": _shape, "Rank": _rank, "Size": _size}


# -- element by element -------------------------------------------------------------------------------------------


def _unary(function: Callable[[Array], Array]) -> Rule:
    return lambda op, inputs: function(inputs[0])


def _binary(function: Callable[[Array, Array], Array]) -> Rule:
    return lambda op, inputs: function(inputs[0], inputs[1])


def _division(function: Callable[[Array, Array], Array]) -> Rule:
    return lambda op, inputs: None if (inputs[1] == 0).any() else function(inputs[0], inputs[1])


def _truncated(x: Array, y: Array) -> Array:
    quotient: Array = np.where((x < 0) == (y < 0), abs(x) // abs(y), -(abs(x) // abs(y)))
    return quotient


def _integers_only(rule: Rule) -> Rule:
    """Nothing is known of floats, which a kernel may round in another way."""
    return lambda op, inputs: None if inputs[0].dtype.kind not in "iu" else rule(op, inputs)


def _cast(op: Operation, inputs: list[Array]) -> Array | None:
    wanted = op.outputs[0].dtype.np_dtype
    if inputs[0].dtype.kind != "O":
        return inputs[0].astype(wanted)
    return None if any(not isinstance(v, int | None) for v in inputs[0].flat) else inputs[0]


def _power(x: Array, y: Array) -> Array | None:
    return None if (y < 0).any() else np.power(x, y)


# -- elements moved -----------------------------------------------------------------------------------------------


def _slice(op: Operation, inputs: list[Array]) -> Array:
    value, begin, size = inputs
    index = [slice(b, None if s < 0 else b + s) for b, s in zip(begin.tolist(), size.tolist(), strict=True)]
    return value[tuple(index)]


def _strided_slice(op: Operation, inputs: list[Array]) -> Array:
    begin, end, strides = (v.tolist() for v in inputs[1:])
    return np.asarray(inputs[0][strided_index(begin, end, strides, op.attrs)])


def _gather(op: Operation, inputs: list[Array]) -> Array | None:
    axis = int(inputs[2]) if len(inputs) > 2 else 0
    if op.attrs.get("batch_dims") or (inputs[1] < 0).any():
        return None
    return np.take(inputs[0], inputs[1], axis=axis)


def _squeeze(op: Operation, inputs: list[Array]) -> Array:
    return np.squeeze(inputs[0], tuple(op.attrs["squeeze_dims"]) or None)


def _pack(op: Operation, inputs: list[Array]) -> Array:
    return np.stack(inputs, axis=op.attrs["axis"])


def _unpack(op: Operation, inputs: list[Array]) -> list[Array]:
    return [np.take(inputs[0], [i], op.attrs["axis"]).squeeze(op.attrs["axis"]) for i in range(op.attrs["num"])]


def _split(op: Operation, inputs: list[Array]) -> list[Array]:
    return np.split(inputs[1], op.attrs["num_split"], int(inputs[0]))


def _split_sizes(op: Operation, inputs: list[Array]) -> list[Array] | None:
    value, axis = inputs[0], int(inputs[2])
    counts = [int(n) for n in inputs[1]]
    if -1 in counts:
        counts[counts.index(-1)] += value.shape[axis] - sum(counts)
    if min(counts) < 0 or sum(counts) != value.shape[axis]:
        return None
    return np.split(value, np.cumsum(counts)[:-1], axis)


def _stitched(op: Operation, inputs: list[Array]) -> Array:
    count = len(inputs) // 2
    indices, data = inputs[:count], inputs[count:]
    inner = data[0].shape[indices[0].ndim :]
    merged = np.zeros((max((int(i.max()) for i in indices if i.size), default=-1) + 1, *inner), dtype=data[0].dtype)
    for where, values in zip(indices, data, strict=True):
        merged[where] = values
    return merged


def _filled(value: Array, dims: Sequence[int]) -> Array | None:
    return None if math.prod(dims) > _LONGEST else np.full(dims, value)


def _tile(op: Operation, inputs: list[Array]) -> Array | None:
    return None if math.prod(inputs[1].tolist()) * inputs[0].size > _LONGEST else np.tile(inputs[0], inputs[1])


def _broadcast_to(op: Operation, inputs: list[Array]) -> Array | None:
    dims = inputs[1].tolist()
    return None if math.prod(dims) > _LONGEST else np.broadcast_to(inputs[0], dims)


def _padded(op: Operation, inputs: list[Array]) -> Array:
    value = inputs[2] if len(inputs) > 2 else 0
    return np.pad(inputs[0], inputs[1].tolist(), constant_values=value)


def _range(op: Operation, inputs: list[Array]) -> Array | None:
    start, limit, delta = (v.item() for v in inputs)
    if not delta or not math.isfinite(limit - start) or (limit - start) / delta > _LONGEST:
        return None
    return np.arange(start, limit, delta, dtype=op.outputs[0].dtype.np_dtype)


# -- elements put together ----------------------------------------------------------------------------------------


def _reduction(function: Callable[..., Array]) -> Rule:
    def rule(op: Operation, inputs: list[Array]) -> Array:
        axes = tuple(int(a) for a in inputs[1].reshape(-1))
        return np.asarray(function(inputs[0], axis=axes, keepdims=op.attrs["keep_dims"]))

    return rule


def _extreme(function: Callable[..., Array], of_none: str) -> Rule:
    """The greatest or the least integer; `of_none` is the limit of the dtype that stands for no elements."""
    return _integers_only(
        lambda op, inputs: _reduction(
            lambda *a, **k: function(*a, initial=getattr(np.iinfo(inputs[0].dtype), of_none), **k)
        )(op, inputs)
    )


def _total(function: Callable[..., Array]) -> Rule:
    """A sum or product, which wraps around in the dtype of the op."""
    return _integers_only(
        lambda op, inputs: _reduction(lambda *a, **k: function(*a, dtype=inputs[0].dtype, **k))(op, inputs)
    )


def _running(function: Callable[..., Array]) -> Rule:
    def rule(op: Operation, inputs: list[Array]) -> Array | None:
        if op.attrs["exclusive"] or op.attrs["reverse"]:
            return None
        return function(inputs[0], axis=int(inputs[1]), dtype=inputs[0].dtype)

    return _integers_only(rule)


def _unique(op: Operation, inputs: list[Array]) -> list[Array]:
    values, first, inverse = np.unique(inputs[0], return_index=True, return_inverse=True)
    order = np.argsort(first)  # in the order of their first appearance
    return [values[order], np.argsort(order)[inverse]]


def _list_diff(op: Operation, inputs: list[Array]) -> list[Array]:
    kept = np.flatnonzero(~np.isin(inputs[0], inputs[1]))
    return [inputs[0][kept], kept]


def _broadcast_args(op: Operation, inputs: list[Array]) -> Array:
    return np.array(np.broadcast_shapes(*(tuple(v.tolist()) for v in inputs)))


RULES: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(
        ("Identity", "StopGradient", "PreventGradient", "Snapshot", "EnsureShape"), _unary(lambda value: value)
    ),
    "IdentityN": lambda op, inputs: inputs,
    "Cast": _cast,
    "Neg": _unary(np.negative),
    "Abs": _unary(np.abs),
    "Sign": _unary(np.sign),
    "Square": _unary(np.square),
    "Floor": _unary(np.floor),
    "Ceil": _unary(np.ceil),
    "Round": _unary(np.round),
    "Rint": _unary(np.rint),
    "LogicalNot": _unary(np.logical_not),
    "ZerosLike": _unary(np.zeros_like),
    "OnesLike": _unary(np.ones_like),
    **dict.fromkeys(("Add", "AddV2"), _binary(np.add)),
    "AddN": lambda op, inputs: sum(inputs[1:], inputs[0]),
    "Sub": _binary(np.subtract),
    "Mul": _binary(np.multiply),
    "Maximum": _binary(np.maximum),
    "Minimum": _binary(np.minimum),
    "Pow": _integers_only(_binary(_power)),  # type: ignore[arg-type]  # None where it is not known
    "RealDiv": _division(np.true_divide),
    "FloorDiv": _integers_only(_division(np.floor_divide)),
    **dict.fromkeys(("Div", "TruncateDiv"), _integers_only(_division(_truncated))),
    "FloorMod": _integers_only(_division(np.mod)),
    **dict.fromkeys(("Mod", "TruncateMod"), _integers_only(_division(np.fmod))),
    "Equal": _binary(np.equal),
    "NotEqual": _binary(np.not_equal),
    "Less": _binary(np.less),
    "LessEqual": _binary(np.less_equal),
    "Greater": _binary(np.greater),
    "GreaterEqual": _binary(np.greater_equal),
    "LogicalAnd": _binary(np.logical_and),
    "LogicalOr": _binary(np.logical_or),
    **dict.fromkeys(("Select", "SelectV2"), lambda op, inputs: np.where(*inputs)),
    "Pack": _pack,
    "Unpack": _unpack,
    "ConcatV2": lambda op, inputs: np.concatenate(inputs[:-1], axis=int(inputs[-1])),
    "Concat": lambda op, inputs: np.concatenate(inputs[1:], axis=int(inputs[0])),
    "Split": _split,
    "SplitV": _split_sizes,
    "Slice": _slice,
    "StridedSlice": _strided_slice,
    **dict.fromkeys(("Gather", "GatherV2"), _gather),
    "DynamicStitch": _stitched,
    "Reshape": lambda op, inputs: inputs[0].reshape(inputs[1].tolist()),
    "Squeeze": _squeeze,
    "ExpandDims": lambda op, inputs: np.expand_dims(inputs[0], int(inputs[1].reshape(()))),
    "Transpose": lambda op, inputs: inputs[0].transpose(inputs[1].tolist()),
    "ReverseV2": lambda op, inputs: np.flip(inputs[0], tuple(inputs[1].tolist())),
    "Fill": lambda op, inputs: _filled(inputs[1], inputs[0].tolist()),
    "Tile": _tile,
    "BroadcastTo": _broadcast_to,
    **dict.fromkeys(("Pad", "PadV2"), _padded),
    "Range": _range,
    "Sum": _total(np.sum),
    "Prod": _total(np.prod),
    "Max": _extreme(np.max, "min"),
    "Min": _extreme(np.min, "max"),
    "All": _reduction(np.all),
    "Any": _reduction(np.any),
    "Cumsum": _running(np.cumsum),
    "Cumprod": _running(np.cumprod),
    "InvertPermutation": _unary(np.argsort),
    "BroadcastArgs": _broadcast_args,
    "Unique": _unique,
    "ListDiff": _list_diff,
    "Where": lambda op, inputs: np.argwhere(inputs[0]),
}

# Which inputs an op only moves: its rule holds for elements that are not known, too.
ELEMENTS: Final[Mapping[str, slice]] = {
    **dict.fromkeys(("Identity", "StopGradient", "Snapshot", "EnsureShape", "Cast", "Squeeze"), slice(1)),
    **dict.fromkeys(("Slice", "StridedSlice", "Gather", "GatherV2", "Reshape", "ExpandDims", "Transpose"), slice(1)),
    **dict.fromkeys(("ReverseV2", "Tile", "Unpack", "SplitV"), slice(1)),
    **dict.fromkeys(("Pack", "IdentityN"), slice(None)),
    "ConcatV2": slice(-1),
    "Concat": slice(1, None),
    "Split": slice(1, 2),
    "Fill": slice(1, 2),
}
