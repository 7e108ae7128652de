"""Parts of steps as ONNX models, for an engine that replaces aioflow's kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, prod
from typing import Final, TypeAlias

import numpy as np
from onnx import ModelProto

from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.compiler.sizes import assuming_sizes
from aioflow.graph import dtypes
from aioflow.graph.boundary import ARG, RETVAL
from aioflow.graph.dtypes import DType
from aioflow.interop.onnx.exporting.assembly import assembled
from aioflow.interop.onnx.exporting.fusing import fused
from aioflow.interop.onnx.exporting.scope import GraphBuilder
from aioflow.interop.onnx.exporting.values import ModelValue
from aioflow.interop.onnx.exporting.walk import walk
from aioflow.interop.unsupported import UnsupportedError
from aioflow.memory.values import Array

# ── translations that may replace aioflow kernels while a step runs ───────────────────────────────────────────────────
#
# An exported model may be more lenient than the step, and less exact. Negative indices count from the end, the order of
# segments is not checked, long sums are added naively, and integers are computed as floats. A translation that replaces
# a kernel returns the kernel's results, within the rounding of the dtype, for all finite numbers. It also rejects the
# same inputs.


_FLOATS: Final = frozenset({dtypes.float32, dtypes.float64})
_WHOLE: Final = frozenset({dtypes.int32, dtypes.int64})
_INTEGERS: Final = _WHOLE | {
    *(dtypes.int8, dtypes.int16, dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64),
}
_BYTE: Final = 383  # largest difference between two bytes, signed or unsigned
_MOST_ADDED: Final = 1024  # terms that onnxruntime adds one after another: a relative error of 6e-5 in float32 at worst
_MOST_MULTIPLIED: Final = 8192  # products that a convolution adds

_Rule: TypeAlias = Callable[[ClientGraph, Node], bool]


def _always(graph: ClientGraph, node: Node) -> bool:
    return True


def _of_floats(graph: ClientGraph, node: Node) -> bool:
    return node.outputs[0].dtype in _FLOATS


def _of_numbers(graph: ClientGraph, node: Node) -> bool:
    return all(graph.spec(edge).dtype in _FLOATS | _WHOLE for edge in node.inputs)


def _with_known_vectors(graph: ClientGraph, node: Node) -> bool:
    """Return whether the vectors after the first input have known sizes; others might be broadcast."""
    dims = [graph.spec(edge).dims for edge in node.inputs[1:]]
    return _of_floats(graph, node) and all(each is not None and None not in each for each in dims)


def _within_range(graph: ClientGraph, node: Node) -> bool:
    """Return whether no value of a cast is out of range, or the cast is between integers, which wrap around."""
    source, made = graph.spec(node.inputs[0]).dtype, node.outputs[0].dtype
    if made in _FLOATS:
        return source in _FLOATS | _INTEGERS | {dtypes.bool_}
    if made not in _INTEGERS:
        return False
    if source in _INTEGERS | {dtypes.bool_}:
        return True
    return source in _FLOATS and (_is_bounded(graph, node.inputs[0], made) or _is_sum(graph, node.inputs[0], made))


def _is_bounded(graph: ClientGraph, edge: Edge, dtype: DType) -> bool:
    """Return whether a value is the result of a minimum and a maximum within the dtype's range, rounded or not."""
    node = graph.nodes[edge.node]
    while node.op in ("Ceil", "Floor", "Identity", "Round"):
        node = graph.nodes[node.inputs[0].node]
    bounds: dict[str, float] = {}
    # The two nodes of a clip, in either order.
    for _ in range(2):
        if node.op not in ("Maximum", "Minimum"):
            return False
        limits = [graph.nodes[each.node].attrs["value"] for each in node.inputs if graph.nodes[each.node].op == "Const"]
        if len(limits) != 1 or limits[0].size != 1:
            return False
        bounds[node.op] = float(limits[0].reshape(()))
        node = next(graph.nodes[each.node] for each in node.inputs if graph.nodes[each.node].op != "Const")
    return bool(dtype.min <= bounds.get("Maximum", -inf) and bounds.get("Minimum", inf) <= dtype.max)


def _is_sum(graph: ClientGraph, edge: Edge, dtype: DType) -> bool:
    """Return whether a value is a sum of products of bytes within the dtype's range.

    The ONNX importer multiplies integers in this form, in floats that represent each of them exactly.
    """
    node = graph.nodes[edge.node]
    dims = graph.spec(node.inputs[0]).dims if node.op in ("BatchMatMulV2", "MatMul") else None
    if not dims or any(node.attrs.get(name) for name in ("transpose_a", "adj_x")) or dims[-1] is None:
        return False
    # A sum of `dims[-1]` products, each of two differences of at most 383 in absolute value.
    return all(_is_of_bytes(graph, each) for each in node.inputs) and dims[-1] * _BYTE**2 <= dtype.max


def _is_of_bytes(graph: ClientGraph, edge: Edge) -> bool:
    """Return whether a value is a byte, or the difference of two."""
    node = graph.nodes[edge.node]
    casts = [graph.nodes[each.node] for each in node.inputs] if node.op == "Sub" else [node]
    bytes_ = {dtypes.int8, dtypes.uint8}
    return all(cast.op == "Cast" and graph.spec(cast.inputs[0]).dtype in bytes_ for cast in casts)


def _of_some(graph: ClientGraph, node: Node) -> bool:
    """Return whether each result is the extreme of a known, positive number of values."""
    count = _count(graph, node)
    return count is not None and count > 0 and node.outputs[0].dtype in _FLOATS | _WHOLE


def _of_few(graph: ClientGraph, node: Node) -> bool:
    """Return whether each result combines a known, small number of values."""
    count = _count(graph, node)
    return count is not None and count <= _MOST_ADDED and _of_floats(graph, node)


def _count(graph: ClientGraph, node: Node) -> int | None:
    """Return the number of values that each result of a reduction combines; None if unknown."""
    dims, axes = graph.spec(node.inputs[0]).dims, graph.nodes[node.inputs[1].node]
    if dims is None or axes.op != "Const":
        return None
    # A set, because an axis may be listed twice.
    sizes = [dims[axis] for axis in set(axes.attrs["value"].reshape(-1).tolist())]
    return None if None in sizes else prod(size or 0 for size in sizes)


def _of_whole_sequences(graph: ClientGraph, node: Node) -> bool:
    """Return whether all steps of the sequences count, and the states have as many rows as the input."""
    steps = graph.nodes[node.inputs[0].node]
    x, cells, output = (graph.spec(edge).dims for edge in node.inputs[1:4])
    if not _of_floats(graph, node) or steps.op != "Const" or x is None or cells is None or len(x) != 3:
        return False
    # x is [steps, batch, size].
    return int(steps.attrs["value"]) == x[0] and cells == output and len(cells) == 2 and cells[0] == x[1]


def _of_few_products(graph: ClientGraph, node: Node) -> bool:
    """Return whether each result is a sum of a known, small number of products, with known channel groups."""
    kernel, images = graph.spec(node.inputs[1]).dims, graph.spec(node.inputs[0]).dims
    if not _of_floats(graph, node) or kernel is None or None in kernel or images is None:
        return False
    channels = images[1 if str(node.attrs["data_format"]).startswith("NC") else -1]
    # A depthwise kernel is [height, width, channels, multiplier]; any other is [sizes …, in, out], and only `out` is
    # not summed over.
    own = kernel[:2] if node.op == "DepthwiseConv2dNative" else kernel[:-1]
    return channels is not None and prod(size or 0 for size in own) <= _MOST_MULTIPLIED


def _of_few_in_window(graph: ClientGraph, node: Node) -> bool:
    """Return whether the windows contain few numbers."""
    return _of_floats(graph, node) and prod(node.attrs["ksize"]) <= _MOST_ADDED


def _of_known_places(graph: ClientGraph, node: Node) -> bool:
    """Return whether the indices are known and within bounds."""
    dims, (_, places, at) = graph.spec(node.inputs[0]).dims, (graph.nodes[edge.node] for edge in node.inputs)
    if dims is None or places.op != "Const" or at.op != "Const" or node.attrs["batch_dims"]:
        return False
    size, indices = dims[int(at.attrs["value"])], places.attrs["value"]
    # ONNX would count negative indices from the end, which the kernel rejects.
    return size is not None and bool(((indices >= 0) & (indices < size)).all())


def _of_known_sizes(graph: ClientGraph, node: Node) -> bool:
    """Return whether all inputs but the first are constants."""
    return all(graph.nodes[edge.node].op == "Const" for edge in node.inputs[1:])


def _that_can_be_counted(graph: ClientGraph, node: Node) -> bool:
    """Return whether the dtype of the result can represent the known sizes."""
    # An array with an unknown size beyond the dtype's range would not fit in memory.
    sizes = graph.spec(node.inputs[0]).dims or ()
    return max((size for size in sizes if size is not None), default=0) <= np.iinfo(node.outputs[0].dtype.np_dtype).max


_RULES: Final[Mapping[str, _Rule]] = {
    **dict.fromkeys(("Identity", "PreventGradient", "StopGradient"), _always),
    **dict.fromkeys(
        (
            "BroadcastArgs",
            "BroadcastTo",
            "ConcatV2",
            "ExpandDims",
            "OnesLike",
            "Pack",
            "Pad",
            "PadV2",
            "Reshape",
        ),
        _always,
    ),
    **dict.fromkeys(("Split", "Squeeze", "StridedSlice", "Transpose", "Unpack", "ZerosLike"), _always),
    **dict.fromkeys(("LogicalAnd", "LogicalNot", "LogicalOr", "SelectV2"), _always),
    **dict.fromkeys(("Add", "AddN", "AddV2", "Mul", "Sub"), _of_numbers),
    **dict.fromkeys(("Equal", "Greater", "GreaterEqual", "Less", "LessEqual", "NotEqual"), _of_numbers),
    **dict.fromkeys(("Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "Log", "Neg", "Round", "Sign", "Sin"), _of_floats),
    **dict.fromkeys(("Div", "Inv", "Maximum", "Minimum", "Pow", "RealDiv", "Reciprocal"), _of_floats),
    **dict.fromkeys(("Rsqrt", "Sqrt", "Square", "SquaredDifference"), _of_floats),
    **dict.fromkeys(("Elu", "LeakyRelu", "Relu", "Relu6", "Selu", "Sigmoid", "Softplus", "Softsign"), _of_floats),
    **dict.fromkeys(("LogSoftmax", "Softmax", "Tanh"), _of_floats),
    **dict.fromkeys(("BatchMatMulV2", "MatMul", "MaxPool"), _of_floats),
    **dict.fromkeys(("Conv2D", "Conv3D", "DepthwiseConv2dNative"), _of_few_products),
    "AvgPool": _of_few_in_window,
    **dict.fromkeys(("BiasAdd", "FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _with_known_vectors),
    **dict.fromkeys(("Mean", "Sum"), _of_few),
    **dict.fromkeys(("Max", "Min"), _of_some),
    **dict.fromkeys(("BlockLSTM", "BlockLSTMV2"), _of_whole_sequences),
    **dict.fromkeys(("Shape", "Size"), _that_can_be_counted),
    "SplitV": _of_known_sizes,
    "Cast": _within_range,
    "GatherV2": _of_known_places,
}


def is_equivalent(graph: ClientGraph, node: Node) -> bool:
    """Return whether the translation of a node may replace its kernel."""
    rule = _RULES.get(node.op)
    return rule is not None and rule(graph, node)


# ── models ────────────────────────────────────────────────────────────────────────────────────────────────────────────


_INPUT: Final = "input_"
_OTHER: Final = "its translation and its kernel differ for some values"


def refused_in(graph: ClientGraph, opset: int) -> Mapping[str, str]:
    """Return the nodes of a part that no translation can replace, by name, each with the reason.

    Such a node has no translation, or its translation may differ in results from its kernel.
    """
    # Unknown sizes are assumed to be large here; the engine checks the real ones (`inexact_in`) when it runs the part.
    if found := inexact_in(assuming_sizes(graph)) or _open_channels(graph):
        return dict.fromkeys(found, _OTHER)
    try:
        _walked(graph, opset)
    except UnsupportedError as error:
        return {each.node: each.why for each in error.unsupported}
    return {}


def inexact_in(graph: ClientGraph) -> list[str]:
    """Return the nodes of a part whose translation differs in results from their kernel, for values of these sizes."""
    computing = (node for node in graph.nodes.values() if node.op not in (ARG, RETVAL, "Const"))
    return [node.name for node in computing if not is_equivalent(graph, node)]


def _open_channels(graph: ClientGraph) -> list[str]:
    """Return the convolutions whose number of channel groups does not follow from static shapes."""
    convolutions = (node for node in graph.nodes.values() if node.op in ("Conv2D", "Conv3D"))
    return [node.name for node in convolutions if not is_equivalent(graph, node)]


def model_of(graph: ClientGraph, opset: int) -> tuple[ModelProto, Mapping[str, Array]]:
    """Return a part as a model, and its large constants by name.

    The model's inputs and outputs are in the order of the part's feeds and fetches. It declares the large constants as
    external data and does not contain their values.

    Raises:
        UnsupportedError: with the nodes that have no translation.
    """
    scope, values = _walked(graph, opset)
    outside: dict[str, Array] = {}
    model = assembled(scope, {f"output_{index}": value for index, value in enumerate(values)}, outside)
    return model, outside


def index_of_input(name: str) -> int:
    """Return the index of the part's input for an input of its model."""
    return int(name.removeprefix(_INPUT))


def _walked(graph: ClientGraph, opset: int) -> tuple[GraphBuilder, list[ModelValue]]:
    graph = fused(graph, opset)
    feeds = {Edge(n.name, 0): f"{_INPUT}{n.attrs['index']}" for n in graph.nodes.values() if n.op == ARG}
    results = {int(n.attrs["index"]): n.inputs[0] for n in graph.nodes.values() if n.op == RETVAL}
    wanted = [results[index] for index in range(graph.fetches)]
    return walk(graph, wanted, feeds, opset, reserved=[f"output_{index}" for index in range(graph.fetches)])
