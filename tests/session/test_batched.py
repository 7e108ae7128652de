"""`Session.batched`: concurrent calls as rows of one step.

The first part uses fake steps on a virtual clock.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import (
    ClosedSessionError,
    DeadlineExceededError,
    DTypeError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
)
from aioflow.session.batching import Batched, BatchStatistics, Padding
from aioflow.session.batching.rows import RowsIn, RowsOut
from aioflow.sync.background import Background
from aioflow.sync.batches import BatchPolicy
from aioflow.testing.virtual_clock import run_virtual
from tests.support.cancelling import cancel_at_each_turn
from tests.support.loops import on_each_loop, virtually


class Service:
    """A batched callable that doubles its rows in steps of `seconds`, and records the sizes of its batches."""

    def __init__(
        self,
        seconds: float = 1.0,
        refuse: float | None = None,
        changes: bool = False,
        clock: Callable[[], float] = lambda: asyncio.get_running_loop().time(),
        **settings: Any,
    ) -> None:
        at_once = settings.pop("max_concurrent_batches", 1)
        self.seconds = seconds
        self.refuse = refuse
        self.changes = changes
        self.batches: list[int] = []
        self.stopped = 0
        graph = af.Graph()
        with graph.as_default():
            x = af.placeholder(af.float32, [None, 2])
            y = x * 2.0
        into = RowsIn(graph, [x], None)
        out = RowsOut(graph, y, into.paddings)
        self.background = Background()
        policy = BatchPolicy(**{"max_batch_size": 4, **settings})
        self.call: Batched[Any] = Batched(
            self.step, self.repeatable, self.background, into, out, policy, (), at_once, clock
        )

    async def repeatable(self) -> bool:
        return not self.changes

    async def step(self, rows: Any) -> list[Any]:
        self.batches.append(len(rows))
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.stopped += 1
            raise
        if self.refuse is not None and (rows == self.refuse).any():
            raise InvalidArgumentError("a row is refused")
        return [rows * 2]

    def statistics(self) -> BatchStatistics:
        return self.call.statistics()


def rows_of(value: float, count: int = 1) -> Any:
    return np.full((count, 2), value, np.float32)


async def right(service: Service, value: float, count: int = 1, **how: Any) -> None:
    """Call the service and check that the response is that of the call."""
    np.testing.assert_array_equal(await service.call(rows_of(value, count), **how), rows_of(2 * value, count))


@virtually
async def test_calls_of_one_moment_share_one_step() -> None:
    service = Service()
    await asyncio.gather(*(right(service, i) for i in range(4)))
    assert service.batches == [4]
    assert asyncio.get_running_loop().time() == 1.0
    await service.background.close()


@virtually
async def test_first_call_starts_at_once_and_later_calls_form_the_next_batch() -> None:
    service = Service()
    async with asyncio.TaskGroup() as group:
        group.create_task(right(service, 1))
        await asyncio.sleep(0.25)
        group.create_task(right(service, 2))
        await asyncio.sleep(0.25)
        group.create_task(right(service, 3))
    assert service.batches == [1, 2]
    assert asyncio.get_running_loop().time() == 2.0
    await service.background.close()


@virtually
async def test_first_call_waits_for_others_up_to_the_batch_timeout() -> None:
    service = Service(batch_timeout=0.5)
    async with asyncio.TaskGroup() as group:
        group.create_task(right(service, 1))
        await asyncio.sleep(0.25)
        group.create_task(right(service, 2))
    assert (service.batches, asyncio.get_running_loop().time()) == ([2], 1.5)
    async with asyncio.TaskGroup() as group:  # a full batch begins at once
        for i in range(4):
            group.create_task(right(service, i))
    assert (service.batches, asyncio.get_running_loop().time()) == ([2, 4], 2.5)
    await service.background.close()


@virtually
async def test_batches_run_concurrently_up_to_the_limit() -> None:
    service = Service(max_concurrent_batches=2)
    await asyncio.gather(*(right(service, i) for i in range(12)))
    assert (service.batches, asyncio.get_running_loop().time()) == ([4, 4, 4], 2.0)
    await service.background.close()


@virtually
async def test_large_call_is_split_by_rows_and_reassembled() -> None:
    service = Service(max_enqueued_batches=8)
    mine = np.arange(22, dtype=np.float32).reshape(11, 2)
    large, _, _ = await asyncio.gather(service.call(mine), right(service, 5), right(service, 6, 3))
    np.testing.assert_array_equal(large, mine * 2)
    assert service.batches == [4, 4, 4, 3]
    await service.background.close()


@virtually
async def test_batch_is_padded_to_an_allowed_size() -> None:
    service = Service(allowed_batch_sizes=(2, 4))
    await asyncio.gather(*(right(service, i) for i in range(3)))
    await right(service, 9)
    assert service.batches == [4, 2]
    assert dataclasses.asdict(service.statistics())["sizes"] == {1: 1, 3: 1}  # plain data, for a log or a page
    await service.background.close()


@virtually
async def test_call_that_expires_in_the_queue_is_never_computed() -> None:
    service = Service()
    running = asyncio.gather(right(service, 1))
    await asyncio.sleep(0.25)
    with pytest.raises(DeadlineExceededError):
        await service.call(rows_of(2), timeout=0.25)
    assert asyncio.get_running_loop().time() == 0.5
    await running
    await asyncio.sleep(2)
    assert service.batches == [1]
    await service.background.close()


@virtually
async def test_call_that_expires_during_its_step_raises() -> None:
    service = Service()
    other = asyncio.gather(right(service, 1))
    with pytest.raises(DeadlineExceededError, match="not answered in time"):
        await service.call(rows_of(2), timeout=0.5)
    assert asyncio.get_running_loop().time() == 0.5
    await other
    with pytest.raises(DeadlineExceededError):
        await service.call(rows_of(2), timeout=0.0)
    found = service.statistics()
    assert (found.answered, found.expired, service.stopped) == (1, 2, 0)
    await service.background.close()


@virtually
async def test_cancelled_calls_do_not_affect_others() -> None:
    service = Service()
    calls = [asyncio.gather(right(service, i)) for i in range(4)]
    await asyncio.sleep(0.5)
    calls[0].cancel()
    calls[2].cancel()
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in ended] == [asyncio.CancelledError, list, asyncio.CancelledError, list]
    assert service.statistics().cancelled == 2
    await right(service, 7)
    await service.background.close()


@virtually
async def test_batch_without_waiting_calls_is_stopped() -> None:
    service = Service()
    calls = [asyncio.gather(service.call(rows_of(i))) for i in range(4)]
    await asyncio.sleep(0.25)
    for call in calls:
        call.cancel()
    await right(service, 1)
    assert (service.stopped, asyncio.get_running_loop().time()) == (1, 1.25)
    await asyncio.gather(*calls, return_exceptions=True)
    await service.background.close()


@virtually
async def test_bad_row_fails_alone() -> None:
    service = Service(refuse=2.0)
    ended = await asyncio.gather(*(service.call(rows_of(i)) for i in range(4)), return_exceptions=True)
    assert [isinstance(each, InvalidArgumentError) for each in ended] == [False, False, True, False]
    np.testing.assert_array_equal(ended[3], rows_of(6))
    assert service.batches == [4, 2, 2, 1, 1]
    assert (service.statistics().answered, service.statistics().failed) == (3, 1)
    await service.background.close()


@virtually
async def test_step_with_effects_is_not_repeated() -> None:
    service = Service(refuse=2.0, changes=True)
    ended = await asyncio.gather(*(service.call(rows_of(i)) for i in range(4)), return_exceptions=True)
    assert all(isinstance(each, InvalidArgumentError) for each in ended)
    assert len({id(each) for each in ended}) == 4
    assert service.batches == [4]
    await service.background.close()


@virtually
async def test_full_queue_rejects_at_once_with_retry_after() -> None:
    service = Service(max_enqueued_batches=2)
    first = asyncio.gather(right(service, 0))
    await first
    running = [asyncio.gather(right(service, 1)) for _ in range(4)]
    await asyncio.sleep(0.5)
    waiting = [asyncio.gather(right(service, 2)) for _ in range(8)]
    await asyncio.sleep(0)
    with pytest.raises(ResourceExhaustedError) as refused:
        await service.call(rows_of(3))
    assert refused.value.retry_after == 2.0
    assert asyncio.get_running_loop().time() == 1.5
    await asyncio.gather(*running, *waiting)
    assert service.statistics().rejected == 1
    await service.background.close()


@virtually
async def test_urgent_calls_overtake() -> None:
    service = Service(max_batch_size=1)
    order: list[int] = []

    async def one(number: int, priority: int) -> None:
        await right(service, number, priority=priority)
        order.append(number)

    async with asyncio.TaskGroup() as group:
        group.create_task(one(0, 0))
        await asyncio.sleep(0.5)
        group.create_task(one(1, 3))
        group.create_task(one(2, 1))
        group.create_task(one(3, 1))
    assert order == [0, 2, 3, 1]
    await service.background.close()


@virtually
async def test_close_answers_waiting_calls_and_rejects_new_ones() -> None:
    service = Service()
    calls = [asyncio.gather(right(service, i)) for i in range(6)]
    await asyncio.sleep(0.5)
    async with service.call:
        pass
    assert all(call.done() for call in calls)
    with pytest.raises(ClosedSessionError):
        await service.call(rows_of(1))
    await service.background.close()


@virtually
async def test_close_of_the_session_ends_all_calls() -> None:
    service = Service()
    calls = [asyncio.gather(service.call(rows_of(i))) for i in range(6)]
    await asyncio.sleep(0.5)
    await service.background.close()
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(each, ClosedSessionError) for each in ended), ended
    with pytest.raises(ClosedSessionError):
        await service.call(rows_of(1))


@pytest.mark.parametrize("seed", range(40))
def test_random_calls_each_get_their_own_result(seed: int) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        service = Service(
            refuse=13.0,
            max_batch_size=chance.choice([1, 4, 7]),
            batch_timeout=chance.choice([0.0, 0.5]),
            max_enqueued_batches=chance.choice([1, 3, 50]),
            max_concurrent_batches=chance.choice([1, 3]),
        )

        async def caller() -> None:
            await asyncio.sleep(chance.random() * 9)
            value = chance.choice([1.0, 2.0, 13.0])
            timeout = chance.choice([None, None, 0.7, 3.0])
            began = asyncio.get_running_loop().time()
            try:
                await right(service, value, chance.randint(1, 9), timeout=timeout, priority=chance.randint(0, 2))
            except InvalidArgumentError:
                assert value == 13.0
            except DeadlineExceededError:
                assert asyncio.get_running_loop().time() == pytest.approx(began + (timeout or 0.0))
            except ResourceExhaustedError:
                assert asyncio.get_running_loop().time() == began
            else:
                assert value != 13.0

        callers = [asyncio.gather(caller()) for _ in range(60)]
        for _ in range(12):
            await asyncio.sleep(chance.random())
            chance.choice(callers).cancel()
        ended: Sequence[Any] = await asyncio.gather(*callers, return_exceptions=True)
        odd = [each for each in ended if each != [None] and not isinstance(each, asyncio.CancelledError)]
        assert not odd
        found = service.statistics()
        assert (found.waiting_rows, found.waiting_requests, found.running_batches) == (0, 0, 0)
        await right(service, 3.0)
        await service.background.close()

    run_virtual(main(), seed)


# -- with a session ---------------------------------------------------------------------------------------------------


async def test_concurrent_calls_share_a_step_of_a_session() -> None:
    x = af.placeholder(af.float32, [None, 3])
    w = af.placeholder(af.float32, [None, 3])
    async with af.Session() as session:
        predict = session.batched({"sum": x + w, "rows": af.reduce_sum(x, 1)}, [x, w], max_batch_size=16)
        rows = [np.random.default_rng(i).standard_normal((i % 3 + 1, 3), np.float32) for i in range(20)]
        found = await asyncio.gather(*(predict(row, 2 * row) for row in rows))
        for row, each in zip(rows, found, strict=True):
            np.testing.assert_allclose(each["sum"], 3 * row, rtol=1e-6)
            np.testing.assert_allclose(each["rows"], row.sum(1), rtol=1e-5)
        assert predict.statistics().batches < 6


async def test_feeds_may_be_passed_by_name() -> None:
    x = af.placeholder(af.float32, [None])
    y = af.placeholder(af.float32, [None])
    async with af.Session() as session:
        difference = session.batched(x - y, {"left": x, "right": y})
        assert (await difference(left=[3.0], right=[1.0])).tolist() == [2.0]
        few: dict[str, Any] = {"left": [1.0]}
        for wrong in (few, {**few, "right": [1.0], "middle": [1.0]}):
            with pytest.raises(DTypeError, match="wrong feeds"):
                await difference(**wrong)
        with pytest.raises(DTypeError, match="wrong feeds"):
            await difference([1.0], [2.0])
        with pytest.raises(InvalidArgumentError, match="argument of the call"):
            session.batched(x - y, {"timeout": x, "right": y})


async def test_rows_of_different_lengths_are_padded_masked_and_cut() -> None:
    tokens = af.placeholder(af.int64, [None, None])
    mask = af.placeholder(af.float32, [None, None])
    scores = af.cast(tokens, af.float32) * mask
    async with af.Session() as session:
        padding = Padding(value=7, mask=mask, multiple_of=4, cuts=[scores])
        predict = session.batched([scores, af.reduce_sum(scores, 1)], [tokens], pad={tokens: padding})
        rows = [np.arange(1, length + 1, dtype=np.int64)[None] for length in (3, 1, 6, 4)]
        found = await asyncio.gather(*map(predict, rows))
        assert predict.statistics().batches == 1
        for row, (score, total) in zip(rows, found, strict=True):
            np.testing.assert_array_equal(score, row)
            assert total.tolist() == [row.sum()]


async def test_rows_of_different_sizes_share_no_batch_without_padding() -> None:
    x = af.placeholder(af.float32, [None, None])
    async with af.Session() as session:
        total = session.batched(af.reduce_sum(x, 1), [x])
        found = await asyncio.gather(*(total(np.ones((1, size), np.float32)) for size in (2, 5, 2)))
        assert [each.tolist() for each in found] == [[2.0], [5.0], [2.0]]
        assert dict(total.statistics().sizes) == {1: 1, 2: 1}


async def test_bad_row_in_a_session_fails_alone_and_names_its_node() -> None:
    index = af.placeholder(af.int32, [None])
    table = af.constant(np.arange(10, dtype=np.float32))
    async with af.Session() as session:
        look_up = session.batched(af.gather(table, index, name="look_up"), [index])
        found: list[Any] = await asyncio.gather(*(look_up([i]) for i in (1, 99, 3)), return_exceptions=True)
        assert isinstance(found[1], InvalidArgumentError)
        assert found[1].node == "look_up"
        assert [found[0].tolist(), found[2].tolist()] == [[1.0], [3.0]]


async def test_call_that_does_not_fit_its_feed_joins_no_batch() -> None:
    x = af.placeholder(af.float32, [None, 2])
    async with af.Session() as session:
        double = session.batched(x * 2.0, [x])
        with pytest.raises(InvalidArgumentError, match="shape"):
            await double(np.zeros((1, 3), np.float32))
        with pytest.raises(InvalidArgumentError, match="no rows"):
            await double(np.zeros((0, 2), np.float32))
        with pytest.raises(DTypeError, match="number of feeds"):
            await double(np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32))
        with pytest.raises(DTypeError, match="priority"):
            await double(np.zeros((1, 2), np.float32), priority="high")  # type: ignore[arg-type]  # wrong on purpose
        assert double.statistics().batches == 0


async def test_fetches_and_feeds_without_rows_are_rejected() -> None:
    x = af.placeholder(af.float32, [None, 2])
    fixed = af.placeholder(af.float32, [1, 2])
    async with af.Session() as session:
        for fetches, feeds, match in (
            (af.reduce_sum(x), [x], "cannot be split"),
            (x * 2.0, [fixed], "cannot be fed in batches"),
            (af.group(x), [x], "operations cannot be split"),
            (x * 2.0, [], "needs at least one feed"),
        ):
            with pytest.raises(InvalidArgumentError, match=match):
                session.batched(fetches, feeds)
        wrong = session.batched(af.reshape(x, [-1]), [x], unchecked=True)
        with pytest.raises(InvalidArgumentError, match="does not have the rows of the batch"):
            await wrong(np.zeros((3, 2), np.float32))


async def test_node_that_mixes_rows_is_rejected_and_named() -> None:
    x = af.placeholder(af.float32, [None, 2])
    async with af.Session() as session:
        with pytest.raises(InvalidArgumentError, match="'mean' computes with several rows") as raised:
            session.batched(x - af.reduce_mean(x, 0, name="mean"), [x])
        assert raised.value.node == "mean"
        assert "unchecked=True" in str(raised.value.expected)
        found = await session.batched(x - af.reduce_mean(x, 0), [x], unchecked=True)([[1.0, 2.0]])
        np.testing.assert_array_equal(found, [[0, 0]])


async def test_wrong_row_count_ends_batching(caplog: pytest.LogCaptureFixture) -> None:
    """Each row is repeated as often as its second number states, so two calls together may have the right total."""
    x = af.placeholder(af.float32, [None, 2])
    counts = af.placeholder_with_default(af.cast(x[:, 1], af.int32), [None])
    steps: list[int] = []

    def noted(rows: Any) -> Any:
        steps.append(len(rows))
        return rows

    y = af.py_func(noted, [af.repeat(x, counts, axis=0)], af.float32, stateful=False)
    async with af.Session() as session:
        repeated = session.batched(y, [x], unchecked=True)
        sent = [[[1.0, 1.0]], [[2.0, 2.0]], [[3.0, 1.0]], [[4.0, 0.0]], [[5.0, 1.0]]]
        found: Sequence[Any] = await asyncio.gather(repeated(sent[1]), return_exceptions=True)
        assert isinstance(found[0], InvalidArgumentError)
        assert "share no more steps" in caplog.text
        steps.clear()
        found = await asyncio.gather(*(repeated(each) for each in sent), return_exceptions=True)
        assert steps == [1, 2, 1, 0, 1]
        for given, each in zip(sent, found, strict=True):
            if given[0][1] == 1:
                np.testing.assert_array_equal(each, given)
            else:
                assert isinstance(each, InvalidArgumentError)


async def test_step_that_only_reads_variables_is_repeated_after_an_error() -> None:
    index = af.placeholder(af.int32, [None])
    table = af.Variable(np.arange(4, dtype=np.float32))
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        look_up = session.batched(af.gather(table, index), [index])
        found: Sequence[Any] = await asyncio.gather(look_up([2]), look_up([9]), return_exceptions=True)
        assert found[0].tolist() == [2.0]
        assert isinstance(found[1], InvalidArgumentError)


async def test_row_with_a_nan_fails_alone() -> None:
    x = af.placeholder(af.float32, [None])
    async with af.Session() as session:
        checked = session.batched(af.check_numerics(x, "not a number"), [x])
        found: Sequence[Any] = await asyncio.gather(checked([1.0]), checked([np.nan]), return_exceptions=True)
        assert found[0].tolist() == [1.0]
        assert isinstance(found[1], InvalidArgumentError)


async def test_step_that_assigns_is_not_repeated() -> None:
    amount = af.placeholder(af.int32, [None])
    count = af.Variable(np.zeros(4, np.int32))
    added = af.assign_add(count, af.fill([4], af.reduce_sum(amount)))
    with af.control_dependencies([added]):
        refused = af.gather(af.constant([1.0]), amount)
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        call = session.batched(refused, [amount], unchecked=True)
        found = await asyncio.gather(call([0]), call([5]), return_exceptions=True)
        assert all(isinstance(each, InvalidArgumentError) for each in found)
        assert (await session.run(count)).tolist() == [5] * 4


async def test_batched_call_after_the_session_has_closed_is_rejected() -> None:
    x = af.placeholder(af.float32, [None])
    async with af.Session() as session:
        double = session.batched(x * 2.0, [x])
        await double([1.0])
    with pytest.raises(ClosedSessionError):
        await double([1.0])
    with pytest.raises(ClosedSessionError):
        session.batched(x * 2.0, [x])


async def test_warmup_runs_each_allowed_size() -> None:
    x = af.placeholder(af.float32, [None, 2])
    sizes: list[int] = []

    def noted(rows: Any) -> Any:
        sizes.append(len(rows))
        return rows

    seen = af.py_func(noted, [x], af.float32)
    seen.set_shape([None, 2])
    async with af.Session() as session:
        await session.warmup(
            session.batched(seen, [x], max_batch_size=8, allowed_batch_sizes=[1, 4, 8], unchecked=True)
        )
    assert sizes == [1, 4, 8]


def test_another_event_loop_is_rejected() -> None:
    x = af.placeholder(af.float32, [None])
    with asyncio.Runner() as first, asyncio.Runner() as second:
        session = af.Session()
        double = session.batched(x * 2.0, [x])
        assert first.run(double([1.0])).tolist() == [2.0]
        with pytest.raises(FailedPreconditionError, match="one event loop"):
            second.run(double([1.0]))
        first.run(session.close())


def a_doubling() -> tuple[af.Session, af.Tensor, af.Tensor]:
    graph = af.Graph()
    with graph.as_default():
        x = af.placeholder(af.float32, [None, 2])
        y = x * 2.0
    return af.Session(graph=graph), x, y


async def refused(predict: Batched[Any], rows: Any) -> None:
    with pytest.raises(ClosedSessionError):
        await predict(rows)


async def test_close_of_the_session_during_a_conversion_ends_the_call() -> None:
    session, x, y = a_doubling()
    predict = session.batched(y, [x], max_batch_size=1 << 20)
    await predict(rows_of(1))
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(refused(predict, [[1.0, 2.0]] * 200_000))
        await asyncio.sleep(0)
        await session.close()


async def test_close_of_batched_waits_for_a_conversion() -> None:
    session, x, y = a_doubling()
    async with session, asyncio.timeout(10), asyncio.TaskGroup() as group:
        predict = session.batched(y, [x], max_batch_size=1 << 20)
        await predict(rows_of(1))
        call = group.create_task(predict([[1.0, 2.0]] * 200_000))
        await asyncio.sleep(0)
        await predict.aclose()
        assert call.done()
        assert (await call).shape == (200_000, 2)


async def test_conversion_counts_toward_the_timeout() -> None:
    session, x, y = a_doubling()
    async with session:
        predict = session.batched(y, [x], max_batch_size=1 << 20)
        await predict(rows_of(1))
        with pytest.raises(DeadlineExceededError):
            await predict([[1.0, 2.0]] * 500_000, timeout=0.02)
        assert predict.statistics().rows == 1
        assert predict.statistics().expired == 1


async def test_expired_call_with_a_conversion_names_its_whole_timeout() -> None:
    session, x, y = a_doubling()
    async with session, asyncio.timeout(10):
        predict = session.batched(y, [x], max_batch_size=1 << 20, batch_timeout=60.0)
        with pytest.raises(DeadlineExceededError, match=r"at most 0\.25 s"):
            await predict([[1.0, 2.0]] * 100_000, timeout=0.25)


async def test_call_to_a_closed_session_does_not_change_the_count_of_open_calls() -> None:
    session, x, y = a_doubling()
    predict = session.batched(y, [x], batch_timeout=60.0)
    async with asyncio.TaskGroup() as group, asyncio.timeout(10):
        waiting = group.create_task(refused(predict, rows_of(1)))
        while not predict.statistics().waiting_requests:  # noqa: ASYNC110
            await asyncio.sleep(0)
        closing = group.create_task(session.close())
        while predict.statistics().waiting_requests:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await refused(predict, rows_of(1))  # before the waiting call continues
        await asyncio.wait([waiting, closing])
        await predict.aclose()


async def test_call_with_results_of_different_row_sizes_fails_alone() -> None:
    x = af.placeholder(af.float32, [None, None])
    y = x * 2.0
    async with af.Session() as session:
        predict = session.batched(y, [x], max_batch_size=4, pad={x: 0})
        cut = predict(np.ones((6, 3), np.float32))  # the last two rows share a batch with longer ones
        other = predict(np.ones((2, 7), np.float32))
        answers: tuple[Any, Any] = await asyncio.gather(cut, other, return_exceptions=True)
    error, found = answers
    assert isinstance(error, InvalidArgumentError)
    assert "cuts" in str(error)
    np.testing.assert_array_equal(found, np.full((2, 7), 2.0))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(af.uint8, -1), (af.int32, 0.5), (af.int32, float("nan")), (af.float32, "a"), (af.float32, [1])],
)
async def test_padding_that_does_not_fit_its_feed_is_rejected_at_once(dtype: af.DType, value: Any) -> None:
    x = af.placeholder(dtype, [None, None])
    async with af.Session() as session:
        with pytest.raises((DTypeError, InvalidArgumentError), match="padding value"):
            session.batched(af.identity(x), [x], pad={x: value})


async def test_texts_are_padded_with_empty_ones_by_default() -> None:
    x = af.placeholder(af.string, [None, None])
    async with af.Session() as session:
        for padding, fill in (Padding(), b""), (Padding("-"), b"-"):
            predict = session.batched(af.identity(x), [x], pad={x: padding})
            found = await asyncio.gather(predict([["a"]]), predict([["b", "c"]]))
            assert [each.tolist() for each in found] == [[[b"a", fill]], [[b"b", b"c"]]]
            assert predict.statistics().batches == 1


async def test_warmup_of_wide_rows_does_not_block_the_loop() -> None:
    """The zeros of the warm-up take 4 GB, which would take seconds to write."""
    x = af.placeholder("float32", [None, 1_000_000])
    async with af.Session() as session:
        await session.batched(x[:, :1] + 1.0, [x], max_batch_size=1000, allowed_batch_sizes=[1000]).warmup()


@pytest.mark.parametrize("fills", ["rows", "lengths"])
async def test_large_request_is_padded_in_a_thread(fills: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = af.placeholder("float32", [None, None])
    options: dict[str, Any] = {"allowed_batch_sizes": [64]} if fills == "rows" else {"pad": {x: 0.0}}
    threads: list[int] = []
    join = RowsIn.join

    def noted(*args: Any) -> Any:
        threads.append(threading.get_ident())
        return join(*args)

    monkeypatch.setattr(RowsIn, "join", noted)
    async with af.Session() as session:
        batched = session.batched(af.reduce_sum(x, axis=1), [x], max_batch_size=64, **options)
        assert await batched(np.ones([1, 100_000], np.float32)) == 100_000.0
    assert threads
    assert threading.get_ident() not in threads


# -- closing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", range(4))
async def test_batched_raises_closed_session_while_its_tasks_are_being_cancelled(turns: int) -> None:
    service = Service(seconds=0.0)
    await right(service, 1)
    closing = asyncio.get_running_loop().create_task(service.background.close())
    for _ in range(turns):
        await asyncio.sleep(0)
    await asyncio.gather(*(refused(service.call, rows_of(1)) for _ in range(2)))
    await closing
    await refused(service.call, rows_of(1))


@virtually
async def test_batched_timer_skips_a_task_cancelled_in_the_same_turn() -> None:
    service, loop = Service(batch_timeout=1.0), asyncio.get_running_loop()
    logged: list[Any] = []
    loop.set_exception_handler(lambda _, context: logged.append(context))
    await right(service, 1)

    def cancel() -> None:
        for task in service.background._tasks[loop]:
            task.cancel()

    loop.call_at(loop.time() + 1.0, cancel)
    await refused(service.call, rows_of(1))
    assert not logged


@virtually
async def test_batched_close_skips_a_task_cancelled_in_the_same_turn() -> None:
    service = Service()
    await right(service, 1)
    closing = asyncio.get_running_loop().create_task(service.background.close())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await service.call.aclose()
    await closing


@virtually
async def test_batched_rejects_a_late_call_and_leaves_an_ending_batch_alone() -> None:
    service = Service(max_concurrent_batches=2)

    async def slow_to_end(rows: Any) -> list[Any]:
        try:
            await asyncio.sleep(9.0)
            return [rows * 2]
        finally:
            await asyncio.sleep(1.0)

    service.call._step = slow_to_end
    waiting = asyncio.get_running_loop().create_task(refused(service.call, rows_of(1)))
    await asyncio.sleep(1.0)
    closing = asyncio.get_running_loop().create_task(service.background.close())
    await asyncio.sleep(0.5)
    await refused(service.call, rows_of(1))
    await waiting
    await closing


@virtually
async def test_batched_tasks_end_if_a_step_replaces_their_cancellation_by_an_error() -> None:
    service = Service()

    async def failing(rows: Any) -> list[Any]:
        try:
            await asyncio.sleep(9.0)
        except asyncio.CancelledError:
            raise InvalidArgumentError("stopped") from None
        return [rows]

    service.call._step = failing
    waiting = asyncio.get_running_loop().create_task(service.call(rows_of(1)))
    await asyncio.sleep(1.0)
    await service.background.close()
    with pytest.raises(InvalidArgumentError, match="stopped"):
        await waiting
    await refused(service.call, rows_of(1))


@on_each_loop
async def test_batched_call_cancelled_in_the_turn_in_which_it_fails_logs_nothing() -> None:
    service = Service(seconds=0.0, refuse=1.0)
    assert await cancel_at_each_turn(lambda: service.call(rows_of(1)), expected=(InvalidArgumentError,))
    await service.background.close()


async def test_batched_close_ends_its_tasks() -> None:
    service = Service(seconds=0.0)
    before = asyncio.all_tasks()
    await right(service, 1)
    await service.call.aclose()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    await service.background.close()
