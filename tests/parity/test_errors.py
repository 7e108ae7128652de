"""Kinds of errors against TensorFlow's: indices out of range, wrong arguments, and the end of a queue."""

from __future__ import annotations

import asyncio
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import aioflow
from tests.parity.builder_table import TABLE, Call, Data
from tests.parity.test_static_shapes import maker, named
from tests.parity.wrong_calls import THING, WRONG, WrongCall, elsewhere

GRID = np.arange(12, dtype=np.float32).reshape(4, 3)
Build = Callable[[Any, Any, Any], Any]


def variable(m: Any) -> Any:
    return m.get_variable("v", initializer=GRID)


def sparse(m: Any, index: Any) -> Any:
    return m.SparseTensor(m.cast([index], "int64"), [1.0], [4, 4])


# Builders over the grid x and an index vector i, with indices within and out of range.
INDEXED: dict[str, tuple[Build, list[list[int]]]] = {
    "gather": (lambda m, x, i: m.gather(x, i), [[3], [4], [-1], [0, 9]]),
    "gather of columns": (lambda m, x, i: m.gather(x, i, axis=1), [[2], [3], [-1]]),
    "gather along": (lambda m, x, i: m.gather(x, [0], axis=i[0]), [[-2], [2], [-3]]),
    "gather of strings": (lambda m, x, i: m.gather(m.as_string(x), i), [[3], [4], [-1]]),
    "gather_nd": (lambda m, x, i: m.gather_nd(x, [i]), [[3, 2], [4, 0], [0, 3], [-1, 0], [0, 0, 0]]),
    "embedding_lookup": (lambda m, x, i: m.nn.embedding_lookup(x, i), [[3], [4], [-1]]),
    "slice": (lambda m, x, i: m.slice(x, i, [1, 1]), [[3, 2], [4, 0], [0, 3], [-1, 0], [0, 0, 0]]),
    "slice of a size": (lambda m, x, i: m.slice(x, [1, 1], i), [[3, 2], [4, 1], [1, 3], [-2, 1]]),
    "an index": (lambda m, x, i: x[i[0]], [[-4], [4], [-5]]),
    "an index of strings": (lambda m, x, i: m.as_string(x)[i[0]], [[-4], [4], [-5]]),
    "an index of columns": (lambda m, x, i: x[:, i[0]], [[-3], [3], [-4]]),
    "transpose": (lambda m, x, i: m.transpose(x, i), [[1, 0], [0, 2], [-1, 0], [0, 0], [0]]),
    "concat": (lambda m, x, i: m.concat([x, x], i[0]), [[-2], [2], [-3]]),
    "split": (lambda m, x, i: m.split(x, i, 0, num=2)[0], [[1, 3], [2, 3], [5, -1], [-1, -1], [-2, 6]]),
    "sum": (lambda m, x, i: m.reduce_sum(x, i), [[-2], [2], [-3], [0, 0]]),
    "argmax": (lambda m, x, i: m.argmax(x, i[0]), [[-2], [2], [-3]]),
    "cumsum": (lambda m, x, i: m.cumsum(x, i[0]), [[-2], [2], [-3]]),
    "reverse": (lambda m, x, i: m.reverse(x, i), [[-2], [2], [-3], [0, 0]]),
    "expand_dims": (lambda m, x, i: m.expand_dims(x, i[0]), [[-3], [3], [-4]]),
    "roll": (lambda m, x, i: m.roll(x, [1], i), [[-2], [2], [-3]]),
    "one_hot": (lambda m, x, i: m.one_hot([0], i[0]), [[2], [-1]]),
    "scatter_nd": (lambda m, x, i: m.scatter_nd([i], [1.0], [4, 3]), [[3, 2], [4, 0], [0, 3], [-1, 0]]),
    "scatter update": (lambda m, x, i: m.tensor_scatter_nd_update(x, [i], [1.0]), [[3, 2], [4, 0], [-1, 0]]),
    "segment_sum": (lambda m, x, i: m.segment_sum(x, i), [[0, 0, 1, 1], [0, 1, 2], [-1, 0, 0, 0], [1, 0, 0, 0]]),
    "segments": (lambda m, x, i: m.unsorted_segment_sum(x, i, 3), [[0, 1, 2, -1], [0, 1, 2, 3], [0, 1]]),
    "partition": (lambda m, x, i: m.dynamic_partition(x, i, 2)[0], [[0, 1, 1, 0], [0, 1, 2, 0], [-1, 0, 0, 0]]),
    "stitch": (lambda m, x, i: m.dynamic_stitch([i], [x]), [[0, 1, 3, 2], [0, 1, 2, -1], [0, 1]]),
    "top_k": (lambda m, x, i: m.nn.top_k(x, i[0])[0], [[3], [4], [-1]]),
    "reverse_sequence": (
        lambda m, x, i: m.reverse_sequence(x, i, seq_axis=1, batch_axis=0),
        [[3, 1, 1, 1], [4, 1, 1, 1], [-1, 1, 1, 1]],
    ),
    "rows of a variable": (lambda m, x, i: m.gather(variable(m), i), [[3], [4], [-1]]),
    "elements of a variable": (lambda m, x, i: m.gather_nd(variable(m), [i]), [[3, 2], [4, 0], [0, -1]]),
    "scatter_add": (lambda m, x, i: m.scatter_add(variable(m), i, m.ones([1, 3])), [[3], [4], [-1]]),
    "scatter_nd_update": (lambda m, x, i: m.scatter_nd_update(variable(m), [i], [1.0]), [[3, 2], [4, 0], [0, -1]]),
    "array write": (lambda m, x, i: m.TensorArray("float32", 2).write(i[0], 1.0).flow, [[1], [2], [-1]]),
    "array read": (lambda m, x, i: m.TensorArray("float32", 2, element_shape=[]).read(i[0]), [[1], [2], [-1]]),
    "array gather": (lambda m, x, i: m.TensorArray("float32", 2, element_shape=[]).gather(i), [[1], [2], [-1]]),
    "sparse_to_dense": (lambda m, x, i: m.sparse_to_dense([i], [4, 3], [1.0]), [[3, 2], [4, 0], [-1, 0]]),
    "sparse to dense": (lambda m, x, i: m.sparse.to_dense(sparse(m, i)), [[3, 2], [4, 0], [-1, 0]]),
    "sparse product": (lambda m, x, i: m.sparse.sparse_dense_matmul(sparse(m, i), x), [[3, 3], [4, 0], [0, 4]]),
    "invert_permutation": (lambda m, x, i: m.invert_permutation(i), [[1, 0], [0, 2], [-1, 0], [0, 0]]),
    "pad": (lambda m, x, i: m.pad(x, [i, [0, 0]]), [[1, 0], [-1, 0]]),
    "mirror": (lambda m, x, i: m.pad(x, [i, [0, 0]], "REFLECT"), [[3, 0], [4, 0], [-1, 0]]),
    "reshape": (lambda m, x, i: m.reshape(x, i), [[6, 2], [5], [-1, -1], [-2]]),
    "broadcast_to": (lambda m, x, i: m.broadcast_to(x, i), [[4, 3], [4, 2], [3], [-1, 3]]),
    "substr": (lambda m, x, i: m.strings.substr("abc", i[0], 1), [[2], [4], [-5]]),
    "in a loop": (lambda m, x, i: m.while_loop(lambda j: j < 3, lambda j: j + m.gather(i, j), [0]), [[4], [1], [2, 5]]),
    "in a branch": (lambda m, x, i: m.cond(m.reduce_sum(x) > 0, lambda: m.gather(x, i), lambda: x), [[3], [4]]),
    "in a function of rows": (lambda m, x, i: m.map_fn(lambda row: m.gather(row, i[0]), x), [[2], [3]]),
}


def outcome(m: Any, run: Any, build: Build, index: list[int], known: bool) -> str:
    """Return the name of the error of a step, or "fine".

    A ValueError, raised while the graph is built, counts as the InvalidArgumentError that the step would raise.
    """
    with m.Graph().as_default():
        x = m.placeholder("float32", GRID.shape if known else None)
        i = m.placeholder("int32", [len(index)])
        try:
            run(build(m, x, i), {x: GRID, i: index})
        except m.errors.OpError as error:
            return next(c.__name__ for c in type(error).__mro__ if c.__name__ in dir(m.errors))
        except ValueError:
            return "InvalidArgumentError"
    return "fine"


def theirs(tf: Any) -> Any:
    def run(fetches: Any, feeds: Any) -> Any:
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            return session.run(fetches, feeds)

    return run


def ours(fetches: Any, feeds: Any) -> Any:
    async def run() -> Any:
        async with aioflow.Session() as session:
            await session.run(aioflow.global_variables_initializer())
            return await session.run(fetches, feeds)

    return asyncio.run(run())


@pytest.mark.parametrize("known", [True, False], ids=["fixed", "open"])
@pytest.mark.parametrize("name", INDEXED)
def test_indices_out_of_range_raise_the_same_errors(tf: Any, name: str, known: bool) -> None:
    build, indices = INDEXED[name]
    tf.disable_control_flow_v2()
    try:
        for index in indices:
            expected = outcome(tf, theirs(tf), build, index, known)
            assert expected != "OutOfRangeError"
            found = outcome(aioflow, ours, build, index, known)
            assert found.replace("DTypeError", "InvalidArgumentError") == expected, index
    finally:
        tf.enable_control_flow_v2()


# ── queue runners ────────────────────────────────────────────────────────────────────────────────────────────────────


def filled(m: Any, raised: Any) -> tuple[Any, Any]:
    """Return a queue and its runner. The function that fills the queue raises after two elements."""
    left = [2.0, 1.0]

    def take() -> Any:
        if not left:
            raise raised("nothing there")
        return np.float32(left.pop())

    queue = m.FIFOQueue(5, ["float32"], [[]])
    runner = m.train.QueueRunner(queue, [queue.enqueue(m.reshape(m.py_func(take, [], "float32"), []))])
    return queue, runner


def read_there(tf: Any, raised: Any) -> str:
    with tf.Graph().as_default(), tf.Session() as session, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        queue, runner = filled(tf, raised)
        dequeue, coord = queue.dequeue(), tf.train.Coordinator()
        threads = runner.create_threads(session, coord, start=True)
        try:
            while True:
                session.run(dequeue)
        except tf.errors.OpError as error:
            last = type(error).__name__
        try:
            coord.request_stop()
            coord.join(threads)
        except tf.errors.OpError as error:
            return type(error).__name__
        return last


async def read_here(raised: Any) -> str:
    with aioflow.Graph().as_default():
        queue, runner = filled(aioflow, raised)
        dequeue, last = queue.dequeue(), ""
        async with aioflow.Session() as session:
            try:
                async with aioflow.train.Coordinator() as coord:
                    runner.create_threads(session, coord)
                    try:
                        while True:
                            await session.run(dequeue)
                    except aioflow.errors.OpError as error:
                        last = type(error).__name__
                        raise
            except aioflow.errors.OpError as error:
                return type(error).__name__
            return last


@pytest.mark.parametrize("raised", [IndexError, KeyError, EOFError, ValueError, StopIteration])
def test_stop_iteration_ends_a_queue_and_other_errors_break_it(tf: Any, raised: Any) -> None:
    expected = read_there(tf, raised)
    assert asyncio.run(read_here(raised)) == expected
    assert (expected == "OutOfRangeError") is (raised is StopIteration)


# ── wrong calls ──────────────────────────────────────────────────────────────────────────────────────────────────────

# Errors that users catch. The ACCIDENTS come from inside TensorFlow, where code failed before it checked its argument.
CAUGHT = (ValueError, TypeError, LookupError, KeyError, IndexError, RuntimeError, ZeroDivisionError)
ACCIDENTS = (AttributeError, AssertionError, NotImplementedError, OverflowError)

# Calls that TensorFlow rejects while the graph is built, and aioflow accepts.
WIDER = {
    "graph: control_dependencies of a tensor": "it is a list of the tensor's slices",
    "value: convert a shape to floats": "a shape is numbers",
    "value: TensorShape of -1": "-1 is open, as in a reshape",
    "control flow: group of nothing": "nothing to wait for",
}
WIDER_BUILDERS = {
    "group": "nothing to wait for",
    "ensure_shape": "an unknown shape is one",
    "verify_tensor_all_finite": "the message may be left out",
    "image.random_flip_left_right": "strings are turned like anything else",
    "image.random_flip_up_down": "strings are turned like anything else",
    "matrix_diag": "the padding of strings is empty",
    "matrix_diag_part": "the padding of strings is empty",
    "meshgrid": "grids of any two dtypes",
    "nn.atrous_conv2d": "no rate is 1",
    "nn.conv2d_backprop_filter": "no strides are 1",
    "nn.conv2d_backprop_input": "no strides are 1",
    "nn.depthwise_conv2d": "no strides are 1",
    "nn.depthwise_conv2d_native": "no strides are 1",
    "nn.depthwise_conv2d_native_backprop_filter": "no strides are 1",
    "nn.depthwise_conv2d_native_backprop_input": "no strides are 1",
    "nn.separable_conv2d": "no strides are 1",
    **dict.fromkeys(
        [f"reduce_{kind}" for kind in ("max", "mean", "min", "prod", "sum")]
        + [f"math.reduce_{kind}" for kind in ("euclidean_norm", "std", "variance")],
        "it goes to the graph of the tensor",
    ),
}
# Arguments that TensorFlow accepts while the graph is built. Most fail in a step; it truncates the others.
STRICTER = {
    "feed: complex for floats",
    "feed: a float for an integer",
    "feed: too large integers",
    "session: make_callable, a feed too few",
    "session: make_callable, fed with a name of none",
    "session: make_callable, fed with a thing",
    "value: constant, no value",
    "value: constant, shape of a float",
    "value: convert 300 to uint8",
    "value: convert a negative to unsigned",
    "value: convert an array of floats to int",
    "value: convert too large an integer",
    "control flow: map_fn to another dtype",
    "control flow: while_loop to another dtype",
    "control flow: TensorArray, scatter of another dtype",
    "control flow: TensorArray, unstack of another dtype",
    "control flow: TensorArray, write of another dtype",
    "control flow: TensorArray, write of text",
    "variables: Variable with another shape",
    "variables: scatter_nd_add of another rank",
    "training: a regularization loss in a scope of a number",
    "training: a sum of losses of nothing",
    "training: a total loss of text",
    "training: an optimizer of text",
    "training: apply_gradients of another dtype",
    "training: gradients with a number for grads",
    "pipelines: batch_join of two lengths",
    "pipelines: enqueue of a number",
    "pipelines: enqueue of one too few",
    "pipelines: enqueue of one too many",
    "pipelines: range_input_producer of 1.5",
}
# Calls that both reject, aioflow with an error of another kind.
OTHER_KIND = {
    "nn.avg_pool": "a list is a padding, and one that this op does not have",
    "nn.avg_pool2d": "a list is a padding, and one that this op does not have",
    "nn.weighted_cross_entropy_with_logits": "None is no weight, rather than one of a wrong type",
    "meshgrid": "a KeyError: the dictionary was indexed as a list",
    "parallel_stack": "a KeyError: the dictionary was indexed as a list",
    "stack": "a KeyError: the dictionary was indexed as a list",
    "train.batch_join": "a KeyError: the dictionary was indexed as a list",
    "train.shuffle_batch_join": "a KeyError: the dictionary was indexed as a list",
}


def error_of(m: Any, call: WrongCall) -> Exception | None:
    with m.Graph().as_default(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call(m)
        except Exception as error:
            return error
    return None


def catches(tf: Any, theirs: Exception, ours: Exception) -> bool:
    """Return whether an `except` clause written for TensorFlow's error catches ours."""
    if isinstance(theirs, tf.errors.OpError):
        return any(kind.__name__ == type(theirs).__name__ for kind in type(ours).__mro__)
    if isinstance(theirs, ACCIDENTS):
        return isinstance(ours, aioflow.OpError | type(theirs))
    return all(isinstance(ours, kind) for kind in CAUGHT if isinstance(theirs, kind))


@pytest.fixture
def loops_of_1(tf: Any) -> Iterator[None]:
    """Use the branches and loops of TensorFlow 1."""
    tf.disable_control_flow_v2()
    yield
    tf.enable_control_flow_v2()


@pytest.mark.usefixtures("loops_of_1")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # TensorFlow's half-built session
@pytest.mark.parametrize("name", [f"{family}: {name}" for family, rows in WRONG.items() for name in rows])
def test_except_clause_for_tensorflow_catches_errors_of_wrong_calls(tf: Any, name: str) -> None:
    family, _, row = name.partition(": ")
    theirs, ours = (error_of(m, WRONG[family][row]) for m in (tf, aioflow))
    assert (theirs is not None and ours is None) is (name in WIDER), f"{theirs!r}, but {ours!r}"
    assert (theirs is None and ours is not None) is (name in STRICTER), f"{theirs!r}, but {ours!r}"
    if theirs is not None and ours is not None:
        assert catches(tf, theirs, ours) is (name not in OTHER_KIND), f"{theirs!r}, but {ours!r}"
    elif ours is not None:
        assert isinstance(ours, aioflow.OpError)


ANY_KIND: dict[str, WrongCall] = {
    "nothing": lambda m: None,
    "a thing": lambda m: THING,
    "a dictionary": lambda m: {"a": 1},
    "a ragged list": lambda m: [[1.0], [1.0, 2.0]],
}
NO_SUCH_TENSOR: dict[str, WrongCall] = {
    "strings": lambda m: m.placeholder("string"),
    "a tensor of rank 5": lambda m: m.placeholder("float32", [1, 2, 3, 4, 5]),
    "a tensor of another graph": elsewhere,
}


def spoiled(call: Call) -> Iterator[tuple[str, WrongCall]]:
    """Yield the call with one wrong argument, for each argument and each wrong value."""
    for place in [*range(len(call.args)), *call.kwargs]:
        right = call.args[place] if isinstance(place, int) else call.kwargs[place]
        for what, wrong in {**ANY_KIND, **(NO_SUCH_TENSOR if isinstance(right, Data) else {})}.items():
            yield f"{what} at {place}", _with(call, place, wrong)


def _with(call: Call, place: Any, wrong: WrongCall) -> WrongCall:
    rng = random.Random(1)
    args: list[Any] = [maker(rng, argument, 0.0) for argument in call.args]
    kwargs = {key: maker(rng, argument, 0.0) for key, argument in call.kwargs.items()}
    if isinstance(place, int):
        args[place] = wrong
    else:
        kwargs[place] = wrong
    return lambda m: named(m, call.name)(*(make(m) for make in args), **{k: make(m) for k, make in kwargs.items()})


FIRST = {call.name: call for call in reversed(TABLE)}


@pytest.mark.parametrize("name", FIRST)
def test_except_clause_for_tensorflow_catches_errors_of_wrong_arguments(tf: Any, name: str) -> None:
    for what, call in spoiled(FIRST[name]):
        theirs, ours = (error_of(m, call) for m in (tf, aioflow))
        told = f"{what}: {theirs!r}, but {ours!r}"
        if ours is None:
            assert theirs is None or name in WIDER_BUILDERS, told
        elif theirs is None:
            assert isinstance(ours, aioflow.OpError), told
        else:
            assert catches(tf, theirs, ours) or name in OTHER_KIND, told


def test_classes_have_tensorflows_codes_and_arguments(tf: Any) -> None:
    def described(errors: Any, name: str) -> Any:
        kind = getattr(errors, name)
        error = kind(None, None, "a message", 5) if name == "OpError" else kind(None, op=None, message="a message")
        return error.message, error.error_code, error.op, error.node_def, str(error)

    names = [name for name in dir(tf.errors) if name.endswith("Error")]
    codes = [name for name in dir(tf.errors) if name.isupper()]
    assert len(names) == len(codes) == 17
    for name in names:
        assert described(aioflow.errors, name) == described(tf.errors, name)
    for name in codes:
        code = getattr(tf.errors, name)
        assert getattr(aioflow.errors, name) == code
        if code:
            theirs = tf.errors.exception_type_from_error_code(code)
            ours = aioflow.errors.exception_type_from_error_code(code)
            assert ours.__name__ == theirs.__name__
            assert aioflow.errors.error_code_from_exception_type(ours) == code
