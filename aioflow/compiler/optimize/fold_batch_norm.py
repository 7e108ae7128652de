"""Fold batch normalisation of a convolution into its filter and a bias, for inference (Jacob et al., "Quantization and
Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", 2018, 3.2; Grappler's and XLA's
equivalents).

With fixed statistics y = (conv(x, w) - mean) * slope + offset with slope = scale / sqrt(variance + epsilon), which is
conv(x, w * slope) + (offset - mean * slope): the whole image is read and written once less. The sums are rounded in
another order, so the result is not the same to the last bit: relative to the largest element of the output, errors of
1e-7 to 1e-6 in float32.

What is constant is computed here; with variables the few nodes on the filter are left for each step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec
from aioflow.compiler.optimize.evaluate import Evaluate
from aioflow.compiler.optimize.fuse_elementwise import named_elsewhere
from aioflow.graph import dtypes
from aioflow.graph.shapes import Dims

__all__ = ["fold_batch_norm"]

_NORMS: Final = frozenset({"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"})
_CONVOLUTIONS: Final = frozenset({"Conv2D", "DepthwiseConv2dNative"})


def fold_batch_norm(graph: ClientGraph, evaluate: Evaluate) -> ClientGraph:
    """The graph in which such pairs are a convolution and a BiasAdd, which has the name of the normalisation."""
    pairs = dict(_pairs(graph))
    if not pairs:
        return graph
    gone = {convolution.name for convolution in pairs.values()}
    made: dict[str, Node] = {}
    folding = _Folding(graph, evaluate, made)
    for name, node in graph.nodes.items():
        if name in pairs:
            folding.fold(pairs[name], node)
        elif name not in gone:
            made[name] = node
    return replace(graph, nodes=made)


def _pairs(graph: ClientGraph) -> Iterator[tuple[str, Node]]:
    """The name of each normalisation that can be folded, with the convolution before it."""
    consumers, named = graph.consumers(), named_elsewhere(graph)
    for norm in graph.nodes.values():
        if norm.op not in _NORMS or norm.attrs["is_training"]:
            continue
        source = norm.inputs[0]
        convolution = graph.nodes[source.node]
        only = convolution.op in _CONVOLUTIONS and consumers[source.node] == [norm] and source.node not in named
        if only and norm.inputs.count(source) == 1 and _alike(graph, convolution, norm, consumers[norm.name]):
            yield norm.name, convolution


def _alike(graph: ClientGraph, convolution: Node, norm: Node, readers: list[Node]) -> bool:
    """Whether the two run at one place and time, with as many channels, and only the normalised image is read."""
    floats = all(graph.spec(edge).dtype is dtypes.float32 for edge in norm.inputs)
    first_only = all(edge.port == 0 for reader in readers for edge in reader.inputs if edge.node == norm.name)
    shape = graph.spec(convolution.inputs[1]).dims
    if not floats or not first_only or shape is None or len(shape) != 4 or None in shape:
        return False
    return (
        all(graph.spec(edge).dims == _channels(convolution, shape) for edge in norm.inputs[1:])
        and convolution.attrs["data_format"] == norm.attrs["data_format"]
        and convolution.device == norm.device
        and convolution.control == norm.control
        and convolution.attrs.get("_class") == norm.attrs.get("_class")
    )


def _channels(convolution: Node, shape: Dims) -> Dims:
    """The shape of one number per output channel, for a filter of that shape."""
    *_, inputs, outputs = (size or 0 for size in shape or ())
    return (inputs * outputs,) if convolution.op == "DepthwiseConv2dNative" else (outputs,)


class _Folding:
    """Adds the nodes that take the place of each pair."""

    def __init__(self, graph: ClientGraph, evaluate: Evaluate, made: dict[str, Node]) -> None:
        self._graph = graph
        self._evaluate = evaluate
        self._made = made

    def fold(self, convolution: Node, norm: Node) -> None:
        """Add a convolution with the scaled filter, and the bias under the name of the normalisation."""
        _, scale, offset, mean, variance = norm.inputs
        kernel = convolution.inputs[1]
        shape = self._graph.spec(kernel).dims
        channels = _channels(convolution, shape)
        epsilon = self._constant_beside(norm, variance, "epsilon", np.float32(norm.attrs["epsilon"]))
        steadied = self._add(norm, "AddV2", (variance, epsilon), channels)
        slope = self._add(norm, "RealDiv", (scale, self._add(norm, "Sqrt", (steadied,), channels)), channels)
        factors = slope
        if convolution.op == "DepthwiseConv2dNative":  # its filter is [height, width, channels, multiplier]
            rows = self._constant_beside(norm, slope, "shape", np.array((shape or ())[2:], np.int32))
            factors = self._add(norm, "Reshape", (slope, rows), (shape or ())[2:], Tshape=dtypes.int32)
        scaled = self._add(norm, "Mul", (kernel, factors), shape)
        bias = self._add(norm, "Sub", (offset, self._add(norm, "Mul", (mean, slope), channels)), channels)
        self._made[convolution.name] = replace(convolution, inputs=(convolution.inputs[0], scaled))
        attrs = {"T": dtypes.float32, "data_format": norm.attrs["data_format"], **_placed(norm)}
        edges = (Edge(convolution.name, 0), bias)
        self._made[norm.name] = replace(norm, op="BiasAdd", inputs=edges, attrs=attrs, outputs=norm.outputs[:1])

    def _add(self, norm: Node, op: str, inputs: tuple[Edge, ...], dims: Dims, **attrs: Any) -> Edge:
        """A node beside `norm`, or the constant that it would be."""
        name = self._free(f"{norm.name}/{op}")
        attrs = {"T": dtypes.float32, **attrs, **_placed(norm)}
        specs = (OutputSpec(dtypes.float32, dims),)
        node = Node(name, op, inputs, norm.control, attrs, specs, norm.device, norm.source)
        sources = [self._made[edge.node] for edge in inputs]
        if all(source.op == "Const" for source in sources):
            graph = replace(self._graph, nodes=self._made)
            values = self._evaluate(node, graph, [source.attrs["value"] for source in sources])
            if values is not None:
                waits = dict.fromkeys(c for one in (node, *sources) for c in one.control)
                return self._constant(norm, name, np.asarray(values[0]), tuple(waits))
        self._made[name] = node
        return Edge(name, 0)

    def _constant_beside(self, norm: Node, value: Edge, what: str, constant: Any) -> Edge:
        """A constant that is alive in the branch and loop where `value` is."""
        source = self._made[value.node]
        control = source.control if source.op == "Const" else (source.name,)
        return self._constant(norm, self._free(f"{norm.name}/{what}"), np.asarray(constant), control)

    def _constant(self, norm: Node, name: str, value: Any, control: tuple[str, ...]) -> Edge:
        dtype = dtypes.as_dtype(value.dtype)
        attrs: Mapping[str, Any] = {"value": value, "dtype": dtype, **_placed(norm)}
        specs = (OutputSpec(dtype, value.shape),)
        self._made[name] = Node(name, "Const", (), control, attrs, specs, norm.device, norm.source)
        return Edge(name, 0)

    def _free(self, name: str) -> str:
        """A name that no node has."""
        found, number = name, 0
        while found in self._made or found in self._graph.nodes:
            number += 1
            found = f"{name}_{number}"
        return found


def _placed(norm: Node) -> dict[str, Any]:
    return {"_class": norm.attrs["_class"]} if "_class" in norm.attrs else {}
