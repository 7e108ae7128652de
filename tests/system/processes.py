"""Workers as processes, for tests and benchmarks: started, waited for, and ended by their own handles."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

__all__ = ["arguments_of", "worker_process", "workers"]


def arguments_of(cluster: Mapping[str, Sequence[str]]) -> list[str]:
    """The cluster as `python -m aioflow.worker` takes it."""
    return [text for job, addresses in cluster.items() for text in ("--cluster", f"{job}={','.join(addresses)}")]


@asynccontextmanager
async def worker_process(
    cluster: Mapping[str, Sequence[str]], job: str, task: int = 0
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker that serves; it is killed at the end of the block if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "aioflow.worker", *arguments_of(cluster), "--job", job, "--task", str(task)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            line = await process.stdout.readline() if process.stdout is not None else b""
        if b"serves" not in line:
            raise RuntimeError(f"the worker of {job} {task} has not started: {line!r}")
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGCONT)  # one that is stopped could not be waited for
            process.kill()
        await process.communicate()


@asynccontextmanager
async def workers(
    cluster: Mapping[str, Sequence[str]], *tasks: tuple[str, int]
) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """Several workers, started at the same time."""
    async with AsyncExitStack() as stack:
        contexts = [worker_process(cluster, job, task) for job, task in tasks]
        yield list(await asyncio.gather(*(stack.enter_async_context(context) for context in contexts)))
