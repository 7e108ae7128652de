"""Common subexpression elimination: nodes that do the same with the same inputs become one.

After Click, "Global code motion, global value numbering" (PLDI 1995); whitepaper 5.1. One sweep in topological order
suffices for chains, since the inputs of a node are already those of the kept nodes. Control inputs are part of the
comparison, which keeps the nodes of two branches or of two iterations apart.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable
from typing import Final, TypeAlias

import numpy as np

from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.compiler.optimize.rewrite import Evaluate, Rewriting
from aioflow.graph.opdef import OPS
from aioflow.memory.collector import let_go
from aioflow.memory.values import Array

_SAMPLE: Final = 64  # elements of a constant that enter its hash
_WITHOUT_EFFECT: Final = frozenset({"_gradient_op_type"})  # attributes that matter only during graph construction
_Key: TypeAlias = tuple[Hashable, ...]


def common_subexpressions(graph: ClientGraph, evaluate: Evaluate) -> ClientGraph:
    """Return the graph with each value computed once; of equal nodes the first stays."""
    rewriting = Rewriting(graph)
    kept: dict[_Key, Node] = {}
    for origin in graph.nodes.values():
        node = rewriting.renamed(origin)
        if rewriting.facts.is_pure(node.op):
            key = _key(node, rewriting)
            same = kept.setdefault(key, node) if key is not None else node
            if same is not node and rewriting.merge(node, same):
                continue
        rewriting.record(node, None)
    let_go(kept)
    return rewriting.finished()


def _key(node: Node, rewriting: Rewriting) -> _Key | None:
    """Return a key that is equal for nodes that do the same, or None if the node cannot be compared."""
    attrs = tuple((n, _frozen(v)) for n, v in sorted(node.attrs.items()) if n not in _WITHOUT_EFFECT)
    control = frozenset(node.control)
    key = (node.op, _inputs(node, rewriting), control, node.device, node.outputs, attrs)
    try:
        # An attribute that cannot be hashed keeps its node out of the comparison.
        hash(key)
    except TypeError:
        return None
    return key


def _inputs(node: Node, rewriting: Rewriting) -> tuple[Edge, ...]:
    """Return the inputs, sorted where their order does not matter."""
    if not OPS.get(node.op).commutative:
        return node.inputs
    # The order matters for floats: of two NaNs, the bits of the first are the result.
    dtype = rewriting.spec(node.inputs[0]).dtype
    return tuple(sorted(node.inputs)) if dtype.is_integer or dtype.is_bool else node.inputs


def _frozen(value: object) -> Hashable:
    """Return an attribute as part of a key: equal if it has the same bits (0.0 and -0.0 compare equal, but differ)."""
    if isinstance(value, np.ndarray):
        return _Bits(value)
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, tuple | list):
        return tuple(_frozen(item) for item in value)
    found: Hashable = value
    return found


class _Bits:
    """An array that is equal to another one of the same bits and layout. Its hash covers only a few elements."""

    __slots__ = ("_array", "_hash")

    def __init__(self, array: Array) -> None:
        self._array = array
        self._hash = hash((array.dtype, array.shape, _sample(array)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Bits):
            return NotImplemented
        mine, theirs = self._array, other._array
        if mine is theirs:
            return True
        alike = mine.dtype == theirs.dtype and mine.shape == theirs.shape and mine.strides == theirs.strides
        # The bytes of objects are addresses, so objects are compared by their values.
        if not alike or mine.dtype.hasobject:
            return alike and mine.tolist() == theirs.tolist()
        return np.array_equal(_raw(mine), _raw(theirs))


def _sample(array: Array) -> Hashable:
    # Flattening would copy another layout, so such an array has only dtype and shape in its hash.
    flat = array.reshape(-1) if array.flags.c_contiguous else array.reshape(-1)[:0]
    few = flat[:: flat.size // _SAMPLE + 1]
    return tuple(few.tolist()) if array.dtype.hasobject else zlib.crc32(few.tobytes())


def _raw(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
