"""Tests of kernel choices: the faster of two kernels is measured once per shape, and kept for later processes."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioflow.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from aioflow_onednn.library import library
from tests.backends.onednn.random_cases import body, normal

try:
    library()
except (NotFoundError, FailedPreconditionError) as error:
    pytest.skip(error.message, allow_module_level=True)

from aioflow_onednn import convolutions, kernels
from aioflow_onednn.choices import Choices
from aioflow_onednn.entry import describe
from aioflow_onednn.forward import Forward


class Kernels:
    """Two kernels that take given times, in seconds of a fake clock."""

    def __init__(self, ours: float, below: float) -> None:
        self.now, self.calls = 0.0, {"oneDNN": 0, "NumPy": 0}
        self._seconds = {"oneDNN": ours, "NumPy": below}

    def clock(self) -> float:
        return self.now

    def kernel(self, name: str) -> Callable[[], str]:
        def call() -> str:
            self.now += self._seconds[name]
            self.calls[name] += 1
            return name

        return call

    def measured_by(self, choices: Choices, shape: str = "some") -> tuple[bool, str]:
        return choices.measure(shape, self.kernel("oneDNN"), self.kernel("NumPy"))


def choices(path: Path, some: Kernels | None = None, machine: str = "this machine") -> Choices:
    return Choices(path, lambda: machine, (some or Kernels(1, 1)).clock)


@pytest.mark.parametrize(
    ("ours", "below", "winner"),
    [(1e-3, 5e-3, "oneDNN"), (1e-3, 0.9e-3, "oneDNN"), (3e-5, 2e-5, "oneDNN"), (5e-3, 1e-3, "NumPy")],
)
def test_faster_kernel_is_chosen_and_saved(tmp_path: Path, ours: float, below: float, winner: str) -> None:
    some, path = Kernels(ours, below), tmp_path / "cache" / "kept.txt"
    known = choices(path, some)
    assert known.find("some") is None
    assert some.measured_by(known) == (winner == "oneDNN", winner)
    assert known.find("some") is (winner == "oneDNN")
    assert choices(path).find("some") is (winner == "oneDNN")
    assert choices(path, machine="another machine").find("some") is None
    assert known.counts()[winner] == sum(known.counts().values()) == 1


@pytest.mark.parametrize(
    ("ours", "below", "calls"),
    [(1e-3, 9e-3, 7), (1e-3, 1.1e-3, 9), (2e-2, 4e-2, 2), (0.1, 0.6, 1), (0.5, 0.6, 2), (0.6, 0.5, 3)],
)
def test_clear_winners_and_slow_kernels_are_measured_less(
    tmp_path: Path, ours: float, below: float, calls: int
) -> None:
    some = Kernels(ours, below)
    some.measured_by(choices(tmp_path / "kept.txt", some))
    assert some.calls == {"oneDNN": calls, "NumPy": calls}


def test_failing_kernel_is_not_chosen(tmp_path: Path) -> None:
    def fail() -> str:
        raise InvalidArgumentError("a shape that does not fit")

    known = choices(tmp_path / "kept.txt")
    with pytest.raises(InvalidArgumentError):
        known.measure("some", fail, lambda: "NumPy")
    assert known.find("some") is None
    assert known.measure("some", lambda: "oneDNN", lambda: "NumPy") == (True, "oneDNN")


@pytest.mark.parametrize(
    "contents",
    [
        b"",
        b"\xff\xfe\0",
        b"this machine\n",
        b"this machine\tsome\n",
        b"this machine\tsome\tMKL\n",
        b"\t\t\t\n" * 9,
        b"this machine\tsome\toneDN",
    ],
)
def test_damaged_file_is_ignored(tmp_path: Path, contents: bytes) -> None:
    path = tmp_path / "kept.txt"
    path.write_bytes(contents)
    some = Kernels(5, 1)
    known = choices(path, some)
    assert known.find("some") is None
    some.measured_by(known, "other")
    assert known.find("other") is False


def test_each_process_measures_if_the_choices_cannot_be_saved(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    for path in (tmp_path / "file" / "kept.txt", Path("kept.txt")):
        some = Kernels(5, 1)
        assert some.measured_by(choices(path, some)) == (False, "NumPy")
        assert choices(path).find("some") is None


def test_file_does_not_grow_without_limit(tmp_path: Path) -> None:
    path = tmp_path / "kept.txt"
    path.write_bytes(b"another machine\tsome\toneDNN\n" * 100_000)
    some = Kernels(5, 1)
    some.measured_by(choices(path, some))
    assert choices(path).find("some") is False
    assert path.stat().st_size < 1000


def test_threads_measure_in_turn_and_each_shape_once(tmp_path: Path) -> None:
    some, busy = Kernels(1, 1), threading.Lock()
    known = choices(tmp_path / "kept.txt", some)

    def ours() -> str:
        assert busy.acquire(blocking=False), "two measure at once"
        busy.release()
        return some.kernel("oneDNN")()

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: known.measure("some", ours, some.kernel("NumPy")), range(64)))
    assert made == [(True, "oneDNN")] * 64
    assert some.calls["NumPy"] == 3


CONVOLUTION = {"strides": (1, 1, 1, 1), "dilations": (1, 1, 1, 1), "data_format": "NHWC", "padding": "SAME"}
FUSED = {"num_args": 1, "fused_ops": ("BiasAdd",), "operands": (0, 1), "nodes": ("c", "b"), "sources": ("c", "b")}


@pytest.mark.parametrize("winner", ["oneDNN", "NumPy"])
@pytest.mark.parametrize("op", ["Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter", "_FusedConv2D"])
def test_convolution_is_computed_by_the_faster_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: str, winner: str
) -> None:
    """The choice holds from the node's first call on, so that all results of a node have the same bits."""
    known, calls = choices(tmp_path / "kept.txt"), Counter[str]()

    def compare(shape: str, ours: Callable[[], Any], below: Callable[[], Any]) -> tuple[bool, Any]:
        assert " NHWC 3 14 14 16 3 3 " in shape
        return winner == "oneDNN", ours() if winner == "oneDNN" else below()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            calls[name] += 1
            return function(*args)

        return call

    monkeypatch.setattr(known, "_compare", compare)
    monkeypatch.setattr(kernels, "CHOICES", known)
    for owner, name in (
        (Forward, "__call__"),
        (convolutions, "backprop_input"),
        (convolutions, "backprop_filter"),
    ):
        monkeypatch.setattr(owner, name, counted("oneDNN", getattr(owner, name)))
    rng = np.random.default_rng(0)
    image, kernel, dy = normal(rng, 3, 14, 14, 16), normal(rng, 3, 3, 16, 8), normal(rng, 3, 14, 14, 8)
    inputs: dict[str, tuple[Any, ...]] = {
        "Conv2D": (image, kernel),
        "Conv2DBackpropInput": (image.shape, kernel, dy),
        "Conv2DBackpropFilter": (image, kernel.shape, dy),
        "_FusedConv2D": (image, kernel, [normal(rng, 8)]),
    }
    attrs = {**CONVOLUTION, **(FUSED if op == "_FusedConv2D" else {})}
    expected = body(op, attrs, inputs[op], reproducible=True)(*inputs[op])
    for _ in range(2):  # two nodes; the second finds the saved choice
        call = body(op, attrs, inputs[op], reproducible=False)
        for _ in range(2):
            np.testing.assert_allclose(call(*inputs[op]), expected, rtol=1e-3, atol=1e-4)
    assert (calls["oneDNN"] > 0) == (winner == "oneDNN")


async def test_no_measurement_on_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = choices(tmp_path / "kept.txt")
    monkeypatch.setattr(kernels, "CHOICES", known)
    rng = np.random.default_rng(0)
    inputs = normal(rng, 3, 14, 14, 16), normal(rng, 3, 3, 16, 8)
    call = body("Conv2D", CONVOLUTION, inputs, reproducible=False)
    call(*inputs)
    assert sum(known.counts().values()) == 0
    await asyncio.to_thread(call, *inputs)
    assert sum(known.counts().values()) == 1


def test_describe_counts_the_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = Kernels(5, 1)
    known = choices(tmp_path / "kept.txt", some)
    some.measured_by(known)
    monkeypatch.setattr("aioflow_onednn.choices.CHOICES", known)
    assert describe()["convolutions"].endswith("kept.txt; so far 0 by oneDNN, 1 by NumPy")
