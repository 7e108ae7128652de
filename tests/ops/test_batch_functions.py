"""Batch functions, which run once for the rows of several steps: sharing of runs, failures and cancellation."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow import raw_ops
from aioflow.errors import (
    CancelledError,
    DeadlineExceededError,
    DTypeError,
    FailedPreconditionError,
    InvalidArgumentError,
    NoGradientError,
    ResourceExhaustedError,
)
from aioflow.ops.apply import make_op
from aioflow.testing.virtual_clock import run_virtual
from tests.support.loops import virtually


class Layer:
    """A graph with a batch function that doubles its rows.

    Args:
        seconds: Duration of a run, by the clock of the loop.
        refuse: Rows of this value fail.
        changes: Whether the function is stateful.
        settings: Arguments of `nondifferentiable_batch_function`.

    Attributes:
        sizes: Number of rows of each run.
        stopped: Number of cancelled runs.
        running: Number of runs in progress.
        most: Largest value of `running` so far.
    """

    def __init__(self, seconds: float = 1.0, refuse: float = np.nan, changes: bool = False, **settings: Any) -> None:
        self.sizes: list[int] = []
        self.stopped = 0
        self.running = 0
        self.most = 0
        timeout = settings.pop("batch_timeout_micros", 0)

        async def double(rows: Any) -> Any:
            self.sizes.append(len(rows))
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                self.stopped += 1
                await asyncio.sleep(0.125)  # cleanup that takes time
                raise
            finally:
                self.running -= 1
            if (rows == refuse).any():
                raise InvalidArgumentError("a row is refused")
            return rows * 2

        @af.nondifferentiable_batch_function(
            settings.pop("num_batch_threads", 1), settings.pop("max_batch_size", 4), timeout, **settings
        )
        def layer(rows: Any) -> Any:
            made = af.py_coroutine(double, [rows], af.float32, stateful=changes, name="double")
            made.set_shape([None, 2])
            return made

        self.graph = af.Graph()
        with self.graph.as_default():
            self.x = af.placeholder(af.float32, [None, 2])
            self.y = layer(self.x)

    async def right(self, session: Any, value: float, count: int = 1, **how: Any) -> None:
        """Run a step and check that it gets its own rows."""
        found = await session.run(self.y, {self.x: rows_of(value, count)}, **how)
        np.testing.assert_array_equal(found, rows_of(2 * value, count))


def opened(graph: Any, worker: Any = "") -> Any:
    """Return a session whose steps never leave the event loop."""
    return af.Session(worker, graph=graph, config=af.SessionConfig(inline_budget=float("inf")))


def rows_of(value: float, count: int = 1) -> Any:
    return np.full((count, 2), value, np.float32)


# ── shared runs ──────────────────────────────────────────────────────────────────────────────────────────────────────


@virtually
async def test_concurrent_steps_share_a_run() -> None:
    layer = Layer(batch_timeout_micros=250_000)
    async with opened(layer.graph) as session, asyncio.TaskGroup() as group:
        for value in range(4):
            group.create_task(layer.right(session, value))
    assert (layer.sizes, asyncio.get_running_loop().time()) == ([4], 1.0)


@virtually
async def test_partial_batch_runs_after_its_timeout() -> None:
    layer = Layer(batch_timeout_micros=250_000)
    async with opened(layer.graph) as session, asyncio.TaskGroup() as group:
        group.create_task(layer.right(session, 1.0))
        await asyncio.sleep(0.125)
        group.create_task(layer.right(session, 2.0, 2))
    assert (layer.sizes, asyncio.get_running_loop().time()) == ([3], 1.25)


@virtually
async def test_requests_during_a_run_form_the_next_batch() -> None:
    layer = Layer()
    async with opened(layer.graph) as session, asyncio.TaskGroup() as group:
        group.create_task(layer.right(session, 1.0))
        await asyncio.sleep(0.5)
        for value in (2.0, 3.0):
            group.create_task(layer.right(session, value))
    assert (layer.sizes, asyncio.get_running_loop().time()) == ([1, 2], 2.0)


@virtually
async def test_sessions_of_a_worker_share_runs() -> None:
    layer = Layer(batch_timeout_micros=1000)
    async with opened(layer.graph) as first, af.Session(first.worker, graph=layer.graph) as second:
        await asyncio.gather(layer.right(first, 1.0), layer.right(second, 2.0))
    assert layer.sizes == [2]


@virtually
async def test_nodes_with_a_shared_name_and_function_share_runs() -> None:
    graph = af.Graph()
    with graph.as_default():
        x = af.placeholder(af.float32, [None])
        weights = af.Variable(3.0)

        def count(rows: Any) -> Any:
            return rows * weights + af.cast(af.shape(rows)[0], af.float32)

        made = af.nondifferentiable_batch_function(1, 4, 1000)(count)
        ops = [made(x).op, made(x).op]
        shared = [
            raw_ops.BatchFunction(
                in_tensors=list(op.inputs[:1]),
                captured_tensors=list(op.inputs[1:]),
                Tout=[af.float32],
                shared_name="shared",
                f=op.attrs["f"].name,
                **{k: op.attrs[k] for k in ("num_batch_threads", "max_batch_size", "batch_timeout_micros")},
            )[0]
            for op in ops
        ]
        init = af.global_variables_initializer()
    async with opened(graph) as session:
        await session.run(init)
        found = await asyncio.gather(*(session.run(each, {x: [float(i)]}) for i, each in enumerate(shared)))
    assert [each.tolist() for each in found] == [[2.0], [5.0]]  # 3 x + 2: both rows were in one run


@virtually
async def test_different_functions_of_one_name_do_not_share_runs() -> None:
    layer, graph = Layer(batch_timeout_micros=1000), af.Graph()
    with graph.as_default():
        x = af.placeholder(af.float32, [None, 2])
        y = af.nondifferentiable_batch_function(1, 4, 1000)(lambda rows: rows * 3.0)(x)
    assert y.op.name == layer.y.op.name
    async with opened(layer.graph) as first, opened(graph, first.worker) as other:
        tripled = other.run(y, {x: rows_of(1.0)})
        found, _, _ = await asyncio.gather(tripled, layer.right(first, 1.0), layer.right(first, 2.0))
    assert found.tolist() == [[3.0, 3.0]]
    assert layer.sizes == [2]


@virtually
async def test_steps_with_different_captured_values_do_not_share_runs() -> None:
    graph = af.Graph()
    with graph.as_default():
        x, scale = af.placeholder(af.float32, [None]), af.placeholder(af.float32, [])

        @af.nondifferentiable_batch_function(1, 4, 1000)
        def scaled(rows: Any) -> Any:
            return rows * scale + af.cast(af.shape(rows)[0], af.float32) * 100.0

        y = scaled(x)
    async with opened(graph) as session:
        found = await asyncio.gather(*(session.run(y, {x: [1.0], scale: factor}) for factor in (2.0, 3.0, 2.0)))
    assert [each.tolist() for each in found] == [[202.0], [103.0], [202.0]]


@virtually
async def test_batches_are_padded_to_an_allowed_size() -> None:
    layer = Layer(batch_timeout_micros=1000, max_batch_size=8, allowed_batch_sizes=[2, 8])
    async with opened(layer.graph) as session:
        await asyncio.gather(*(layer.right(session, value) for value in range(3)))
        await layer.right(session, 5.0)
    assert layer.sizes == [8, 2]


@virtually
async def test_large_requests_are_split_into_batches() -> None:
    layer = Layer(max_batch_size=10, allowed_batch_sizes=[2, 4])
    async with opened(layer.graph) as session:
        await layer.right(session, 3.0, 10)
        assert layer.sizes == [4, 4, 2]
        with pytest.raises(InvalidArgumentError, match="at most 10") as caught:
            await layer.right(session, 3.0, 11)
    assert caught.value.node == "batch/BatchFunction"


@virtually
async def test_batch_sizes_above_the_maximum_are_rejected() -> None:
    layer = Layer(max_batch_size=4, allowed_batch_sizes=[2, 8], enable_large_batch_splitting=True)
    async with opened(layer.graph) as session:
        with pytest.raises(InvalidArgumentError, match="max_batch_size") as caught:
            await layer.right(session, 3.0, 2)
    assert (caught.value.expected, caught.value.actual) == ("sizes up to 4", [2, 8])


@virtually
async def test_empty_request_has_a_run_of_its_own() -> None:
    layer = Layer()
    async with opened(layer.graph) as session:
        assert (await session.run(layer.y, {layer.x: np.zeros((0, 2))})).shape == (0, 2)
    assert layer.sizes == [0]


@virtually
async def test_num_batch_threads_bounds_concurrent_runs() -> None:
    layer = Layer(num_batch_threads=2, max_batch_size=1)
    async with opened(layer.graph) as session:
        await asyncio.gather(*(layer.right(session, value) for value in range(6)))
    assert (layer.most, asyncio.get_running_loop().time()) == (2, 3.0)


# ── failures and cancellation ────────────────────────────────────────────────────────────────────────────────────────


@virtually
async def test_full_batch_queue_refuses_at_once() -> None:
    layer = Layer(max_batch_size=1, max_enqueued_batches=2)
    async with opened(layer.graph) as session, asyncio.TaskGroup() as group:
        group.create_task(layer.right(session, 0.0))
        await asyncio.sleep(0.25)
        for value in (1.0, 2.0):
            group.create_task(layer.right(session, value))
        await asyncio.sleep(0.25)
        with pytest.raises(ResourceExhaustedError, match="too many requests") as caught:
            await layer.right(session, 9.0)
        assert (caught.value.node, asyncio.get_running_loop().time()) == ("batch/BatchFunction", 0.5)


@virtually
async def test_cancelled_step_does_not_affect_others_in_its_batch() -> None:
    layer = Layer(batch_timeout_micros=250_000)
    async with opened(layer.graph) as session, asyncio.TaskGroup() as group:
        first = group.create_task(layer.right(session, 1.0))
        second = group.create_task(layer.right(session, 2.0))
        await asyncio.sleep(0.5)
        first.cancel()
        await second
        assert first.cancelled()
    assert (layer.sizes, layer.stopped, asyncio.get_running_loop().time()) == ([2], 0, 1.25)


@virtually
async def test_run_without_waiters_is_cancelled_before_its_steps_end() -> None:
    layer = Layer()
    async with opened(layer.graph) as session, asyncio.TaskGroup() as group:
        steps = [group.create_task(layer.right(session, value)) for value in (1.0, 2.0)]
        await asyncio.sleep(0.5)
        for step in steps:
            step.cancel()
        await asyncio.wait(steps)
        assert (layer.running, layer.stopped, asyncio.get_running_loop().time()) == (0, 1, 0.625)
        await layer.right(session, 3.0)


@virtually
async def test_deadline_applies_while_the_batch_is_queued() -> None:
    layer = Layer()
    async with opened(layer.graph) as session, asyncio.TaskGroup() as group:
        first = group.create_task(layer.right(session, 1.0))
        await asyncio.sleep(0.125)
        with pytest.raises(DeadlineExceededError, match="batches 'batch/BatchFunction'"):
            await layer.right(session, 2.0, timeout=0.5)
        assert asyncio.get_running_loop().time() == 0.625
        await first
        assert layer.sizes == [1]  # the expired row was not computed


@virtually
async def test_closing_a_session_does_not_stop_shared_runs() -> None:
    layer = Layer(batch_timeout_micros=1000)
    async with opened(layer.graph) as kept, asyncio.TaskGroup() as group:
        closed = af.Session(kept.worker, graph=layer.graph)

        async def fails() -> None:
            with pytest.raises(CancelledError):
                await layer.right(closed, 1.0)

        # This step comes first, so that the run is started by the session that is closed.
        group.create_task(fails())
        group.create_task(layer.right(kept, 2.0))
        await asyncio.sleep(0.5)
        await closed.close()
    assert (layer.sizes, layer.stopped) == ([2], 0)


@virtually
async def test_failing_row_fails_alone_and_names_the_inner_node() -> None:
    layer = Layer(batch_timeout_micros=1000, max_batch_size=8, refuse=5.0)
    async with opened(layer.graph) as session:
        found = await asyncio.gather(*(layer.right(session, value) for value in range(8)), return_exceptions=True)
    errors = [(value, each) for value, each in enumerate(found) if each is not None]
    assert [value for value, _ in errors] == [5]
    assert isinstance(errors[0][1], InvalidArgumentError)
    assert errors[0][1].node == "batch/BatchFunction/double"
    assert layer.sizes == [8, 4, 4, 2, 1, 1, 2]


@virtually
async def test_stateful_function_is_not_rerun_after_a_failure() -> None:
    layer = Layer(batch_timeout_micros=1000, refuse=2.0, changes=True)
    async with opened(layer.graph) as session:
        found = await asyncio.gather(*(layer.right(session, value) for value in range(4)), return_exceptions=True)
    assert all(isinstance(each, InvalidArgumentError) for each in found)
    assert len({id(each) for each in found}) == 4
    assert layer.sizes == [4]


@virtually
async def test_results_with_another_number_of_rows_are_refused() -> None:
    graph = af.Graph()
    with graph.as_default():
        x = af.placeholder(af.float32, [None])
        y = af.nondifferentiable_batch_function(1, 4, 0)(lambda rows: af.concat([rows, rows], 0))(x)
    async with opened(graph) as session:
        with pytest.raises(FailedPreconditionError, match="output 0 of the function") as caught:
            await session.run(y, {x: [1.0]})
    assert caught.value.node == "batch/BatchFunction"


@virtually
async def test_arguments_of_different_numbers_of_rows_are_refused() -> None:
    graph = af.Graph()
    with graph.as_default():
        x, z = af.placeholder(af.float32), af.placeholder(af.float32)
        y = af.nondifferentiable_batch_function(1, 4, 0)(lambda a, b: a + b)(x, z)
    async with opened(graph) as session:
        with pytest.raises(InvalidArgumentError, match="different numbers of rows"):
            await session.run(y, {x: [1.0], z: [1.0, 2.0]})
        with pytest.raises(InvalidArgumentError, match="rank >= 1"):
            await session.run(y, {x: 1.0, z: [1.0]})


# ── any order of events ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(25))
def test_random_schedules_return_own_rows_or_own_error(seed: int) -> None:
    chance = random.Random(seed)
    layer = Layer(
        seconds=chance.choice([0.0, 0.01, 0.1]),
        refuse=7.0,
        num_batch_threads=chance.choice([1, 2, 3]),
        max_batch_size=8,
        batch_timeout_micros=chance.choice([0, 10_000, 100_000]),
        max_enqueued_batches=chance.choice([1, 4]),
        allowed_batch_sizes=chance.choice([None, [8], [2, 4, 8], [3]]),
    )
    outcomes: dict[str, int] = {}

    async def step(sessions: list[Any]) -> None:
        await asyncio.sleep(chance.random())
        value, count = float(chance.randrange(12)), chance.randrange(1, 7)
        timeout = chance.choice([None, None, 0.02, 0.2])
        try:
            async with asyncio.timeout(chance.choice([None, None, 0.005, 0.05])):
                await layer.right(chance.choice(sessions), value, count, timeout=timeout)
            outcome = "answered"
            assert value != 7.0
        except InvalidArgumentError as error:
            outcome = f"refused at {error.node}"
            assert value == 7.0
        except DeadlineExceededError:
            outcome = "late"
            assert timeout is not None
        except TimeoutError:
            outcome = "cancelled"
        except ResourceExhaustedError:
            outcome = "full"
        outcomes[outcome] = outcomes.get(outcome, 0) + 1

    async def main() -> None:
        async with opened(layer.graph) as first, af.Session(first.worker, graph=layer.graph) as second:
            async with asyncio.TaskGroup() as group:
                for _ in range(60):
                    group.create_task(step([first, second]))
            assert layer.running == 0
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main(), seed)
    assert sum(outcomes.values()) == 60
    assert outcomes["answered"] > 5
    assert outcomes.keys() <= {"answered", "late", "cancelled", "full", "refused at batch/BatchFunction/double"}
    assert max(layer.sizes) <= 8


# ── the node ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_exported_graph_keeps_the_batch_function() -> None:
    graph = af.Graph()
    with graph.as_default():
        x = af.placeholder(af.float32, [None, 2], name="x")

        @af.nondifferentiable_batch_function(1, 4, 0)
        def scores(rows: Any) -> Any:
            return {"sum": af.reduce_sum(rows, 1), "twice": (rows * 2.0, rows)}

        made = scores(x)
        assert made["sum"].shape.as_list() == [None]
        assert made["twice"][0].shape.as_list() == [None, 2]
    again = af.Graph()
    with again.as_default():
        results = af.import_graph_def(graph.as_graph_def(), name="", return_elements=["batch/BatchFunction:0"])
    async with opened(again) as session:
        assert (await session.run(results[0], {"x:0": [[1.0, 2.0]]})).tolist() == [3.0]


@virtually
async def test_batch_functions_nest_in_functions() -> None:
    graph = af.Graph()
    with graph.as_default():
        x = af.placeholder(af.float32, [None])
        inner = af.nondifferentiable_batch_function(1, 8, 1000)(
            lambda rows: rows + af.cast(af.shape(rows)[0], af.float32)
        )
        outer = af.nondifferentiable_batch_function(1, 2, 1000)(lambda rows: inner(rows) * 10.0)
        y = af.function(lambda rows: outer(rows) + 1.0)(x)
    async with opened(graph) as session:
        found = await asyncio.gather(*(session.run(y, {x: [value]}) for value in (0.0, 1.0)))
    assert [each.tolist() for each in found] == [[21.0], [31.0]]


def test_arguments_must_be_tensors_with_rows() -> None:
    made = af.nondifferentiable_batch_function(1, 4, 0)(lambda rows: rows)
    with pytest.raises(DTypeError, match="accepts tensors"):
        made([1.0])
    with pytest.raises(InvalidArgumentError, match="made of rows"):
        made(af.constant(1.0))
    with pytest.raises(InvalidArgumentError, match="max_batch_size"):
        af.nondifferentiable_batch_function(1, 0, 0)


@pytest.mark.parametrize("wanted", [["float32", "float32"], ["float64"]])
def test_node_dtypes_must_match_the_function(wanted: list[str]) -> None:
    x = af.placeholder(af.float32, [None])
    af.function(lambda rows: rows * 2.0, [af.TensorSpec([None], af.float32)], "twice").get_concrete_function()
    settings: dict[str, Any] = {"num_batch_threads": 1, "max_batch_size": 4, "batch_timeout_micros": 0}
    with pytest.raises(DTypeError, match="does not return the dtypes that the node declares"):
        make_op("BatchFunction", [x], [], Tout=wanted, f="twice", **settings)


def test_batch_function_has_no_gradient() -> None:
    x = af.placeholder(af.float32, [None])
    y = af.nondifferentiable_batch_function(1, 4, 0)(lambda rows: rows * 2.0)(x)
    with pytest.raises(NoGradientError, match="BatchFunction"):
        af.gradients(y, x)


async def test_inconsistent_settings_are_refused_in_the_step() -> None:
    x = af.placeholder(af.float32, [None])
    made = af.nondifferentiable_batch_function(1, 4, 0, [2, 3], enable_large_batch_splitting=False)
    y = made(lambda rows: rows)(x)
    async with af.Session() as session:
        with pytest.raises(InvalidArgumentError, match="end with max_batch_size"):
            await session.run(y, {x: [1.0]})


def test_event_loops_do_not_share_batches() -> None:
    layer = Layer(seconds=0.0)
    with asyncio.Runner() as first, asyncio.Runner() as second:
        session = opened(layer.graph)
        first.run(layer.right(session, 1.0))
        second.run(layer.right(session, 2.0))
        first.run(session.close())
    del session
    gc.collect()
