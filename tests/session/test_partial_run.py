"""Partial runs: order of feeds and fetches, each node runs once, errors, timeouts, closing."""

from __future__ import annotations

import asyncio
from threading import Event
from typing import Any

import numpy as np
import pytest

import aioflow as af
from tests.support.waiting import eventually

REFUSED = af.errors.InvalidArgumentError


def three() -> tuple[list[af.Tensor], af.Tensor, af.Tensor]:
    a, b, c = (af.placeholder("float32", [], name=n) for n in "abc")
    r1 = af.add(a, b, name="r1")
    return [a, b, c], r1, af.multiply(r1, c, name="r2")


async def test_feeds_and_fetches_in_several_calls() -> None:
    (a, b, c), r1, r2 = three()
    async with af.Session() as session:
        handle = await session.partial_run_setup([r1, r2], [a, b, c])
        assert await session.partial_run(handle, r1, {a: 1, b: 2}) == 3
        assert await session.partial_run(handle, {"second": r2}, {c: 17}) == {"second": 51}
        with pytest.raises(REFUSED, match="unknown partial run; call partial_run_setup before"):
            await session.partial_run(handle, r2, {c: 1})


async def test_feeds_without_fetches_and_by_name() -> None:
    (_, b, c), r1, r2 = three()
    async with af.Session() as session:
        handle = await session.partial_run_setup(["r1:0", "r2:0"], ["a:0", "b:0", "c:0"])
        assert await session.partial_run(handle, [], {"a:0": 1}) == []
        assert await session.partial_run(handle, [], {b: 1, c: 5}) == []
        assert await session.partial_run(handle, [r2, r1]) == [10, 2]


async def test_partial_runs_are_independent() -> None:
    (a, b, c), r1, r2 = three()
    async with af.Session() as session:
        one = await session.partial_run_setup([r1, r2], [a, b, c])
        two = await session.partial_run_setup([r1, r2], [a, b, c])
        assert one != two
        assert await session.partial_run(one, r1, {a: 1, b: 2}) == 3
        assert await session.partial_run(two, r1, {a: 5, b: 5}) == 10
        assert await session.partial_run(two, r2, {c: 2}) == 20
        assert await session.partial_run(one, r2, {c: 2}) == 6


async def test_rejected_calls_change_nothing() -> None:
    (a, b, c), r1, r2 = three()
    other = af.placeholder("float32", [], name="other")
    async with af.Session() as session:
        with pytest.raises(REFUSED, match="call partial_run_setup before"):
            await session.partial_run("nothing", r1, {a: 1})
        handle = await session.partial_run_setup([r1, r2], [a, b, c])
        with pytest.raises(REFUSED, match=r"cannot be computed.*") as early:
            await session.partial_run(handle, r2, {a: 1, b: 2})
        assert early.value.expected == "feeds for c:0"
        for fetches, feeds, words in (
            ([r1], {other: 1}, "feed other:0 was not specified"),
            ([other], {a: 1}, "fetch other:0 was not specified"),
            ([r1.op], {a: 1}, "fetch only tensors"),
        ):
            with pytest.raises(REFUSED, match=words):
                await session.partial_run(handle, fetches, feeds)
        with pytest.raises(af.errors.DTypeError):
            await session.partial_run(handle, r1, {a: "text", b: 1})
        assert await session.partial_run(handle, r1, {a: 1, b: 2}) == 3
        with pytest.raises(REFUSED, match="a:0 has already been fed"):
            await session.partial_run(handle, r2, {a: 1, c: 1})
        with pytest.raises(REFUSED, match="r1:0 has already been fetched"):
            await session.partial_run(handle, [r1, r2], {c: 1})
        assert await session.partial_run(handle, r2, {c: 2}) == 6


async def test_setup_rejects_invalid_arguments() -> None:
    (a, _, _), r1, _ = three()
    session = af.Session()
    with pytest.raises(REFUSED, match="fed twice"):
        await session.partial_run_setup([r1], [a, a])
    with pytest.raises(af.errors.NotFoundError):
        await session.partial_run_setup(["nothing:0"], [a])
    await session.close()
    with pytest.raises(af.errors.ClosedSessionError):
        await session.partial_run_setup([r1], [a])


async def test_stateful_nodes_run_once() -> None:
    calls: list[float] = []

    async def count(x: Any) -> Any:
        calls.append(float(x))
        return x

    a, b = af.placeholder("float32", []), af.placeholder("float32", [])
    counter = af.Variable(0.0)
    first = af.py_coroutine(count, [a], "float32", shapes=[])
    noise = af.random_uniform([]) + 0.0 * first
    with af.control_dependencies([first]):
        added = counter.assign_add(1.0, read_value=True)
    second = noise + b
    async with af.Session() as session:
        await session.run(counter.initializer)
        handle = await session.partial_run_setup([noise, added, second], [a, b])
        drawn, one = await session.partial_run(handle, [noise, added], {a: 4.0})
        assert one == 1
        assert await session.partial_run(handle, second, {b: 1.0}) == pytest.approx(drawn + 1)
        assert calls == [4.0]
        assert await session.run(counter) == 1


async def test_nodes_run_as_soon_as_possible() -> None:
    """The whole step begins with the setup, as in TensorFlow."""
    ran = asyncio.Event()

    async def mark() -> None:
        ran.set()

    a = af.placeholder("float32", [])
    op = af.py_coroutine(mark, [], [])
    async with af.Session() as session:
        handle = await session.partial_run_setup([a * 2.0, op], [a])
        await asyncio.wait_for(ran.wait(), 5)
        del handle


async def test_fetched_values_belong_to_the_caller() -> None:
    a, b = af.placeholder("float32", [2]), af.placeholder("float32", [2])
    y = af.identity(a)
    z = y + b
    fed = np.array([1, 2], np.float32)
    async with af.Session() as session:
        handle = await session.partial_run_setup([y, z, a], [a, b])
        first, again = await session.partial_run(handle, [y, a], {a: fed})
        first[:], again[:], fed[:] = 7, 8, 9
        assert (await session.partial_run(handle, z, {b: [0, 0]})).tolist() == [1, 2]


async def test_error_ends_the_partial_run() -> None:
    a, b = af.placeholder("int32", []), af.placeholder("int32", [])
    good, bad = a + 1, af.floordiv(a, b)
    async with af.Session() as session:
        handle = await session.partial_run_setup([good, bad], [a, b])
        assert await session.partial_run(handle, good, {a: 1}) == 2
        with pytest.raises(REFUSED) as caught:
            await session.partial_run(handle, bad, {b: 0})
        assert caught.value.node == bad.op.name
        with pytest.raises(REFUSED, match="call partial_run_setup before"):
            await session.partial_run(handle, bad)
        assert (await session.worker.state()).running == 0


async def test_timed_out_fetch_may_be_requested_again() -> None:
    release = asyncio.Event()

    async def slow(x: Any) -> Any:
        await release.wait()
        return x

    a = af.placeholder("float32", [])
    y = af.py_coroutine(slow, [a], "float32")
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        handle = await session.partial_run_setup([y], [a])
        with pytest.raises(af.errors.DeadlineExceededError):
            await session.partial_run(handle, y, {a: 3.0}, timeout=0.01)
        task = tg.create_task(session.partial_run(handle, y))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        release.set()
        assert await session.partial_run(handle, y) == 3


async def test_timeout_names_the_waiting_nodes() -> None:
    a, b = af.placeholder("float32", []), af.placeholder("float32", [])
    y = af.py_coroutine(asyncio.Event().wait, [], "float32", name="slow")
    async with af.Session() as session:
        handle = await session.partial_run_setup([y, a + b], [a, b])
        with pytest.raises(af.errors.DeadlineExceededError) as raised:
            await session.partial_run(handle, y, {a: 3.0}, timeout=0.01)
    assert "; waiting for " in raised.value.message
    assert raised.value.message.endswith("a value that has not been fed yet, slow on its kernel")


async def test_timeout_reports_an_abandoned_conversion() -> None:
    """The conversion of a feed cannot be stopped inside a function of the caller."""
    gate = Event()

    class Stuck:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            gate.wait(60)
            return np.zeros([], np.float32)

    a = af.placeholder("float32", [None])
    fed = {a: [Stuck()] * 100_000}
    async with af.Session() as session:
        try:
            handle = await session.partial_run_setup([a + 1.0], [a])
            for call in (session.partial_run(handle, [], fed, timeout=0.05), session.run(a + 1.0, fed, timeout=0.5)):
                with pytest.raises(af.errors.DeadlineExceededError, match=r"convert.*left behind and still running"):
                    await call
        finally:
            gate.set()


async def test_close_of_the_session_ends_partial_runs() -> None:
    (a, b, c), r1, r2 = three()
    session = af.Session()
    handle = await session.partial_run_setup([r1, r2], [a, b, c])
    slow = af.py_coroutine(asyncio.Event().wait, [], "float32")
    waiting = await session.partial_run_setup([slow], [])

    async def stopped() -> None:
        with pytest.raises(af.errors.CancelledError, match="closed"):
            await session.partial_run(waiting, slow)

    async with asyncio.TaskGroup() as tg:
        tg.create_task(stopped())
        await asyncio.sleep(0.01)
        await session.close()
    with pytest.raises(af.errors.ClosedSessionError):
        await session.partial_run(handle, r1, {a: 1, b: 2})
    assert (await session.worker.state()).running == 0


@pytest.mark.parametrize("executor", ["strands", "reference"])
async def test_partial_run_uses_the_settings_of_the_session(executor: str) -> None:
    a, b = af.placeholder("float32", []), af.placeholder("float32", [])
    y, z = af.log(a), af.log(b)
    async with af.Session(config=af.SessionConfig(check_finite=True, executor=executor)) as session:
        handle = await session.partial_run_setup([y, z], [a, b])
        assert await session.partial_run(handle, z, {b: 1.0}) == 0
        with pytest.raises(REFUSED):
            await session.partial_run(handle, y, {a: 0.0})


async def test_partial_run_after_the_graph_has_grown() -> None:
    a = af.placeholder("float32", [])
    y = a * 2.0
    async with af.Session() as session:
        for _ in range(3):
            handle = await session.partial_run_setup([y], [a])
            assert await session.partial_run(handle, y, {a: 2.0}) == 4
            y = y + 0.0


# -- unfinished runs --------------------------------------------------------------------------------------------------


async def test_partial_run_setup_rejects_more_than_the_limit() -> None:
    feeds, r1, r2 = three()
    async with af.Session(config=af.SessionConfig(partial_runs=2)) as session:

        async def begin() -> str:
            return await session.partial_run_setup([r1, r2], feeds)

        first, *others = await asyncio.gather(*(begin() for _ in range(4)), return_exceptions=True)
        assert isinstance(first, str)
        assert [type(each) for each in others] == [str, *[af.errors.ResourceExhaustedError] * 2]
        with pytest.raises(af.errors.ResourceExhaustedError, match=r"SessionConfig\.partial_runs"):
            await begin()
        assert await session.partial_run(first, [r1, r2], dict(zip(feeds, (1, 2, 3), strict=True))) == [3, 9]
        await begin()


async def test_failed_partial_run_does_not_count_toward_the_limit() -> None:
    x = af.placeholder("float32", [], name="x")
    y = af.check_numerics(x, "x")
    async with af.Session(config=af.SessionConfig(partial_runs=1)) as session:
        failed = await session.partial_run_setup([y], [x])
        await session.partial_run(failed, [], {x: np.nan})
        await eventually(lambda: session._partial_runs._runs[failed].error is not None)
        again = await session.partial_run_setup([y], [x])
        assert await session.partial_run(again, y, {x: 1}) == 1


async def test_unfinished_partial_run_expires() -> None:
    feeds, r1, r2 = three()
    async with af.Session(config=af.SessionConfig(partial_run_timeout=0.01)) as session:
        handles = [await session.partial_run_setup([r1, r2], feeds) for _ in range(3)]
        await eventually(lambda: all(run.ended.is_set() for run in session._partial_runs._runs.values()))
        assert not session._steps
        for handle in handles:
            with pytest.raises(af.errors.DeadlineExceededError, match=r"SessionConfig\.partial_run_timeout"):
                await session.partial_run(handle, r1, {feeds[0]: 1, feeds[1]: 2})
            with pytest.raises(REFUSED, match="call partial_run_setup before"):
                await session.partial_run(handle, r1)


async def test_partial_run_does_not_expire_while_a_call_waits() -> None:
    may_end = Event()
    x = af.placeholder("float32", [], name="x")

    def wait(value: Any) -> Any:
        may_end.wait(60)
        return value

    y = af.py_func(wait, [x], af.float32)
    z = x + 1
    async with af.Session() as session:
        handle = await session.partial_run_setup([y, z], [x])
        async with asyncio.TaskGroup() as group:
            call = group.create_task(session.partial_run(handle, [y, z], {x: 1}))
            run = session._partial_runs._runs[handle]
            await eventually(lambda: run.calls == 1)
            assert run.timer is None
            may_end.set()
        assert call.result() == [1, 2]
