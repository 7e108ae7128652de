"""Tests of clusters of real processes: steps, and failures of steps when a process is killed or stops to respond."""

from __future__ import annotations

import asyncio
import os
import signal

import numpy as np
import pytest

import aioflow as af
from aioflow.net.cluster_spec import free_addresses
from aioflow.net.server import client_options
from aioflow.worker import main
from tests.support.outcomes import failure
from tests.support.processes import SECONDS, program, program_on_loop
from tests.system.processes import worker_process, workers

PS = "/job:ps/replica:0/task:0"


def jobs(workers: int = 1) -> dict[str, list[str]]:
    ports = free_addresses(1 + workers)
    return {"ps": ports[:1], "worker": ports[1:]}


def test_dead_peer_is_detected_within_two_seconds() -> None:
    options = client_options()
    assert options.heartbeat * (options.misses + 1) <= 2.0


async def test_two_workers_update_one_variable_on_the_server() -> None:
    cluster = jobs(2)
    with af.device("/job:ps"):
        v = af.Variable(np.zeros(1000, np.float32), name="v")
    adds = []
    for task in range(2):
        with af.device(f"/job:worker/task:{task}"):
            gradient = af.fill([1000], 0.5) * 2.0
        adds.append(af.assign_add(v, gradient))
    async with (
        workers(cluster, ("ps", 0), ("worker", 1)),
        af.train.Server(cluster, "worker", 0) as here,
        af.Session(here.target) as one,
        af.Session(f"aioflow://{cluster['worker'][1]}") as two,
    ):
        await one.run(v.initializer)
        async with asyncio.TaskGroup() as tg:
            for _ in range(20):
                tg.create_task(one.run(adds[0].op))
                tg.create_task(two.run(adds[1].op))
        assert (await two.run(v)).tolist() == [40.0] * 1000


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("where", ["there", "here"])
async def test_dead_peer_ends_the_step_that_needs_it(number: signal.Signals, where: str) -> None:
    """Kill or stop the server while the step waits for its queue, or the worker waits for a value from it."""
    cluster = jobs()
    with af.device("/job:ps"):
        queue = af.FIFOQueue(1, [af.float32], shapes=[()])
        element = queue.dequeue()
    with af.device("/job:worker"):
        fetch = af.identity(element) if where == "here" else af.constant(0.0)
    fetches = [fetch] if where == "here" else [element, fetch]
    async with (
        asyncio.timeout(120),
        worker_process(cluster, "ps") as ps,
        af.train.Server(cluster, "worker", 0) as worker,
        af.Session(worker.target) as session,
    ):
        async with asyncio.TaskGroup() as tg:
            run = tg.create_task(failure(session.run(fetches)))
            while not await session.stuck_report():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            os.kill(ps.pid, number)
        assert isinstance(run.result(), af.errors.UnavailableError)
        assert PS in str(run.result())
        if number is signal.SIGKILL:
            # Wait before the block ends: a signal to a process that is gone already would consume its status.
            await ps.wait()
        with af.device("/job:worker"):
            assert await session.run(af.constant(1.0) + 1.0) == 2.0  # the other tasks remain usable


async def test_worker_continues_after_its_client_dies() -> None:
    """Check that the dead client's step is stopped, and another client dequeues the element it waited for."""
    cluster = {"ps": free_addresses(1)}
    target = f"aioflow://{cluster['ps'][0]}"
    program = (
        "import asyncio, sys, aioflow as af\n"
        "queue = af.FIFOQueue(1, [af.float32], shapes=[()], shared_name='q')\n"
        "async def main():\n"
        "    async with af.Session(sys.argv[1]) as session:\n"
        "        print('waits', flush=True)\n"
        "        await session.run(queue.dequeue())\n"
        "asyncio.run(main())\n"
    )
    queue = af.FIFOQueue(1, [af.float32], shapes=[()], shared_name="q")
    enqueue, dequeue, size = queue.enqueue(3.0), queue.dequeue(), queue.size()
    async with asyncio.timeout(40), worker_process(cluster, "ps"), af.Session(target) as session:
        async with program_on_loop("-c", program, target) as client:
            assert client.stdout is not None
            assert b"waits" in await client.stdout.readline()
            await asyncio.sleep(0.3)
        await session.run(enqueue)
        assert await session.run(size) == 1
        assert await session.run(dequeue) == 3.0


async def test_worker_exits_on_sigterm() -> None:
    cluster = {"local": free_addresses(1)}
    async with (
        asyncio.timeout(120),
        worker_process(cluster, "local") as process,
        af.Session(f"aioflow://{cluster['local'][0]}") as session,
    ):
        assert (await session.run(af.constant([1, 2]) * 2)).tolist() == [2, 4]
        process.terminate()
        assert await process.wait() == 0
        error = await failure(session.run(af.constant([1, 2]) * 3))
        assert isinstance(error, af.errors.UnavailableError)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--cluster", "ps=127.0.0.1:1", "--job", "worker"], "do not identify one task"),
        (["--cluster", "ps"], "--cluster"),
        (["--cluster", "ps=192.0.2.1:2222"], "loopback"),
    ],
)
def test_invalid_command_line_is_explained(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert expected in capsys.readouterr().err


def test_demo_reaches_the_accuracy_of_one_process_despite_a_killed_worker() -> None:
    with program("-m", "aioflow.worker", "demo", "--steps", "200", "--workers", "2") as process:
        output, _ = process.communicate(timeout=SECONDS)
    lines = output.splitlines()
    assert process.returncode == 0, lines
    for task in range(2):
        assert sum(line.startswith(f"worker {task}: step") for line in lines) >= 4
    killed = lines.index("worker 1: is killed, and started again")
    assert any(line.startswith("worker 1: restarted") for line in lines[killed:])
    assert any(line.startswith("worker 1: step 200 of 200") for line in lines[killed:])
    found = {line.partition("  ")[0]: line for line in lines}
    assert found["lost"].split()[1:] == ["nothing", "of", "400", "batches"]
    assert "steps a second" in found["speed"]
    assert "twice" in found["applied twice"]
    together, alone = (float(line.split("%")[0].split()[-1]) for line in lines if "%" in line)
    assert together > 94
    assert together > alone - 3
