"""Products of 8-bit integers by oneDNN: the same bits as NumPy's, for all shapes, zero points and threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import FailedPreconditionError, NotFoundError
from aioflow_onednn import integer_products
from aioflow_onednn.library import library
from tests.backends.onednn.random_cases import body, integer_product
from tests.backends.onednn.stress import shrink

try:
    library()
except (NotFoundError, FailedPreconditionError) as error:
    pytest.skip(error.message, allow_module_level=True)

has_instructions = pytest.mark.skipif(not library().has_int8, reason="this processor has no instructions for int8")


@pytest.mark.parametrize("seed", range(4))
def test_results_have_numpys_bits(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch.setattr)
    rng = np.random.default_rng(seed)
    for _ in range(60):
        case = integer_product(rng)
        assert case.agrees(), (case.op, case.attrs, [np.shape(each) for each in case.inputs[:2]])


@has_instructions
@pytest.mark.parametrize("shape", [(1, 300, 500), (500, 300, 1), (64, 2**15, 8), (3, 2**15 + 1, 8)])
@pytest.mark.parametrize("extreme", [False, True])
def test_extreme_sums_are_exact(shape: tuple[int, int, int], extreme: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch.setattr)
    rng, (rows, inner, columns) = np.random.default_rng(1), shape
    a = rng.integers(254 if extreme else 0, 256, (rows, inner)).astype(np.uint8)
    b = rng.integers(-128, -126 if extreme else 128, (inner, columns)).astype(np.float64)
    zero = np.zeros((), np.float64)
    attrs = {"T": af.float64, "Ta": af.uint8, "Tb": af.float64, "num_zeros": 1, "nodes": ["0"], "sources": ["0"]}
    inputs = (a, b, [zero])
    made = body("_IntegerMatMul", attrs, inputs, reproducible=False, constants=(None, b, None))(*inputs)
    np.testing.assert_array_equal(made, a.astype(np.int64) @ b.astype(np.int64))


@has_instructions
def test_imported_product_is_computed_by_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integer_products, "WORTHWHILE", 1)
    calls, multiply = [], integer_products.matmul

    def watched(*args: Any) -> Any:
        calls.append(args[2])
        return multiply(*args)

    monkeypatch.setattr(integer_products, "matmul", watched)
    rng = np.random.default_rng(2)
    x, weights = rng.integers(0, 256, (5, 60), np.uint8), rng.integers(-128, 128, (60, 7), np.int8)
    with af.Graph().as_default(), af.Session() as session:
        fed = af.placeholder("uint8", [None, 60])
        y = af.cast(af.matmul(af.cast(fed, "float32") - 128.0, weights.astype(np.float32)), "int32")
        made = session.run_sync(y, {fed: x})
    np.testing.assert_array_equal(made, (x.astype(np.int32) - 128) @ weights.astype(np.int32))
    assert calls == [128]
