"""The virtual clock: sleeping takes no real time, runs are repeatable, and a deadlock is an error."""

from __future__ import annotations

import asyncio

import pytest

from aioflow.errors import InternalError
from aioflow.testing.virtual_clock import VirtualClockLoop, run_virtual


def test_long_sleep_takes_virtual_time_only() -> None:
    async def main() -> float:
        started = asyncio.get_running_loop().time()
        await asyncio.sleep(1e6)
        return asyncio.get_running_loop().time() - started

    assert run_virtual(main()) == pytest.approx(1e6)  # a real clock would take 11 days


def test_ready_tasks_run_before_timers_and_timers_in_order() -> None:
    happened: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        happened.append((f"{name} begins", loop.time()))
        await asyncio.sleep(seconds)
        happened.append((f"{name} ends", loop.time()))

    async def main() -> None:
        async with asyncio.TaskGroup() as tg:
            for name, seconds in (("slow", 2.0), ("fast", 0.5), ("middle", 1.0)):
                tg.create_task(sleeper(name, seconds))

    run_virtual(main())
    assert happened == [
        ("slow begins", 0.0),
        ("fast begins", 0.0),
        ("middle begins", 0.0),
        ("fast ends", pytest.approx(0.5)),
        ("middle ends", pytest.approx(1.0)),
        ("slow ends", pytest.approx(2.0)),
    ]


def test_deadlock_raises_an_error_that_locates_waiting_tasks() -> None:
    async def waits_for_the_other(mine: asyncio.Event, other: asyncio.Event) -> None:
        await other.wait()
        mine.set()

    async def main() -> None:
        one, two = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as tg:
            tg.create_task(waits_for_the_other(one, two), name="first")
            tg.create_task(waits_for_the_other(two, one), name="second")

    with pytest.raises(InternalError) as caught:
        run_virtual(main())
    assert "deadlock" in caught.value.message
    lines = str(caught.value.actual).split("\n")
    assert [line.split()[0] for line in lines[1:]][1:] == ["first", "second"]
    assert all("in Event.wait" in line for line in lines[2:])


def test_cancelled_timer_does_not_hide_a_deadlock() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(5.0, lambda: None).cancel()
        await asyncio.get_running_loop().create_future()

    with pytest.raises(InternalError):
        run_virtual(main())


def test_timeout_prevents_a_deadlock() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3.0):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(3.0)


def test_random_numbers_follow_the_seed() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualClockLoop)
        return [loop.random.random() for _ in range(5)]

    assert run_virtual(main(), 1) == run_virtual(main(), 1)
    assert run_virtual(main(), 1) != run_virtual(main(), 2)


def test_task_group_cancels_tasks_in_a_repeatable_order() -> None:
    """A TaskGroup keeps its tasks in a set, whose order would otherwise depend on their memory addresses."""

    def order() -> list[int]:
        cancelled: list[int] = []

        async def waits(number: int) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(number)

        async def fails() -> None:
            await asyncio.sleep(1.0)
            raise ValueError

        async def main() -> None:
            async with asyncio.TaskGroup() as tg:
                for number in range(50):
                    tg.create_task(waits(number))
                tg.create_task(fails())

        with pytest.raises(ExceptionGroup):
            run_virtual(main())
        return cancelled

    kept = [order() for _ in range(4)]  # keeps objects alive so that the next tasks get other addresses
    assert len(kept[0]) == 50
    assert kept[1:] == kept[:-1]


def test_to_thread_runs_on_the_loop() -> None:
    async def main() -> tuple[int, str]:
        value = await asyncio.to_thread(lambda x: x + 1, 41)
        with pytest.raises(ZeroDivisionError) as caught:
            await asyncio.to_thread(lambda: 1 // 0)
        return value, type(caught.value).__name__

    assert run_virtual(main()) == (42, "ZeroDivisionError")


def test_remaining_tasks_are_cancelled_at_the_end() -> None:
    ended: list[str] = []

    async def lingers() -> None:
        try:
            await asyncio.sleep(1e9)
        finally:
            ended.append("cancelled")

    async def main() -> str:
        asyncio.get_running_loop().create_task(lingers())
        await asyncio.sleep(1.0)
        return "done"

    assert run_virtual(main()) == "done"
    assert ended == ["cancelled"]
