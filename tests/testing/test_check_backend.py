"""`check_backend` reports faults of a backend: each as the result of a check, also if the backend raises errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pytest

from aioflow.errors import InternalError
from aioflow.extend import Step
from aioflow.testing import check_backend as suite
from aioflow.testing.check_backend import check_backend
from examples.own_backend import CountedBackend, CountedDevice, Numpy

T = TypeVar("T")


class _WithoutClose(CountedDevice):
    close: Any = property()


class _WithoutCaptured(CountedDevice):
    captured: Any = property()


class _WithSyncCopies(CountedDevice):
    to_device: Any = staticmethod(np.asarray)


class _OfUnsignedSeeds(CountedDevice):
    def generator(self, seed: int, seed2: int) -> Any:
        return Numpy(np.random.default_rng([seed, seed2]), self.traffic)


class _OfOneSeed(CountedDevice):
    def generator(self, seed: int, seed2: int) -> Any:
        return Numpy(np.random.default_rng(1), self.traffic)


class _WithoutDlpack(CountedDevice):
    def share(self, array: Any) -> Any:
        return object()


class _WithAnotherCopy(CountedDevice):
    def copy_from(self, array: Any, other: CountedDevice) -> Any:
        return self.xp.asarray(array.memory * 2)


class _Deaf(CountedDevice):
    """A device whose executor does not ask a cancelled step to stop."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.executor: Any = self

    async def run(self, step: Step, function: Callable[..., T], *args: object) -> T:
        call = asyncio.get_running_loop().run_in_executor(None, partial(function, *args))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            self.cancelled(step)
            if self.waits:
                await asyncio.wait([call])
            raise

    waits = True

    def cancelled(self, step: Step) -> None:
        """Ignore the cancellation."""


class _Hasty(_Deaf):
    """A device whose executor does not wait for the function of a cancelled run."""

    waits = False

    def cancelled(self, step: Step) -> None:
        step.stop()


def backend_of(device: type[CountedDevice]) -> Callable[[], CountedBackend]:
    def make() -> CountedBackend:
        backend = CountedBackend()
        backend._devices = [device(0), device(1)]
        return backend

    return make


@pytest.mark.parametrize(
    ("device", "check", "found"),
    [
        (_WithoutCaptured, "has_all_members", "['captured']"),
        (_WithSyncCopies, "round_trip", "TypeError: object numpy.ndarray can't be used in 'await' expression"),
        (_WithSyncCopies, "many_at_once", "TypeError: object numpy.ndarray can't be used in 'await' expression"),
        (_OfUnsignedSeeds, "numbers_repeat", "ValueError: "),
        (_OfOneSeed, "numbers_repeat", "different lists of numbers"),
        (_WithoutDlpack, "arrays_are_shared", "['__dlpack__', '__dlpack_device__']"),
        (_WithAnotherCopy, "arrays_are_shared", "copy on another device"),
        (_Deaf, "cancellation_waits", "[False]"),
        (_Hasty, "cancellation_waits", "[]"),
    ],
)
async def test_check_backend_reports_the_fault(
    monkeypatch: pytest.MonkeyPatch, device: type[CountedDevice], check: str, found: str
) -> None:
    if device is _Deaf:  # the only one that waits so long
        monkeypatch.setattr(suite, "_PATIENCE", 0.1)
    problems = {r.name: r.problem for r in await check_backend(backend_of(device), complete=True) if r.problem}
    assert found in problems[check]
    assert device is _WithSyncCopies or list(problems) == [check]


async def test_check_backend_raises_the_first_problem_with_its_cause() -> None:
    with pytest.raises(InternalError, match="round trip") as caught:
        await check_backend(backend_of(_WithSyncCopies))
    assert isinstance(caught.value.__cause__, TypeError)


async def test_check_backend_reports_a_missing_close_by_name() -> None:
    with pytest.raises(InternalError) as caught:
        await check_backend(backend_of(_WithoutClose))
    assert caught.value.actual == ["close"]
