"""Variables against tensorflow-cpu: updates, scatters, gathers, gradients, names, errors and collections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow.kernels.resources import ResourceManager
from aioflow.ops.apply import apply_op, make, make_op
from aioflow.testing.evaluate import evaluate
from tests.support.variable_slices import CASES, REFUSED

RNG = np.random.default_rng(3)
NUMBERS = [
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int32",
    "int64",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "complex64",
    "complex128",
]


class Both:
    """A runner of the same steps over the same variables in both systems."""

    def __init__(self, tf: Any) -> None:
        self.tf = tf

    def __call__(self, build: Callable[[Any], list[Any]], rtol: float = 1e-5) -> list[Any]:
        """Run each fetch of `build(module)` as one step, and check that both systems agree."""
        theirs = self._theirs(build)
        ours = self._ours(build)
        assert len(ours) == len(theirs)
        for i, ((mine, mine_dims), (other, other_dims)) in enumerate(zip(ours, theirs, strict=True)):
            assert mine_dims == other_dims, f"step {i}: static shapes"
            mine, other = np.asarray(mine), np.asarray(other)
            assert mine.dtype == other.dtype, f"step {i}"
            assert mine.shape == other.shape, f"step {i}"
            if other.dtype.kind in "biuO":
                assert np.array_equal(mine, other), f"step {i}:\n{mine}\n{other}"
            else:
                np.testing.assert_allclose(mine.astype(complex), other.astype(complex), rtol=rtol, err_msg=f"step {i}")
        return ours

    def _theirs(self, build: Any) -> list[Any]:
        tf = self.tf
        with tf.Graph().as_default(), tf.variable_scope("", use_resource=True):
            fetches = build(tf)
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                return [(session.run(f), _dims(f)) for f in fetches]

    def _ours(self, build: Any) -> list[Any]:
        with aioflow.Graph().as_default() as graph:
            fetches = build(aioflow)
            resources, state = ResourceManager(), {}  # type: ignore[var-annotated]  # the kernels' state
            evaluate([], targets=[aioflow.global_variables_initializer()], resources=resources, state=state)
            tensors: Any = [graph.as_graph_element(f) for f in fetches]
            return [(evaluate([t], resources=resources, state=state)[0], _dims(t)) for t in tensors]


def _dims(tensor: Any) -> Any:
    shape = tensor.get_shape() if hasattr(tensor, "get_shape") else tensor.shape
    return None if shape.ndims is None else shape.as_list()


@pytest.fixture
def both(tf: Any) -> Both:
    return Both(tf)


def variable(m: Any, value: Any, **settings: Any) -> Any:
    extra = {} if m is aioflow else {"use_resource": True}
    return m.Variable(value, **extra, **settings)


def table(dtype: str) -> Any:
    import ml_dtypes

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return RNG.integers(1, 9, (5, 3)).astype(kind)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (5, 3)])
def test_dense_updates(both: Both, dtype: str, shape: Any) -> None:
    start = np.resize(table(dtype), shape)
    delta = np.resize(table(dtype), shape)

    def build(m: Any) -> list[Any]:
        v = variable(m, start)
        return [
            v.assign(delta),
            v.assign_add(delta),
            v.assign_sub(start),
            m.assign(v, start),
            m.assign_add(v, delta),
            m.assign_sub(v, delta),
            v.value(),
            v.read_value(),
            m.is_variable_initialized(v),
        ]

    both(build)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("mode", ["update", "add", "sub", "mul", "div", "min", "max"])
@pytest.mark.parametrize("indices", [[2], [4, 0], [1, 1, 1, 3], [[0, 1], [1, 2]], 3, np.zeros(0, np.int64)])
def test_scatters(both: Both, dtype: str, mode: str, indices: Any) -> None:
    if dtype.startswith("complex") and mode in ("min", "max"):
        pytest.skip("complex numbers have no order")
    start = table(dtype)
    updates = RNG.integers(1, 4, (*np.shape(indices), 3)).astype(start.dtype)

    def build(m: Any) -> list[Any]:
        v = variable(m, start)
        scatter = getattr(m, f"scatter_{mode}")
        kind = None if isinstance(indices, np.ndarray) else "int32"
        where = m.constant(indices, dtype=kind)
        steps = [scatter(v, where, updates), v.value()]
        if mode != "update" or dtype not in ("bool", "string"):
            steps.append(scatter(v, where, np.array(2, start.dtype)))
        return steps

    both(build, rtol=0.05 if dtype in ("float16", "bfloat16") else 1e-5)


def test_integer_division_rounds_towards_zero(both: Both) -> None:
    start = np.array([-7, 7, -8], np.int32)
    both(lambda m: [m.scatter_div(variable(m, start), [0, 1, 2, 2], np.array([2, -2, 3, -1], np.int32))])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "complex64"])
@pytest.mark.parametrize("mode", ["update", "add", "sub"])
@pytest.mark.parametrize("indices", [[[1]], [[0, 1], [4, 2], [0, 1]], [[[2], [3]]], np.zeros((0, 2), np.int32)])
def test_scatter_nd(both: Both, dtype: str, mode: str, indices: Any) -> None:
    start = table(dtype)
    depth = np.shape(indices)[-1]
    if mode == "update" and len(indices) == 3:
        indices = indices[:2]  # TensorFlow does not define which of equal indices wins
    updates = RNG.integers(1, 4, (*np.shape(indices)[:-1], *start.shape[depth:])).astype(dtype)

    def build(m: Any) -> list[Any]:
        v = variable(m, start)
        return [getattr(m, f"scatter_nd_{mode}")(v, m.constant(np.array(indices, np.int32)), updates)]

    both(build)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("mode", ["Min", "Max"])
def test_scatter_nd_min_max(both: Both, dtype: str, mode: str) -> None:
    start, updates = table(dtype), np.array([5, 4], dtype)

    def build(m: Any) -> list[Any]:
        v = variable(m, start)
        where = m.constant([[0, 1], [4, 2]])
        if m is aioflow:
            op = apply_op(f"ResourceScatterNd{mode}", v.handle, where, updates)
        else:
            op = getattr(m.raw_ops, f"ResourceScatterNd{mode}")(ref=v.handle, indices=where, updates=updates)
        with m.control_dependencies([op]):
            return [v.read_value()]

    both(build)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
@pytest.mark.parametrize("indices", [[2], [4, 0, 4], [[0, 1], [1, 2]], 3, np.zeros(0, np.int64)])
def test_gather(both: Both, dtype: str, indices: Any) -> None:
    start = table("int32").astype(bool) if dtype == "bool" else table(dtype)

    def build(m: Any) -> list[Any]:
        v = variable(m, start)
        where = m.constant(indices)
        return [v.sparse_read(where), m.gather(v, where), v.gather_nd(m.expand_dims(where, -1))]

    both(build)


@pytest.mark.parametrize("batch_dims", [1, 2])
def test_gather_with_batch_dims(both: Both, batch_dims: int) -> None:
    start = RNG.standard_normal((2, 3, 4, 5)).astype(np.float32)
    indices = RNG.integers(0, 3, (2, 3, 2))

    def build(m: Any) -> list[Any]:
        v = variable(m, start)
        where = m.constant(indices)
        if m is aioflow:
            return [make("ResourceGather", v.handle, where, dtype="float32", batch_dims=batch_dims)]
        return [m.raw_ops.ResourceGather(resource=v.handle, indices=where, dtype="float32", batch_dims=batch_dims)]

    both(build)


def test_gradients(both: Both) -> None:
    start = RNG.standard_normal((5, 3))

    def build(m: Any) -> list[Any]:
        v, w = variable(m, start, name="v"), variable(m, start + 1, name="w")
        rows = m.gather(v, [[1, 1], [4, 0]])
        fetches = []
        for y in (v * w + v, rows * rows, v.gather_nd([[1, 2], [1, 2]]) * 3.0, m.gather(v, [1]) * w):
            for gradient in m.gradients(y, [v, w]):
                if gradient is not None:
                    if not hasattr(gradient, "op") or hasattr(gradient, "indices"):
                        fetches.extend([gradient.indices, gradient.values, gradient.dense_shape])
                        continue
                    fetches.append(gradient)
        return fetches

    both(build)


def test_reads_after_updates(both: Both) -> None:
    def build(m: Any) -> list[Any]:
        v = variable(m, [1.0, 2.0])
        with m.control_dependencies([v.assign([5.0, 6.0])]):
            after = v + 1.0
        return [after, v.assign_add([1.0, 1.0]).assign_add([1.0, 1.0]), v.assign([0.0, 0.0]) * 2.0 + 1.0]

    both(build)


def test_count_up_to(both: Both) -> None:
    def build(m: Any) -> list[Any]:
        v = variable(m, 0)
        up = m.count_up_to(v, 5)
        return [up, up, up, v.value()]

    both(build)


def test_variable_shape(both: Both) -> None:
    def build(m: Any) -> list[Any]:
        v = variable(m, np.zeros((2, 3), np.float32))
        if m is aioflow:
            return [make("VariableShape", v.handle, out_type=t) for t in ("int32", "int64")]
        return [m.raw_ops.VariableShape(input=v.handle, out_type=t) for t in ("int32", "int64")]

    both(build)


def test_destroyed_variables_have_no_value(tf: Any) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        v = variable(tf, 1.0)
        destroy, flag = tf.raw_ops.DestroyResourceOp(resource=v.handle), tf.is_variable_initialized(v)
        session.run(v.initializer)
        before = session.run(flag)
        session.run(destroy)
        expected = [before, session.run(flag)]
    with aioflow.Graph().as_default():
        v, resources = variable(aioflow, 1.0), ResourceManager()
        flag = aioflow.is_variable_initialized(v)
        evaluate([], targets=[v.initializer], resources=resources)
        before = evaluate([flag], resources=resources)[0]
        evaluate([], targets=[make_op("DestroyResourceOp", v.handle)], resources=resources)
        assert [before, evaluate([flag], resources=resources)[0]] == expected


def test_save_and_restore_have_the_same_static_shapes(tf: Any, tmp_path: Any) -> None:
    """Let each system read its own file, since the formats differ (aioflow writes `safetensors`)."""
    values = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array(7), np.array([b"x", b""], object)]
    names, slices = ["a", "b", "c"], ["", "", ""]

    def build(m: Any, op: Any, prefix: str) -> tuple[Any, list[Any]]:
        tensors = [m.constant(v) for v in values]
        text = [m.constant(t) for t in (prefix, names, slices)]
        save = op("SaveV2", *text, tensors)
        restored = op("RestoreV2", *text, dtypes=[t.dtype for t in tensors])
        return save, list(restored)

    def theirs(name: str, prefix: Any, names: Any, slices: Any, tensors: Any = None, **attrs: Any) -> Any:
        more = attrs if tensors is None else {"tensors": tensors}
        return getattr(tf.raw_ops, name)(prefix=prefix, tensor_names=names, shape_and_slices=slices, **more)

    with tf.Graph().as_default(), tf.Session() as session:
        save, restored = build(tf, theirs, str(tmp_path / "theirs"))
        dims = [_dims(t) for t in restored]
        session.run(save)
        expected = session.run(restored)
    with aioflow.Graph().as_default():
        save, restored = build(aioflow, apply_op, str(tmp_path / "ours"))
        assert [_dims(t) for t in restored] == dims
        evaluate([], targets=[save])
        got = evaluate(restored)
    for mine, other in zip(got, expected, strict=True):
        assert mine.dtype == np.asarray(other).dtype
        assert np.array_equal(mine, other)


def test_sharded_filename(tf: Any) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        expected = session.run(tf.raw_ops.ShardedFilename(basename="dir/m", shard=3, num_shards=12))
    got = make("ShardedFilename", "dir/m", 3, 12)
    assert got.dims == ()
    assert evaluate([got])[0].item() == expected


@pytest.mark.parametrize(
    "initial", [1, 1.5, True, [1, 2], np.zeros((2, 0)), np.float16(1), [[1.5]], np.arange(3, dtype=np.uint8)]
)
def test_dtypes_and_shapes_of_initial_values(both: Both, initial: Any) -> None:
    both(lambda m: [variable(m, initial).value()])


@pytest.mark.parametrize("case", ["shape", "dtype", "scatter"])
def test_updates_of_wrong_shape_or_dtype_fail_to_build(tf: Any, case: str) -> None:
    def build(m: Any) -> None:
        v = variable(m, np.zeros((2, 3), np.float32))
        if case == "shape":
            v.assign(np.zeros((3, 2), np.float32))
        elif case == "dtype":
            v.assign(m.constant([[1, 2, 3]] * 2))
        else:
            m.scatter_add(v, [0, 1], np.zeros((2, 4), np.float32))

    for module in (tf, aioflow):
        with module.Graph().as_default(), pytest.raises((ValueError, TypeError)):
            build(module)


@pytest.mark.parametrize("case", ["uninitialized", "gather", "scatter", "negative", "nd", "count", "divide"])
def test_step_rejects_wrong_reads_and_updates(tf: Any, case: str) -> None:
    row = np.ones((1, 3), np.int32)
    fetches: dict[str, Callable[[Any, Any], Any]] = {
        "uninitialized": lambda m, v: v.value(),
        "gather": lambda m, v: v.sparse_read([5]),
        "scatter": lambda m, v: m.scatter_add(v, [2], row),
        "negative": lambda m, v: m.scatter_update(v, [-1], row),
        "nd": lambda m, v: m.scatter_nd_update(v, [[0, 3]], np.zeros(1, np.int32)),
        "count": lambda m, v: m.count_up_to(v, 3),
        "divide": lambda m, v: m.scatter_div(v, [0], 0 * row),
    }

    def build(m: Any) -> tuple[Any, Any]:
        v = variable(m, 3 if case == "count" else np.ones((2, 3), np.int32))
        return v, fetches[case](m, v)

    if case != "divide":  # TensorFlow ends the process
        with tf.Graph().as_default(), tf.Session() as session:
            v, fetch = build(tf)
            if case != "uninitialized":
                session.run(v.initializer)
            with pytest.raises(tf.errors.OpError) as theirs:
                session.run(fetch)
        code = theirs.value.error_code
    else:
        code = aioflow.errors.InvalidArgumentError.code
    with aioflow.Graph().as_default() as graph:
        v, fetch = build(aioflow)
        resources = ResourceManager()
        if case != "uninitialized":
            evaluate([], targets=[v.initializer], resources=resources)
        element: Any = graph.as_graph_element(fetch)
        with pytest.raises(aioflow.errors.OpError) as ours:
            evaluate([element], resources=resources)
    assert ours.value.error_code == code


def test_names_devices_and_collections(tf: Any) -> None:
    def build(m: Any) -> Any:
        extra = {} if m is aioflow else {"use_resource": True}
        with m.Graph().as_default() as graph:
            a = m.Variable([1.0], name="a", **extra)
            m.Variable(lambda: m.constant(2.0), name="a", trainable=False, **extra)
            with m.name_scope("scope"), m.device("/cpu:0"):
                m.Variable(1, **extra)
                m.Variable(1, collections=["mine"], **extra)
            ops = [o for o in graph.get_operations() if o.type != "Const" or "Initializer" in o.name]
            keys = ["variables", "trainable_variables", "mine", "local_variables"]
            return (
                [(o.name, o.type, o.device) for o in ops],
                # TensorFlow colocates only the handle and the initial value; aioflow colocates the handle's users too.
                [(o.name, [_text(c) for c in _classes(o)]) for o in ops if o.type in ("VarHandleOp", "Const")],
                {k: [v.name for v in m.get_collection(k)] for k in keys},
                a.op.name,
                a.initializer.name,
                a.initial_value.name,
                a.value().op.type,
                [v.name for v in m.global_variables("scope/")],
                m.global_variables_initializer().name,
            )

    assert build(aioflow) == build(tf)


def _classes(op: Any) -> Any:
    try:
        return op.get_attr("_class")
    except (ValueError, LookupError):
        return []


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def test_report_of_uninitialized_variables(tf: Any) -> None:
    def build(m: Any) -> Any:
        a, _ = variable(m, 1.0, name="a"), variable(m, 2.0, name="b")
        variable(m, 2.0, name="c", collections=[m.GraphKeys.LOCAL_VARIABLES])
        return a.initializer, m.report_uninitialized_variables()

    with tf.Graph().as_default(), tf.Session() as session:
        init, report = build(tf)
        before = session.run(report).tolist()
        session.run(init)
        after = session.run(report).tolist()
        dims = report.get_shape().as_list()
    with aioflow.Graph().as_default():
        init, report = build(aioflow)
        resources = ResourceManager()
        assert evaluate([report], resources=resources)[0].tolist() == before
        evaluate([], targets=[init], resources=resources)
        assert evaluate([report], resources=resources)[0].tolist() == after
        assert report.get_shape().as_list() == dims


def test_assigned_slices(both: Both) -> None:
    def build(m: Any) -> list[Any]:
        fetches = []
        for number, (key, value) in enumerate(CASES.values()):
            v = m.get_variable(f"v{number}", initializer=np.arange(12, dtype=np.float32).reshape(3, 4))
            fetches += [v[key].assign(np.asarray(value, np.float32)), v.value()]
        return fetches

    both(build)


@pytest.mark.parametrize("name", REFUSED)
def test_both_refuse_a_value_that_does_not_fit_the_slice(both: Both, name: str) -> None:
    def build(m: Any) -> list[Any]:
        key, value = REFUSED[name]
        v = m.get_variable("v", initializer=np.arange(12, dtype=np.float32).reshape(3, 4))
        return [v[key].assign(np.asarray(value, np.float32))]

    with pytest.raises(both.tf.errors.InvalidArgumentError):
        both._theirs(build)
    with pytest.raises(aioflow.errors.InvalidArgumentError):
        both._ours(build)


@pytest.mark.parametrize("shape", [(3,), (2, 3, 2), (2, 2, 3)])
def test_rows_within_batches(both: Both, shape: tuple[int, ...]) -> None:
    def build(m: Any) -> list[Any]:
        v = m.get_variable("v", initializer=np.zeros(shape, np.float32))
        count = min(len(shape), 2)
        indices = np.stack([np.array([2, 0])] * (1 if count == 1 else shape[0])) if count > 1 else np.array([2, 0])
        if shape[count - 1] < 3:
            indices = indices // 2
        updates = np.arange(np.prod([*indices.shape, *shape[count:]]), dtype=np.float32)
        return [m.batch_scatter_update(v, indices, updates.reshape(*indices.shape, *shape[count:]))]

    both(build)
