"""Fusion of connected elementwise nodes into one `_ElementwiseChain`.

The chain is evaluated block by block, so that intermediate results stay in cache (loop fusion, as in Grappler's
remapper and in XLA).

A chain grows from a node towards its inputs: a node joins if all its readers are in that one chain and its execution is
not observable otherwise. So a chain has one exit and every path out of a member leads through it: fusion cannot create
a cycle, and the chain is alive exactly when its last node would be. Only ops that fail on nothing but shapes become
members. Nodes with small results are left alone, because a strand is as fast there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import aioflow.ops.fused  # noqa: F401  # defines the ops of kernels.fused
from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.compiler.optimize.rewrite import Evaluate
from aioflow.graph.dtypes import DType
from aioflow.graph.opdef import traits_of
from aioflow.graph.shapes import Dims, num_elements
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.traits import ANY
from aioflow.kernels.fused import implied_attrs
from aioflow.kernels.registry import HOST, KERNELS
from aioflow.memory.collector import let_go

_CHAIN: Final = "_ElementwiseChain"
# Results of fewer bytes are not fused: there a chain takes as long as its members in a strand, or longer. The first
# limit holds for ops for which backends call a library, the second for ops that are compiled to machine code on the
# host.
_SMALL: Final = 128 * 1024
_SMALL_IN_CODE: Final = 16 * 1024
_LONGEST: Final = 256  # members
_MOST_INPUTS: Final = 8  # a chain keeps all of its inputs alive until it is done

# Attributes that do not affect what a node computes.
_ASIDE: Final = frozenset({"_class", "_output_shapes", "_gradient_op_type"})


def fuse_elementwise(graph: ClientGraph, evaluate: Evaluate) -> ClientGraph:
    """Return the graph with chains of elementwise nodes fused. A chain has the name of its last node."""
    chains = list(_chains(graph))
    if not chains:
        return graph
    fused = {chain[-1].name: chain for chain in chains}
    gone = {node.name for chain in chains for node in chain[:-1]}
    nodes = {
        name: _fused(graph, fused[name]) if name in fused else node
        for name, node in graph.nodes.items()
        if name not in gone
    }
    return replace(graph, nodes=nodes)


class _Growing:
    """A chain that grows towards its inputs: its members, last one first, and the values it reads from outside."""

    def __init__(self, last: Node) -> None:
        self.last = last
        self.members = [last]
        self.reads = set(last.inputs)

    def takes(self, graph: ClientGraph, node: Node) -> bool:
        """Add a node if the chain has room, and return whether it was added.

        Device, control inputs, colocation and shape must be those of the last member.
        All readers of the node must be members already.
        """
        last = self.last
        reads = self.reads - {Edge(node.name, 0)} | set(node.inputs)
        fits = (
            len(self.members) < _LONGEST
            and len(reads) <= _MOST_INPUTS
            and node.device == last.device
            and node.control == last.control
            and node.attrs.get("_class") == last.attrs.get("_class")
            and _fit(node.outputs[0].dims, last.outputs[0].dims)
        )
        if fits:
            self.members.append(node)
            self.reads = reads
        return fits


def _chains(graph: ClientGraph) -> Iterator[list[Node]]:
    """Return the members of each chain in topological order."""
    consumers = graph.consumers()
    named = named_elsewhere(graph)
    chain_of: dict[str, _Growing] = {}
    # Readers first: whether a node joins depends on the chains of its readers.
    for node in reversed(list(graph.nodes.values())):
        if not _may_be_member(graph, node):
            continue
        # Readers outside of any chain count as one more chain, None, so the node does not join.
        chains = {id(chain): chain for chain in (chain_of.get(r.name) for r in consumers[node.name])}
        chain = chains.popitem()[1] if len(chains) == 1 else None
        if chain is None or node.name in named or not chain.takes(graph, node):
            chain = _Growing(node)
        chain_of[node.name] = chain
    let_go(consumers)
    return (chain.members[::-1] for chain in {id(c): c for c in chain_of.values()}.values() if len(chain.members) > 1)


def named_elsewhere(graph: ClientGraph) -> set[str]:
    """Return the names of nodes that are targets, control inputs, or anchors of colocation."""
    found = set(graph.targets)
    for node in graph.nodes.values():
        found.update(node.control)
        found.update(group.removeprefix("loc:@") for group in node.attrs.get("_class", ()))
    return found


def _may_be_member(graph: ClientGraph, node: Node) -> bool:
    allowed = traits_of(node.op).fuses
    if not allowed or any(graph.spec(edge).dtype.name not in allowed for edge in node.inputs):
        return False
    if node.outputs[0].dtype.name not in ANY or _is_small(graph, node):
        return False
    attrs = {name: value for name, value in node.attrs.items() if name not in _ASIDE}
    if attrs != implied_attrs(node.op, [graph.spec(edge).dtype for edge in node.inputs], node.outputs[0].dtype):
        return False
    dims = node.outputs[0].dims
    if node.op == "Select":  # a condition of lower rank selects whole rows
        return dims is not None and all(_fit(graph.spec(edge).dims, dims) for edge in node.inputs)
    return all(_broadcasts_simply(graph.spec(edge).dims, dims) for edge in node.inputs)


def _is_small(graph: ClientGraph, node: Node) -> bool:
    spec = node.outputs[0]
    count = num_elements(spec.dims)
    if count is None:
        return False

    size = count * max(e.size for e in _dtypes(graph, node))
    return size < (_SMALL if size < _SMALL_IN_CODE or not _has_code(node) else _SMALL_IN_CODE)


def _has_code(node: Node) -> bool:
    kernel = KERNELS.find(node.op, HOST, node.attrs)
    return kernel is not None and bool(kernel.exact_c)


def _dtypes(graph: ClientGraph, node: Node) -> Iterator[DType]:
    yield node.outputs[0].dtype
    for edge in node.inputs:
        yield graph.spec(edge).dtype


def _fit(one: Dims, other: Dims) -> bool:
    """Return whether values of these static shapes may have the same shape at run time."""
    if one is None or other is None:
        return one is other
    return len(one) == len(other) and all(a is None or b is None or a == b for a, b in zip(one, other, strict=True))


def _broadcasts_simply(operand: Dims, result: Dims) -> bool:
    """Return whether blocks along the first axes can read the operand: a scalar, all of it, or all of its last axes."""
    if operand == () or operand is None or result is None:
        return operand == () or operand is result
    rest = operand
    # Leading sizes of 1 are the same for every block.
    while rest and rest[0] == 1:
        rest = rest[1:]
    tail = result[len(result) - len(rest) :]
    return len(rest) <= len(result) and all(a is None or b is None or a == b for a, b in zip(rest, tail, strict=True))


def _fused(graph: ClientGraph, chain: list[Node]) -> Node:
    last = chain[-1]
    made = {Edge(node.name, 0): at for at, node in enumerate(chain)}
    inputs = dict.fromkeys(edge for node in chain for edge in node.inputs if edge not in made)
    values = {edge: at for at, edge in enumerate(inputs)} | {edge: len(inputs) + at for edge, at in made.items()}
    attrs: dict[str, object] = {
        "Tin": tuple(graph.spec(edge).dtype for edge in inputs),
        "Tout": last.outputs[0].dtype,
        "ops": tuple(node.op for node in chain),
        "operands": tuple(values[edge] for node in chain for edge in node.inputs),
        "dtypes": tuple(node.outputs[0].dtype for node in chain),
        **origins(chain),
        **({"_class": last.attrs["_class"]} if "_class" in last.attrs else {}),
    }
    return replace(last, op=_CHAIN, inputs=tuple(inputs), attrs=attrs)


def origins(nodes: Sequence[Node]) -> Attrs:
    """Return the attributes that map a fused op to the names and source lines of the user's nodes."""
    return {
        "nodes": tuple(node.name for node in nodes),
        "sources": tuple("" if node.source is None else str(node.source) for node in nodes),
    }
