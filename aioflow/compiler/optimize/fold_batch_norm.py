"""Folding of batch normalization into the preceding convolution's filter and a bias, for inference.

Source: Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
2018, 3.2. Grappler and XLA have equivalents.

With fixed statistics, y = (conv(x, w) - mean) * slope + offset, where slope = scale / sqrt(variance + epsilon). This
equals conv(x, w * slope) + (offset - mean * slope), which reads and writes the whole image one time less. The sums are
rounded in another order, so the result is not bit-identical: in float32 the error is 1e-7 to 1e-6 of the largest
element of the output.

A normalization without such a convolution becomes x * slope + (offset - mean * slope) if channels come last. Later
passes fuse these two nodes with the elementwise nodes around them.

Constant factors are computed here. If they depend on variables, a few nodes on the filter stay in the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec
from aioflow.compiler.optimize.fuse_elementwise import named_elsewhere
from aioflow.compiler.optimize.rewrite import Evaluate
from aioflow.graph import dtypes
from aioflow.graph.shapes import Dims
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.traits import Role
from aioflow.memory.values import Array

_NORMS: Final = frozenset({"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"})
_CONVOLUTIONS: Final = frozenset({"Conv2D", "DepthwiseConv2dNative"})


def fold_batch_norm(graph: ClientGraph, evaluate: Evaluate) -> ClientGraph:
    """Return the graph with foldable normalizations rewritten.

    A convolution and its normalization become a convolution and a BiasAdd; other normalizations become a product and a
    sum. The last node has the name of the normalization.
    """
    norms = [node for node in graph.nodes.values() if node.op in _NORMS and not node.attrs["is_training"]]
    if not norms:
        return graph
    consumers = graph.consumers()
    pairs = dict(_pairs(graph, norms, consumers))
    alone = {norm.name for norm in norms if norm.name not in pairs and _is_affine(graph, norm, consumers[norm.name])}
    gone = {convolution.name for convolution in pairs.values()}
    made: dict[str, Node] = {}
    folding = _Folding(graph, evaluate, made)
    for name, node in graph.nodes.items():
        if name in pairs:
            folding.fold(pairs[name], node)
        elif name in alone:
            folding.fold_alone(node)
        elif name not in gone:
            made[name] = node
    return replace(graph, nodes=made)


def _pairs(
    graph: ClientGraph, norms: Iterable[Node], consumers: Mapping[str, list[Node]]
) -> Iterator[tuple[str, Node]]:
    """Yield the name of each normalization that can be folded, and the convolution before it."""
    named = named_elsewhere(graph)
    for norm in norms:
        source = norm.inputs[0]
        convolution = graph.nodes[source.node]
        only = convolution.op in _CONVOLUTIONS and consumers[source.node] == [norm] and source.node not in named
        # The image must not be a parameter of the normalization at the same time.
        if only and norm.inputs.count(source) == 1 and _alike(graph, convolution, norm, consumers[norm.name]):
            yield norm.name, convolution


def _alike(graph: ClientGraph, convolution: Node, norm: Node, readers: list[Node]) -> bool:
    """Return whether the pair agrees in device, control and channels, and only the normalized image is read."""
    shape = graph.spec(convolution.inputs[1]).dims
    if not _is_plain(graph, norm, readers) or shape is None or len(shape) != 4 or None in shape:
        return False
    return (
        all(graph.spec(edge).dims == _channels(convolution, shape) for edge in norm.inputs[1:])
        and convolution.attrs["data_format"] == norm.attrs["data_format"]
        and convolution.device == norm.device
        and convolution.control == norm.control
        and convolution.attrs.get("_class") == norm.attrs.get("_class")
    )


def _is_affine(graph: ClientGraph, norm: Node, readers: list[Node]) -> bool:
    """Return whether a plain normalization has channels last and one number per channel in every parameter."""
    dims = graph.spec(norm.inputs[0]).dims
    if not _is_plain(graph, norm, readers) or norm.attrs["data_format"] != "NHWC" or dims is None or len(dims) != 4:
        return False
    return dims[-1] is not None and all(graph.spec(edge).dims == dims[-1:] for edge in norm.inputs[1:])


def _is_plain(graph: ClientGraph, norm: Node, readers: list[Node]) -> bool:
    """Return whether all inputs are float32 and only the normalized image is read."""
    floats = all(graph.spec(edge).dtype is dtypes.float32 for edge in norm.inputs)
    return floats and all(edge.port == 0 for reader in readers for edge in reader.inputs if edge.node == norm.name)


def _channels(convolution: Node, shape: Dims) -> Dims:
    """Return the shape of a tensor with one number per output channel, for a filter of shape `shape`."""
    *_, inputs, outputs = (size or 0 for size in shape or ())
    return (inputs * outputs,) if convolution.op == "DepthwiseConv2dNative" else (outputs,)


class _Folding:
    """Construction of the nodes that replace normalizations."""

    def __init__(self, graph: ClientGraph, evaluate: Evaluate, made: dict[str, Node]) -> None:
        self._graph = graph
        self._evaluate = evaluate
        self._made = made

    def fold(self, convolution: Node, norm: Node) -> None:
        """Add a convolution with the scaled filter, and the bias under the name of the normalization."""
        kernel = convolution.inputs[1]
        shape = self._graph.spec(kernel).dims
        slope, bias = self._line(norm, _channels(convolution, shape))
        factors = slope
        if convolution.op == "DepthwiseConv2dNative":  # the filter is [height, width, channels, multiplier]
            rows = self._constant_beside(norm, slope, "shape", np.array((shape or ())[2:], np.int32))
            factors = self._add(norm, "Reshape", (slope, rows), (shape or ())[2:], Tshape=dtypes.int32)
        scaled = self._add(norm, "Mul", (kernel, factors), shape)
        self._made[convolution.name] = replace(convolution, inputs=(convolution.inputs[0], scaled))
        attrs = {"T": dtypes.float32, "data_format": norm.attrs["data_format"], **_placed(norm)}
        edges = (Edge(convolution.name, 0), bias)
        self._made[norm.name] = replace(norm, op="BiasAdd", inputs=edges, attrs=attrs, outputs=norm.outputs[:1])

    def fold_alone(self, norm: Node) -> None:
        """Add the product with the slope, and the sum under the name of the normalization."""
        dims = self._graph.spec(norm.inputs[0]).dims
        slope, bias = self._line(norm, (dims or ())[-1:])
        sloped = self._add(norm, "Mul", (norm.inputs[0], slope), norm.outputs[0].dims)
        attrs = {"T": dtypes.float32, **_placed(norm)}
        self._made[norm.name] = replace(norm, op="AddV2", inputs=(sloped, bias), attrs=attrs, outputs=norm.outputs[:1])

    def _line(self, norm: Node, channels: Dims) -> tuple[Edge, Edge]:
        """Return the slope and the bias, each with one number per channel."""
        _, scale, offset, mean, variance = norm.inputs
        epsilon = self._constant_beside(norm, variance, "epsilon", np.float32(norm.attrs["epsilon"]))
        steadied = self._add(norm, "AddV2", (variance, epsilon), channels)
        slope = self._add(norm, "RealDiv", (scale, self._add(norm, "Sqrt", (steadied,), channels)), channels)
        return slope, self._add(norm, "Sub", (offset, self._add(norm, "Mul", (mean, slope), channels)), channels)

    def _add(self, norm: Node, op: str, inputs: tuple[Edge, ...], dims: Dims, **attrs: object) -> Edge:
        """Add a node beside `norm`, or the constant that it evaluates to, and return its output."""
        name = self._free(f"{norm.name}/{op}")
        attrs = {"T": dtypes.float32, **attrs, **_placed(norm)}
        specs = (OutputSpec(dtypes.float32, dims),)
        node = Node(name, op, inputs, norm.control, attrs, specs, norm.device, norm.source)
        sources = [self._made[edge.node] for edge in inputs]
        if all(source.role is Role.CONSTANT for source in sources):
            graph = replace(self._graph, nodes=self._made)
            # None if it cannot be computed now. Then the node stays in the step.
            values = self._evaluate(node, graph, [source.attrs["value"] for source in sources])
            if values is not None:
                # The constant waits for everything that the node and its inputs waited for: they may be alive only in
                # one branch.
                waits = dict.fromkeys(c for one in (node, *sources) for c in one.control)
                return self._constant(norm, name, np.asarray(values[0]), tuple(waits))
        self._made[name] = node
        return Edge(name, 0)

    def _constant_beside(self, norm: Node, value: Edge, what: str, constant: Array | np.float32) -> Edge:
        """Add a constant that is alive in the same branch and loop iteration as `value`."""
        source = self._made[value.node]
        # A Const without control inputs is alive everywhere; waiting for the source makes it dead where the source is.
        control = source.control if source.role is Role.CONSTANT else (source.name,)
        return self._constant(norm, self._free(f"{norm.name}/{what}"), np.asarray(constant), control)

    def _constant(self, norm: Node, name: str, value: Array, control: tuple[str, ...]) -> Edge:
        dtype = dtypes.as_dtype(value.dtype)
        attrs: Attrs = {"value": value, "dtype": dtype, **_placed(norm)}
        specs = (OutputSpec(dtype, value.shape),)
        self._made[name] = Node(name, "Const", (), control, attrs, specs, norm.device, norm.source)
        return Edge(name, 0)

    def _free(self, name: str) -> str:
        """Return `name`, numbered if a node already has it."""
        found, number = name, 0
        while found in self._made or found in self._graph.nodes:
            number += 1
            found = f"{name}_{number}"
        return found


def _placed(norm: Node) -> Attrs:
    return {"_class": norm.attrs["_class"]} if "_class" in norm.attrs else {}
