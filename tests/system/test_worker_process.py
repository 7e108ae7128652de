"""A worker process: its task from the environment, its status page, and its shutdown by signals."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import aioflow as af
from aioflow.errors import OpError, ResourceExhaustedError, UnavailableError
from aioflow.extend import make
from aioflow.graph.opdef import OPS
from aioflow.kernels.registry import KERNELS
from aioflow.net.cluster_spec import free_addresses
from tests.support.processes import SECONDS, program_on_loop
from tests.system.processes import worker_process

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
TASK: Final = "/job:worker/replica:0/task:0"


class Running(NamedTuple):
    """A running worker."""

    process: asyncio.subprocess.Process
    target: str
    page: str

    async def health(self) -> tuple[int, str]:
        return await asyncio.to_thread(fetched, f"{self.page}health")

    async def until(self, text: str) -> None:
        """Wait until its status page contains `text`."""
        while text not in (await asyncio.to_thread(fetched, self.page))[1]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def fetched(url: str) -> tuple[int, str]:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=SECONDS) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@asynccontextmanager
async def worker(*arguments: str, environment: Mapping[str, str] | None = None) -> AsyncIterator[Running]:
    [address] = free_addresses(1)
    cluster = {"cluster": {"worker": [address]}, "task": {"type": "worker", "index": 0}}
    command = ["-m", "aioflow.worker", "--status-port", "0", *arguments]
    variables = os.environ | {"TF_CONFIG": json.dumps(cluster)} | dict(environment or {})
    async with program_on_loop(*command, env=variables, stderr=asyncio.subprocess.PIPE) as process:
        if process.stdout is None:
            raise AssertionError("there is no output")
        async with asyncio.timeout(SECONDS):
            ready = (await process.stdout.readline()).decode()
            page = (await process.stdout.readline()).decode()
        assert ready == f"{TASK} serves at aioflow://{address}\n"  # docs/cluster.md documents this line
        assert page.startswith(f"status page of {TASK}: http://127.0.0.1:")
        yield Running(process, ready.split()[-1], page.split()[-1])


async def failure(session: af.Session, fetches: Any, feeds: Any = None) -> OpError:
    with pytest.raises(OpError) as raised:
        await session.run(fetches, feeds)
    return raised.value


async def test_session_waits_for_a_worker_that_starts_later() -> None:
    [address] = free_addresses(1)
    session = af.Session(f"aioflow://{address}")
    with pytest.raises(UnavailableError, match="Connection refused"):
        await session.connect(wait=0.1)
    async with asyncio.TaskGroup() as tg:
        waiting = tg.create_task(session.connect(wait=SECONDS))
        async with worker_process({"worker": [address]}, "worker"):
            await waiting
            async with session:
                assert await session.run(af.constant(20.0) + 22.0) == 42.0


async def test_terminated_worker_finishes_running_steps() -> None:
    begun, opened = asyncio.Event(), asyncio.Event()

    async def gate() -> float:
        begun.set()
        await opened.wait()
        return 40.0

    value = af.py_coroutine(gate, [], af.float32, shapes=[])
    with af.device("/job:worker"):
        v = af.Variable(1.0)
        late = v.assign_add(value)
        one = v.assign_add(1.0)
    async with asyncio.timeout(SECONDS), worker() as served, af.Session(served.target) as session:
        await session.run(v.initializer)
        assert await served.health() == (200, "serves\n")
        async with asyncio.TaskGroup() as tg:
            running = tg.create_task(session.run(late))
            await begun.wait()
            await served.until("1 running")
            served.process.terminate()
            await served.until("drains")
            assert (await served.health())[0] == 503
            refused = await failure(session, one)
            assert isinstance(refused, UnavailableError)
            assert not refused.may_have_been_applied
            opened.set()
            assert await running == 41.0
        _, errors = await served.process.communicate()
        assert served.process.returncode == 0
        line, signalled = errors.decode().splitlines()
        assert line.endswith("job worker, task 0 (cluster from TF_CONFIG, job from TF_CONFIG, task from TF_CONFIG)")
        assert re.fullmatch(r"\S+Z INFO aioflow.program\[\d+\] received SIGTERM", signalled)


@pytest.mark.parametrize(
    ("seconds", "more", "status"),
    [("0", [], 0), ("1000", [signal.SIGTERM], 143), ("1000", [signal.SIGINT], 130)],
    ids=["in no time", "SIGTERM again", "SIGINT after it"],
)
async def test_endless_step_is_stopped_after_the_drain_time_or_a_signal(
    seconds: str, more: Sequence[signal.Signals], status: int
) -> None:
    with af.device("/job:worker"):
        element = af.FIFOQueue(1, [af.float32], shapes=[()]).dequeue()
    async with (
        asyncio.timeout(SECONDS),
        worker("--drain-seconds", seconds) as served,
        af.Session(served.target) as session,
        asyncio.TaskGroup() as tg,
    ):
        running = tg.create_task(failure(session, element))
        await served.until("waits for")
        served.process.terminate()
        for number in more:
            await served.until("drains")
            served.process.send_signal(number)
        error = await running
        assert isinstance(error, UnavailableError)
        _, errors = await served.process.communicate()
        assert served.process.returncode == status
        assert b"Traceback" not in errors


async def test_limit_from_the_command_line_is_enforced() -> None:
    with af.device("/job:worker"):
        queue = af.FIFOQueue(1, [af.float32], shapes=[()])
        element, put = queue.dequeue(), queue.enqueue(1.0)
    async with (
        asyncio.timeout(SECONDS),
        worker("--limit", "steps=1") as served,
        af.Session(served.target) as session,
        af.Session(served.target) as other,
        asyncio.TaskGroup() as tg,
    ):
        running = tg.create_task(session.run(element))
        await served.until("waits for")
        assert isinstance(await failure(session, queue.dequeue()), ResourceExhaustedError)
        await other.run(put)
        assert await running == 1.0


HANGING: Final = """
import time
from aioflow import extend
extend.define_op("TestHanging", "x: T", "y: T", ["T: {floats}"], shape=lambda ctx: ctx.dims("x"), stateful=True)

@extend.kernel("TestHanging")
def hang(x):
    print("it hangs", flush=True)
    time.sleep(3600)
    return x
"""


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the name of a module that defines the op TestHanging, also imported here to build the graph."""
    (tmp_path / "ops_that_hang.py").write_text(HANGING)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("ops_that_hang")
    yield "ops_that_hang"
    # The registries have no public method to remove an op or a kernel.
    del sys.modules["ops_that_hang"]
    OPS._ops.pop("TestHanging")
    KERNELS._kernels.pop("TestHanging")


async def test_endless_kernel_does_not_keep_the_process_alive(hanging: str) -> None:
    """The kernel has an effect, so the worker waits for its step.

    The wait lasts for `--drain-seconds` and a few seconds more. Then the process ends and reports the stack that hangs.
    """
    x = af.placeholder(af.float32, [2])
    with af.device("/job:worker"):
        y = make("TestHanging", x)
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    arguments = ("--drain-seconds", "0.1", "--import", hanging)
    async with (
        asyncio.timeout(SECONDS),
        worker(*arguments, environment=environment) as served,
        af.Session(served.target) as session,
        asyncio.TaskGroup() as tg,
    ):
        running = tg.create_task(failure(session, y, {x: [1.0, 2.0]}))
        assert served.process.stdout is not None
        assert await served.process.stdout.readline() == b"it hangs\n"
        served.process.send_signal(signal.SIGTERM)
        _, errors = await served.process.communicate()
        assert served.process.returncode == 1
        assert b"ops_that_hang.py" in errors
        assert isinstance(await running, UnavailableError)
