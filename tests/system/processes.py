"""Workers as processes, for tests and benchmarks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.support.processes import program_on_loop

__all__ = ["arguments_of", "worker_process", "workers"]


def arguments_of(cluster: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the cluster as arguments of `python -m aioflow.worker`."""
    return [text for job, addresses in cluster.items() for text in ("--cluster", f"{job}={','.join(addresses)}")]


@asynccontextmanager
async def worker_process(
    cluster: Mapping[str, Sequence[str]], job: str, task: int = 0, *, allow_dirs: Sequence[str | Path] = ()
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a worker and wait until it serves; kill it at the end of the block if it still runs."""
    command = ["-m", "aioflow.worker", *arguments_of(cluster), "--job", job, "--task", str(task)]
    command += [text for folder in allow_dirs for text in ("--allow-dir", str(folder))]
    async with program_on_loop(*command) as process:
        async with asyncio.timeout(60):
            line = await process.stdout.readline() if process.stdout is not None else b""
        if b"serves" not in line:
            raise RuntimeError(f"the worker of {job} {task} has not started: {line!r}")
        yield process


@asynccontextmanager
async def workers(
    cluster: Mapping[str, Sequence[str]], *tasks: tuple[str, int]
) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """Start several workers at the same time and wait until all serve."""
    async with AsyncExitStack() as stack:
        contexts = [worker_process(cluster, job, task) for job, task in tasks]
        yield list(await asyncio.gather(*(stack.enter_async_context(context) for context in contexts)))
