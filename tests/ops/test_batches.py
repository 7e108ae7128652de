"""`Batch` and `Unbatch`: one step carries the rows of several; the results of the others, and lost carriers."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow import raw_ops
from aioflow.errors import DeadlineExceededError, InvalidArgumentError, ResourceExhaustedError
from aioflow.sync.unbatch import CollectCore, Collecting, Share, ShareCore
from tests.support.loops import virtually

SECOND = 1_000_000  # microseconds


class Carrying:
    """A graph that batches up to `size` rows, waits for `seconds`, doubles the rows and unbatches them."""

    def __init__(self, size: int = 4, timeout: int = SECOND, seconds: float = 0.0, **settings: Any) -> None:
        async def later(rows: Any) -> Any:
            await asyncio.sleep(seconds)
            return rows * 2

        self.graph = af.Graph()
        with self.graph.as_default():
            self.x = af.placeholder(af.float32, [None, 2])
            self.batch = raw_ops.Batch(
                in_tensors=[self.x],
                num_batch_threads=1,
                max_batch_size=size,
                batch_timeout_micros=SECOND // 2,
                grad_timeout_micros=SECOND,
                **settings,
            )
            doubled = af.py_coroutine(later, [self.batch.batched_tensors[0]], af.float32)
            self.y = raw_ops.Unbatch(
                batched_tensor=doubled, batch_index=self.batch.batch_index, id=self.batch.id, timeout_micros=timeout
            )

    async def right(self, session: Any, value: float, count: int = 1) -> None:
        rows = np.full((count, 2), value, np.float32)
        np.testing.assert_array_equal(await session.run(self.y, {self.x: rows}), rows * 2)


def opened(graph: Any) -> Any:
    """Return a session whose steps never leave the event loop."""
    return af.Session(graph=graph, config=af.SessionConfig(inline_budget=float("inf")))


@virtually
async def test_the_last_step_carries_the_rows_of_all() -> None:
    carrying = Carrying(size=3)
    (batched,), index, number = carrying.batch
    async with opened(carrying.graph) as session:
        feeds = [{carrying.x: np.full((count, 2), count, np.float32)} for count in (1, 2)]
        first, last = await asyncio.gather(*(session.run([batched, index, number], each) for each in feeds))
    assert (first[0].shape, first[1].shape) == ((0, 2), (0, 3))
    assert last[0].tolist() == [[1, 1], [2, 2], [2, 2]]
    assert last[1].tolist() == [[first[2], 0, 1], [last[2], 1, 3]]
    assert first[2] != last[2]


@virtually
async def test_each_step_gets_its_own_rows_back() -> None:
    carrying = Carrying(seconds=0.25)
    async with opened(carrying.graph) as session:
        await asyncio.gather(*(carrying.right(session, value) for value in range(4)))
        assert asyncio.get_running_loop().time() == 0.25
        await carrying.right(session, 7.0, 3)  # not full: waits for others until the timeout
    assert asyncio.get_running_loop().time() == 1.0


@virtually
async def test_padded_batch_returns_the_rows_of_each_step() -> None:
    carrying = Carrying(allowed_batch_sizes=[4])
    async with opened(carrying.graph) as session:
        await asyncio.gather(carrying.right(session, 1.0), carrying.right(session, 2.0))
        shape = (await session.run(carrying.batch.batched_tensors[0], {carrying.x: [[1.0, 2.0]]})).shape
    assert shape == (4, 2)


@virtually
async def test_empty_request_returns_at_once() -> None:
    carrying = Carrying()
    async with opened(carrying.graph) as session:
        await carrying.right(session, 1.0, 0)
    assert asyncio.get_running_loop().time() == 0.0


@virtually
async def test_unbatch_times_out_after_its_carrier_is_cancelled() -> None:
    carrying = Carrying(size=2, seconds=0.75)
    async with opened(carrying.graph) as session, asyncio.TaskGroup() as group:

        async def fails() -> None:
            with pytest.raises(DeadlineExceededError, match="did not arrive in time") as caught:
                await carrying.right(session, 1.0)
            assert (caught.value.node, asyncio.get_running_loop().time()) == ("Unbatch", 1.75)

        group.create_task(fails())
        await asyncio.sleep(0)
        carrier = group.create_task(carrying.right(session, 2.0))
        await asyncio.sleep(0.5)
        carrier.cancel()


@virtually
async def test_unbatch_keeps_results_for_later_steps() -> None:
    graph = af.Graph()
    with graph.as_default():
        x, index, number = (af.placeholder(t) for t in (af.float32, af.int64, af.int64))
        y = raw_ops.Unbatch(batched_tensor=x, batch_index=index, id=number, timeout_micros=SECOND)
    nothing = {x: np.zeros((0,), np.float32), index: np.zeros((0, 3), np.int64)}
    async with opened(graph) as session:
        carried = {x: [1.0, 2.0, 3.0], index: [[5, 0, 1], [6, 1, 3]], number: 5}
        assert (await session.run(y, carried)).tolist() == [1.0]
        assert (await session.run(y, {**nothing, number: 6})).tolist() == [2.0, 3.0]
        with pytest.raises(DeadlineExceededError):  # the value has been taken
            await session.run(y, {**nothing, number: 6})


@pytest.mark.parametrize(
    ("index", "rows"), [([[1, 0, 3]], 2), ([1, 0, 1], 2), ([[1, 0]], 2), ([[1, 0, 1]], None)], ids=str
)
async def test_unbatch_rejects_an_index_that_does_not_fit(index: Any, rows: int | None) -> None:
    x = af.placeholder_with_default(af.zeros([] if rows is None else [rows]), None)
    y = raw_ops.Unbatch(batched_tensor=x, batch_index=af.constant(index, af.int64), id=np.int64(1), timeout_micros=1000)
    async with af.Session() as session:
        with pytest.raises(InvalidArgumentError):
            await session.run(y)


@virtually
async def test_full_batch_queue_refuses_at_once() -> None:
    carrying = Carrying(size=4, max_enqueued_batches=1)
    async with opened(carrying.graph) as session, asyncio.TaskGroup() as group:
        group.create_task(carrying.right(session, 1.0, 3))
        await asyncio.sleep(0.25)
        with pytest.raises(ResourceExhaustedError):
            await carrying.right(session, 2.0, 2)
        assert asyncio.get_running_loop().time() == 0.25


@virtually
async def test_unbatch_grad_is_zero_for_padding_rows() -> None:
    graph = af.Graph()
    with graph.as_default():
        given, grad = af.placeholder(af.float32, [None]), af.placeholder(af.float32, [None])
        index, number = af.placeholder(af.int64), af.placeholder(af.int64)
        y = raw_ops.UnbatchGrad(original_input=given, batch_index=index, grad=grad, id=number)
    async with opened(graph) as session:
        carried = {given: np.zeros(4), index: [[1, 0, 1], [2, 1, 3]], grad: [8.0, 9.0], number: 2}
        other = {given: np.zeros(0), index: np.zeros((0, 3), np.int64), grad: [7.0], number: 1}
        first, last = await asyncio.gather(session.run(y, carried), session.run(y, other))
    assert (first.tolist(), last.tolist()) == ([7.0, 8.0, 9.0, 0.0], [])


@virtually
async def test_unbatch_grad_waits_as_long_as_its_step_may() -> None:
    graph = af.Graph()
    with graph.as_default():
        given, grad = af.placeholder(af.float32, [None]), af.placeholder(af.float32, [None])
        index, number = af.placeholder(af.int64), af.placeholder(af.int64)
        y = raw_ops.UnbatchGrad(original_input=given, batch_index=index, grad=grad, id=number)
    carried = {given: np.zeros(2), index: [[1, 0, 1], [2, 1, 2]], grad: [9.0], number: 2}
    other = {given: np.zeros(0), index: np.zeros((0, 3), np.int64), grad: [7.0], number: 1}
    async with opened(graph) as session:
        with pytest.raises(DeadlineExceededError) as caught:
            await session.run(y, carried, timeout=3600.0)
        assert "UnbatchGrad" in str(caught.value)
        assert asyncio.get_running_loop().time() == 3600.0
        last, _ = await asyncio.gather(session.run(y, carried), session.run(y, other))
    assert last.tolist() == [7.0, 9.0]


# ── state machines ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_share_core_drops_expired_results() -> None:
    core = ShareCore("u", seconds=1.0)
    core.bring({1: "old", 2: "old too"}, now=0.0)
    assert core.bring({3: "new"}, now=1.5) == []
    late, there = Share(1), Share(3)
    assert core.submit(late) == []
    assert core.submit(there) == [there]
    assert there.value == "new"
    assert core.describe() == "unbatching 'u' (1 waiting; kept for 0 others)"


def test_share_core_skips_withdrawn_waiters() -> None:
    core = ShareCore("u", seconds=1.0)
    gone, here = Share(1), Share(2)
    core.submit(gone)
    core.submit(here)
    core.withdraw(gone)
    assert core.bring({1: "a", 2: "b"}, now=0.0) == [here]
    assert (gone.resolved, here.value) == (False, "b")


@virtually
async def test_unbatch_without_a_timeout_shares_nothing_later() -> None:
    graph = af.Graph()
    with graph.as_default():
        x, index, number = (af.placeholder(t) for t in (af.float32, af.int64, af.int64))
        y = raw_ops.Unbatch(batched_tensor=x, batch_index=index, id=number, timeout_micros=-1)
    async with opened(graph) as session:
        carried = {x: [1.0, 2.0], index: [[5, 0, 1], [6, 1, 2]], number: 5}
        assert (await session.run(y, carried)).tolist() == [1.0]


def test_collect_core_keeps_values_for_a_waiting_carrier() -> None:
    core, carrier = CollectCore("g"), Collecting((1, 2))
    core.bring(1, "first", now=0.0)
    assert core.submit(carrier) == []
    core.bring(3, "another's", now=1000.0)  # values without a carrier have expired
    assert core.bring(2, "second", now=2000.0) == [carrier]
    assert carrier.value == ["first", "second"]


def test_collect_core_gives_a_value_to_each_place_that_waits_for_it() -> None:
    core, twice, other = CollectCore("g"), Collecting((1, 1)), Collecting((1,))
    assert core.submit(twice) == core.submit(other) == []
    assert core.bring(1, "value", now=0.0) == [twice, other]
    assert (twice.value, other.value) == (["value", "value"], ["value"])


def test_collect_core_returns_values_in_batch_order() -> None:
    core = CollectCore("g")
    core.bring(2, "second", now=0.0)
    carrier, gone = Collecting((1, 2)), Collecting((4,))
    assert core.submit(carrier) == core.submit(gone) == []
    core.withdraw(gone)
    assert core.bring(3, "another's", now=0.0) == []
    assert core.bring(1, "first", now=0.0) == [carrier]
    assert carrier.value == ["first", "second"]
    assert core.bring(4, "late", now=0.0) == []
