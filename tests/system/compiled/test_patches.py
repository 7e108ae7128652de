"""Tests that compiled patches of images are equal to those that NumPy copies, and are used once they are compiled."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from aioflow_numpy import conv_patches
from aioflow_numpy.compiled import patches as module
from aioflow_numpy.compiled.patches import PATCHES_PROGRAM, CompiledPatches
from aioflow_numpy.compiled.wanted import BACKGROUND
from aioflow_numpy.conv_patches import PatchBlock, whole, window_rows
from aioflow_numpy.conv_shapes import Windows, windows
from aioflow_numpy.convolution import conv2d
from aioflow_numpy.crew import Crew
from tests.support.processes import SECONDS
from tests.system.compiled.chains import Array, compiler, same
from tests.system.compiled.crews import helpers, noting

pytestmark = compiler

# (image, kernel, strides, padding, dilations)
CASES: list[Any] = [
    ((1, 8, 8, 16), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    ((3, 9, 7, 5), (3, 2), (2, 3), ((0, 1), (2, 0)), (1, 1)),
    ((2, 12, 11, 3), (2, 3), (1, 1), ((2, 3), (4, 1)), (3, 2)),
    ((2, 3, 4, 6), (5, 5), (1, 2), ((4, 4), (6, 6)), (1, 1)),  # some windows are entirely outside
    ((4, 5, 5, 2), (3, 3), (1, 1), ((0, 0), (0, 0)), (1, 1)),
    ((1, 1, 9, 4), (1, 4), (1, 1), ((0, 0), (0, 2)), (1, 1)),
]


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> CompiledPatches:
    """Install compiled code for all convolutions."""
    made = CompiledPatches()
    made.prepare()
    assert made._code is not None
    monkeypatch.setattr(conv_patches, "PATCHES", made)
    return made


def _by_numpy(x: Array, g: Windows, block: PatchBlock) -> Array:
    rows = np.full((block.rows.stop - block.rows.start, g.kh * g.kw * g.c), 7, x.dtype)
    conv_patches._copy_windows(x, g, block, rows)
    return rows


def _blocks(g: Windows) -> Iterator[PatchBlock]:
    yield whole(g)
    yield from conv_patches.plan(g, 2 * g.ow, 1)  # two lines per block
    yield from conv_patches.plan(g, 2 * g.oh * g.ow, 1)


@pytest.mark.usefixtures("ready")
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.complex128, np.uint8])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_patches_equal_those_of_numpy(case: Any, dtype: Any) -> None:
    shape, *geometry = case
    g = windows(shape, *geometry)
    x = np.asarray(np.random.default_rng(0).integers(1, 200, shape), dtype)
    for block in _blocks(g):
        assert same(window_rows(x, g, block), _by_numpy(x, g, block))


@pytest.mark.usefixtures("ready")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_lines_are_shared_with_awake_helpers(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, *geometry = case
    g, x = windows(shape, *geometry), np.random.default_rng(0).standard_normal(shape, np.float32)
    crew = Crew()
    crew.prepare()
    monkeypatch.setattr(module, "CREW", crew)
    monkeypatch.setattr(module, "thread_count", lambda: 3)
    monkeypatch.setattr(module, "_PART", 64)
    loop, shared = noting(crew.loop)
    monkeypatch.setattr(crew, "loop", loop)
    with helpers(crew, 1):
        for block in _blocks(g):
            shared.clear()
            end = time.monotonic() + SECONDS
            while not (shared and shared[-1]):
                assert time.monotonic() < end, "nobody waits awake"
                made = window_rows(x, g, block)
                assert same(made, _by_numpy(x, g, block))
                if len(made) <= g.ow or made.nbytes < 2 * module._PART:
                    break  # a line is not divided


@pytest.mark.usefixtures("ready")
def test_images_may_have_any_memory_order() -> None:
    shape, *geometry = CASES[0]
    g, x = windows(shape, *geometry), np.random.default_rng(0).standard_normal(shape, np.float32)
    wanted = window_rows(x, g, whole(g)).copy()
    for image in (np.asfortranarray(x), np.repeat(x, 2, axis=2)[:, :, ::2], x[::-1, ::-1].copy()[::-1, ::-1]):
        assert same(window_rows(image, g, whole(g)), wanted)
    fixed = x.copy()
    fixed.flags.writeable = False
    assert same(window_rows(fixed, g, whole(g)), wanted)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolution_is_bitwise_equal_before_and_after_compilation(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (n, h, w, c), kernel, strides, padding, dilations = case
    rng = np.random.default_rng(0)
    x, taps = rng.standard_normal((n, h, w, c), np.float32), rng.standard_normal((*kernel, c, 24), np.float32)
    patches = CompiledPatches()
    monkeypatch.setattr(conv_patches, "PATCHES", patches)
    wanted = conv2d(x, taps, strides, padding, dilations, "NHWC")
    patches.prepare()
    assert same(wanted, conv2d(x, taps, strides, padding, dilations, "NHWC"))


def test_compilation_starts_after_numpy_has_worked_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Callable[[], None]] = []
    monkeypatch.setattr(BACKGROUND, "begin", asked.append)
    shape, *geometry = CASES[0]
    g, x = windows(shape, *geometry), np.ones(shape, np.float32)
    patches = CompiledPatches()
    out = np.empty((g.rows, g.kh * g.kw * g.c), np.float32)
    monkeypatch.setattr(module, "_WORTH", 3 * (out.nbytes + module._CALL))
    for count in (0, 0, 1, 1):
        assert not patches.copy(x, g, 0, g.oh, out)
        assert len(asked) == count
    asked[0]()
    assert patches.copy(x, g, 0, g.oh, out)


@pytest.mark.parametrize(
    "change", [("line / oh * height", "line / oh * width"), ("i >= height", "i > height"), ("j < 0", "j < 1")]
)
def test_code_with_different_patches_is_not_used(
    change: tuple[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert change[0] in PATCHES_PROGRAM
    monkeypatch.setattr(module, "PATCHES_PROGRAM", PATCHES_PROGRAM.replace(*change))
    patches = CompiledPatches()
    with caplog.at_level(logging.WARNING, "aioflow.compiled"):
        patches.prepare()
    assert patches._code is None
    assert "other than NumPy's" in caplog.text
