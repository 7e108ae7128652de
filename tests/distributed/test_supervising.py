"""Supervision, with a host whose tasks start and end on command."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from aioflow.distributed.supervising import (
    ClusterRequest,
    StartedCluster,
    TaskProcess,
    cluster_request,
    supervised,
    tasks_of,
)
from aioflow.errors import DeadlineExceededError, InvalidArgumentError, UnavailableError
from aioflow.net.cluster_spec import ClusterSpec, TaskId
from aioflow.net.credentials import Credentials, credentials_at

PS, WORKER = TaskId("ps", 0), TaskId("worker", 0)
SECONDS = 30.0


class Stage:
    """A host that records its calls; `end`, `lose` and `fail` end a task."""

    def __init__(self, request: ClusterRequest) -> None:
        self._tasks = tasks_of(request.jobs)
        self._ended = {task: asyncio.Event() for task in self._tasks}
        self._lost: dict[TaskId, Exception] = {}
        self.silent: set[TaskId] = set()
        self.begun: list[tuple[TaskId, str]] = []
        self.drained: list[TaskId] = []
        self.closed = False
        self.change = asyncio.Event()

    def end(self, task: TaskId) -> None:
        self._ended[task].set()

    def lose(self, task: TaskId, message: str = "gone") -> UnavailableError:
        error = self._lost[task] = UnavailableError(message)
        self.end(task)
        return error

    def fail(self, task: TaskId, error: Exception) -> None:
        self._lost[task] = error
        self.end(task)

    async def until_begun(self, count: int) -> None:
        while len(self.begun) < count:
            self.change.clear()
            await self.change.wait()
        await asyncio.sleep(0)

    async def place(self, seconds: float) -> Mapping[TaskId, str]:
        return {task: f"127.0.0.1:{number}" for number, task in enumerate(self._tasks, 2000)}

    async def begin(self, task: TaskId, spec: ClusterSpec) -> TaskProcess:
        if task in self.silent:
            await asyncio.Event().wait()
        if task in self._lost:
            raise self._lost[task]
        self._ended[task].clear()
        self.begun.append((task, spec.task_address(*task)))
        self.change.set()
        return TaskProcess("here", len(self.begun))

    async def ended(self, task: TaskId) -> None:
        await self._ended[task].wait()

    async def drain(self, task: TaskId) -> None:
        self.drained.append(task)

    async def close(self) -> None:
        self.closed = True


def asked(**options: Any) -> ClusterRequest:
    given = {"credentials": None, "allow_dirs": (), "imports": (), "max_restarts": 3, "drain_seconds": 0.0}
    return cluster_request({"ps": 1, "worker": 1}, **(given | options))


def started(stage: Stage, what: ClusterRequest, may_lose: tuple[str, ...] = (), timeout: float = SECONDS) -> Any:
    return supervised(stage, what, timeout=timeout, may_lose=may_lose)


def ended_in_order(stage: Stage) -> bool:
    return stage.closed and sorted(stage.drained) == [PS, WORKER]


async def test_an_ended_task_restarts_at_its_address() -> None:
    what = asked()
    stage = Stage(what)
    async with asyncio.timeout(SECONDS), started(stage, what) as cluster:
        assert cluster.spec.as_dict() == {"ps": ["127.0.0.1:2000"], "worker": ["127.0.0.1:2001"]}
        assert cluster.target == "aioflow://127.0.0.1:2000"
        assert cluster.target_of("worker") == "aioflow://127.0.0.1:2001"
        before = cluster.status_of("worker").pid
        stage.end(WORKER)
        await stage.until_begun(3)
        assert stage.begun[-1] == (WORKER, "127.0.0.1:2001")
        status = cluster.status_of("worker")
        assert (status.state, status.restarts, status.address) == ("serves", 1, "127.0.0.1:2001")
        assert status.pid not in (0, before)
        assert cluster.status_of("ps").restarts == 0
        assert not stage.drained
    assert ended_in_order(stage)


async def test_a_lost_task_cancels_the_block_and_raises_its_error() -> None:
    what = asked()
    stage, cancelled, lost = Stage(what), asyncio.Event(), []

    async def program() -> None:
        async with started(stage, what):
            lost.append(stage.lose(WORKER))
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

    async with asyncio.timeout(SECONDS):
        with pytest.raises(UnavailableError) as raised:
            await program()
        await asyncio.sleep(0)  # raises if a cancellation of this task is still pending
    assert [raised.value] == lost
    assert cancelled.is_set()
    assert ended_in_order(stage)


async def test_the_error_of_the_block_is_the_cause_of_the_loss_error() -> None:
    what = asked()
    stage, own = Stage(what), UnavailableError("the session's view of it")

    async def program() -> None:
        async with asyncio.timeout(SECONDS), started(stage, what):
            stage.lose(WORKER)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise own from None

    with pytest.raises(UnavailableError, match="gone") as raised:
        await program()
    assert raised.value.__cause__ is own


async def test_may_lose_tolerates_a_lost_job(caplog: pytest.LogCaptureFixture) -> None:
    what = asked()
    stage = Stage(what)
    async with asyncio.timeout(SECONDS), started(stage, what, may_lose=("worker",)) as cluster:
        stage.lose(WORKER)
        while cluster.status_of("worker").state != "lost":  # noqa: ASYNC110
            await asyncio.sleep(0)
        stage.end(PS)  # the other tasks are still supervised
        await stage.until_begun(3)
        assert cluster.status_of("ps").restarts == 1
    assert "/job:worker/replica:0/task:0 is lost" in caplog.text
    assert ended_in_order(stage)


async def test_may_lose_does_not_apply_at_the_start() -> None:
    what = asked()
    stage = Stage(what)
    error = stage.lose(WORKER)
    with pytest.raises(UnavailableError) as raised:
        async with asyncio.timeout(SECONDS), started(stage, what, may_lose=("worker",)):
            raise AssertionError("it begins")
    assert raised.value is error
    assert ended_in_order(stage)


async def test_a_failing_block_raises_its_own_error() -> None:
    what = asked()
    stage, own = Stage(what), ExceptionGroup("of the program's own", [KeyError(1)])
    with pytest.raises(ExceptionGroup) as raised:
        async with started(stage, what):
            raise own
    assert raised.value is own
    assert raised.value.__cause__ is None
    assert ended_in_order(stage)


async def test_a_block_that_is_cancelled_ends_in_order() -> None:
    what = asked()
    stage = Stage(what)

    async def program() -> None:
        async with asyncio.timeout(SECONDS) as limit, started(stage, what):
            limit.reschedule(asyncio.get_running_loop().time())
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await program()
    assert ended_in_order(stage)


async def test_the_timeout_names_tasks_that_did_not_start() -> None:
    what = asked()
    stage = Stage(what)
    stage.silent.add(WORKER)
    with pytest.raises(DeadlineExceededError) as raised:
        async with started(stage, what, timeout=0.05):
            raise AssertionError("it begins")
    assert "/job:worker" in str(raised.value)
    assert "/job:ps" not in str(raised.value)
    assert ended_in_order(stage)


async def test_sessions_of_this_program_know_the_secret_while_the_block_runs() -> None:
    what = asked(credentials=Credentials())
    stage, address = Stage(what), "tcp://127.0.0.1:2000"
    assert credentials_at(address) is None
    async with started(stage, what) as cluster:
        known = credentials_at(address)
        assert isinstance(cluster, StartedCluster)
        assert known is cluster.credentials
        assert known is not None
        assert known.is_client
        assert what.credentials.secret is not None
        assert len(what.credentials.secret) >= 32
        assert not what.credentials.is_client
    assert credentials_at(address) is None


async def test_no_secret_is_logged_or_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    what = asked()
    stage = Stage(what)
    async with started(stage, what) as cluster:
        stage.end(PS)
        await stage.until_begun(3)
    secret = what.credentials.secret
    assert secret is not None
    assert caplog.text
    for text in (caplog.text, repr(cluster), repr(what), repr(cluster.credentials)):
        assert secret.decode() not in text


def test_each_cluster_has_its_own_secret_unless_the_environment_sets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIOFLOW_SECRET", raising=False)
    assert asked().credentials.secret != asked().credentials.secret
    monkeypatch.setenv("AIOFLOW_SECRET", "0123456789abcdef" * 2)
    assert asked().credentials.secret == b"0123456789abcdef" * 2


@pytest.mark.parametrize(
    "options", [{"max_restarts": -2}, {"max_restarts": 1.5}, {"drain_seconds": "1"}, {"drain_seconds": float("nan")}]
)
def test_invalid_numbers_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        asked(**options)


@pytest.mark.parametrize("options", [{"timeout": 0.0}, {"may_lose": ("wroker",)}])
async def test_invalid_options_are_rejected_before_placement(options: dict[str, Any]) -> None:
    what = asked()
    stage = Stage(what)
    with pytest.raises(InvalidArgumentError):
        async with started(stage, what, **options):
            raise AssertionError("it begins")
    assert not stage.begun


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_broken_host_ends_the_block_with_its_error(at_once: bool) -> None:
    """The block raises the host's error, not its own cancellation."""
    what = asked()
    stage = Stage(what)
    if at_once:
        stage.fail(WORKER, ValueError("broken"))

    async def program() -> None:
        async with started(stage, what, may_lose=("worker",)):
            stage.fail(WORKER, ValueError("broken"))
            await asyncio.Event().wait()

    async with asyncio.timeout(SECONDS):
        with pytest.raises(ValueError, match="broken"):
            await program()
    assert stage.closed
