"""Clusters for tests: servers of this process, at in-process addresses or at free ports."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from unittest.mock import patch

import aioflow as af
from aioflow.net.cluster_spec import free_addresses
from aioflow.net.comm import Comm
from aioflow.net.links import Link
from aioflow.net.server import Server

_NUMBERS = itertools.count(1)


def inproc(count: int) -> list[str]:
    """Return `count` new addresses within this process."""
    return [f"inproc://test-{next(_NUMBERS)}" for _ in range(count)]


@asynccontextmanager
async def cluster(
    *jobs: str, tcp: bool = False, config: af.SessionConfig | None = None, allow_dirs: Sequence[Path] = ()
) -> AsyncIterator[list[Server]]:
    """Run a server per job name and yield the servers; a name given twice is a job of two tasks."""
    addresses = free_addresses(len(jobs)) if tcp else inproc(len(jobs))
    spec: dict[str, list[str]] = {}
    for job, address in zip(jobs, addresses, strict=True):
        spec.setdefault(job, []).append(address)
    async with AsyncExitStack() as stack:
        servers = []
        for job, address in zip(jobs, addresses, strict=True):
            server = Server(spec, job, spec[job].index(address), config=config, allow_dirs=allow_dirs)
            servers.append(await stack.enter_async_context(server))
        yield servers


@contextmanager
def given_up_at_once() -> Iterator[None]:
    """Make clients give up at once on tasks that do not listen yet."""
    reach = Link._reach

    async def once(link: Link, patience: float) -> Comm:
        return await reach(link, 0.0)

    with patch.object(Link, "_reach", once):
        yield
