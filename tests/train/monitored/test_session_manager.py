"""Sessions with initialized variables: restored, initialized or awaited, and errors that name missing values."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import aioflow as af
from aioflow.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from aioflow.runtime.worker import Worker
from tests.support.loops import virtually
from tests.train.monitored.lost_peers import NoSession


@pytest.fixture
def shared() -> Worker:
    """Return a worker that several sessions share, as they share a parameter server."""
    return Worker(af.SessionConfig())


def manager(**arguments: Any) -> af.train.SessionManager:
    return af.train.SessionManager(ready_op=af.report_uninitialized_variables(), **arguments)


async def saved(folder: Path, value: float) -> af.Variable:
    v = af.Variable(value, name="v")
    async with af.Session() as session:
        await session.run(v.initializer)
        await af.train.Saver().save(session, folder / "model", 7)
    return v


async def test_prepare_session_initializes_without_a_checkpoint(tmp_path: Path) -> None:
    v = af.Variable(3.0, name="v")
    called = []

    async def init(session: Any) -> None:
        called.append(float(await session.run(v)))

    async with await manager().prepare_session(
        "", v.initializer, af.train.Saver(), tmp_path / "none", init_fn=init
    ) as session:
        assert await session.run(v) == 3
    assert called == [3.0]


@pytest.mark.parametrize("given", ["directory", "file"])
async def test_checkpoint_has_precedence_over_initializers(tmp_path: Path, given: str) -> None:
    v = await saved(tmp_path, 5.0)
    other = v.assign(1.0)
    saver = af.train.Saver(max_to_keep=3)
    place: dict[str, Any] = (
        {"checkpoint_dir": tmp_path}
        if given == "directory"
        else {"checkpoint_filename_with_path": tmp_path / "model-7"}
    )

    def init(session: Any) -> None:
        pytest.fail("the values are in the checkpoint")

    session = await manager().prepare_session("", other, saver, init_fn=init, **place)
    async with session:
        assert await session.run(v) == 5
    # A saver continues the list of checkpoints that it finds in a directory.
    assert [Path(path).name for path in saver.last_checkpoints] == (["model-7"] if given == "directory" else [])
    restored, found = await manager().recover_session("", saver, **place)
    async with restored:
        assert found
        assert await restored.run(v) == 5


async def test_recover_session_without_a_checkpoint(tmp_path: Path) -> None:
    af.Variable(3.0, name="v")
    session, found = await manager().recover_session("", af.train.Saver(), tmp_path)
    async with session:
        assert not found


async def test_error_names_uninitialized_variables() -> None:
    af.Variable(3.0, name="v")
    w = af.Variable(3.0, name="forgotten")
    assert w is not None
    with pytest.raises(FailedPreconditionError, match="forgotten"):
        await manager().prepare_session("", af.no_op())
    with pytest.raises(FailedPreconditionError, match="nothing initializes"):
        await manager().prepare_session("")
    with pytest.raises(FailedPreconditionError, match="forgotten"):
        await manager(
            local_init_op=af.no_op(), ready_for_local_init_op=af.report_uninitialized_variables([w])
        ).prepare_session("", af.no_op())
    with pytest.raises(InvalidArgumentError, match="a directory and a checkpoint"):
        await manager().prepare_session(
            "", af.no_op(), af.train.Saver(), checkpoint_dir="a", checkpoint_filename_with_path="b"
        )


async def test_error_names_a_missing_checkpoint(tmp_path: Path) -> None:
    await saved(tmp_path, 5.0)
    af.train.remove_checkpoint(str(tmp_path / "model-7"))
    with pytest.raises(NotFoundError, match="model-7"):
        await manager().prepare_session("", af.no_op(), af.train.Saver(), tmp_path)


async def test_local_variables_are_initialized_after_the_global_ones(shared: Worker) -> None:
    v = af.Variable(3.0, name="v")
    local = af.Variable(v.read_value() * 2, name="local", collections=[af.GraphKeys.LOCAL_VARIABLES])
    sessions = manager(
        local_init_op=local.initializer,
        ready_for_local_init_op=af.report_uninitialized_variables([v]),
        recovery_wait_secs=0.001,
    )
    async with asyncio.TaskGroup() as group, af.Session(shared) as chief:
        waiting = group.create_task(sessions.wait_for_session(shared, max_wait_secs=60))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        await chief.run(v.initializer)
        async with await waiting as session:
            assert await session.run(local) == 6


async def test_wait_for_session_times_out() -> None:
    af.Variable(3.0, name="waited_for")
    with pytest.raises(DeadlineExceededError, match="waited_for"):
        await manager(recovery_wait_secs=0.001).wait_for_session("", max_wait_secs=0.01)


@virtually
async def test_wait_for_session_waits_for_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pauses are short, and none exceeds `recovery_wait_secs`."""
    clock = asyncio.get_running_loop().time
    times: list[float] = []

    class Server(NoSession):
        async def run(self, fetches: Any, feed_dict: Any = None, **kwargs: Any) -> Any:
            times.append(clock())
            if clock() < 100:
                raise UnavailableError("no server listens")

    sessions = manager(recovery_wait_secs=8)
    monkeypatch.setattr(sessions, "_session", lambda master, config: Server())
    await sessions.wait_for_session("aioflow://ps:1")
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses[0] < 0.2
    assert max(pauses) == pytest.approx(8)
    assert 100 <= clock() <= 108
    monkeypatch.setattr(Server, "run", _nobody)
    with pytest.raises(DeadlineExceededError, match="no server listens"):
        await sessions.wait_for_session("aioflow://ps:1", max_wait_secs=50)


async def _nobody(*args: Any, **kwargs: Any) -> None:
    raise UnavailableError("no server listens")


async def test_prepare_session_waits_for_a_checkpoint(tmp_path: Path) -> None:
    v = af.Variable(3.0, name="v")
    saver = af.train.Saver()
    sessions = manager(recovery_wait_secs=0.001)
    async with asyncio.TaskGroup() as group, af.Session() as other:
        waiting = group.create_task(
            sessions.prepare_session("", v.initializer, saver, tmp_path, wait_for_checkpoint=True, max_wait_secs=60)
        )
        await other.run(v.assign(9.0))
        await af.train.Saver().save(other, tmp_path / "model", 1)
        async with await waiting as session:
            assert await session.run(v) == 9


async def test_prepare_session_initializes_after_the_wait_for_a_checkpoint(tmp_path: Path) -> None:
    v = af.Variable(3.0, name="v")
    async with await manager(recovery_wait_secs=0.001).prepare_session(
        "", v.initializer, af.train.Saver(), tmp_path, wait_for_checkpoint=True, max_wait_secs=0.01
    ) as session:
        assert await session.run(v) == 3


async def test_nan_as_a_wait_time_is_rejected(tmp_path: Path) -> None:
    """A NaN deadline is neither past nor future, so the wait would never end."""
    v, nan = af.Variable(3.0, name="v"), float("nan")
    sessions, saver = manager(), af.train.Saver()
    for waiting in (
        sessions.prepare_session("", v.initializer, saver, tmp_path, wait_for_checkpoint=True, max_wait_secs=nan),
        sessions.recover_session("", saver, tmp_path, wait_for_checkpoint=True, max_wait_secs=nan),
        sessions.wait_for_session("", max_wait_secs=nan),
        af.train.Supervisor(logdir=tmp_path).prepare_or_wait_for_session(wait_for_checkpoint=True, max_wait_secs=nan),
    ):
        with pytest.raises(InvalidArgumentError, match="max_wait_secs"):
            await asyncio.wait_for(waiting, 60)
    for is_chief in (True, False):
        with pytest.raises(InvalidArgumentError, match="max_wait_secs"):
            af.train.MonitoredTrainingSession(is_chief=is_chief, max_wait_secs=nan)
        with pytest.raises(InvalidArgumentError, match="negative"):
            af.train.MonitoredTrainingSession(is_chief=is_chief, max_recovery_secs=-1)
