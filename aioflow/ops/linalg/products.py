"""Matrix products: MatMul, the batched products, Einsum, and the functions built on them.

Gradients never create a Transpose node. Each of the four cases of `transpose_a` and `transpose_b` is a product with the
right flags, and the kernel passes a transposed view to BLAS.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from aioflow.errors import InvalidArgumentError, UnimplementedError
from aioflow.graph.costs import Cost, Operand
from aioflow.graph.dtypes import DTypeLike, as_dtype
from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.operators import OPERATORS
from aioflow.graph.shapes import Dims, broadcast_dims, format_dims, merge_dims
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.traits import Half, opaque, product
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, convert_to_tensor, make, make_list
from aioflow.ops.linalg.einsum import ELLIPSIS, Equation, Label, parse_equation
from aioflow.ops.math.broadcasting import same_dtype
from aioflow.ops.scoping import name_scope

__all__ = ["cross", "einsum", "matmul"]


# ── definitions ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _inner(left: int | None, right: int | None, a: Dims, b: Dims) -> None:
    if left is not None and right is not None and left != right:
        raise InvalidArgumentError(
            "the inner dimensions of a matrix product differ",
            expected=f"{left} in both",
            actual=f"{format_dims(a)} times {format_dims(b)}",
        )


def _product_shape(ctx: ShapeContext) -> Dims:
    a = ctx.require_rank("a", 2) or (None, None)
    b = ctx.require_rank("b", 2) or (None, None)
    rows, left = reversed(a) if ctx.attrs["transpose_a"] else a
    right, columns = reversed(b) if ctx.attrs["transpose_b"] else b
    _inner(left, right, a, b)
    return rows, columns


def _batch_product_shape(ctx: ShapeContext) -> Dims:
    x, y = ctx.require_rank("x", 2, -1), ctx.require_rank("y", 2, -1)
    same_batch = ctx.op_def.name == "BatchMatMul"
    if same_batch and (x is None) != (y is None):
        # BatchMatMul does not broadcast, so an operand of unknown rank has the batch of the other one.
        x, y = x or _like_batch(y), y or _like_batch(x)
    if x is None or y is None:
        return None
    rows, left = reversed(x[-2:]) if ctx.attrs["adj_x"] else x[-2:]
    right, columns = reversed(y[-2:]) if ctx.attrs["adj_y"] else y[-2:]
    _inner(left, right, x, y)
    batch = merge_dims(x[:-2], y[:-2]) if same_batch else broadcast_dims([x[:-2], y[:-2]])
    return (*(batch or ()), rows, columns)


def _like_batch(dims: Dims) -> Dims:
    return None if dims is None else (*dims[:-2], None, None)


def _einsum_shape(ctx: ShapeContext) -> Dims:
    operands = ctx.dims_list("inputs")
    equation = parse_equation(ctx.attrs["equation"], len(operands))
    labels = equation.labels(tuple(None if d is None else len(d) for d in operands))
    # The rank of the operand decides how many dimensions the output's ellipsis stands for.
    if None in labels and ELLIPSIS in equation.output:
        return None
    known = [x for x in labels if x is not None]
    sizes: dict[Label, int | None] = {}
    for dims, term in zip(operands, labels, strict=True):
        if dims is not None and term is not None:
            for label, size in zip(term, dims, strict=True):
                # Integers label the dimensions under an ellipsis. They broadcast, so a missing one counts as 1.
                sizes[label] = _agree(label, sizes.get(label, 1 if isinstance(label, int) else None), size)
    return tuple(sizes.get(label) for label in equation.output_labels(known))


def _agree(label: Label, a: int | None, b: int | None) -> int | None:
    """Return the common size of a label; sizes under an ellipsis broadcast."""
    if isinstance(label, int):
        broadcast = broadcast_dims([(a,), (b,)])
        return broadcast[0] if broadcast else None
    if a is not None and b is not None and a != b:
        raise InvalidArgumentError(f"dimension {label!r} of an einsum has two sizes", expected=a, actual=b)
    return b if a is None else a


def _multiply_adds(attrs: Attrs, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    """Return the multiply-adds of a (batched) matrix product: output elements times the inner size."""
    left = inputs[0].dims
    transposed = attrs.get("transpose_a") or attrs.get("adj_x")
    inner = left[-2 if transposed else -1] if len(left) >= 2 else 1
    return float(outputs[0].elements * inner)


def _labels(attrs: Attrs, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    """Return the multiply-adds of an einsum: the product of the sizes of all labels.

    An ellipsis counts by the size of the output.
    """
    terms = str(attrs.get("equation", "")).partition("->")[0].replace(" ", "").split(",")
    sizes = {
        label: size
        for term, operand in zip(terms, inputs, strict=False)
        for label, size in zip(term, operand.dims, strict=False)
        if label != "."
    }
    return float(max(math.prod(sizes.values()), outputs[0].elements))


MATRIX_PRODUCT: Final = Cost("product", _multiply_adds)

define_op(
    "MatMul",
    "a: T, b: T",
    "product: T",
    [
        "transpose_a: bool = False",
        "transpose_b: bool = False",
        "T: {floats, int32, int64, uint8, uint16, uint32, uint64, complexes}",
        "grad_a: bool = False",
        "grad_b: bool = False",
    ],
    shape=_product_shape,
    rows=rows.matrix_product,
    traits=product(half=Half.GAINS, cost=MATRIX_PRODUCT, row_major=True),
)
_ADJOINTS = ["adj_x: bool = False", "adj_y: bool = False", "grad_x: bool = False", "grad_y: bool = False"]
define_op(
    "BatchMatMul",
    "x: T, y: T",
    "output: T",
    ["T: {floats, int32, int64, complexes}", *_ADJOINTS],
    shape=_batch_product_shape,
    rows=rows.matrix_products,
    traits=product(half=Half.GAINS, cost=MATRIX_PRODUCT),
)
define_op(
    "BatchMatMulV2",
    "x: T, y: T",
    "output: T",
    ["T: {floats, int16, int32, int64, uint8, uint16, uint32, uint64, complexes}", *_ADJOINTS],
    shape=_batch_product_shape,
    rows=rows.matrix_products,
    traits=product(half=Half.GAINS, cost=MATRIX_PRODUCT),
)
define_op(
    "Einsum",
    "inputs: N*T",
    "output: T",
    ["equation: string", "N: int >= 1", "T: type"],
    shape=_einsum_shape,
    rows=rows.einsum,
    traits=product(half=Half.GAINS, cost=Cost("product", _labels)),
)


def _cross_shape(ctx: ShapeContext) -> Dims:
    dims = merge_dims(ctx.require_rank("a", 1, -1), ctx.require_rank("b", 1, -1))
    if dims is not None:
        merge_dims((3,), dims[-1:])
    return dims


define_op(
    "Cross", "a: T, b: T", "product: T", ["T: {reals}"], shape=_cross_shape, rows=rows.last_axes(1), traits=opaque()
)


# ── gradients ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _conjugate(x: Tensor) -> Tensor:
    if not x.dtype.is_complex:
        return x
    return make("Conj", x)


def _times(a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    return make("MatMul", a, b, transpose_a=transpose_a, transpose_b=transpose_b)


@gradient("MatMul")
def _matmul_grad(op: Operation, grad: Tensor) -> list[Tensor]:
    a, b = _conjugate(op.inputs[0]), _conjugate(op.inputs[1])
    # C = A B: dA = dC Bᴴ and dB = Aᴴ dC. A transposed operand has the transposed gradient.
    match op.get_attr("transpose_a"), op.get_attr("transpose_b"):
        case False, False:
            return [_times(grad, b, False, True), _times(a, grad, True, False)]
        case False, True:
            return [_times(grad, b), _times(grad, a, True, False)]
        case True, False:
            return [_times(b, grad, False, True), _times(a, grad)]
        case _:
            return [_times(b, grad, True, True), _times(grad, a, True, True)]


@gradient("BatchMatMul")
def _batch_matmul_grad(op: Operation, grad: Tensor) -> list[Tensor]:
    return _batch_products(op, grad)


@gradient("BatchMatMulV2")
def _batch_matmul_v2_grad(op: Operation, grad: Tensor) -> list[Tensor]:
    x, y = op.inputs
    grad_x, grad_y = _batch_products(op, grad)
    # Equal and known batches: no operand was broadcast.
    if x.dims is not None and y.dims is not None and x.dims[:-2] == y.dims[:-2] and None not in x.dims[:-2]:
        return [grad_x, grad_y]
    shapes = make("Shape", x), make("Shape", y)
    r0, r1 = make_list("BroadcastGradientArgs", *(_leading(s) for s in shapes))
    return [make("Reshape", make("Sum", g, r), s) for g, r, s in zip((grad_x, grad_y), (r0, r1), shapes, strict=True)]


def _leading(shape: Tensor) -> Tensor:
    """Return the batch part of a shape vector."""
    return make("StridedSlice", shape, [0], [-2], [1], begin_mask=1)


def _batch_products(op: Operation, grad: Tensor) -> list[Tensor]:
    """Return the gradients before they are reduced to the batch shapes of the operands."""
    x, y = op.inputs

    def times(a: Tensor, b: Tensor, adj_x: bool = False, adj_y: bool = False) -> Tensor:
        return make(op.type, a, b, adj_x=adj_x, adj_y=adj_y)

    # As for MatMul. Adjoints conjugate, so no Conj is needed.
    match op.get_attr("adj_x"), op.get_attr("adj_y"):
        case False, False:
            return [times(grad, y, False, True), times(x, grad, True, False)]
        case False, True:
            return [times(grad, y), times(grad, x, True, False)]
        case True, False:
            return [times(y, grad, False, True), times(x, grad)]
        case _:
            return [times(y, grad, True, True), times(grad, x, True, True)]


@gradient("Einsum")
def _einsum_grad(op: Operation, grad: Tensor) -> list[Tensor]:
    equation = parse_equation(op.attrs["equation"], len(op.inputs))
    return [_einsum_grad_by(op, equation, i, grad) for i in range(len(op.inputs))]


def _einsum_grad_by(op: Operation, equation: Equation, position: int, grad: Tensor) -> Tensor:
    """Return the gradient with respect to one operand.

    It is the output's gradient times the other operands, with this operand's labels. Two kinds of labels need more
    work:

    - Labels that only this operand has were summed, so the gradient is constant along them.
    - Labels that it has twice were a diagonal, which an einsum with a repeated output label writes.
    """
    x, term = op.inputs[position], equation.terms[position]
    others = [i for i in range(len(op.inputs)) if i != position]
    terms = [equation.output, *(equation.terms[i] for i in others)]
    unique = tuple(dict.fromkeys(term))
    reached = tuple(label for label in unique if any(label in t for t in terms))
    lost = tuple(label for label in unique if label not in reached)
    if ELLIPSIS in lost:
        raise UnimplementedError(
            "an einsum that sums over an ellipsis has no gradient", expected="'...' in the output", actual=str(equation)
        ).at(op.name, op.type, op.source)
    if ELLIPSIS in reached:
        # Broadcasting aligns shapes at the end, so the dims under the ellipsis come first.
        reached = (ELLIPSIS, *(label for label in reached if label != ELLIPSIS))
    plain = not lost and (ELLIPSIS not in term or _same_ellipsis(op, equation, position))
    target = term if plain and reached == unique == term else reached
    factors = [grad, *(_conjugate(op.inputs[i]) for i in others)]
    result = make("Einsum", factors, equation=str(Equation(tuple(terms), target)))
    if target == term and plain:
        return result
    if not plain:
        result = _fit(result, x, term, reached, lost)
    return _relabel(result, (*reached, *lost), term)


def _same_ellipsis(op: Operation, equation: Equation, position: int) -> bool:
    """Return whether the operand is known not to have been broadcast under its ellipsis."""
    x, y = op.inputs[position], op.outputs[0]
    if x.dims is None or y.dims is None or ELLIPSIS not in equation.output:
        return False
    return _under_ellipsis(x.dims, equation.terms[position]) == _under_ellipsis(y.dims, equation.output)


def _under_ellipsis(dims: tuple[int | None, ...], term: tuple[str, ...]) -> tuple[int | None, ...]:
    at = term.index(ELLIPSIS)
    return dims[at : len(dims) - (len(term) - at - 1)]


def _relabel(x: Tensor, labels: tuple[str, ...], term: tuple[str, ...]) -> Tensor:
    if labels == term:
        return x
    return make("Einsum", [x], equation=str(Equation((labels,), term)))


def _fit(g: Tensor, x: Tensor, term: tuple[str, ...], reached: tuple[str, ...], lost: tuple[str, ...]) -> Tensor:
    """Sum where the operand was broadcast under its ellipsis, and repeat along the `lost` labels."""
    shape = make("Shape", _relabel(x, term, (*reached, *lost)))
    for _ in lost:
        g = make("ExpandDims", g, -1)
    if ELLIPSIS in term:
        kept = shape if not lost else make("ConcatV2", [_leading_by(shape, len(lost)), [1] * len(lost)], 0)
        extra, _ = make_list("BroadcastGradientArgs", kept, make("Shape", g))
        g = make("Reshape", make("Sum", g, extra), kept)
    return make("BroadcastTo", g, shape) if lost else g


def _leading_by(shape: Tensor, count: int) -> Tensor:
    """Return a shape vector without its last `count` sizes."""
    return make("StridedSlice", shape, [0], [-count], [1], begin_mask=1)


@gradient("Cross")
def _cross_grad(op: Operation, grad: Tensor) -> list[Tensor]:
    a, b = op.inputs
    # c = a × b: da = b × dc and db = dc × a.
    return [cross(b, grad), cross(grad, a)]


# ── builders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def matmul(
    a: TensorLike,
    b: TensorLike,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    output_type: DTypeLike | None = None,
    grad_a: bool = False,
    grad_b: bool = False,
    name: str | None = None,
) -> Tensor:
    """Return the product of two matrices, or of two batches of them (rank >= 3).

    The leading dimensions of batches broadcast.

    Args:
        a: The left operand.
        b: The right operand.
        transpose_a: Whether to transpose `a` first.
        transpose_b: Whether to transpose `b` first.
        adjoint_a: Whether to transpose and conjugate `a` first.
        adjoint_b: Whether to transpose and conjugate `b` first.
        a_is_sparse: A hint that most elements of `a` are zero. It is ignored: every product is dense.
        b_is_sparse: The same hint for `b`.
        output_type: The dtype of the result, if it is not that of the operands.
        grad_a: Ignored; accepted for compatibility.
        grad_b: Ignored; accepted for compatibility.
        name: Name of the node.

    Raises:
        InvalidArgumentError: an operand has both transpose and adjoint, or the inner dimensions differ.
        DTypeError: the operands have different dtypes, and no `output_type` is given.
    """
    if (transpose_a and adjoint_a) or (transpose_b and adjoint_b):
        raise InvalidArgumentError(
            "only one of transpose and adjoint can be True", expected="one of the two", actual="transpose and adjoint"
        )
    if output_type is None:
        a_tensor, b_tensor = same_dtype(a, b)
    else:
        a_tensor = convert_to_tensor(a)
        b_tensor = convert_to_tensor(b, dtype_hint=a_tensor.dtype)
    with name_scope(name, "MatMul", [a_tensor]) as scope:
        if output_type is not None and as_dtype(output_type) is not a_tensor.dtype:
            a_tensor, b_tensor = (make("Cast", t, DstT=as_dtype(output_type)) for t in (a_tensor, b_tensor))
        if all(t.dims is not None and len(t.dims) <= 2 for t in (a_tensor, b_tensor)):
            return _times_named(a_tensor, b_tensor, (transpose_a, adjoint_a), (transpose_b, adjoint_b), scope)
        # BatchMatMulV2 has only adjoints: that of the conjugate is the transpose. It accepts single matrices, too.
        x = _conjugate(a_tensor) if transpose_a else a_tensor
        y = _conjugate(b_tensor) if transpose_b else b_tensor
        result = make("BatchMatMulV2", x, y, adj_x=transpose_a or adjoint_a, adj_y=transpose_b or adjoint_b, name=scope)
    return result


def _times_named(a: Tensor, b: Tensor, flags_a: tuple[bool, bool], flags_b: tuple[bool, bool], name: str) -> Tensor:
    """Create a plain MatMul node, with the conjugations as separate nodes.

    The op MatMul transposes but does not conjugate.
    """
    if flags_a[1]:
        a = _conjugate(a)
    if flags_b[1]:
        b = _conjugate(b)
    return make("MatMul", a, b, transpose_a=any(flags_a), transpose_b=any(flags_b), name=name)


OPERATORS["matmul"] = matmul


def matvec(
    a: TensorLike,
    b: TensorLike,
    transpose_a: bool = False,
    adjoint_a: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    name: str | None = None,
) -> Tensor:
    """Return the product of a matrix [..., m, n] and a vector [..., n], or of batches of them. See `matmul`."""
    with name_scope(name, "MatVec", [a, b]):
        column = make("ExpandDims", convert_to_tensor(b), -1)
        result = make("Squeeze", matmul(a, column, transpose_a, adjoint_a=adjoint_a), squeeze_dims=[-1])
    return result


def einsum(equation: str, *inputs: TensorLike, name: str | None = None, optimize: str = "greedy") -> Tensor:
    """Return sums of products of any number of tensors, by the labels of their dimensions.

    "ij,jk->ik" is a matrix product.

    Args:
        equation: A letter for each dimension, "..." for any number of broadcast ones; after "->" the output's. Without
            "->" the output has the labels that occur once, in alphabetical order.
        *inputs: The operands.
        name: Name scope of the nodes.
        optimize: The contraction order of more than two operands, as for `numpy.einsum_path`.

    Raises:
        InvalidArgumentError: the equation is malformed or does not fit the inputs.
    """
    tensors = [convert_to_tensor(t) for t in inputs]
    parsed = parse_equation(equation, len(tensors))
    with name_scope(name, "einsum", tensors):
        if len(tensors) > 2 and all(t.dims is not None for t in tensors):
            return _einsum_in_pairs(parsed, tensors, optimize)
        result = make("Einsum", tensors, equation=str(parsed))
    return result


def _einsum_in_pairs(equation: Equation, tensors: list[Tensor], optimize: str) -> Tensor:
    """Contract two operands at a time, in the cheapest order for the known sizes."""
    terms = list(equation.terms)
    if any(ELLIPSIS in t for t in terms):
        return make("Einsum", tensors, equation=str(equation))
    # Unknown sizes count as 64: the order matters only for speed. The stand-ins are views and take no memory.
    shapes = [tuple(64 if d is None else max(d, 1) for d in t.dims or ()) for t in tensors]
    stand_ins = [np.broadcast_to(np.float32(0), shape) for shape in shapes]
    try:
        path = np.einsum_path(str(equation), *stand_ins, optimize=optimize)[0][1:]
    except ValueError as error:
        raise InvalidArgumentError(
            "the operands do not fit the equation",
            expected=str(equation),
            actual=[format_dims(t.dims) for t in tensors],
        ) from error
    for step in path:
        # From the back, so that the other positions stay valid.
        chosen = sorted(step, reverse=True)
        group, group_terms = [tensors.pop(i) for i in chosen], [terms.pop(i) for i in chosen]
        # Labels that neither the output nor another operand has are summed in this product.
        wanted = set(equation.output).union(*terms)
        kept = equation.output if not terms else tuple(dict.fromkeys(x for t in group_terms for x in t if x in wanted))
        tensors.append(make("Einsum", group, equation=str(Equation(tuple(group_terms), kept))))
        terms.append(kept)
    return tensors[0]


def cross(a: TensorLike, b: TensorLike, name: str | None = None) -> Tensor:
    """Return the cross products of vectors of three elements in the last dimension.

    Both operands have the same shape.
    """
    return make("Cross", a, b, name=name)
