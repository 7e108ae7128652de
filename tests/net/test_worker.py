"""Every kind of worker against the conformance suite that aioflow ships."""

from __future__ import annotations

import asyncio

import pytest

from aioflow.testing.check_worker import (
    JOINT_CHECKS,
    SINGLE_CHECKS,
    Check,
    Factory,
    beside,
    check_worker,
    in_process,
    served,
)

FACTORIES = {"local": in_process(), "beside": beside(), "inproc": served("inproc"), "tcp": served("tcp")}
CASES = [(name, check) for name in FACTORIES for check in SINGLE_CHECKS] + [
    (name, check) for name in FACTORIES if name != "local" for check in JOINT_CHECKS
]


@pytest.mark.parametrize(("name", "check"), CASES, ids=lambda value: getattr(value, "__name__", value))
async def test_a_worker_keeps_the_contract(name: str, check: Check) -> None:
    factory: Factory = FACTORIES[name]
    async with asyncio.timeout(30), factory() as workers:
        await check(workers)


async def test_the_suite_as_a_whole() -> None:
    await check_worker(in_process())
