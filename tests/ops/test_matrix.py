"""Matrix products and einsum: values, shapes, errors, and gradients by finite differences."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import aioflow
from aioflow.errors import InvalidArgumentError, UnimplementedError
from aioflow.kernels.linalg.products import bind_matmul
from aioflow.ops.apply import make
from aioflow.testing.evaluate import evaluate
from aioflow.testing.gradcheck import check_gradients

FLAGS = [(False, False), (True, False), (False, True), (True, True)]
RNG = {"now": np.random.default_rng(0)}


def value(build: Any, *arrays: Any) -> Any:
    with aioflow.Graph().as_default():
        xs = [aioflow.placeholder(np.asarray(a).dtype, np.shape(a)) for a in arrays]
        return evaluate([build(*xs)], dict(zip(xs, arrays, strict=True)))[0]


@pytest.fixture(autouse=True)
def _same_numbers_each_time() -> None:
    RNG["now"] = np.random.default_rng(0)


def random(*shape: int) -> Any:
    return RNG["now"].standard_normal(shape)


def test_products_of_many_dimensions() -> None:
    ones = (1,) * 37
    a, b = random(3, 4), random(5, 4, 2)
    found = value(aioflow.matmul, a.reshape(*ones, 1, 3, 4), b.reshape(*ones, 5, 4, 2))
    np.testing.assert_allclose(found, (a @ b).reshape(*ones, 5, 3, 2))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_small_floats_are_multiplied_in_float32(dtype: Any) -> None:
    x = np.ones((1, 5000), dtype)
    product = value(lambda t: aioflow.matmul(t, t, transpose_b=True), x)
    assert product.dtype == dtype
    assert product.astype(np.float32) == np.float32(5000).astype(dtype).astype(np.float32)


def test_integers_keep_their_dtype() -> None:
    product = value(aioflow.matmul, np.full((2, 2), 200, np.uint8), np.full((2, 2), 2, np.uint8))
    assert product.dtype == np.uint8
    assert product.tolist() == [[32, 32], [32, 32]]  # 800 modulo 256


def test_matmul_selects_the_op_by_rank() -> None:
    a, b = aioflow.placeholder("float32", [2, 3]), aioflow.placeholder("float32", [5, 3, 4])
    assert (a @ np.ones((3, 2), np.float32)).op.type == "MatMul"
    assert (a @ b).op.type == "BatchMatMulV2"
    assert aioflow.matmul(aioflow.placeholder("float32"), a).op.type == "BatchMatMulV2"
    assert aioflow.matmul(a, a, transpose_b=True, name="product").name == "product:0"


def test_gradients_of_products_need_no_transpose() -> None:
    for ta, tb in FLAGS:
        with aioflow.Graph().as_default() as graph:
            a, b = aioflow.placeholder("float32", [3, 3]), aioflow.placeholder("float32", [3, 3])
            aioflow.gradients(aioflow.matmul(a, b, ta, tb), [a, b])
        assert "Transpose" not in {op.type for op in graph.get_operations()}


def test_inner_sizes_that_differ_are_refused_when_built() -> None:
    with aioflow.Graph().as_default(), pytest.raises(InvalidArgumentError) as caught:
        aioflow.matmul(np.ones((2, 3), np.float32), np.ones((4, 5), np.float32), name="product")
    assert caught.value.op_type == "MatMul"
    assert caught.value.expected == "3 in both"
    assert caught.value.actual == "(2, 3) times (4, 5)"


@pytest.mark.parametrize("rank", [2, 3])
def test_inner_sizes_that_differ_are_refused_at_run_time(rank: int) -> None:
    with aioflow.Graph().as_default():
        x = aioflow.placeholder("float32", [None] * rank)
        y = aioflow.matmul(x, x, name="product")
        with pytest.raises(InvalidArgumentError) as caught:
            evaluate([y], {x: np.ones((1,) * (rank - 2) + (2, 3), np.float32)})
    assert caught.value.node == "product"
    assert "equal inner sizes" in str(caught.value.expected)


def test_batches_that_do_not_broadcast_are_refused() -> None:
    x, y = aioflow.placeholder("float32"), aioflow.placeholder("float32")
    z = aioflow.matmul(x, y)
    for left, right in (((2, 3, 4), (3, 4, 5)), ((4,), (4, 5))):
        with pytest.raises(InvalidArgumentError):
            evaluate([z], {x: np.ones(left), y: np.ones(right)})
    old = make("BatchMatMul", x, y)
    with pytest.raises(InvalidArgumentError):
        evaluate([old], {x: np.ones((1, 3, 4)), y: np.ones((2, 4, 5))})


def test_matmul_rejects_transpose_with_adjoint() -> None:
    with aioflow.Graph().as_default(), pytest.raises(InvalidArgumentError, match="only one of"):
        aioflow.matmul(np.ones((2, 2)), np.ones((2, 2)), transpose_a=True, adjoint_a=True)


def test_a_broadcast_operand() -> None:
    def build(t: Any) -> Any:
        return aioflow.matmul(make("BroadcastTo", t, [4, 3]), np.ones((3, 2), np.float32), name="p")

    assert value(build, np.float32(2)).tolist() == [[6, 6]] * 4


# ── einsum ───────────────────────────────────────────────────────────────────────────────────────────────────────────

EINSUMS = [
    ("ij,ij->ji", (3, 4), (3, 4)),
    ("ij,k->i", (3, 4), (5,)),
    ("iij,jk->ik", (3, 3, 4), (4, 2)),
    ("...ij,jk->i...k", (2, 3, 4), (4, 2)),
]
# tests/parity compares their values, and their gradients for known shapes.
IN_PARITY = [
    ("ij,jk->ki", (3, 4), (4, 5)),
    ("ij,ij->i", (3, 4), (3, 4)),
    ("i,j->ij", (3,), (4,)),
    (",ij->ij", (), (3, 4)),
    ("abc,cbd->da", (2, 3, 4), (4, 3, 2)),
    ("...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 2)),
]


@pytest.mark.parametrize(("equation", "left", "right"), EINSUMS)
def test_einsum_equals_numpy(equation: str, left: Any, right: Any) -> None:
    a, b = random(*left), random(*right)
    actual = value(lambda x, y: aioflow.einsum(equation, x, y), a, b)
    np.testing.assert_allclose(actual, np.einsum(equation, a, b))


def test_einsum_over_an_ellipsis() -> None:
    a, b = random(2, 3), random(3)
    np.testing.assert_allclose(value(lambda x, y: aioflow.einsum("i...,...->i", x, y), a, b), (a * b).sum(-1))


@pytest.mark.parametrize("equation", ["ij,jk,kl->il", "ij,jk,kl,lm->mi", "i,i,i->i", "...i,...i,i->..."])
def test_einsum_of_many(equation: str) -> None:
    terms = equation.split("->")[0].split(",")
    arrays = [random(*(2 if c == "." else "ijklm".index(c) + 2 for c in t.replace("...", "."))) for t in terms]
    np.testing.assert_allclose(value(lambda *xs: aioflow.einsum(equation, *xs), *arrays), np.einsum(equation, *arrays))


def test_many_operands_are_contracted_in_pairs() -> None:
    with aioflow.Graph().as_default() as graph:
        xs = [aioflow.placeholder("float32", s) for s in ([2, 100], [100, 100], [100, 3])]
        assert aioflow.einsum("ij,jk,kl->il", *xs).shape.as_list() == [2, 3]
    assert [op.attrs["N"] for op in graph.get_operations() if op.type == "Einsum"] == [2, 2]


@pytest.mark.parametrize("equation", ["ij,jk->iz", "i1,jk->i", "ij->i", "......ij,jk->ik", "ij;jk->ik"])
def test_malformed_equations_are_refused(equation: str) -> None:
    with aioflow.Graph().as_default(), pytest.raises(InvalidArgumentError):
        aioflow.einsum(equation, np.ones((2, 2)), np.ones((2, 2)))


def test_einsum_operands_that_do_not_fit_are_refused() -> None:
    with aioflow.Graph().as_default():
        with pytest.raises(InvalidArgumentError, match="wrong rank"):
            aioflow.einsum("ij->i", np.ones(3))
        with pytest.raises(InvalidArgumentError, match="two sizes"):
            aioflow.einsum("ij,jk->ik", np.ones((2, 3)), np.ones((4, 5)))
        x = aioflow.placeholder("float32", [None, None])
        y = aioflow.einsum("ij,jk->ik", x, x, name="e")
        with pytest.raises(InvalidArgumentError) as caught:
            evaluate([y], {x: np.ones((2, 3))})
    assert caught.value.node == "e/Einsum"
    assert (caught.value.expected, caught.value.actual) == (3, 2)


def test_einsum_error_names_the_number_of_inputs_as_expected() -> None:
    with pytest.raises(InvalidArgumentError, match="has 2 operands") as caught:
        aioflow.einsum("ij,jk->ik", np.ones((2, 2)), np.ones((2, 2)), np.ones((2, 2)))
    assert (caught.value.expected, caught.value.actual) == (3, 2)


def test_einsum_of_ranks_that_change() -> None:
    x = aioflow.placeholder("float64")
    y = aioflow.einsum("...i->...", x)
    for shape in ((2,), (2, 3), (4, 2, 3)):
        a = random(*shape)
        np.testing.assert_allclose(evaluate([y], {x: a})[0], a.sum(-1))


def test_tensordot_equals_numpy() -> None:
    a, b = random(2, 3, 4), random(4, 3, 5)
    axes = ([1, 2], [1, 0])
    for form in (axes, np.asarray(axes)):
        np.testing.assert_allclose(
            value(lambda x, y, n=form: aioflow.tensordot(x, y, n), a, b), np.tensordot(a, b, axes)
        )
    c, one = random(4, 2), np.asarray(1)
    np.testing.assert_allclose(value(lambda x, y: aioflow.tensordot(x, y, one), a, c), np.tensordot(a, c, 1))
    with aioflow.Graph().as_default():
        for wrong in (4, -1, [[0]], [[0], [3]], [[0, 1], [0]]):
            with pytest.raises(InvalidArgumentError):
                aioflow.tensordot(a, b, wrong)
        with pytest.raises(InvalidArgumentError):
            aioflow.tensordot(aioflow.placeholder("float64"), b, -1)


def test_tensordot_of_more_axes_than_an_einsum_has_labels() -> None:
    a, b = random(*[1] * 28, 2, 3), random(3, *[1] * 27, 4)
    np.testing.assert_allclose(value(lambda x, y: aioflow.tensordot(x, y, 1), a, b), np.tensordot(a, b, 1))
    axes = ([-2, 5], [-1, 0])
    c = random(*[1] * 28, 4, 3)
    d = random(*[1] * 27, 4)
    np.testing.assert_allclose(value(lambda x, y: aioflow.tensordot(x, y, axes), c, d), np.tensordot(c, d, axes))
    with aioflow.Graph().as_default():
        x = aioflow.placeholder("float64", [None, *a.shape[1:]])
        assert aioflow.tensordot(x, b, 1).dims == (None, *a.shape[1:-1], *b.shape[1:])


def test_cross_rejects_vectors_of_two_elements() -> None:
    assert value(aioflow.cross, np.array([1, 0, 0]), np.array([0, 1, 0])).tolist() == [0, 0, 1]
    with aioflow.Graph().as_default(), pytest.raises(InvalidArgumentError):
        aioflow.cross([1.0, 2.0], [1.0, 2.0])


# ── gradients ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("ta", "tb"), FLAGS)
def test_gradients_of_old_batches(ta: bool, tb: bool) -> None:
    a, b = random(*(2, 4, 3) if ta else (2, 3, 4)), random(*(2, 2, 4) if tb else (2, 4, 2))
    check_gradients(lambda x, y: make("BatchMatMul", x, y, adj_x=ta, adj_y=tb), a, b)


def test_second_gradients_of_products() -> None:
    def build(x: Any, y: Any) -> Any:
        return aioflow.gradients(aioflow.square(aioflow.matmul(x, y)), [x, y])

    check_gradients(build, random(2, 3), random(3, 2))


@pytest.mark.parametrize(("equation", "left", "right"), EINSUMS)
def test_gradients_of_einsum(equation: str, left: Any, right: Any) -> None:
    check_gradients(lambda x, y: aioflow.einsum(equation, x, y), random(*left), random(*right))


@pytest.mark.parametrize(("equation", "left", "right"), [*EINSUMS, *IN_PARITY])
def test_gradients_of_einsum_of_unknown_ranks(equation: str, left: Any, right: Any) -> None:
    def build(x: Any, y: Any) -> Any:
        return aioflow.einsum(equation, *(aioflow.placeholder_with_default(t, None) for t in (x, y)))

    check_gradients(build, random(*left), random(*right))


def test_gradients_of_einsum_of_three_ellipses() -> None:
    check_gradients(lambda *xs: aioflow.einsum("...i,...i,i->...", *xs), random(2, 3), random(1, 3), random(3))


def test_an_einsum_over_an_ellipsis_has_no_gradient() -> None:
    x = aioflow.placeholder("float32", [2, 3])
    y = aioflow.einsum("...j->j", x)
    with pytest.raises(UnimplementedError):
        aioflow.gradients(y, x)


@pytest.mark.parametrize("dims", [((3,), (3, 2)), ((3, 3), (2, 3, 2)), ((), ())])
def test_bind_matmul_checks_ranks_claimed_by_a_plan(dims: Any) -> None:
    attrs = {"transpose_a": False, "transpose_b": False}
    binding: Any = SimpleNamespace(xp=np, attrs=attrs, output_dtypes=(aioflow.float32,), input_dims=dims)
    multiply = bind_matmul(binding)
    with pytest.raises(InvalidArgumentError, match="cannot be multiplied as matrices"):
        multiply(*(np.ones(each, np.float32) for each in dims))
