"""Conversion of float32 products, and of the nodes between them, to 16 bits.

Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018; TensorFlow's auto_mixed_precision. Variables and
their updates stay float32.

The trait `in_16_bits` decides which ops may be converted:

- GAINS: always converted.
- FOLLOWS: converted if an input is in 16 bits, all other inputs could be (constants, feeds, variables, scalars, masks),
  and a reader wants the result in 16 bits. A value that is only read in float32 would just lose digits.
- Ops without floating-point results, such as comparisons or shapes, read whichever dtype exists.

Each value is cast at most once each way, and never back and forth. A variable is cast once a step, however many
products read it, and outside of the loop that contains them.

The results change by design, so the pass is off by default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec
from aioflow.compiler.optimize.dead_code import dead_code
from aioflow.compiler.optimize.rewrite import Evaluate
from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.opdef import OPS, traits_of
from aioflow.graph.signature.arguments import ArgDef, per_argument
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.traits import Effect, Half, Memory, Role
from aioflow.kernels.registry import ANY_DEVICE, HOST, KERNELS
from aioflow.memory.values import Array

_WIDE: Final = dtypes.float32
_RELATIVE: Final = 2.0**-8  # the largest relative rounding error of a number within range


def in_bfloat16(graph: ClientGraph, evaluate: Evaluate) -> ClientGraph:
    """Return the graph with its products in bfloat16."""
    return _in_16_bits(graph, dtypes.bfloat16, evaluate)


def in_float16(graph: ClientGraph, evaluate: Evaluate) -> ClientGraph:
    """Return the graph with its products in float16, whose range requires a scaled loss."""
    return _in_16_bits(graph, dtypes.float16, evaluate)


def _in_16_bits(graph: ClientGraph, narrow: DType, evaluate: Evaluate) -> ClientGraph:
    chosen = _wanted(graph, _candidates(graph, narrow))
    if not chosen:
        return graph
    rewriting = _Rewriting(graph, narrow)
    for node in graph.nodes.values():
        rewriting.add(node, chosen.get(node.name))
    # The float32 originals of converted constants may have lost their last reader.
    return dead_code(replace(graph, nodes=rewriting.nodes), evaluate)


# ── selection of nodes ────────────────────────────────────────────────────────────────────────────────────────────────


class _Change:
    """The conversion of one node.

    Attributes:
        attrs: The attributes of the converted node.
        inputs: The positions of the inputs in 16 bits.
        outputs: The positions of the outputs in 16 bits.
    """

    __slots__ = ("attrs", "inputs", "outputs")

    def __init__(self, attrs: Attrs, inputs: frozenset[int], outputs: frozenset[int]) -> None:
        self.attrs = attrs
        self.inputs = inputs
        self.outputs = outputs


def _candidates(graph: ClientGraph, narrow: DType) -> dict[str, _Change]:
    """Return every conversion that is possible, whether or not a reader wants its result in 16 bits."""
    found: dict[str, _Change] = {}
    made: set[Edge] = set()  # values in 16 bits
    neutral: set[str] = set()  # unconverted nodes whose results could be in 16 bits
    for name, node in graph.nodes.items():
        half = _half(node)
        change = None
        if half is Half.GAINS:
            change = _change(node, narrow, range(len(node.inputs)))
        elif half is Half.FOLLOWS:
            change = _following(graph, node, narrow, made, neutral)
        elif traits_of(node.op).only_shapes:
            change = _change(node, narrow, [i for i, edge in enumerate(node.inputs) if edge in made])
        if change is not None:
            found[name] = change
            made.update(Edge(name, port) for port in change.outputs)
        elif _is_neutral(graph, node, half, neutral):
            neutral.add(name)
    return found


def _half(node: Node) -> Half:
    return traits_of(node.op).in_16_bits


def _following(graph: ClientGraph, node: Node, narrow: DType, made: set[Edge], neutral: set[str]) -> _Change | None:
    places = [i for i, edge in enumerate(node.inputs) if graph.spec(edge).dtype is _WIDE]
    if traits_of(node.op).memory is Memory.PASSED:
        # An op that only passes values on follows those that are in 16 bits already.
        places = [i for i in places if node.inputs[i] in made]
    elif not all(edge in made or _fits(graph, edge, narrow, neutral) for edge in (node.inputs[i] for i in places)):
        return None
    if not any(node.inputs[i] in made for i in places):
        return None
    return _change(node, narrow, places)


def _is_neutral(graph: ClientGraph, node: Node, half: Half, neutral: set[str]) -> bool:
    """Return whether the results of an unconverted node could be in 16 bits for a reader that wants them so."""
    traits = traits_of(node.op)
    if traits.is_resident or traits.effect is Effect.READS or all(spec.dims == () for spec in node.outputs):
        return True
    if half is not Half.FOLLOWS and traits.role is not Role.ENTER:
        return False
    return all(edge.node in neutral for edge in node.inputs if graph.spec(edge).dtype.is_floating)


def _fits(graph: ClientGraph, edge: Edge, narrow: DType, neutral: set[str]) -> bool:
    """Return whether a value can be in 16 bits. A constant must be within their range."""
    if edge.node not in neutral:
        return False
    source = graph.nodes[edge.node]
    if source.role is not Role.CONSTANT:
        return True
    value: Array = source.attrs["value"]
    with np.errstate(over="ignore", under="ignore"):
        # Out of range a number becomes infinite or 0, an error far above the rounding.
        error = np.abs(value.astype(narrow.np_dtype).astype(value.dtype) - value)
    return bool((error <= np.abs(value) * _RELATIVE).all())


def _change(node: Node, narrow: DType, places: Iterable[int]) -> _Change | None:
    """Return the conversion of a node with these inputs in 16 bits where they are float32, or None if impossible."""
    definition = OPS.get(node.op)
    attrs: dict[str, Any] = dict(node.attrs)
    inputs = {*places}
    numbers = range(len(node.inputs))
    for arg, positions in per_argument(definition.inputs, node.attrs, numbers):
        if arg.list_attr is not None:
            given = zip(positions, attrs[arg.list_attr], strict=True)
            attrs[arg.list_attr] = tuple(narrow if i in inputs and t is _WIDE else t for i, t in given)
        elif arg.type_attr is not None and node.attrs[arg.type_attr] is _WIDE and inputs.issuperset(positions):
            attrs[arg.type_attr] = narrow
    # An unchanged attribute is the same object. An array among them must not reach `!=`, which would return an array.
    changed = {name for name, value in attrs.items() if value is not node.attrs[name] and value != node.attrs[name]}
    if not changed or not _is_allowed(node, attrs, changed):
        return None
    return _Change(
        attrs,
        frozenset(_places(definition.inputs, attrs, numbers, narrow, changed)),
        frozenset(_places(definition.outputs, attrs, range(len(node.outputs)), narrow, changed)),
    )


def _places(args: Sequence[ArgDef], attrs: Attrs, numbers: range, narrow: DType, changed: set[str]) -> Iterator[int]:
    """Yield the positions in 16 bits whose dtype is set by a changed attribute."""
    for arg, positions in per_argument(args, attrs, numbers):
        if arg.list_attr in changed:
            yield from (i for i, t in zip(positions, attrs[arg.list_attr], strict=True) if t is narrow)
        elif arg.type_attr in changed:
            yield from positions


def _is_allowed(node: Node, attrs: Attrs, changed: set[str]) -> bool:
    """Return whether the op accepts the attributes and every kind of device keeps a kernel for the node."""
    definition = OPS.get(node.op)
    try:
        for name in changed:
            definition.attrs[name].check(attrs[name])
    except InvalidArgumentError:
        return False
    kinds = {HOST, *(kernel.device_type for kernel in KERNELS.for_op(node.op))} - {ANY_DEVICE}
    able = [kind for kind in kinds if KERNELS.find(node.op, kind, node.attrs) is not None]
    return all(KERNELS.find(node.op, kind, attrs) is not None for kind in able)


def _wanted(graph: ClientGraph, candidates: Mapping[str, _Change]) -> dict[str, _Change]:
    """Return the candidates to convert.

    These are all that gain, those with a converted reader, and those without floating-point results whose converted
    inputs allow it.
    """
    read: set[str] = set()
    found: dict[str, _Change] = {}
    # Backwards, so that the readers of a node are decided before it.
    for node in reversed(list(graph.nodes.values())):
        change = candidates.get(node.name)
        if change is not None and (node.name in read or _half(node) is Half.GAINS):
            found[node.name] = change
            read.update(node.inputs[i].node for i in change.inputs)
    # Conversions without a 16-bit output, such as comparisons: at least one input must be converted, and no other may
    # be a candidate that stays float32 and would have to be cast.
    for name, change in candidates.items():
        sources = {graph.nodes[name].inputs[i].node for i in change.inputs}
        others = sources - found.keys()
        if not change.outputs and others != sources and others.isdisjoint(candidates):
            found[name] = change
    return found


# ── rewriting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Rewriting:
    """The graph under construction.

    Attributes:
        nodes: The nodes added so far.
    """

    def __init__(self, graph: ClientGraph, narrow: DType) -> None:
        self.nodes: dict[str, Node] = {}
        self._graph = graph
        self._dtype = narrow
        self._narrow: set[Edge] = set()  # values in 16 bits
        self._known: dict[tuple[Edge, DType], Edge] = {}  # the same values in the other type

    def add(self, node: Node, change: _Change | None) -> None:
        """Add a node, and convert it if `change` is given."""
        if change is None:
            inputs = tuple(map(self._plain, node.inputs))
            self.nodes[node.name] = replace(node, inputs=inputs) if inputs != node.inputs else node
            return
        narrowed = change.inputs
        inputs = tuple(self._as(e, self._dtype) if i in narrowed else self._plain(e) for i, e in enumerate(node.inputs))
        outputs = tuple(
            OutputSpec(self._dtype, spec.dims) if port in change.outputs else spec
            for port, spec in enumerate(node.outputs)
        )
        self.nodes[node.name] = replace(node, inputs=inputs, attrs=change.attrs, outputs=outputs)
        self._narrow.update(Edge(node.name, port) for port in change.outputs)

    def _plain(self, edge: Edge) -> Edge:
        """Return the value with the dtype that it has in the user's graph."""
        return self._as(edge, _WIDE) if edge in self._narrow else edge

    def _as(self, edge: Edge, dtype: DType) -> Edge:
        """Return the value in 16 bits, or converted back to float32."""
        if (edge in self._narrow) == (dtype is self._dtype):
            return edge
        key = (edge, dtype)
        if key not in self._known:
            self._known[key] = self._made(edge, dtype)
        return self._known[key]

    def _made(self, edge: Edge, dtype: DType) -> Edge:
        source = self.nodes[edge.node]
        spec = OutputSpec(dtype, source.outputs[edge.port].dims)
        name = self._free(f"{edge.node}/{dtype.name}")
        attrs: Attrs
        if source.role is Role.CONSTANT:
            value: Array = source.attrs["value"].astype(dtype.np_dtype)
            made = replace(source, name=name, attrs={**source.attrs, "value": value, "dtype": dtype}, outputs=(spec,))
        # A loop invariant is cast outside of the loop, so once instead of in every iteration.
        elif source.role is Role.ENTER and source.attrs["is_constant"]:
            outside = self._as(source.inputs[0], dtype)
            made = replace(source, name=name, inputs=(outside,), attrs={**source.attrs, "T": dtype}, outputs=(spec,))
        elif source.op == "Cast" and source.attrs["SrcT"] is dtype:
            return source.inputs[0]  # the user's own cast
        else:
            attrs = {"SrcT": source.outputs[edge.port].dtype, "DstT": dtype, "Truncate": False}
            made = Node(name, "Cast", (edge,), (), attrs, (spec,), source.device, source.source)
        self.nodes[name] = made
        return Edge(name, 0)

    def _free(self, name: str) -> str:
        """Return `name`, numbered if a node already has it."""
        found, count = name, 0
        while found in self.nodes or found in self._graph.nodes:
            count += 1
            found = f"{name}_{count}"
        return found
