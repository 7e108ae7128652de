"""Products in one thread and in blocks, against NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aioflow_numpy import deep_products, products
from aioflow_numpy.namespace import NumpyNamespace
from aioflow_numpy.products import dot, einsum, matmul, matmul_here

SHAPES = [
    ((0, 3), (3, 2)),
    ((3, 0), (0, 2)),
    ((1, 1), (1, 1)),
    ((60, 70), (70, 80)),
    ((128, 128), (128, 200)),
    ((700, 300), (300, 90)),
    ((90, 300), (300, 701)),
    ((2, 3000), (3000, 90)),
    ((7, 4001), (4001, 129)),
    ((40, 64), (64, 3000)),
    ((301, 1000), (1000, 299)),
    ((1, 5000), (5000, 4000)),
    ((4000, 5000), (5000, 1)),
    # stacks, split along themselves or along a side of the matrices
    ((5, 3, 4), (5, 4, 2)),
    ((0, 3, 4), (4, 2)),
    ((20, 100, 100), (20, 100, 100)),
    ((3, 300, 90), (3, 90, 200)),
    ((3, 90, 300), (300, 301)),
    ((2, 1, 150, 150), (20, 150, 150)),
    ((30, 1, 200, 100), (1, 2, 100, 90)),
    ((30_000, 9, 8), (30_000, 8, 9)),
    ((300, 400), (3, 400, 90)),
    # vectors
    ((7,), (7,)),
    ((30_000,), (30_000,)),
    ((900,), (900, 700)),
    ((700, 900), (900,)),
    ((4, 50, 60), (60,)),
    ((50,), (4, 50, 60)),
]
TOLERANCE = {"float32": 1e-3, "float64": 1e-11, "complex64": 1e-3}


def operands(a: tuple[int, ...], b: tuple[int, ...], dtype: str) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return tuple((rng.standard_normal(s) + (1j if dtype[0] == "c" else 0)).astype(dtype) for s in (a, b))  # type: ignore[return-value]  # it is a pair


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((4, 600), (700, 500)),
        ((4, 700), (600, 500)),
        ((1, 600), (700, 500)),
        ((100, 1200), (1500, 500)),
        ((300, 600), (700, 500)),
    ],
)
def test_mismatched_sizes_are_rejected_as_by_numpy(left: tuple[int, int], right: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="mismatch"):
        matmul(np.ones(left, np.float32), np.ones(right, np.float32))


def test_mismatched_result_is_not_written() -> None:
    out = np.zeros((4, 501), np.float32)
    with pytest.raises(ValueError, match="mismatch"):
        matmul(np.ones((4, 600), np.float32), np.ones((600, 500), np.float32), out)
    assert not out.any()


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_matmul_in_parts_equals_numpy(
    left: tuple[int, ...], right: tuple[int, ...], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (products, deep_products):
        monkeypatch.setattr(module, "thread_count", lambda: 3)  # independent of the machine
    a, b = operands(left, right, dtype)
    expected = np.matmul(a, b)
    orders = [(a, b)]
    if a.ndim == b.ndim == 2:
        orders += [(np.asfortranarray(a), b), (a, np.ascontiguousarray(b.T).T), (a[::-1][::-1], b)]
    for x, y in orders:
        made = matmul(x, y)
        assert (made.dtype, made.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(made, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * 10)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float16", "bool"])
def test_matmul_of_dtypes_without_blas(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "thread_count", lambda: 3)
    a, b = ((np.arange(s[0] * s[1]).reshape(s) % 2).astype(dtype) for s in ((300, 301), (301, 299)))
    made = matmul(a, b)
    np.testing.assert_array_equal(made, np.matmul(a, b))
    assert made.dtype == np.matmul(a, b).dtype


@pytest.mark.parametrize(("a", "b"), [((300, 301), (300, 301)), ((3, 3), (4, 3)), ((9, 300, 300), (8, 300, 300))])
def test_mismatched_shapes_raise_value_error(
    a: tuple[int, ...], b: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "thread_count", lambda: 3)
    with pytest.raises(ValueError, match=r"shape|dimension"):
        matmul(np.ones(a), np.ones(b))


def test_large_product_is_split_along_its_longest_side(monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[Any] = []

    def one(function: Any, left: Any, right: Any, out: Any = None) -> Any:
        cut.append((left.shape, right.shape))
        return function(left, right, out)

    monkeypatch.setattr(products, "thread_count", lambda: 2)
    monkeypatch.setattr(products, "for_each", lambda work, parts: [work(part) for part in parts])
    monkeypatch.setattr(products, "alone", one)
    for a, b, parts in (
        ((100, 400), (400, 600), [((100, 400), (400, 300))] * 2),
        ((600, 400), (400, 100), [((300, 400), (400, 100))] * 2),
        ((100, 100), (100, 100), [((100, 100), (100, 100))]),
        ((16, 128, 128), (16, 128, 128), [((8, 128, 128), (8, 128, 128))] * 2),
        ((16, 128, 128), (128, 128), [((8, 128, 128), (128, 128))] * 2),
        ((3, 512, 128), (3, 128, 128), [((3, 256, 128), (3, 128, 128))] * 2),
        ((1000, 30, 30), (1000, 30, 30), [((500, 30, 30), (500, 30, 30))] * 2),
    ):
        cut.clear()
        matmul(np.ones(a), np.ones(b))
        assert cut == parts


@pytest.mark.parametrize("rows", [3, 300])
def test_matmul_writes_into_the_given_result(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_BLOCK", 2**18)
    a, b = operands((rows, 64), (64, 48), "float32")
    wide = np.zeros((rows, 60), np.float32)
    products.matmul(a, b, wide[:, 4:52])
    np.testing.assert_allclose(wide[:, 4:52], a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)
    assert not wide[:, :4].any()
    assert not wide[:, 52:].any()


def test_matmul_here_writes_into_its_output() -> None:
    for shape in ((5, 6), (300, 200)):
        a = np.random.default_rng(0).standard_normal(shape)
        out = np.empty((shape[0], shape[0]))
        assert matmul_here(a, a.T, out) is out
        np.testing.assert_allclose(out, a @ a.T)


@pytest.mark.parametrize("size", [3, 100, 300])
def test_dot_equals_numpy_for_every_rank(size: int) -> None:
    m, v = np.arange(float(size * size)).reshape(size, size), np.arange(float(size))
    for a, b in ((v, v), (v, m), (m, v), (m, m)):
        np.testing.assert_allclose(dot(a, b), np.dot(a, b))


def test_einsum_equals_numpy_and_returns_views() -> None:
    a, b, c = (np.random.default_rng(i).standard_normal((40, 40)) for i in range(3))
    for optimize in (False, True, "greedy"):
        np.testing.assert_allclose(einsum("ij,jk,kl->il", a, b, c, optimize=optimize), a @ b @ c, atol=1e-9)
    einsum("ii->i", a)[...] = 7  # a view of the diagonal
    assert (np.diagonal(a) == 7).all()


def test_namespace_equals_numpys() -> None:
    """Each name is NumPy's own object, except for the functions that call the BLAS; those return the same values."""
    xp: Any = NumpyNamespace()
    changed = {name for name in vars(xp) if getattr(np, name) is not getattr(xp, name)}
    assert changed >= {"dot", "einsum", "inner", "linalg", "matmul", "tensordot", "vdot"}
    assert all(callable(getattr(np, name)) for name in changed - {"linalg"})
    assert {"add", "float32", "pi", "newaxis", "ndarray"} <= set(vars(xp)) - changed
    assert set(vars(xp.linalg)) == set(np.linalg.__all__)
    m = np.random.default_rng(0).standard_normal((30, 30))
    for name in ("inner", "tensordot", "vdot", "vecdot"):
        np.testing.assert_allclose(getattr(xp, name)(m, m), getattr(np, name)(m, m))
    np.testing.assert_allclose(xp.linalg.qr(m, mode="complete")[1], np.linalg.qr(m, mode="complete")[1])
    np.testing.assert_allclose(xp.linalg.inv(m[:2, :2]), np.linalg.inv(m[:2, :2]))
    assert xp.linalg.LinAlgError is np.linalg.LinAlgError
    with pytest.raises(np.linalg.LinAlgError):
        xp.linalg.inv(np.zeros((30, 30)))
