"""Ranks that an op fixes for its inputs, for tensors whose shape the model does not state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.translating import OnnxNode, OnnxValue

_Inputs: TypeAlias = Sequence[OnnxValue]
_Rank: TypeAlias = int | None


def _fixed(*ranks: _Rank) -> Callable[[OnnxNode, _Inputs], Sequence[_Rank]]:
    return lambda node, inputs: ranks


def _windows(node: OnnxNode, inputs: _Inputs) -> Sequence[_Rank]:
    return (2 + len(node.required("kernel_shape")),)


def _like(index: int) -> Callable[[OnnxNode, _Inputs], Sequence[_Rank]]:
    """Return a rule: the first input has the rank of the input at `index`."""
    return lambda node, inputs: (_rank(inputs[index]),)


def _alike(node: OnnxNode, inputs: _Inputs) -> Sequence[_Rank]:
    """Return the same rank for all inputs."""
    known = next((rank for each in inputs if (rank := _rank(each)) is not None), None)
    return [known] * len(inputs)


def _order(node: OnnxNode, inputs: _Inputs) -> Sequence[_Rank]:
    return (len(node.attr("perm", [])) or None,)


def _pads(node: OnnxNode, inputs: _Inputs) -> Sequence[_Rank]:
    if len(inputs) > 3 and inputs[3] is not None:
        return ()  # only some axes are padded
    given = node.attr("pads") or node.attr("paddings") or []
    length = _length(inputs[1]) if len(inputs) > 1 else len(given)
    # Two paddings for each axis.
    return (length // 2 if length else None,)


def _scales(node: OnnxNode, inputs: _Inputs) -> Sequence[_Rank]:
    if node.attr("axes") is not None:
        return ()
    given = inputs[2:] or inputs[1:]  # scales and sizes; from opset 11 on they follow roi
    return (next(filter(None, map(_length, given)), len(node.attr("scales", [])) or None),)


def _rank(tensor: OnnxValue) -> _Rank:
    return len(tensor.dims) if isinstance(tensor, Tensor) and tensor.dims is not None else None


def _length(vector: OnnxValue) -> int | None:
    return vector.dims[0] if isinstance(vector, Tensor) and vector.dims else None


# Ranks of the first inputs, by op. Inputs that onnxruntime accepts with several ranks are not listed.
_RANKS: Final[Mapping[str, Callable[[OnnxNode, _Inputs], Sequence[_Rank]]]] = {
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), _windows),
    **dict.fromkeys(("Conv", "ConvInteger", "ConvTranspose", "DeformConv"), _like(1)),
    **dict.fromkeys(("DepthToSpace", "LRN", "SpaceToDepth"), _fixed(4)),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _fixed(3)),
    **dict.fromkeys(("Resize", "Upsample"), _scales),
    "Concat": _alike,
    "EyeLike": _fixed(2),
    "Gemm": _fixed(2, 2),
    "GridSample": _alike,
    "NonMaxSuppression": _fixed(3, 3),
    "Pad": _pads,
    "QLinearConv": _like(3),
    "RoiAlign": _fixed(4, 2, 1),
    "Transpose": _order,
}


def implied_ranks(node: OnnxNode, domain: str, inputs: _Inputs) -> dict[int, int]:
    """Return the ranks that the node requires of its inputs of unknown rank, by input position."""
    # Ops of other domains may have the same names.
    known = _RANKS.get(node.proto.op_type) if not domain else None
    unknown = [i for i, each in enumerate(inputs) if isinstance(each, Tensor) and each.dims is None]
    if known is None or not unknown:
        return {}
    ranks = known(node, inputs)
    return {i: rank for i in unknown if i < len(ranks) and (rank := ranks[i]) is not None}
