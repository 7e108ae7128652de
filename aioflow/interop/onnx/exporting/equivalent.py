"""Translations that may replace our kernels while a step runs.

An exported model may be more lenient than the step, and less exact: a negative index counts from the end, the order of
segments is not checked, long sums are added naively, integers go through floats. A translation that replaces a kernel
gives the kernel's results, within the rounding of the dtype, for all finite numbers, and refuses the same inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Final, TypeAlias

from aioflow.compiler.ir import ClientGraph, Node
from aioflow.graph import dtypes

__all__ = ["is_equivalent"]

_FLOATS: Final = frozenset({dtypes.float32, dtypes.float64})
_WHOLE: Final = frozenset({dtypes.int32, dtypes.int64})
_MOST_ADDED: Final = 1024  # numbers that are added up one after another, as onnxruntime does: 6e-5 of float32 at worst

_Rule: TypeAlias = Callable[[ClientGraph, Node], bool]


def _always(graph: ClientGraph, node: Node) -> bool:
    return True


def _of_floats(graph: ClientGraph, node: Node) -> bool:
    return node.outputs[0].dtype in _FLOATS


def _of_numbers(graph: ClientGraph, node: Node) -> bool:
    return all(graph.spec(edge).dtype in _FLOATS | _WHOLE for edge in node.inputs)


def _with_known_vectors(graph: ClientGraph, node: Node) -> bool:
    """Require known sizes of the vectors behind the first input: one of another size might be broadcast."""
    dims = [graph.spec(edge).dims for edge in node.inputs[1:]]
    return _of_floats(graph, node) and all(each is not None and None not in each for each in dims)


def _to_floats(graph: ClientGraph, node: Node) -> bool:
    """Require a cast for which no value is out of range."""
    return _of_floats(graph, node) and graph.spec(node.inputs[0]).dtype in _FLOATS | _WHOLE | {dtypes.bool_}


def _of_few(graph: ClientGraph, node: Node) -> bool:
    """Require that each result is made of a known, small number of values."""
    dims, axes = graph.spec(node.inputs[0]).dims, graph.nodes[node.inputs[1].node]
    if not _of_floats(graph, node) or dims is None or axes.op != "Const":
        return False
    sizes = [dims[axis] for axis in set(axes.attrs["value"].reshape(-1).tolist())]
    return None not in sizes and prod(size or 0 for size in sizes) <= _MOST_ADDED


_RULES: Final[Mapping[str, _Rule]] = {
    **dict.fromkeys(("Identity", "PreventGradient", "StopGradient"), _always),
    **dict.fromkeys(("ConcatV2", "ExpandDims", "Pack", "Pad", "PadV2", "Reshape", "Shape", "Size"), _always),
    **dict.fromkeys(("Squeeze", "StridedSlice", "Transpose"), _always),
    **dict.fromkeys(("LogicalAnd", "LogicalNot", "LogicalOr", "SelectV2"), _always),
    **dict.fromkeys(("Add", "AddV2", "Mul", "Sub"), _of_numbers),
    **dict.fromkeys(("Equal", "Greater", "GreaterEqual", "Less", "LessEqual", "NotEqual"), _of_numbers),
    **dict.fromkeys(("Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "Log", "Neg", "Round", "Sign", "Sin"), _of_floats),
    **dict.fromkeys(("Div", "Inv", "Maximum", "Minimum", "Pow", "RealDiv", "Reciprocal"), _of_floats),
    **dict.fromkeys(("Rsqrt", "Sqrt", "Square", "SquaredDifference"), _of_floats),
    **dict.fromkeys(("Elu", "LeakyRelu", "Relu", "Relu6", "Selu", "Sigmoid", "Softplus", "Softsign"), _of_floats),
    **dict.fromkeys(("LogSoftmax", "Softmax", "Tanh"), _of_floats),
    **dict.fromkeys(("AvgPool", "BatchMatMulV2", "Conv2D", "Conv3D", "DepthwiseConv2dNative"), _of_floats),
    **dict.fromkeys(("MatMul", "MaxPool"), _of_floats),
    **dict.fromkeys(("BiasAdd", "FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _with_known_vectors),
    **dict.fromkeys(("Mean", "Sum"), _of_few),
    "Cast": _to_floats,
}


def is_equivalent(graph: ClientGraph, node: Node) -> bool:
    """Return whether the translation of a node may replace its kernel."""
    rule = _RULES.get(node.op)
    return rule is not None and rule(graph, node)
