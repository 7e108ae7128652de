"""Time limits hold whatever a step is at, the event loop goes on meanwhile, and no value grows beyond its limit."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from time import perf_counter
from types import FrameType
from typing import Any, Final

import pytest

import aioflow as af
from aioflow.errors import DeadlineExceededError, ResourceExhaustedError
from aioflow.stopping import doing
from tests.session.slow_steps import GROWING, SLOW, Slow, SlowStep, forget

_SHORT: Final = 0.1  # seconds: a time limit that every slow step exceeds
_PATIENCE: Final = 30.0  # seconds: what a machine that is busy with other things may take for what is soon done
_BLOCKED: Final = 3.0  # seconds: a gap in the loop's turns that no busy machine accounts for
_LATE: Final = 0.1  # seconds after its time limit at which a step has ended, on a machine with nothing else to do
_TRIES: Final = 5

# A row for each way in which kernels take long and stop.
_TYPICAL: Final = {
    "Fill",  # written block by block
    "Tile",  # copied block by block
    "SparseToDense",
    "TensorListReserve",  # a list that is made in Python
    "ResizeBilinear",
    "UnsortedSegmentSum",
    "RandomUniform",  # numbers from a generator that others share
    "RandomGamma",
    "RandomPoissonV2",
    "TopKV2",  # one long sort
    "TopKV2-rows",
    "UniqueV2",  # rows
    "LowerBound",
    "Cumsum-bfloat16",  # which keeps the interpreter's lock
    "TensorScatterAdd",
    "MatMul",  # one call of a library
    "Svd-batch",  # many of them
    "Conv2D",
    "Zeta",
    "AsString-width",  # strings, one by one
    "StringSplitV2-long",  # one long string
    "StringToHashBucket-long",
    "RegexReplace-long",
    "ParseExample",
    "DecodePng",
    "DecodeGif",
    "SparseReorder",
    "SparseFillEmptyRows-rows",
}


def _idle() -> bool:
    """Whether no thread but this one is at work for a step."""
    own = threading.get_ident()
    return not any(_works(frame) for thread, frame in sys._current_frames().items() if thread != own)


def _works(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code is not doing.__code__:
        frame = frame.f_back
    return frame is not None


async def _until_idle() -> None:
    """Let what was left behind come to its end, so that it is not in the way of what follows."""
    async with asyncio.timeout(4 * _PATIENCE):
        while True:
            if _idle():
                return
            await asyncio.sleep(0.01)


class Ticks:
    """What a task notices that only wants to be called again and again.

    Attributes:
        gap: The longest time, in seconds, for which it was not.
    """

    gap = 0.0

    async def _tick(self) -> None:
        last = perf_counter()
        while True:
            await asyncio.sleep(0.001)
            now = perf_counter()
            self.gap, last = max(self.gap, now - last), now


@asynccontextmanager
async def ticking() -> AsyncIterator[Ticks]:
    """A block during which a task wants to be called again and again."""
    ticks = Ticks()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(ticks._tick())
        await asyncio.sleep(0)
        yield ticks
        await asyncio.sleep(0)
        task.cancel()


@pytest.fixture
def shared_arrays() -> Iterator[None]:
    """What the rows share is freed."""
    yield
    forget()
    gc.collect()


# ── every slow step ──────────────────────────────────────────────────────────────────────────────────────────────────


async def _tried(session: af.Session, step: SlowStep, feeds: dict[Any, Any]) -> tuple[float, float, bool]:
    """For how long a step goes on after its time limit, and blocks the loop; and whether it is left behind."""
    async with ticking() as ticks:
        started = perf_counter()
        with pytest.raises(DeadlineExceededError) as raised:
            await session.run(step.node, feeds, timeout=_SHORT)
        late = perf_counter() - started - _SHORT
        idle = _idle()
    left = "left behind" in str(raised.value)
    assert left or idle, "a kernel runs on after its step, which does not say so"
    return late, ticks.gap, left


@pytest.mark.usefixtures("shared_arrays")
@pytest.mark.parametrize("row", [row for row in SLOW if str(row) in _TYPICAL], ids=str)
async def test_a_slow_step_ends_by_its_time_limit(row: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    if not row.left:  # however busy the machine is, it comes to a checkpoint
        monkeypatch.setattr("aioflow.threads.GRACE", _PATIENCE)
    async with af.Session(config=af.SessionConfig(inline_budget=0.05)) as session:
        step = SlowStep(row)
        await step.prepare(session)
        late, gap, left = await _tried(session, step, step.feeds())
        assert late < _PATIENCE
        assert gap < _BLOCKED
        assert row.left or not left
        assert await session.run(af.constant(1.0) + 1.0, timeout=_PATIENCE) == 2.0
    assert session.closed
    await _until_idle()


def test_the_typical_rows_exist() -> None:
    assert {str(row) for row in SLOW} >= _TYPICAL


@pytest.mark.soak
@pytest.mark.usefixtures("shared_arrays")
@pytest.mark.parametrize("row", SLOW, ids=str)
async def test_a_slow_step_ends_right_after_its_time_limit(row: Slow) -> None:
    """The best of a few tries counts: what else goes on in the machine may hold up any of them, but hardly all."""
    async with af.Session(config=af.SessionConfig(inline_budget=0.05)) as session:
        step = SlowStep(row)
        await step.prepare(session)
        tries = []
        for _ in range(_TRIES):
            late, gap, left = await _tried(session, step, step.feeds())
            await _until_idle()
            tries.append((max(late, gap), left))
            if tries[-1][0] <= _LATE and (row.left or not left):
                return
    pytest.fail(f"in seconds after the limit (or blocked), and whether it was left behind: {tries}")


# ── sizes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("row", GROWING, ids=str)
async def test_what_grows_with_a_value_is_refused_beyond_the_limit(row: Slow) -> None:
    async with af.Session(config=af.SessionConfig(max_value_bytes=1 << 20, inline_budget=0.05)) as session:
        step = SlowStep(row)
        await step.prepare(session)
        with pytest.raises(ResourceExhaustedError, match="max_value_bytes"):
            await session.run(step.node, step.feeds(), timeout=_PATIENCE)
        assert await session.run(af.constant(1.0) + 1.0) == 2.0
