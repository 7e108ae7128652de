"""Tests of the reverse walk: the nodes it visits, the sums it builds, the errors it raises.

`tests/parity` checks the values of gradients.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow.errors import DTypeError, InvalidArgumentError, UnimplementedError
from aioflow.graph.opdef import define_op
from aioflow.kernels.resources import ResourceManager
from aioflow.ops.apply import make, make_list
from aioflow.ops.sparse.indexed_slices import convert_n_to_tensor_or_indexed_slices
from aioflow.testing.evaluate import evaluate
from tests.support.dense import dense
from tests.support.work import calls

define_op("TestWithoutGradient", "x: T", "y: T", ["T: type"], shape=lambda ctx: ctx.tensors[0].dims)
define_op("TestWrongGradient", "x: T", "y: T", ["T: type"], shape=lambda ctx: ctx.tensors[0].dims)
define_op("TestWrongShape", "x: T", "y: T", ["T: type"], shape=lambda ctx: ctx.tensors[0].dims)
define_op("TestPair", "x: T", "a: T, b: T, n: int32", ["T: type"], shape=lambda ctx: [ctx.tensors[0].dims] * 2 + [()])


@aioflow.RegisterGradient("TestWrongGradient")
def _two_for_one(op: Any, grad: Any) -> Any:
    return grad, grad


@aioflow.RegisterGradient("TestWrongShape")
def _wrong_shape(op: Any, grad: Any) -> Any:
    return aioflow.constant([[1.0]])


@aioflow.RegisterGradient("TestPair")
def _pair_grad(op: Any, a: Any, b: Any, n: Any) -> Any:
    assert n is None, "nothing flows back through an integer output"
    assert a is not None, "a floating output nobody used has a gradient of zeros"
    return a + 10.0 * b


@aioflow.RegisterGradient("TestTenfold")
def _tenfold(op: Any, grad: Any) -> Any:
    return 10.0 * grad


def value(tensor: Any, feeds: Any = None) -> Any:
    return evaluate([tensor], feeds)[0]


def test_a_tensor_read_twice_gets_the_sum() -> None:
    x = aioflow.placeholder("float32", [2])
    (grad,) = dense(aioflow.gradients(x * x * x, x))
    assert np.allclose(value(grad, {x: [2.0, 3.0]}), [12.0, 27.0])
    assert grad.shape == (2,)
    assert grad.name.startswith("gradients/")


def test_several_ys_and_grad_ys() -> None:
    x = aioflow.constant([1.0, 2.0])
    ys = [x * 2.0, x * x]
    (plain,) = aioflow.gradients(ys, x)
    (weighted,) = aioflow.gradients(ys, x, grad_ys=[[1.0, 10.0], None])
    assert np.allclose(value(plain), [4.0, 6.0])
    assert np.allclose(value(weighted), [4.0, 24.0])


def test_xs_may_be_ys_and_ys_may_be_intermediate() -> None:
    x = aioflow.constant(3.0)
    middle = x * 2.0
    top = middle * middle
    (by_itself,) = aioflow.gradients(x, x)
    by_x, by_middle = dense(aioflow.gradients([top, middle], [x, middle]))
    assert value(by_itself) == 1.0
    assert value(by_middle) == 13.0  # 2·middle from top, and 1 as a y of its own
    assert value(by_x) == 26.0


def test_xs_upstream_of_other_xs_and_repeated_xs() -> None:
    x = aioflow.constant(3.0)
    middle = x * x
    first, second, again = dense(aioflow.gradients(middle * 5.0, [x, middle, x]))
    assert [float(v) for v in evaluate([first, second, again])] == [30.0, 5.0, 30.0]


def test_unconnected_xs_have_no_gradient_or_zeros() -> None:
    x, other = aioflow.constant([1.0, 2.0]), aioflow.constant([3.0])
    assert aioflow.gradients(x * 2.0, other) == [None]
    (zeros,) = aioflow.gradients(x * 2.0, other, unconnected_gradients=aioflow.UnconnectedGradients.ZERO)
    (named,) = aioflow.gradients(x * 2.0, other, unconnected_gradients="zero")
    assert value(zeros).tolist() == value(named).tolist() == [0.0]
    with pytest.raises(InvalidArgumentError) as caught:
        aioflow.gradients(x, x, unconnected_gradients="some")  # type: ignore[call-overload]  # wrong on purpose
    assert caught.value.actual == "'some'"


def test_integer_tensors_stop_the_gradient() -> None:
    x = aioflow.constant([1.5, 2.5])
    through = aioflow.cast(aioflow.cast(x, "int32"), "float32")
    assert aioflow.gradients(through, x) == [None]
    (beside,) = aioflow.gradients(through * x, x)
    assert np.allclose(value(beside), [1.0, 2.0])


def test_stop_gradients_are_constants() -> None:
    a = aioflow.constant(2.0)
    b = a * 3.0
    by_a, by_b = aioflow.gradients(a + b, [a, b], stop_gradients=[a, b])
    full, _ = aioflow.gradients(a + b, [a, b])
    assert (value(by_a), value(by_b), value(full)) == (1.0, 1.0, 4.0)
    stopped = aioflow.stop_gradient(b)
    (through,) = aioflow.gradients(a * stopped, a)
    assert value(through) == 6.0


def test_unused_outputs_get_zero_gradients() -> None:
    x = aioflow.placeholder("float32", [2])
    a, b, _ = make_list("TestPair", x)
    (by_b,) = dense(aioflow.gradients(b * 2.0, x))
    gate = evaluate([by_b], {x: [0.0, 0.0], a: [0.0, 0.0], b: [0.0, 0.0]})[0]
    assert gate.tolist() == [20.0, 20.0]


def test_second_and_third_order() -> None:
    x = aioflow.constant(2.0)
    y = x * x * x * x
    orders = [y]
    for _ in range(3):
        (nxt,) = dense(aioflow.gradients(orders[-1], x))
        orders.append(nxt)
    assert [float(v) for v in evaluate(orders)] == [16.0, 32.0, 48.0, 48.0]


def test_missing_gradient_error_names_the_node() -> None:
    x = aioflow.constant(1.0)
    y = make("TestWithoutGradient", x, name="opaque")
    with pytest.raises(UnimplementedError) as caught:
        aioflow.gradients(y * 2.0, x)
    assert caught.value.node == "opaque"
    assert caught.value.source is not None
    assert aioflow.gradients(y * x, x, stop_gradients=[y]) != [None]


@pytest.mark.parametrize(("op", "match"), [("TestWrongGradient", "inputs"), ("TestWrongShape", "shape")])
def test_gradient_function_with_wrong_results_is_rejected(op: str, match: str) -> None:
    x = aioflow.constant([1.0, 2.0, 3.0])
    y = make(op, x, name="odd")
    with pytest.raises(aioflow.errors.OpError) as caught:
        aioflow.gradients(y, x)
    assert match in caught.value.message
    assert caught.value.node == "odd"
    assert caught.value.expected is not None


def test_invalid_grad_ys_are_rejected() -> None:
    x = aioflow.constant([1.0, 2.0])
    with pytest.raises(InvalidArgumentError):
        aioflow.gradients([x, x], x, grad_ys=[None])
    with pytest.raises(InvalidArgumentError) as caught:
        aioflow.gradients(x, x, grad_ys=[[1.0, 2.0, 3.0]])
    assert (caught.value.expected, caught.value.actual) == ("(2,)", "(3,)")
    with pytest.raises(DTypeError):
        aioflow.gradients(x, x, grad_ys=[aioflow.constant([1j, 2j])])
    with pytest.raises(DTypeError):
        aioflow.gradients(aioflow.constant(b"text"), x)
    complex_y = aioflow.constant([1j])
    with pytest.raises(DTypeError):
        aioflow.gradients(complex_y, complex_y)
    assert aioflow.gradients(complex_y, complex_y, grad_ys=[aioflow.constant([2 + 1j])])[0] is not None


def test_gate_gradients_wait_for_each_other() -> None:
    x, y = aioflow.constant([1.0]), aioflow.constant([2.0])
    by_x, by_y = dense(aioflow.gradients(x * y, [x, y], gate_gradients=True))
    gates = {op for grad in (by_x, by_y) for op in grad.op.control_inputs}
    assert len(gates) == 1
    assert [float(v[0]) for v in evaluate([by_x, by_y])] == [2.0, 1.0]


def test_colocation_with_the_forward_node() -> None:
    x = aioflow.constant([1.0], name="x")
    with aioflow.Graph.device(x.graph, "/device:CPU:0"):
        y = aioflow.multiply(x, x, name="y")
    (grad,) = dense(aioflow.gradients(y, x, colocate_gradients_with_ops=True))
    assert grad.op.colocation_groups() in ([b"loc:@y"], [b"loc:@x"])
    assert any(
        op.colocation_groups() == [b"loc:@y"] for op in x.graph.get_operations() if op.name.startswith("gradients/y")
    )


def test_sums_of_gradients_are_colocated_with_their_parts() -> None:
    x = aioflow.constant([1.0, 2.0], name="x")
    with aioflow.Graph.device(x.graph, "/device:CPU:1"):
        a = aioflow.square(x, name="a")
    with aioflow.Graph.device(x.graph, "/device:CPU:2"):
        b, c = aioflow.square(x, name="b"), aioflow.exp(x, name="c")
    (plain,) = dense(aioflow.gradients([a, b, c], x))
    assert (plain.device, "_class" in plain.op.attrs, len(plain.op.inputs)) == ("", False, 3)
    (total,) = dense(aioflow.gradients([a, b, c], x, colocate_gradients_with_ops=True))
    assert total.op.type == "AddN"
    assert total.op.colocation_groups() == [b"loc:@x"]
    one, several = total.op.inputs
    assert (one.device, one.op.colocation_groups()) == ("/device:CPU:1", [b"loc:@a"])
    assert (several.op.type, several.device, several.op.colocation_groups()) == ("AddN", "/device:CPU:2", [b"loc:@b"])
    (on_one,) = dense(aioflow.gradients([b, c], x, colocate_gradients_with_ops=True))
    assert (on_one.device, on_one.op.colocation_groups()) == ("/device:CPU:2", [b"loc:@b"])


def test_the_walk_is_iterative() -> None:
    y, x = _negations(10_000)
    (grad,) = dense(aioflow.gradients(y, x))
    assert len(x.graph.get_operations()) >= 20_000
    assert grad.shape == ()


def test_the_walk_is_linear() -> None:
    short, long = (calls(partial(aioflow.gradients, *_negations(length))) for length in (100, 500))
    assert 4 * short < long < 6 * short


def _negations(length: int) -> tuple[aioflow.Tensor, aioflow.Tensor]:
    with aioflow.Graph().as_default():
        x = y = aioflow.constant(1.0)
        for _ in range(length):
            y = make("Neg", y)
        return y, x


def test_deep_fan_in_sums_once() -> None:
    x = aioflow.constant(2.0)
    y = aioflow.add_n([x * float(i) for i in range(50)])
    (grad,) = aioflow.gradients(y, x)
    assert value(grad) == sum(range(50))
    sums = [op for op in x.graph.get_operations() if op.type == "AddN" and op.name.startswith("gradients")]
    assert len(sums) == 1


def test_variables_sum_over_their_reads() -> None:
    v = aioflow.Variable(np.array([1.0, 2.0], np.float32), name="v")
    (grad,) = dense(aioflow.gradients(v * v + v.read_value(), v))
    resources = ResourceManager()
    evaluate([], targets=[v.initializer], resources=resources)
    assert evaluate([grad], resources=resources)[0].tolist() == [3.0, 5.0]
    by_handle = dense(aioflow.gradients(v * 2.0, v.handle))[0]
    assert evaluate([by_handle], resources=resources)[0].tolist() == [2.0, 2.0]


def test_gathered_rows_produce_indexed_slices() -> None:
    v = aioflow.Variable(np.arange(8, dtype=np.float64).reshape(4, 2), name="table")
    rows = v.sparse_read([3, 0, 3])
    (once,) = aioflow.gradients(rows * 2.0, v)
    (twice,) = aioflow.gradients(rows * 2.0 + v.sparse_read([0, 0, 1]), v)
    (mixed,) = aioflow.gradients([rows * 2.0, v * v], v)
    assert isinstance(once, aioflow.IndexedSlices)
    assert isinstance(twice, aioflow.IndexedSlices)
    assert isinstance(mixed, aioflow.Tensor)
    resources = ResourceManager()
    evaluate([], targets=[v.initializer], resources=resources)
    dense = [aioflow.convert_to_tensor(g) for g in (once, twice, mixed)]
    assert dense[0].shape == (4, 2)
    first, second, third = evaluate(dense, resources=resources)
    assert first[:, 0].tolist() == [2.0, 0.0, 0.0, 4.0]
    assert second[:, 0].tolist() == [4.0, 1.0, 0.0, 4.0]
    assert third[:, 0].tolist() == [2.0, 4.0, 8.0, 16.0]


def test_indexed_slices_need_a_dense_shape() -> None:
    slices = aioflow.IndexedSlices(aioflow.constant([[1.0]]), aioflow.constant([0]))
    with pytest.raises(InvalidArgumentError):
        aioflow.convert_to_tensor(slices)
    with pytest.raises(DTypeError):
        aioflow.convert_to_tensor_or_indexed_slices(slices, "float64")
    assert convert_n_to_tensor_or_indexed_slices([None, slices])[1] is slices


def test_hessians_equal_second_derivatives() -> None:
    x = aioflow.constant([1.0, 2.0, 3.0])
    (found,) = aioflow.hessians(x[0] * x[1] * x[1] + x[2] * x[2] * x[2], x)
    assert value(found).tolist() == [[0.0, 4.0, 0.0], [4.0, 2.0, 0.0], [0.0, 0.0, 18.0]]
    matrix = aioflow.constant([[1.0, 2.0], [3.0, 4.0]])
    (square,) = aioflow.hessians(matrix * matrix, [matrix])
    assert square.shape == (2, 2, 2, 2)
    assert np.allclose(value(square).reshape(4, 4), 2 * np.eye(4))
    with pytest.raises(InvalidArgumentError):
        aioflow.hessians(x * 2.0, matrix)
    unknown = aioflow.placeholder("float32", [None])
    with pytest.raises(UnimplementedError):
        aioflow.hessians(unknown * unknown, unknown)


def test_gradient_override_map_replaces_gradients() -> None:
    x = aioflow.constant(3.0)
    with x.graph.gradient_override_map({"Mul": "TestTenfold", "Identity": "TestTenfold"}):
        y = aioflow.identity(x)
    plain = aioflow.identity(x)
    assert [float(v) for v in evaluate([*dense(aioflow.gradients(y, x)), *dense(aioflow.gradients(plain, x))])] == [
        10.0,
        1.0,
    ]


def test_registering_a_gradient_twice_is_rejected() -> None:
    with pytest.raises(aioflow.errors.AlreadyExistsError):
        aioflow.RegisterGradient("Mul")(_tenfold)
    with pytest.raises(DTypeError):
        aioflow.RegisterGradient(3)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(aioflow.errors.AlreadyExistsError):
        aioflow.no_gradient("Mul")


def test_custom_gradient_replaces_the_computed_one() -> None:
    @aioflow.custom_gradient
    def clipped(x: Any, y: Any) -> Any:
        def grad(dz: Any) -> Any:
            return dz * 100.0, dz * y

        return x * y, grad

    x, y = aioflow.constant(3.0), aioflow.constant(4.0)
    z = clipped(x, y)
    by_x, by_y = dense(aioflow.gradients(z * 2.0, [x, y]))
    assert [float(v) for v in evaluate([z, by_x, by_y])] == [12.0, 200.0, 8.0]
    (second,) = dense(aioflow.gradients(by_y, y))
    assert value(second) == 2.0


def test_custom_gradient_with_several_results_and_variables() -> None:
    v = aioflow.Variable(2.0, name="weight")

    @aioflow.custom_gradient
    def layer(x: Any) -> Any:
        def grad(da: Any, db: Any, variables: Any = None) -> Any:
            assert variables == [v]
            return da * 3.0 + db * 5.0, [da * 7.0]

        return [x * v, x + 1.0], grad

    x = aioflow.constant(4.0)
    a, b = layer(x)
    by_x, by_v = dense(aioflow.gradients([a, b], [x, v]))
    resources = ResourceManager()
    evaluate([], targets=[v.initializer], resources=resources)
    found = evaluate([a, b, by_x, by_v], resources=resources)
    assert [float(f) for f in found] == [8.0, 5.0, 8.0, 7.0]

    @aioflow.custom_gradient
    def forgetful(x: Any) -> Any:
        return x * v, lambda dy: dy

    with pytest.raises(DTypeError):
        forgetful(x)


def test_custom_gradient_rejects_wrong_results() -> None:
    x = aioflow.constant(1.0)
    with pytest.raises(InvalidArgumentError):
        aioflow.custom_gradient(lambda t: t)(x)
    y = aioflow.custom_gradient(lambda t: (t * 2.0, lambda dy: (dy, dy)))(x)
    with pytest.raises(InvalidArgumentError) as caught:
        aioflow.gradients(y, x)
    assert caught.value.node is not None


def test_grad_pass_through() -> None:
    x = aioflow.constant([1.2, 2.7])
    rounded = aioflow.grad_pass_through(aioflow.floor)(x)
    (grad,) = aioflow.gradients(rounded * 3.0, x)
    assert value(rounded).tolist() == [1.0, 2.0]
    assert value(grad).tolist() == [3.0, 3.0]


PASSED_BY_SLICES: dict[str, Any] = {
    "add": lambda x: x + 0.5,
    "add a row": lambda x: aioflow.add(x, [1.0, 2.0, 3.0]),
    "add, broadcast": lambda x: x[0] + aioflow.ones([4, 3]),
    "subtract": lambda x: [1.0, 2.0, 3.0] - x,
    "subtract, broadcast": lambda x: aioflow.ones([4, 3]) - x[:1],
    "negative": lambda x: -x,
    "remainder": lambda x: aioflow.floormod(x, 0.7),
    "sum": lambda x: aioflow.reduce_sum(x, 1, keepdims=True),
    "concat of rows": lambda x: aioflow.concat([x, aioflow.ones([2, 3]), x], 0),
    "concat of columns": lambda x: aioflow.concat([x, x * 2.0], -1),
    "rows by index vectors": lambda x: aioflow.gather_nd(x, [[3], [1], [1]]),
    "batch norm": lambda x: aioflow.nn.batch_normalization(x, 0.0, 1.0, None, x, 0.1),
}


@pytest.mark.parametrize("shape", [[4, 3], [None, 3], None], ids=["fixed", "open", "no rank"])
@pytest.mark.parametrize("name", PASSED_BY_SLICES)
def test_sparse_gradients_equal_dense_gradients(name: str, shape: Any) -> None:
    """Compares the gradient of gathered rows with that of a one-hot product, which is dense."""
    x = aioflow.placeholder("float32", shape)
    y = PASSED_BY_SLICES[name](x)
    rows = [2, 0, 2]
    weights = np.array([[1.0], [-2.0], [0.5]], np.float32)
    there = aioflow.one_hot(rows, aioflow.shape(y)[0])
    (sparse,) = aioflow.gradients(aioflow.gather(y, rows) * weights, x)
    (dense,) = aioflow.gradients(aioflow.matmul(there, y) * weights, x)
    fed = {x: np.linspace(0.1, 2.0, 12, dtype=np.float32).reshape(4, 3)}
    found, expected = (value(aioflow.convert_to_tensor(g), fed) for g in (sparse, dense) if g is not None)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_custom_gradient_receives_indexed_slices() -> None:
    seen: list[Any] = []

    @aioflow.custom_gradient
    def doubled(x: Any) -> Any:
        def grad(dy: Any) -> Any:
            seen.append(dy)
            return 2.0 * aioflow.convert_to_tensor(dy)

        return aioflow.identity(x), grad

    x = aioflow.placeholder("float32", [3])
    (found,) = aioflow.gradients(aioflow.gather(doubled(x), [1, 1]), x)
    assert isinstance(seen[0], aioflow.IndexedSlices)
    np.testing.assert_array_equal(value(found, {x: [1.0, 2.0, 3.0]}), [0.0, 4.0, 0.0])


@pytest.mark.parametrize(
    ("raised", "kind", "says"),
    [
        (KeyError("axis"), aioflow.errors.NotFoundError, "KeyError: 'axis'"),
        (TypeError("no"), DTypeError, "TypeError: no"),
        (ValueError("no"), InvalidArgumentError, "ValueError: no"),
        (NotImplementedError("no"), UnimplementedError, "NotImplementedError: no"),
        (ZeroDivisionError("no"), aioflow.errors.UnknownError, "ZeroDivisionError: no"),
    ],
)
def test_what_a_gradient_function_raises_names_its_node(
    raised: Exception, kind: type[aioflow.OpError], says: str
) -> None:
    @aioflow.custom_gradient
    def faulty(x: Any) -> Any:
        def grad(dy: Any) -> Any:
            raise raised

        return x * 2.0, grad

    x = aioflow.constant(1.0)
    with aioflow.name_scope("here"):
        y = faulty(x)
    with pytest.raises(kind) as caught:
        aioflow.gradients(y * y, x)
    error = caught.value
    assert says in error.message
    assert (error.node, error.op_type) == (y.op.name, "IdentityN")
    assert error.source is not None
    assert error.source.function == test_what_a_gradient_function_raises_names_its_node.__name__
    assert error.__cause__ is raised


def test_engine_error_in_a_gradient_function_names_the_node() -> None:
    y = aioflow.custom_gradient(lambda t: (t * 2.0, lambda dy: object()))(x := aioflow.constant(1.0))
    with pytest.raises(DTypeError) as caught:
        aioflow.gradients(y, x)
    assert caught.value.node == y.op.name
