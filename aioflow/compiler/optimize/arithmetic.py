"""Arithmetic simplification by algebra that holds to the last bit for machine numbers.

LLVM's "InstCombine" and grappler's arithmetic optimizer have such rules; this module has those that need no "fast
math". For example:

- x + 0.0 stays, because it turns -0.0 into 0.0; x - 0.0 is removed.
- not (a < b) becomes a >= b for integers only, because of NaN.
- A division by a power of two becomes a multiplication, which rounds the same quotient.

A signaling NaN may stay one where the operation would have made it quiet. The 16-bit floats and complex numbers are
left alone, because their kernels compute in other types.

The laws of an op are in its definition (`Laws`). A rule for a single op is a function of a node, in a table by op.
x * x is not made a Square: on the CPU it is the same loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from aioflow.compiler.ir import ClientGraph, Node
from aioflow.compiler.optimize.rewrite import Evaluate, RewriteRule, Rewriting, sweep
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.opdef import traits_of
from aioflow.graph.shapes import Dims, num_elements
from aioflow.graph.traits import Effect, Memory, Neutral
from aioflow.memory.values import Array

_WIDE: Final = (dtypes.float32, dtypes.float64)
_MANTISSA: Final = {dtypes.float32: 24, dtypes.float64: 53}  # bits


def arithmetic(graph: ClientGraph, evaluate: Evaluate) -> ClientGraph:
    """Return the graph without operations that change nothing, and with some others replaced by cheaper ones."""
    return sweep(graph, _simplified)


def _simplified(node: Node, rewriting: Rewriting) -> Node | None:
    rule = _RULES.get(node.op)
    return _by_laws(node, rewriting) or (None if rule is None else rule(node, rewriting))


def _by_laws(node: Node, rewriting: Rewriting) -> Node | None:
    traits = traits_of(node.op)
    laws = traits.laws
    found = None
    if traits.memory is Memory.PASSED and traits.effect is Effect.NONE and len(node.inputs) == len(node.outputs) == 1:
        found = rewriting.passed_on(node, node.inputs[0])
    if laws.undoes_itself:
        found = _undone(node, rewriting)
    if laws.idempotent:
        found = _done_already(node, rewriting)
    if laws.of_equals:
        found = _with_itself(node, rewriting)
    if found is None and laws.neutral is not None:
        found = _without_neutral(node, rewriting, laws.neutral)
    return found


def _is_exact(dtype: DType) -> bool:
    return dtype in _WIDE or dtype.is_integer or dtype.is_bool


# ── neutral elements ──────────────────────────────────────────────────────────────────────────────────────────────────


def _without_neutral(node: Node, rewriting: Rewriting, law: Neutral) -> Node | None:
    """Return x for x * 1, x / 1, x - 0, x + 0 for integers, x and True, …."""
    dtype = node.outputs[0].dtype
    neutral = law.floating if dtype.is_floating else law.whole
    if neutral is None or not _is_exact(dtype):
        return None
    for position in law.positions:
        constant, edge = rewriting.constant(node.inputs[position]), node.inputs[1 - position]
        if constant is None or not _is_all(constant, neutral, dtype):
            continue
        if _keeps_shape(rewriting.spec(edge).dims, constant.shape):
            return rewriting.copied(node, edge, keeps_order=constant.ndim < 2)
    return None


def _is_all(constant: Array, value: complex, dtype: DType) -> bool:
    """Return whether all elements are `value`, zeros with the same sign."""
    if dtype.is_unsigned and value == -1:
        # For unsigned integers -1 stands for all bits set.
        value = dtype.max
    if not constant.size or constant.reshape(-1)[0] != value or not (constant == value).all():
        return False
    return not dtype.is_floating or bool((np.signbit(constant) == np.signbit(value)).all())


def _keeps_shape(dims: Dims, other: tuple[int, ...]) -> bool:
    """Return whether a value of shape `dims` keeps its shape when it is broadcast with a tensor of shape `other`."""
    if not other:
        return True
    if dims is None or len(dims) < len(other):
        return False
    return all(size in (1, have) for size, have in zip(reversed(other), reversed(dims), strict=False))


# ── one operation on another ──────────────────────────────────────────────────────────────────────────────────────────


def _inner(node: Node, rewriting: Rewriting) -> Node:
    return rewriting.node(node.inputs[0])


def _undone(node: Node, rewriting: Rewriting) -> Node | None:
    """Return x for - -x and not not x."""
    inner = _inner(node, rewriting)
    if inner.op != node.op or not _is_exact(node.outputs[0].dtype):
        return None
    return rewriting.copied(node, inner.inputs[0], keeps_order=True)


def _done_already(node: Node, rewriting: Rewriting) -> Node | None:
    """Return the inner node for |(|x|)| and floor(floor(x))."""
    same = _inner(node, rewriting).op == node.op and _is_exact(node.outputs[0].dtype)
    return rewriting.copied(node, node.inputs[0], keeps_order=True) if same else None


def _without_sign(node: Node, rewriting: Rewriting) -> Node | None:
    """Return |x| for |-x|, and x² for (-x)² with integers."""
    inner, dtype = _inner(node, rewriting), node.outputs[0].dtype
    # The square of a NaN has the NaN's sign, so floats keep the negation.
    signed = dtype.is_integer and not dtype.is_unsigned
    if inner.op not in ("Neg", "Abs") or not (signed or (node.op == "Abs" and dtype in _WIDE)):
        return None
    edge = inner.inputs[0]
    # The negation of a value that is not compact has another memory layout than the value.
    return rewriting.remade(node, node.op, (edge,), **node.attrs) if rewriting.facts.is_compact(edge) else None


def _with_itself(node: Node, rewriting: Rewriting) -> Node | None:
    """Return x for max(x, x) and x and x."""
    first, second = node.inputs
    same = first == second and _is_exact(node.outputs[0].dtype)
    return rewriting.copied(node, first, keeps_order=True) if same else None


def _negation(node: Node, rewriting: Rewriting) -> Node | None:
    """Return a >= b for not (a < b)."""
    inner = _inner(node, rewriting)
    laws = traits_of(inner.op).laws
    # Floats have no total order: NaN is neither less nor not less.
    if not laws.opposite or not (laws.total or rewriting.spec(inner.inputs[0]).dtype.is_integer):
        return None
    return rewriting.remade(node, laws.opposite, inner.inputs, **inner.attrs)


# ── division, choice, casts, sums ─────────────────────────────────────────────────────────────────────────────────────


def _division(node: Node, rewriting: Rewriting) -> Node | None:
    """Return x * 2⁻ⁿ for x / 2ⁿ. Both round the same real number, if 2⁻ⁿ is a normal number itself."""
    dtype, divisor = node.outputs[0].dtype, rewriting.constant(node.inputs[1])
    if divisor is None or not divisor.size or dtype not in _WIDE:
        return None
    with np.errstate(all="ignore"):
        reciprocal = np.asarray(dtype.np_dtype.type(1) / divisor)
        usable = np.isfinite(reciprocal) & (np.abs(reciprocal) >= np.finfo(dtype.np_dtype).tiny)
    # A mantissa of 0.5 identifies a power of two.
    if not usable.all() or not (np.abs(np.frexp(divisor)[0]) == 0.5).all():
        return None
    control = rewriting.node(node.inputs[1]).control
    factor = rewriting.beside(node, "reciprocal", reciprocal, dtype, control)
    return replace(node, op="Mul", inputs=(node.inputs[0], factor))


def _choice(node: Node, rewriting: Rewriting) -> Node | None:
    """Return the chosen value of a choice by a constant.

    Not simplified if a shape is unknown, because the value that is not chosen may turn out not to fit. Effects of that
    value still happen.
    """
    condition = rewriting.constant(node.inputs[0])
    if condition is None or not condition.size or condition.min() != condition.max():
        return None
    chosen = node.inputs[1 if condition.min() else 2]
    known = all(num_elements(rewriting.spec(edge).dims) is not None for edge in node.inputs)
    if not known or rewriting.spec(chosen) != node.outputs[0]:
        return None
    return rewriting.copied(node, chosen)


def _cast(node: Node, rewriting: Rewriting) -> Node | None:
    """Simplify a cast to the same dtype, or a cast of a lossless cast."""
    source, target = node.attrs["SrcT"], node.attrs["DstT"]
    if source is target:
        return rewriting.copied(node, node.inputs[0], keeps_order=True)
    inner = _inner(node, rewriting)
    if inner.op != "Cast" or not _loses_nothing(inner.attrs["SrcT"], source):
        return None
    first = inner.attrs["SrcT"]
    if first is target:
        return rewriting.copied(node, inner.inputs[0], keeps_order=True)
    # The result for a float outside the range of an integer depends on the float's type.
    same = not target.is_integer or not source.is_floating or _loses_nothing(first, target)
    plain = same and _is_exact(target) and not node.attrs.get("Truncate")
    if not plain or not rewriting.facts.is_compact(inner.inputs[0]):
        return None
    return rewriting.remade(node, "Cast", inner.inputs, **{**node.attrs, "SrcT": first})


def _loses_nothing(source: DType, target: DType) -> bool:
    """Return whether every value of `source` is one of `target`."""
    if source.is_bool or source is target:
        return source is target or target.is_integer or target in _WIDE
    if source.is_integer and target.is_integer:
        return bool(target.min <= source.min and source.max <= target.max)
    if source.is_integer:
        return 8 * source.size - (not source.is_unsigned) <= _MANTISSA.get(target, 0)
    return source is dtypes.float32 and target is dtypes.float64


def _sum_of_one(node: Node, rewriting: Rewriting) -> Node | None:
    alone = len(node.inputs) == 1 and _is_exact(node.outputs[0].dtype)
    return rewriting.copied(node, node.inputs[0], keeps_order=True) if alone else None


# Rules for single ops. The laws of the op are tried first.
_RULES: Final[Mapping[str, RewriteRule]] = {
    "Abs": _without_sign,
    "AddN": _sum_of_one,
    "Cast": _cast,
    "Div": _division,
    "LogicalNot": _negation,
    "RealDiv": _division,
    "Select": _choice,
    "SelectV2": _choice,
    "Square": _without_sign,
}
