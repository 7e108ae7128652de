"""Tests that compiled pools are bitwise equal to NumPy, and are used once they are compiled."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aioflow_numpy import pooling
from aioflow_numpy.compiled import pools as module
from aioflow_numpy.compiled.pools import CompiledPool, pool_program
from aioflow_numpy.compiled.wanted import BACKGROUND, numbers
from aioflow_numpy.conv_shapes import Windows, windows
from tests.system.compiled.chains import Array, compiler, same

pytestmark = compiler

# (image, kernel, strides, padding)
CASES: list[Any] = [
    ((1, 10, 9, 40), (3, 3), (1, 1), ((1, 1), (1, 1))),
    ((3, 8, 8, 7), (2, 2), (2, 2), ((0, 0), (0, 0))),
    ((2, 9, 7, 16), (3, 2), (2, 3), ((0, 1), (1, 0))),
    ((2, 2, 3, 5), (6, 7), (2, 2), ((3, 3), (2, 5))),  # no kernel position is inside the image for all windows
    ((1, 3, 3, 4), (3, 3), (1, 1), ((6, 6), (5, 5))),  # some windows are entirely outside
    ((5, 6, 11, 1), (3, 3), (2, 2), ((0, 0), (0, 0))),
    ((1, 12, 12, 3), (1, 1), (3, 2), ((0, 0), (0, 0))),
    ((2, 70, 64, 48), (3, 3), (2, 2), ((1, 1), (1, 1))),  # several parts
]
FOLDS = {"sum": np.add, "max": np.maximum}


def _pool(fold: str, dtype: Any = np.float32) -> CompiledPool:
    return CompiledPool(FOLDS[fold], np.dtype(dtype), pooling._fold_by_numpy, pooling._order)


def _by_numpy(fold: str, x: Array, g: Windows, identity: Any) -> Array:
    out = np.empty((g.n, g.oh, g.ow, g.c), x.dtype)
    pooling._fold_by_numpy(FOLDS[fold], x, g, out, identity)
    return out


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_pool_is_bitwise_equal_to_numpy(case: Any, fold: str, dtype: Any) -> None:
    shape, *geometry = case
    g, rng, pool = windows(shape, *geometry), np.random.default_rng(0), _pool(fold, dtype)
    pool.prepare()
    identity = np.finfo(dtype).min if fold == "max" else 0
    for x in (numbers(rng, np.dtype(dtype), shape), np.asarray(rng.standard_normal(shape), dtype)):
        found = np.empty((g.n, g.oh, g.ow, g.c), dtype)
        with np.errstate(all="ignore"):
            assert pool.run(x, g, found, identity)
            assert same(found, _by_numpy(fold, x, g, identity))


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("which", ["avg_pool", "max_pool"])
def test_pool_is_bitwise_equal_before_and_after_compilation(
    which: str, data_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = _pool("sum" if which == "avg_pool" else "max")
    monkeypatch.setattr(pooling, "compiled_pool", lambda *args: pool)
    x = np.random.default_rng(0).standard_normal((2, 9, 8, 10), np.float32)
    images = [x, np.asfortranarray(x), np.repeat(x, 2, 1)[:, ::2], x[::-1]]
    fixed = x.copy()
    fixed.flags.writeable = False

    def pooled() -> list[Array]:
        do = getattr(pooling, which)
        return [do(each, (3, 2), (2, 1), ((1, 1), (0, 1)), data_format) for each in (*images, fixed)]

    wanted = pooled()
    pool.prepare()
    assert pool._function is not None
    assert all(map(same, wanted, pooled()))


def test_empty_images_are_pooled_without_the_code() -> None:
    pool = _pool("sum")
    pool.prepare()
    for shape in ((0, 4, 4, 3), (2, 4, 4, 0)):
        x = np.empty(shape, np.float32)
        assert pooling.avg_pool(x, (2, 2), (2, 2), ((0, 0), (0, 0)), "NHWC").shape == (shape[0], 2, 2, shape[3])
        assert not pool.run(x, windows(shape, (2, 2), (2, 2), ((0, 0), (0, 0))), np.empty((0,), np.float32), 0)


def test_compilation_starts_after_numpy_has_worked_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Callable[[], None]] = []
    monkeypatch.setattr(BACKGROUND, "begin", asked.append)
    shape, *geometry = CASES[0]
    g, x, pool = windows(shape, *geometry), np.ones(CASES[0][0], np.float32), _pool("max")
    out = np.empty((g.n, g.oh, g.ow, g.c), np.float32)
    monkeypatch.setattr(module, "_WORTH", 3 * (x.nbytes + module._CALL))
    for count in (0, 0, 1, 1):
        assert not pool.run(x, g, out, 0)
        assert len(asked) == count
    asked[0]()
    assert pool.run(x, g, out, 0)


@pytest.mark.parametrize(
    "change", [("list[2] * run", "list[1] * run"), ("? 2 : 3", "? 3 : 3"), ("line % oh", "line % ow")]
)
def test_code_with_different_results_is_not_used(
    change: tuple[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert change[0] in pool_program(np.add, np.dtype(np.float32))
    monkeypatch.setattr(module, "pool_program", lambda *args: pool_program(*args).replace(*change))
    pool = _pool("sum")
    with caplog.at_level(logging.WARNING, "aioflow.compiled"):
        pool.prepare()
    assert pool._function is None
    assert "its results differ from NumPy's" in caplog.text
