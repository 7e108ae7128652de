"""Bad input: each raises one typed error with the node, the user's line, the expected and the actual value.

After every error, the session stays usable and variables keep their values.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow import errors


@pytest.fixture
async def session() -> AsyncIterator[af.Session]:
    """Yield a session with an initialized variable `kept`, and check afterwards that the session still works."""
    kept = af.Variable([1.0, 2.0], name="kept")
    async with af.Session() as session:
        await session.run(kept.initializer)
        yield session
        if not session.closed:
            assert (await session.run(kept) == [1, 2]).all()
            assert await session.run(af.constant(1) + 1) == 2


def _names_this_file(error: errors.OpError) -> bool:
    return error.source is not None and error.source.filename == __file__


async def _error(awaitable: Any, kind: type[errors.OpError]) -> errors.OpError:
    with pytest.raises(kind) as caught:
        await awaitable
    return caught.value


BAD_FEEDS: list[tuple[str, Any, Any, Any, type[errors.OpError]]] = [
    ("a float for an int", "int32", [], 2.7, errors.DTypeError),
    ("text for a number", "float32", [], "two", errors.DTypeError),
    ("a number for text", "string", [], 3, errors.DTypeError),
    ("a complex for a float", "float32", [], 1j, errors.DTypeError),
    ("a float array for ints", "int64", [None], np.array([1.5]), errors.DTypeError),
    ("an int out of range", "uint8", [], 300, errors.InvalidArgumentError),
    ("a large int out of range", "int32", [], 2**40, errors.InvalidArgumentError),
    ("an int larger than any float", "float32", [], 10**400, errors.DTypeError),
    ("the wrong size", "float32", [2], [1, 2, 3], errors.InvalidArgumentError),
    ("the wrong rank", "float32", [2, None], [1, 2], errors.InvalidArgumentError),
    ("a ragged list", "float32", [None, None], [[1], [2, 3]], errors.InvalidArgumentError),
    ("None", "float32", [], None, errors.InvalidArgumentError),
]


@pytest.mark.parametrize(("dtype", "shape", "value", "kind"), [c[1:] for c in BAD_FEEDS], ids=[c[0] for c in BAD_FEEDS])
async def test_bad_feed_raises_a_typed_error(
    session: af.Session, dtype: str, shape: Any, value: Any, kind: type[errors.OpError]
) -> None:
    x = af.placeholder(dtype, shape, name="input")
    error = await _error(session.run(af.identity(x), {x: value}), kind)
    assert "input" in str(error)
    assert error.node == "input"
    assert _names_this_file(error)
    assert error.expected is not None
    assert error.actual is not None


async def test_tensor_as_a_feed_value_is_rejected(session: af.Session) -> None:
    x = af.placeholder("float32", [])
    error = await _error(session.run(x + 1.0, {x: af.constant(1.0)}), errors.DTypeError)
    assert error.node == x.op.name


async def test_placeholder_without_a_feed_is_reported(session: af.Session) -> None:
    x = af.placeholder("float32", [], name="input")
    error = await _error(session.run(x + 1.0), errors.InvalidArgumentError)
    assert error.node == "input"
    assert "must feed" in str(error)
    assert _names_this_file(error)


@pytest.mark.parametrize("feeds", [5, [1.0], "x"])
async def test_feeds_must_be_a_mapping(session: af.Session, feeds: Any) -> None:
    with pytest.raises(errors.DTypeError, match="feeds must be a mapping"):
        await session.run(af.constant(1.0), feeds)


async def test_unfeedable_keys_are_rejected(session: af.Session) -> None:
    y = af.constant(1.0) + 1.0
    session.graph.prevent_feeding(y)
    await _error(session.run(y * 2.0, {y: 1.0}), errors.InvalidArgumentError)
    await _error(session.run(y, {af.no_op(): 1.0}), errors.InvalidArgumentError)
    await _error(session.run(y, {"nothing:0": 1.0}), errors.NotFoundError)
    x = af.placeholder("float32", [], name="x")
    await _error(session.run(x + 1.0, {x: 1.0, "x:0": 2.0}), errors.InvalidArgumentError)


async def test_invalid_fetches_are_rejected(session: af.Session) -> None:
    with af.Graph().as_default():
        foreign = af.constant(1.0, name="foreign")
    error = await _error(session.run(foreign), errors.InvalidArgumentError)
    assert "another graph" in str(error)
    error = await _error(session.run("kepr:0"), errors.NotFoundError)
    assert "kept" in str(error), "the error suggests the nearest name"
    await _error(session.run("kept:7"), errors.NotFoundError)
    await _error(session.run([3.5]), errors.DTypeError)
    await _error(session.run({1, 2}), errors.DTypeError)  # type: ignore[call-overload]  # wrong on purpose
    unfetchable = af.constant(1.0)
    session.graph.prevent_fetching(unfetchable.op)
    await _error(session.run(unfetchable), errors.InvalidArgumentError)


async def test_uninitialized_variable_is_reported(session: af.Session) -> None:
    fresh = af.Variable(1.0, name="fresh")
    error = await _error(session.run(fresh * 2.0), errors.FailedPreconditionError)
    assert "fresh" in str(error)
    assert _names_this_file(error)


async def test_run_after_close_is_rejected(session: af.Session) -> None:
    await session.close()
    await _error(session.run(af.constant(1.0)), errors.ClosedSessionError)


async def test_close_during_the_compilation_stops_the_step() -> None:
    """Otherwise the step would wait in the queue forever, without a session that could stop it."""
    queue = af.FIFOQueue(1, ["float32"], [()])
    taken = queue.dequeue()
    for _ in range(200):  # enough nodes to be compiled in a thread
        taken = af.tanh(taken)
    session = af.Session()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        waiting = group.create_task(_error(session.run(taken), errors.ClosedSessionError))
        await asyncio.sleep(0)
        await session.close()
        await waiting
    await _error(session.run(taken), errors.ClosedSessionError)


async def test_finalized_graph_rejects_new_nodes() -> None:
    with af.Graph().as_default() as graph:
        graph.finalize()
        with pytest.raises(errors.FailedPreconditionError) as caught:
            af.constant(1.0)
        assert _names_this_file(caught.value)


RUNTIME: list[tuple[str, Callable[[af.Tensor, af.Tensor], af.Tensor], type[errors.OpError]]] = [
    ("division by zero", lambda i, f: af.floordiv(i, af.zeros_like(i)), errors.InvalidArgumentError),
    ("modulo by zero", lambda i, f: af.floormod(i, af.zeros_like(i)), errors.InvalidArgumentError),
    ("an index above the range", lambda i, f: af.gather(f, i + 100), errors.InvalidArgumentError),
    ("an index below the range", lambda i, f: af.gather(f, i - 100), errors.InvalidArgumentError),
    (
        "shapes that do not multiply",
        lambda i, f: af.matmul(_lose_shape(f), _lose_shape(f)),
        errors.InvalidArgumentError,
    ),
    ("shapes that do not broadcast", lambda i, f: f + _lose_shape(af.ones([7, 7])), errors.InvalidArgumentError),
    (
        "a reshape to another size",
        lambda i, f: af.reshape(f, _lose_shape(af.constant([5, 5]))),
        errors.InvalidArgumentError,
    ),
    ("a shape that overflows", lambda i, f: af.fill(_lose_shape(af.constant([2**30] * 3)), 1.0), errors.OpError),
    ("a check of numerics", lambda i, f: af.check_numerics(f / 0.0, "loss"), errors.InvalidArgumentError),
    ("a singular matrix", lambda i, f: af.matrix_inverse(af.zeros([2, 2])), errors.InvalidArgumentError),
    (
        "a default of another shape",
        lambda i, f: af.placeholder_with_default(_lose_shape(f), [None, 4]),
        errors.InvalidArgumentError,
    ),
    (
        "a label out of range",
        lambda i, f: af.nn.sparse_softmax_cross_entropy_with_logits(labels=i[:2] + 9, logits=f),
        errors.InvalidArgumentError,
    ),
]


def _lose_shape(x: af.Tensor) -> af.Tensor:
    return af.placeholder_with_default(x, None)


@pytest.mark.parametrize(("build", "kind"), [c[1:] for c in RUNTIME], ids=[c[0] for c in RUNTIME])
@pytest.mark.parametrize("budget", [0.0, 10.0], ids=["in a thread", "inline"])
async def test_kernel_error_names_the_node(
    build: Callable[[af.Tensor, af.Tensor], af.Tensor], kind: type[errors.OpError], budget: float
) -> None:
    whole = af.placeholder("int32", [3])
    real = af.placeholder("float32", [2, 3])
    y = build(whole, real)
    kept = af.Variable(5.0, name="kept")
    config = af.SessionConfig(inline_budget=budget)
    async with af.Session(config=config) as session:
        await session.run(kept.initializer)
        feeds = {whole: [0, 1, 2], real: np.ones((2, 3), np.float32)}
        for _ in range(2):
            error = await _error(session.run(y, feeds), kind)
            assert error.node is not None
            assert _names_this_file(error), error
        assert await session.run(kept) == 5


async def test_check_finite_names_the_first_non_finite_node() -> None:
    x = af.placeholder("float32", [])
    y = af.exp(af.log(x, name="logarithm"))
    async with af.Session(config=af.SessionConfig(check_finite=True)) as session:
        assert await session.run(y, {x: 2.0}) == pytest.approx(2.0)
        error = await _error(session.run(y, {x: -1.0}), errors.InvalidArgumentError)
        assert error.node == "logarithm"
        assert error.actual == "NaN"
        assert await session.run(y, {x: 3.0}) == pytest.approx(3.0)


BUILD: list[tuple[str, Callable[[], Any], type[errors.OpError]]] = [
    ("dtypes that differ", lambda: af.constant(1.0) + af.constant(1), errors.DTypeError),
    ("shapes that differ", lambda: af.ones([2, 3]) + af.ones([4]), errors.InvalidArgumentError),
    ("inner sizes that differ", lambda: af.matmul(af.ones([2, 3]), af.ones([2, 3])), errors.InvalidArgumentError),
    (
        "an attribute out of range",
        lambda: af.nn.conv2d(af.ones([1, 4, 4, 1]), af.ones([2, 2, 1, 1]), 1, "ROUND"),  # type: ignore[arg-type]  # wrong on purpose
        errors.InvalidArgumentError,
    ),
    (
        "a stride of zero",
        lambda: af.nn.max_pool(af.ones([1, 4, 4, 1]), [1, 2, 2, 1], [1, 0, 0, 1], "SAME"),
        errors.InvalidArgumentError,
    ),
    ("an axis out of range", lambda: af.reduce_sum(af.ones([2]), axis=3), errors.InvalidArgumentError),
    ("a negative size", lambda: af.zeros([-2]), errors.InvalidArgumentError),
    ("a size that overflows", lambda: af.zeros([2**40, 2**40]), errors.InvalidArgumentError),
    ("an invalid name", lambda: af.constant(1, name="no spaces"), errors.InvalidArgumentError),
    ("a value of mixed kinds", lambda: af.constant([1, "a"]), errors.DTypeError),
    ("an unknown dtype", lambda: af.placeholder("float33"), errors.DTypeError),
    ("a tensor as a bool", lambda: bool(af.constant(1)), errors.InvalidArgumentError),
]


@pytest.mark.parametrize(("build", "kind"), [c[1:] for c in BUILD], ids=[c[0] for c in BUILD])
def test_invalid_graph_raises_when_it_is_built(build: Callable[[], Any], kind: type[errors.OpError]) -> None:
    with pytest.raises(kind) as caught:
        build()
    assert caught.value.expected is not None
    assert caught.value.actual is not None


def _handles() -> dict[str, af.Tensor]:
    raw = af.raw_ops
    return {
        "VariableResource": raw.VarHandleOp(dtype="float32", shape=[]),
        "Queue": raw.FIFOQueueV2(component_types=["float32"]),
        "BarrierResource": raw.Barrier(component_types=["float32"]),
        "Reader": raw.IdentityReaderV2(),
        "FairLock": raw.MutexV2(),
        "AccumulatorResource": raw.ResourceConditionalAccumulator(dtype="float32", shape=[]),
        "StackValue": raw.StackV2(max_size=2, elem_type="float32"),
        "TensorArrayValue": raw.TensorArrayV3(size=2, dtype="float32").handle,
    }


USES: dict[str, Callable[[Any], Any]] = {
    "VariableResource": lambda h: af.raw_ops.ReadVariableOp(resource=h, dtype="float32"),
    "Queue": lambda h: af.raw_ops.QueueDequeueV2(handle=h, component_types=["float32"]),
    "BarrierResource": lambda h: af.raw_ops.BarrierReadySize(handle=h),
    "Reader": lambda h: af.raw_ops.ReaderResetV2(reader_handle=h),
    "FairLock": lambda h: af.raw_ops.MutexLock(mutex=h),
    "AccumulatorResource": lambda h: af.raw_ops.ResourceAccumulatorNumAccumulated(handle=h),
    "StackValue": lambda h: af.raw_ops.StackPushV2(handle=h, elem=1.0),
    "TensorArrayValue": lambda h: af.raw_ops.TensorArrayReadV3(handle=h, index=0, flow_in=0.0, dtype="float32"),
}


@pytest.mark.parametrize("executor", ["strands", "reference"])
@pytest.mark.parametrize("wanted", list(USES))
async def test_handle_of_another_kind_is_rejected(wanted: str, executor: str) -> None:
    handles = _handles()
    fed = af.placeholder("resource", [])
    given: list[tuple[Any, dict[Any, Any]]] = [(used, {}) for kind, used in handles.items() if kind != wanted]
    async with af.Session(config=af.SessionConfig(executor=executor)) as session:
        for used, feeds in [*given, (fed, {fed: np.array(None)})]:
            error = await _error(session.run(USES[wanted](used), feeds), errors.InvalidArgumentError)
            assert error.expected == wanted
            assert error.actual in {*handles, "ndarray"}
            assert _names_this_file(error)


async def test_handle_of_another_kind_is_rejected_in_a_loop() -> None:
    queue = af.FIFOQueue(1, ["float32"])
    handles = af.stack([queue.queue_ref, af.Variable(1.0).handle])
    _, last = af.while_loop(
        lambda i, _: i < 2,
        lambda i, _: (i + 1, af.reshape(USES["VariableResource"](af.gather(handles, i)), [])),
        [0, 0.0],
    )
    async with af.Session() as session:
        error = await _error(session.run(last), errors.InvalidArgumentError)
        assert (error.expected, error.actual) == ("VariableResource", "Queue")


async def test_consume_of_a_value_that_is_not_a_lock_is_rejected() -> None:
    consumed = af.raw_ops.ConsumeMutexLock(
        mutex_lock=af.raw_ops.EmptyTensorList(element_shape=[2], max_num_elements=1, element_dtype="float32")
    )
    async with af.Session() as session:
        error = await _error(session.run(consumed), errors.InvalidArgumentError)
        assert error.expected == "HeldLock"


async def test_foreign_exceptions_of_kernels_are_converted() -> None:
    """A NumPy error in a kernel is raised as an engine error with the original as its cause."""
    x = af.placeholder("float32", None)
    async with af.Session() as session:
        error = await _error(session.run(x + af.ones([3]), {x: np.ones(2)}), errors.InvalidArgumentError)
        assert isinstance(error.__cause__, ValueError)
        assert not isinstance(error.__cause__, errors.AioflowError)
