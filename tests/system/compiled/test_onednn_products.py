"""Tests of oneDNN products whose parts are computed by helper threads that busy-wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pytest

from aioflow.errors import FailedPreconditionError, InternalError, NotFoundError
from aioflow_numpy import deep_products
from aioflow_numpy import products as numpy_products
from aioflow_numpy.account import Account
from aioflow_numpy.crew import Crew
from aioflow_onednn import products
from aioflow_onednn.library import library
from tests.support.processes import SECONDS
from tests.system.compiled.chains import compiler
from tests.system.compiled.crews import helpers, noting

try:
    library()
except (NotFoundError, FailedPreconditionError) as error:
    pytest.skip(error.message, allow_module_level=True)

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]


@contextmanager
def a_crew(monkeypatch: pytest.MonkeyPatch) -> Iterator[Crew]:
    """Yield a crew for products with one busy-waiting helper, whose OpenMP is set to three threads."""
    crew = Crew()
    crew.prepare()
    monkeypatch.setattr(Account, "enter", lambda self, seconds: None)
    for module in (numpy_products, deep_products):
        monkeypatch.setattr(module, "CREW", crew)
        monkeypatch.setattr(module, "wake_helpers", lambda count: True)
        monkeypatch.setattr(module, "thread_count", lambda: 2)
    with helpers(crew, 1, lambda: library()._set_threads(3)):
        yield crew


def matrices(rng: np.random.Generator, *sizes: int) -> tuple[Array, Array]:
    """Return two matrices to multiply, each in row or column order."""
    rows, inner, columns = sizes
    a, b = rng.standard_normal((rows, inner), np.float32), rng.standard_normal((inner, columns), np.float32)
    return (np.asfortranarray(a) if rng.random() < 0.5 else a), (np.asfortranarray(b) if rng.random() < 0.5 else b)


@compiler
def test_shared_product_is_bitwise_equal_to_a_serial_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    some = [matrices(rng, *map(int, rng.integers(160, 300, 3))) for _ in range(20)]
    monkeypatch.setattr(numpy_products, "thread_count", lambda: 2)
    alone = [products.matmul(a, b) for a, b in some]
    own = library()._threads()
    with a_crew(monkeypatch) as crew:
        multiply, shared = noting(crew.multiply)
        monkeypatch.setattr(crew, "multiply", multiply)
        library()._set_threads(2)
        try:
            for (a, b), wanted in zip(some, alone, strict=True):
                shared.clear()
                end = time.monotonic() + SECONDS
                while not shared or not shared[-1]:
                    assert time.monotonic() < end, "no part was given to another thread"
                    made = products.matmul(a, b)
                    assert made.tobytes() == wanted.tobytes()
                np.testing.assert_allclose(made, a.astype(float) @ b.astype(float), rtol=1e-4, atol=1e-3)
            assert library()._threads() == 2, "they are the user's"
        finally:
            library()._set_threads(own)


@compiler
def test_products_of_few_rows_are_bitwise_equal_with_and_without_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use products with few rows, which are summed in pieces."""
    rng, bits = np.random.default_rng(4), []
    sizes = [(int(rng.integers(2, 41)), *map(int, rng.integers((900, 200), (2500, 700)))) for _ in range(20)]
    some = [(a, np.ascontiguousarray(b)) for a, b in (matrices(rng, *each) for each in sizes)]
    monkeypatch.setattr(deep_products, "thread_count", lambda: 2)
    monkeypatch.setattr(deep_products, "CREW", Crew())
    bits.append([products.matmul(a, b).tobytes() for a, b in some])
    with a_crew(monkeypatch) as crew:
        summing, sums = noting(crew.sums)
        monkeypatch.setattr(crew, "sums", summing)
        bits.append([products.matmul(a, b).tobytes() for a, b in some])
    assert sums
    assert None not in sums, "there is code for each"
    assert bits[0] == bits[1]


@compiler
def test_library_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = matrices(np.random.default_rng(2), 200, 200, 200)
    wrong = replace(products._gemm(), as_it_is=ord("?"), transposed=ord("?"))
    monkeypatch.setattr(products, "_gemm", lambda: wrong)
    monkeypatch.setattr(products, "_lying", lambda matrix: (b"?", matrix.shape[1]))
    with a_crew(monkeypatch) as crew:
        assert not any(crew.multiply(a, b, a.copy(), (0, 100, 200), True, 0, lambda _: True, wrong) for _ in range(100))
        with pytest.raises(InternalError, match="dnnl_sgemm failed"):
            products.matmul(a, b)
