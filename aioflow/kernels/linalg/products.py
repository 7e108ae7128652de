"""Kernels of matrix products and einsum.

Transposes are views, which BLAS reads without a copy. Small floats are multiplied in float32. Shapes that are known
when a node is bound are not checked in the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.kernels.convert import broadcast_shape
from aioflow.kernels.narrowing import narrowed
from aioflow.kernels.registry import Binding, KernelBody, binder, kernel
from aioflow.memory.values import Array, Namespace, NpDType
from aioflow.ops.linalg.einsum import Equation, Label, parse_equation

_Product: TypeAlias = Callable[[Array, Array], Array]
_Contraction: TypeAlias = Callable[[Sequence[Array]], Array]
_SMALL_FLOATS = (dtypes.float16, dtypes.bfloat16)


def _transposed(x: Array) -> Array:
    return x.T


def _same(x: Array) -> Array:
    return x


def _in_float32(multiply: _Product, own: NpDType) -> _Product:
    def product(a: Array, b: Array) -> Array:
        return narrowed(multiply(a.astype(np.float32), b.astype(np.float32)), own)

    return product


@binder("MatMul", fresh=True)
def bind_matmul(binding: Binding) -> KernelBody:
    multiply: _Product = binding.xp.matmul
    transpose_a, transpose_b = binding.attrs["transpose_a"], binding.attrs["transpose_b"]
    if binding.output_dtypes[0] in _SMALL_FLOATS:
        multiply = _in_float32(multiply, binding.output_dtypes[0].np_dtype)
    body: _Product
    match transpose_a, transpose_b:
        case False, False:
            body = multiply
        case True, False:
            body = lambda a, b: multiply(a.T, b)  # noqa: E731  # a row of a table of four
        case False, True:
            body = lambda a, b: multiply(a, b.T)  # noqa: E731  # as above
        case _:
            body = lambda a, b: multiply(a.T, b.T)  # noqa: E731  # as above
    a_dims, b_dims = binding.input_dims
    # A plan may come from an untrusted client, so these may not be the dims of matrices.
    a_dims, b_dims = (dims if dims is not None and len(dims) == 2 else (None, None) for dims in (a_dims, b_dims))
    inner = a_dims[0 if transpose_a else 1], b_dims[1 if transpose_b else 0]
    if None not in inner and inner[0] == inner[1]:
        return body
    return _checked_matmul(body, 0 if transpose_a else 1, 1 if transpose_b else 0)


def _checked_matmul(body: _Product, a_axis: int, b_axis: int) -> KernelBody:
    """Return the product of operands whose inner sizes are known only in the step."""

    def product(a: Array, b: Array) -> Array:
        left, right = a.shape, b.shape
        if len(left) != 2 or len(right) != 2 or left[a_axis] != right[b_axis]:
            raise InvalidArgumentError(
                "the operands cannot be multiplied as matrices",
                expected="rank 2 and equal inner sizes",
                actual=f"{left} times {right}",
            )
        return body(a, b)

    return product


@binder("BatchMatMul", fresh=True)
@binder("BatchMatMulV2", fresh=True)
def bind_batch_matmul(binding: Binding) -> KernelBody:
    xp, dtype = binding.xp, binding.output_dtypes[0]
    adj_x, adj_y, same = binding.attrs["adj_x"], binding.attrs["adj_y"], binding.op_type == "BatchMatMul"
    multiply = _in_float32(xp.matmul, dtype.np_dtype) if dtype in _SMALL_FLOATS else xp.matmul
    conjugate = xp.conj if dtype.is_complex else _same

    def product(x: Array, y: Array) -> Array:
        _check_batches(x.shape, y.shape, adj_x, adj_y, same)
        if adj_x:
            x = conjugate(x.swapaxes(-1, -2))
        if adj_y:
            y = conjugate(y.swapaxes(-1, -2))
        return multiply(x, y)

    return product


def _check_batches(x: tuple[int, ...], y: tuple[int, ...], adj_x: bool, adj_y: bool, same_batch: bool) -> None:
    if len(x) < 2 or len(y) < 2 or x[-2 if adj_x else -1] != y[-1 if adj_y else -2]:
        raise InvalidArgumentError(
            "the operands cannot be multiplied as matrices",
            expected="rank >= 2 and equal inner sizes",
            actual=f"{x} times {y}",
        )
    if x[:-2] == y[:-2]:
        return
    # Broadcasting aligns shapes at their ends, and a missing dimension fits any.
    pairs = zip(reversed(x[:-2]), reversed(y[:-2]), strict=False)
    if same_batch or any(a != b and 1 not in (a, b) for a, b in pairs):
        raise InvalidArgumentError(
            "the batch dimensions differ",
            expected="equal batches" if same_batch else "batches that broadcast",
            actual=f"{x} times {y}",
        )


@kernel("Cross", fresh=True)
def cross(xp: Namespace, a: Array, b: Array) -> Array:
    if a.shape != b.shape or not a.shape or a.shape[-1] != 3:
        raise InvalidArgumentError(
            "cross takes vectors of three elements", expected="equal shapes (..., 3)", actual=f"{a.shape} and {b.shape}"
        )
    result = xp.empty_like(a)
    for i in range(3):
        j, k = (i + 1) % 3, (i + 2) % 3
        result[..., i] = a[..., j] * b[..., k] - a[..., k] * b[..., j]
    return result


# ── einsum ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@binder("Einsum", dtypes={"T": "numbers"})
def bind_einsum(binding: Binding) -> KernelBody:
    xp, dtype = binding.xp, binding.output_dtypes[0]
    equation = parse_equation(binding.attrs["equation"], binding.attrs["N"])
    # By the operands' ranks, which only vary for an equation with "...".
    plans: dict[tuple[int, ...], _Contraction] = {}

    def contract(inputs: tuple[Array, ...]) -> Array:
        ranks = tuple(np.ndim(x) for x in inputs)
        plan = plans.get(ranks)
        if plan is None:
            # The ranks come from the inputs, so the cache needs a bound.
            if len(plans) >= 64:
                plans.clear()
            plan = plans[ranks] = _plan(xp, equation, ranks)
        if dtype in _SMALL_FLOATS:
            return narrowed(plan([x.astype(np.float32) for x in inputs]), dtype.np_dtype)
        return plan(inputs)

    return contract


def _plan(xp: Namespace, equation: Equation, ranks: tuple[int, ...]) -> _Contraction:
    """Return the computation for operands of these ranks: reduce each to the distinct labels needed, combine, write."""
    labels = [term for term in equation.labels(ranks) if term is not None]
    output = equation.output_labels(labels)
    distinct = tuple(dict.fromkeys(output))
    kept = [_kept_labels(labels, i, distinct) for i in range(len(labels))]
    reduce = [_unary(xp, term, keep) for term, keep in zip(labels, kept, strict=True)]
    combine = _combination(xp, kept, distinct)
    write = _writer(xp, distinct, output)

    def run(inputs: Sequence[Array]) -> Array:
        _check_sizes(labels, inputs)
        return write(combine([r(x) for r, x in zip(reduce, inputs, strict=True)]))

    return run


def _kept_labels(labels: list[tuple[Label, ...]], position: int, output: tuple[Label, ...]) -> tuple[Label, ...]:
    """Return the labels of one operand that the output or another operand has; the others are summed first."""
    needed = set(output).union(*(term for i, term in enumerate(labels) if i != position))
    return tuple(label for label in dict.fromkeys(labels[position]) if label in needed)


def _check_sizes(labels: list[tuple[Label, ...]], inputs: Sequence[Array]) -> None:
    """Raise InvalidArgumentError if a label has two sizes. Under an ellipsis a 1 matches any size."""
    sizes: dict[Label, int] = {}
    for term, x in zip(labels, inputs, strict=True):
        for label, size in zip(term, x.shape, strict=True):
            known = sizes.setdefault(label, size)
            if known == size:
                continue
            if isinstance(label, str) or 1 not in (known, size):
                raise InvalidArgumentError(
                    f"dimension {label!r} of an einsum has two sizes", expected=known, actual=size
                )
            sizes[label] = size if known == 1 else known


def _numbered(terms: list[tuple[Label, ...]]) -> list[list[int]]:
    """Return labels as the small integers of the sublist form of `einsum`."""
    numbers: dict[Label, int] = {}
    return [[numbers.setdefault(label, len(numbers)) for label in term] for term in terms]


def _unary(xp: Namespace, term: tuple[Label, ...], kept: tuple[Label, ...]) -> Callable[[Array], Array]:
    if term == kept:
        return _same
    source, target = _numbered([term, kept])
    # A label that is repeated within a term selects a diagonal, which `sum` cannot do.
    if len(set(term)) == len(term):
        gone = tuple(i for i, label in enumerate(term) if label not in kept)
        return lambda x: x.sum(axis=gone, dtype=x.dtype)
    return lambda x: xp.einsum(x, source, target)


def _combination(xp: Namespace, terms: list[tuple[Label, ...]], output: tuple[Label, ...]) -> _Contraction:
    if len(terms) == 1:
        order = tuple(terms[0].index(label) for label in output)
        return (lambda xs: xs[0]) if terms[0] == output else (lambda xs: xs[0].transpose(order))
    if len(terms) == 2:
        return _Pair.plan(xp, terms[0], terms[1], output)
    sublists = _numbered([*terms, output])

    def combine(xs: Sequence[Array]) -> Array:
        arguments = [item for x, sublist in zip(xs, sublists, strict=False) for item in (x, sublist)]
        return xp.einsum(*arguments, sublists[-1], optimize="greedy")

    return combine


def _writer(xp: Namespace, distinct: tuple[Label, ...], output: tuple[Label, ...]) -> Callable[[Array], Array]:
    """Return a function that writes the output; if the output repeats a label, values go on a diagonal of zeros."""
    if distinct == output:
        return _same
    positions = [distinct.index(label) for label in output]
    source, target = _numbered([output, distinct])

    def write(x: Array) -> Array:
        # `einsum` returns a writable view of the diagonal.
        result = xp.zeros(tuple(x.shape[i] for i in positions), dtype=x.dtype)
        xp.einsum(result, source, target)[...] = x
        return result

    return write


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two operands as one batched matrix product [batch, left, inner] × [batch, inner, right]."""

    xp: Namespace
    batch: int
    left: int
    inner: int
    order_a: tuple[int, ...]
    order_b: tuple[int, ...]
    order_output: tuple[int, ...]

    @staticmethod
    def plan(xp: Namespace, a: tuple[Label, ...], b: tuple[Label, ...], output: tuple[Label, ...]) -> _Contraction:
        # A label in both operands is a batch if the output has it, and is summed otherwise.
        batch = tuple(x for x in output if x in a and x in b)
        left = tuple(x for x in output if x in a and x not in b)
        right = tuple(x for x in output if x in b and x not in a)
        inner = tuple(x for x in a if x in b and x not in output)
        made = (*batch, *left, *right)
        pair = _Pair(
            xp,
            len(batch),
            len(left),
            len(inner),
            tuple(a.index(x) for x in (*batch, *left, *inner)),
            tuple(b.index(x) for x in (*batch, *inner, *right)),
            tuple(made.index(x) for x in output),
        )
        return pair.multiply if inner else pair.spread

    def multiply(self, xs: Sequence[Array]) -> Array:
        a, b = xs[0].transpose(self.order_a), xs[1].transpose(self.order_b)
        batch, left, inner = self.batch, self.left, self.inner
        a_inner, b_inner = a.shape[batch + left :], b.shape[batch : batch + inner]
        if a_inner != b_inner:  # a size of 1 under an ellipsis whose dimension is summed
            size = broadcast_shape(a_inner, b_inner)
            a = self.xp.broadcast_to(a, a.shape[: batch + left] + size)
            b = self.xp.broadcast_to(b, b.shape[:batch] + size + b.shape[batch + inner :])
            a_inner = size
        lefts, rights, depth = a.shape[batch : batch + left], b.shape[batch + inner :], math.prod(a_inner)
        product = self.xp.matmul(
            a.reshape(*a.shape[:batch], math.prod(lefts), depth), b.reshape(*b.shape[:batch], depth, math.prod(rights))
        )
        return product.reshape(product.shape[:batch] + lefts + rights).transpose(self.order_output)

    def spread(self, xs: Sequence[Array]) -> Array:
        """Compute an elementwise or outer product, with no label to sum."""
        a, b = xs[0].transpose(self.order_a), xs[1].transpose(self.order_b)
        ones = (1,) * (b.ndim - self.batch)
        b = b.reshape(b.shape[: self.batch] + (1,) * self.left + b.shape[self.batch :])
        return (a.reshape(a.shape + ones) * b).transpose(self.order_output)
