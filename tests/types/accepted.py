"""Code that a type checker must accept, with the types of its results. tests/types/test_types.py also runs it.

Each function builds in its own graph. `assert_type` does nothing at run time, but its arguments are evaluated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, assert_type

import numpy as np
from numpy.typing import NDArray

import aioflow as af
from aioflow.testing.check_backend import CheckResult, check_backend
from aioflow.typing import DTypeLike, Fetchable, IndexLike, NodeLike, ShapeLike, TensorLike

T = TypeVar("T")


def whatever_may_be_an_operand() -> None:
    x, v = af.placeholder("float32", [2, 3]), af.Variable(np.ones((2, 3), np.float32))
    slices = af.IndexedSlices(af.constant([[1.0, 2.0, 3.0]]), af.constant([0]), af.constant([2, 3]))
    operands: list[TensorLike] = [
        x,
        v,
        v.assign(x),
        slices,
        np.ones((2, 3), np.float32),
        np.float32(1),
        1.5,
        2,
        True,
        [1.0, 2.0, 3.0],
        (1.0, 2.0, 3.0),
        [[1.0, 2.0, 3.0]] * 2,
        [x[0], v[1]],
        [x[0], [1.0, 2.0, 3.0]],
        range(3),
        Column(),
    ]
    for operand in operands[:-4]:
        assert_type(af.multiply(x, operand), af.Tensor)
    for operand in operands:
        assert_type(af.convert_to_tensor(operand), af.Tensor)
    assert_type(af.string_join(["a", b"b", af.constant("c")]), af.Tensor)
    assert_type(af.matmul(x, v, transpose_b=True), af.Tensor)
    assert_type(af.concat([x, v], 0), af.Tensor)
    assert_type(af.reduce_sum([x, v], axis=[0, 1]), af.Tensor)
    assert_type(af.gather(v, [0, 1]), af.Tensor)
    assert_type(af.nn.softmax_cross_entropy_with_logits(labels=v, logits=x), af.Tensor)
    assert_type(af.complex(1.0, 2.0) * 3j, af.Tensor)


class Column:
    """An object that NumPy can read, such as a column of a table."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[np.float32]:
        return np.ones(3, np.float32)


def operators() -> None:
    x, v = af.placeholder("float32", [2, 3]), af.Variable(np.ones((2, 3), np.float32))
    assert_type(x + v, af.Tensor)
    assert_type(1 - x * 2.0, af.Tensor)
    assert_type(v / np.float32(3), af.Tensor)
    assert_type(-(v**2) % 5, af.Tensor)
    assert_type(x @ [[1.0], [2.0], [3.0]], af.Tensor)
    assert_type((x > 0) & ~(v >= [1.0, 2.0, 3.0]), af.Tensor)
    assert_type(x[0, ..., af.newaxis, 1:], af.Tensor)
    part: af.Tensor = v[af.constant(1)]
    assert_type(v[1:].assign(part), af.Variable)
    index: IndexLike = (slice(None), 1)
    assert_type(x[index], af.Tensor)
    assert_type(list(x), list[af.Tensor])
    slices = af.IndexedSlices(x, af.constant([0, 1]), af.constant([2, 3]))
    assert_type(x + slices, af.Tensor)
    assert_type(slices.op.outputs[0].graph, af.Graph)


def shapes_and_dtypes() -> None:
    shapes: list[ShapeLike | None] = [None, 3, [2, None], (2, 3), af.TensorShape([2]), np.array([2, 3]), range(2)]
    dtypes: list[DTypeLike] = [af.float32, "float32", np.float32, np.dtype("float32"), float, 1]
    for shape in shapes:
        for dtype in dtypes:
            assert_type(af.placeholder(dtype, shape), af.Tensor)
    x = af.placeholder("float32", [2, 3])
    assert_type(x.shape, af.TensorShape)
    assert_type(x.shape[0], af.Dimension)
    assert_type(x.shape[1:], af.TensorShape)
    assert_type(x.dtype, af.DType)
    assert_type(af.zeros([2, x.shape[1]]), af.Tensor)
    assert_type(af.reshape(x, [af.size(x)]), af.Tensor)
    assert_type(af.ones(x.shape), af.Tensor)


def a_function_of_users_own(x: TensorLike | None = None, wait: Sequence[NodeLike] = ()) -> af.Tensor:
    with af.control_dependencies(wait):
        return af.nn.relu(af.zeros([2]) if x is None else x)


def what_builders_give() -> None:
    x = af.constant([[3.0, 1.0], [1.0, 2.0]])
    top = af.nn.top_k(x)
    assert_type(top.values, af.Tensor)
    assert_type(top.indices, af.Tensor)
    values, places = af.unique(x[0])
    assert_type(values, af.Tensor)
    assert_type(places, af.Tensor)
    assert_type(af.unique_with_counts(x[0]).count, af.Tensor)
    assert_type(af.svd(x).u, af.Tensor)
    assert_type(af.svd(x, compute_uv=False), af.Tensor)
    assert_type(af.linalg.slogdet(x).sign, af.Tensor)
    assert_type(af.nn.moments(x, [0]), tuple[af.Tensor, af.Tensor])
    assert_type(af.split(x, 2), list[af.Tensor])
    assert_type(af.group(x, af.no_op()), af.Operation)
    assert_type(af.cast(x, "int32"), af.Tensor)
    assert_type(af.cast(af.IndexedSlices(x, af.constant([0, 1])), "int32"), af.IndexedSlices)
    assert_type(af.SparseTensor([[0, 1]], [1.0], [2, 2]), af.SparseTensor)
    assert_type(af.py_func(np.sin, [x], "float32"), af.Tensor)


class Best(NamedTuple):
    """The result of a user-defined builder."""

    values: af.Tensor
    indices: af.Tensor


def what_the_doors_for_ones_own_ops_give() -> None:
    x = af.constant([3.0, 1.0])
    assert_type(af.extend.make("Neg", x), af.Tensor)
    assert_type(af.extend.make_list("Split", 0, x, num_split=2), list[af.Tensor])
    assert_type(af.extend.make_tuple(Best, "TopKV2", x, 1), Best)
    assert_type(af.extend.make_tuple(Best, "TopKV2", x, 1).values, af.Tensor)
    assert_type(af.extend.make_op("NoOp"), af.Operation)
    made = af.extend.apply_op("Neg", x)
    assert isinstance(made, af.Tensor)
    assert_type(made, af.Tensor)


class OwnExecutor:
    """An executor without threads."""

    async def run(self, step: af.extend.Step, function: Callable[..., T], *args: object) -> T:
        if step.requested:
            step.halt()
        return function(*args)


class OwnDevice:
    """A device that implements the protocol without inheriting from it. Its arrays are the host's."""

    device_type = "OWN"

    def __init__(self) -> None:
        self.xp: af.extend.Namespace = af.extend.host_device().xp
        self.executor = OwnExecutor()
        self._values = af.extend.HostValues(self.xp.asarray)

    def bind(
        self, kernel: af.extend.KernelDef, binding: af.extend.Binding
    ) -> tuple[af.extend.KernelDef, af.extend.KernelBody]:
        return self._values.bind(kernel, binding)

    def generator(self, seed: int, seed2: int) -> np.random.Generator:
        assert_type(af.extend.host_device(), af.extend.BackendDevice)
        return np.random.default_rng()

    async def to_device(self, value: af.extend.Array) -> af.extend.Array:
        return self.xp.array(value)

    async def to_host(self, value: af.extend.Array) -> af.extend.Array:
        return np.array(value)

    def on_host(self, value: object) -> object:
        return value

    def copy_from(self, array: af.extend.Array, other: object) -> af.extend.Array:
        return array.copy()

    def share(self, array: af.extend.Array) -> object:
        return array

    def captured(
        self, function: Callable[..., tuple[object, ...]], nodes: Sequence[af.extend.BoundNode]
    ) -> Callable[..., tuple[object, ...]] | None:
        return function if all(assert_type(node.kernel, af.extend.KernelDef).fresh for node in nodes) else None

    def memory(self) -> af.extend.MemoryStats | None:
        return af.extend.MemoryStats(used=0, reserved=0)

    def close(self) -> None:
        """Do nothing."""


class OwnBackend:
    """A backend with one device."""

    name = "own"
    device_type = "OWN"

    def count(self) -> int:
        return 1

    def describe(self, index: int) -> tuple[int | None, str]:
        return None, "the host's memory"

    def device(self, index: int, threads: int = 0) -> OwnDevice:
        return OwnDevice()


async def what_a_backend_implements() -> None:
    backend: af.extend.Backend = OwnBackend()
    device: af.extend.BackendDevice = backend.device(0)
    threads: af.extend.Executor = af.extend.DeviceThreads("own", 1)
    for executor in (device.executor, threads):
        total = await executor.run(af.extend.Step(), sum, [1, 2])
        assert_type(total, int)
        assert total == 3
    checks: list[Callable[[Callable[[], af.extend.Backend]], Awaitable[list[CheckResult]]]] = [check_backend]
    assert checks


def variables() -> None:
    v = af.get_variable("v", [2], initializer=af.zeros_initializer())
    assert_type(v, af.Variable)
    assert_type(v.assign([1.0, 2.0]), af.Variable)
    assert_type(v.assign_add([1.0, 2.0], read_value=False), af.Operation)
    assert_type(af.assign_sub(v, [1.0, 1.0]), af.Variable)
    assert_type(v.scatter_add(af.IndexedSlices(af.constant([1.0]), af.constant([0]))), af.Variable)
    assert_type(v.value(), af.Tensor)
    assert_type(v.initializer, af.Operation)
    assert_type(af.global_variables(), list[af.Variable])
    with af.variable_scope("scope") as scope:
        assert_type(scope.name, str)
    # An optimizer returns a node from minimize, and gradients or None from compute_gradients.
    optimizer = af.train.AdamOptimizer(lambda: 0.1)
    assert_type(optimizer.minimize(af.reduce_sum(v * v)), af.Operation)
    for gradient, variable in optimizer.compute_gradients(af.reduce_sum(v * v)):
        assert_type(gradient, af.Tensor | af.IndexedSlices | None)
        assert_type(variable, af.Variable)


def branches_and_loops() -> None:
    x, p = af.constant([1.0, 2.0]), af.constant(True)
    v = af.Variable(1.0)
    assert_type(af.cond(p, lambda: x + 1, lambda: x), af.Tensor)
    assert_type(af.cond(p, lambda: 1.0, lambda: v), af.Tensor)
    assert_type(af.cond(p, lambda: v.initializer, lambda: af.no_op()), af.Tensor)
    assert_type(af.cond(p, lambda: (x, 1), lambda: (x * 2, 2)), tuple[af.Tensor, af.Tensor])
    assert_type(af.cond(p, lambda: {"a": x}, lambda: {"a": -x}), dict[str, af.Tensor])
    i, y = af.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2.0), (0, x))
    assert_type(i, af.Tensor)
    assert_type(y, af.Tensor)
    assert_type(af.while_loop(lambda i: i < 3, lambda i: i + 1, (0,)), af.Tensor)
    assert_type(af.case([(p, lambda: x)], default=lambda: -x), af.Tensor)
    assert_type(af.switch_case(1, [lambda: x, lambda: -x]), af.Tensor)
    assert_type(af.map_fn(lambda row: row * 2, x), af.Tensor)
    assert_type(af.map_fn(lambda row: af.cast(row, "int32"), x, dtype="int32"), af.Tensor)
    both = af.map_fn(lambda row: (row[0], af.cast(row[1], "int32")), (x, x), dtype=(af.float32, af.int32))
    assert_type(both, Any)
    assert_type(af.foldl(lambda total, row: total + row, x), af.Tensor)
    assert_type(af.foldr(lambda total, row: total + row, np.ones(3, np.float32), 1.0), af.Tensor)
    assert_type(af.scan(lambda total, row: total * row, x, initializer=1.0), af.Tensor)


def gradients() -> None:
    x = af.constant([1.0, 2.0])
    assert_type(af.gradients(x * x, x), list[af.Tensor | af.IndexedSlices | None])
    assert_type(af.gradients(x * x, [x], unconnected_gradients="zero"), list[af.Tensor | af.IndexedSlices])

    @af.custom_gradient
    def doubled(x: af.Tensor) -> tuple[af.Tensor, Any]:
        return x * 2.0, lambda dy: dy * 2.0

    assert_type(doubled(x), af.Tensor)


def feeds(x: af.Tensor) -> Iterator[dict[Any, Any]]:
    for n in range(3):
        yield {x: n}


async def what_a_session_gives() -> None:
    x, v = af.placeholder("float32", []), af.Variable([1.0, 2.0])
    y, node, text = v * x, v.assign_add([1.0, 1.0], read_value=False), af.constant("text")
    sparse = af.SparseTensor([[0, 1]], [1.0], [2, 2])
    slices = af.IndexedSlices(v.value(), af.constant([0, 1]))
    feed = {x: 2.0}
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        assert_type(af.get_default_session(), af.Session | None)
        assert_type(await y.eval(feed, session), NDArray[Any])
        assert_type(await session.run(y, feed), NDArray[Any])
        assert_type(await session.run(v, timeout=10.0), NDArray[Any])
        assert_type(await session.run(node), None)
        assert_type(await session.run(sparse), af.SparseTensorValue)
        assert_type((await session.run(slices)).dense_shape, NDArray[Any] | None)
        assert_type(await session.run("Variable:0"), Any)
        assert_type(await session.run([y, y], feed), list[NDArray[Any]])
        assert_type(await session.run([y, v], feed), list[NDArray[Any]])
        assert_type(await session.run([v]), list[NDArray[Any]])
        assert_type(await session.run([node, node]), list[None])
        assert_type(await session.run([node, y], feed), list[Any])
        assert_type(await session.run(["Variable:0", v]), list[Any])
        assert_type(await session.run((node, y), feed), tuple[None, NDArray[Any]])
        assert_type(await session.run((y,), feed), tuple[NDArray[Any]])
        assert_type(await session.run((v, sparse, node)), tuple[NDArray[Any], af.SparseTensorValue, None])
        assert_type(await session.run({"y": y, "v": v}, feed), dict[str, NDArray[Any]])
        assert_type(await session.run({"v": {"v": v}}), dict[str, Any])
        assert_type(await session.run(af.nn.top_k(v)), Any)
        assert_type(await session.run(af.gradients(y, [v]), feed), list[Any])
        # A scalar result has the attributes of an array, like NumPy's scalars.
        loss = await session.run(af.reduce_sum(y), feed)
        assert f"{float(loss):.1f} {loss.dtype} {loss.shape} {loss + 1 > 2}"
        assert await session.run(text) == b"text"
        await forms_of_run(session, x, y, node)
        assert_type(await y.eval(feed), NDArray[Any])
        assert_type(await v.eval(session), NDArray[Any])
        assert_type(await node.run(), None)


async def forms_of_run(session: af.Session, x: af.Tensor, y: af.Tensor, node: af.Operation) -> None:
    call = session.make_callable(y, [x])
    assert_type(await call(2.0), NDArray[Any])
    assert_type(await session.make_callable([y, y], [x])(2.0), list[NDArray[Any]])
    assert_type(await session.make_callable((node, y), [x])(2.0), tuple[None, NDArray[Any]])
    async with session.stream(y, feeds(x), prefetch=1) as steps:
        async for result in steps:
            assert_type(result, NDArray[Any])
    async for pair in session.stream((y, node), feeds(x)):
        assert_type(pair, tuple[NDArray[Any], None])
    handle = await session.partial_run_setup([y], [x])
    assert_type(await session.partial_run(handle, y, {x: 1.0}), NDArray[Any])


async def what_a_batched_call_gives() -> None:
    rows = af.placeholder("float32", [None, 2])
    total, doubled = af.reduce_sum(rows, axis=1), rows * 2.0
    fed = np.ones((1, 2), np.float32)
    async with af.Session() as session:
        assert_type(await session.batched(total, [rows])(fed), NDArray[Any])
        assert_type(await session.batched("Sum:0", [rows])(fed), Any)
        assert_type(await session.batched([total, doubled], [rows])(fed), list[NDArray[Any]])
        assert_type(await session.batched((total, doubled), [rows])(fed), tuple[NDArray[Any], NDArray[Any]])
        call = session.batched({"total": total}, {"rows": rows}, max_batch_size=4, pad={rows: 0.0})
        assert_type(await call(rows=fed, timeout=10.0), dict[str, NDArray[Any]])
        await session.warmup(call)


def what_a_session_gives_a_script() -> None:
    x = af.placeholder("float32", [])
    with af.Session() as session:
        assert_type(session.run_sync(x * 2, {x: 1.0}), NDArray[Any])
        assert_type(session.run_sync([x, x], {x: 1.0}, timeout=10.0), list[NDArray[Any]])
        assert_type(session.run_sync((x, af.no_op()), {x: 1.0}), tuple[NDArray[Any], None])
        assert_type(session.run_sync({"x": x}, {x: 1.0}), dict[str, NDArray[Any]])


async def fetched(session: af.Session, wanted: Fetchable[NDArray[Any]]) -> float:
    return float(await session.run(wanted))
