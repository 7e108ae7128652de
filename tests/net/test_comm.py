"""The conformance suite that aioflow ships, for every transport on every event loop."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import pytest

from aioflow.net.comm import Comm, CommOptions
from aioflow.testing.check_comm import CHECKS, Check, connected
from tests.support.loops import LOOPS

ADDRESSES = {"inproc": "inproc://check", "tcp": "tcp://127.0.0.1:0", "tcp6": "tcp://[::1]:0"}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    ("address", "loop"), [("inproc", "asyncio"), ("tcp", "asyncio"), ("tcp", "uvloop"), ("inproc", "uvloop")]
)
def test_transport_passes_the_conformance_suite(check: Check, address: str, loop: str) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(asyncio.wait_for(check(connected(ADDRESSES[address])), 60))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_tcp_without_shared_memory_passes_the_conformance_suite(check: Check) -> None:
    def connected_alone(first: CommOptions, second: CommOptions) -> AbstractAsyncContextManager[tuple[Comm, Comm]]:
        return connected(ADDRESSES["tcp"])(replace(first, shared_memory=False), second)

    asyncio.run(asyncio.wait_for(check(connected_alone), 60))
