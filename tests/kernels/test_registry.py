"""The kernel registry: selection of a node's kernel, match of body and op, and refusals."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, UnimplementedError
from aioflow.graph import dtypes
from aioflow.graph.gradient_registry import _GRADIENT_ORIGINS
from aioflow.graph.opdef import OPS, define_op
from aioflow.kernels.registry import (
    ANY_DEVICE,
    KERNELS,
    Binding,
    KernelDef,
    KernelRegistry,
    Ufunc,
    binder,
    elementwise,
    kernel,
)
from aioflow.ops.apply import make
from aioflow.testing.evaluate import evaluate
from aioflow_numpy.backend import NumpyDevice

_NAMES = (f"TestKernel{i}" for i in itertools.count())


def test_every_kernel_declares_the_handles_it_takes_and_makes() -> None:
    """Check declarations: without them a handle of another kind would cause an arbitrary Python error."""
    for found in KERNELS:
        op_def = OPS.get(found.op)
        assert {a.name for a in op_def.inputs if a.dtype is dtypes.resource} <= set(found.takes), found.op
        if any(a.dtype is dtypes.resource for a in op_def.outputs):
            assert found.makes is not None, found.op


def test_kernels_and_gradients_lie_where_the_registries_look() -> None:
    """Check that kernels are in the folder named as that of the op's definition, and gradients in its module."""
    KERNELS.load()
    homes = {(key[0], origin["__name__"]) for key, origin in KERNELS._origins.items()}  # type: ignore[index]  # a tuple
    own = [(op, home) for op, home in homes if home.startswith("aioflow.kernels.")]
    assert len(own) > 500
    assert [pair for pair in own if pair[1].split(".")[2] != OPS.home(pair[0]).split(".")[2]] == []
    rules = {op: origin["__name__"] for op, origin in _GRADIENT_ORIGINS.items()}
    assert [op for op, home in rules.items() if home.startswith("aioflow.") and home != OPS.home(op)] == []


@pytest.fixture
def op() -> Iterator[str]:
    """Define a new op, with inputs x and ys of type T and n of type int32, and attributes k and note."""
    name = next(_NAMES)
    define_op(name, "x: T, ys: N*T, n: int32", "z: T", ["T: {numbers}", "N: int", "k: int = 3", "note: string = ''"])
    yield name
    KERNELS._kernels.pop(name, None)


def _attrs(dtype: Any = dtypes.float32, **more: Any) -> dict[str, Any]:
    return {"T": dtype, "N": 1, "k": 3, "note": "", **more}


def _plain(x: Any, ys: Any, n: Any) -> Any:
    return x


# -- selection -----------------------------------------------------------------------------------------------------


def test_kernel_of_the_device_precedes_a_portable_one(op: str) -> None:
    kernel(op)(_plain)
    kernel(op, device="CPU")(_plain)
    portable, own = KERNELS.for_op(op)
    assert KERNELS.get(op, "CPU", _attrs()) is own
    assert KERNELS.get(op, "GPU", _attrs()) is portable
    assert portable.device_type == ANY_DEVICE


def test_priority_precedes_the_device(op: str) -> None:
    kernel(op, device="CPU")(_plain)
    kernel(op, priority=1)(_plain)
    assert KERNELS.get(op, "CPU", _attrs()).priority == 1


def test_dtypes_limit_a_kernel(op: str) -> None:
    kernel(op, dtypes={"T": "floats"})(_plain)
    kernel(op, dtypes={"T": ["int32", np.int64]})(_plain)
    floats, ints = KERNELS.for_op(op)
    assert floats.dtypes == {"T": {dtypes.bfloat16, dtypes.float16, dtypes.float32, dtypes.float64}}
    for dtype, found in ((dtypes.float16, floats), (dtypes.int64, ints), (dtypes.complex64, None)):
        assert KERNELS.find(op, "CPU", _attrs(dtype)) is found


def test_labelled_kernel_is_selected_only_by_label(op: str) -> None:
    kernel(op, label="fancy", priority=9)(_plain)
    assert KERNELS.find(op, "CPU", _attrs()) is None
    kernel(op)(_plain)
    fancy, usual = KERNELS.for_op(op)
    assert KERNELS.get(op, "CPU", _attrs()) is usual
    assert KERNELS.get(op, "CPU", _attrs(_kernel="fancy")) is fancy
    assert KERNELS.find(op, "CPU", _attrs(_kernel="other")) is None


def test_error_for_missing_kernel_lists_the_registered_ones(op: str) -> None:
    with pytest.raises(UnimplementedError) as caught:
        KERNELS.get(op, "CPU", _attrs())
    assert caught.value.expected == "no kernel at all"
    kernel(op, device="GPU", dtypes={"T": "float32 float64"})(_plain)
    kernel(op, dtypes={"T": "int32"})(_plain)
    with pytest.raises(UnimplementedError) as caught:
        KERNELS.get(op, "CPU", _attrs())
    assert caught.value.op_type == op
    assert caught.value.expected == "GPU (T in {float32, float64}); any device (T in {int32})"
    assert "CPU" in caught.value.actual
    assert "float32" in caught.value.actual


# -- registration --------------------------------------------------------------------------------------------------


def test_duplicate_kernel_is_refused(op: str) -> None:
    kernel(op, dtypes={"T": "floats"})(_plain)
    with pytest.raises(AlreadyExistsError, match=op):
        kernel(op, dtypes={"T": "floats"})(_plain)
    for difference in ({"label": "l"}, {"priority": 1}, {"device": "CPU"}, {"dtypes": {"T": "ints"}}):
        kernel(op, **({"dtypes": {"T": "floats"}} | difference))(_plain)
    assert len(KERNELS.for_op(op)) == 5


def test_kernel_of_an_undefined_op_is_refused() -> None:
    with pytest.raises(NotFoundError, match="TestNoSuchOp"):
        kernel("TestNoSuchOp")(lambda: None)


@pytest.mark.parametrize(
    "body",
    [
        lambda: None,
        lambda x: x,
        lambda x, ys, n, more: x,
        lambda xp, x, ys: x,
        lambda x, ys, n, *, nothing: x,
    ],
)
def test_body_must_follow_the_signature(op: str, body: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="does not follow the signature") as caught:
        kernel(op)(body)
    assert "['x', 'ys', 'n']" in caught.value.expected
    assert KERNELS.for_op(op) == []


def test_separate_registry_holds_only_its_kernels() -> None:
    registry = KernelRegistry()
    made = registry.register(KernelDef("Identity", lambda binding: lambda x: x))
    assert list(registry) == [made]
    assert registry.for_op("Identity") == [made]
    assert registry.for_op("Const") == []
    registry.for_op("Identity").clear()
    assert registry.for_op("Identity") == [made], "the list is a copy"


def test_kernel_flags_are_kept(op: str) -> None:
    @kernel(op, fresh=True, retains=True, host={"n": int})
    async def body(x: Any, ys: Any, n: Any) -> Any:
        return x

    (found,) = KERNELS.for_op(op)
    assert (found.is_async, found.fresh, found.retains, found.takes_out) == (True, True, True, False)
    assert found.host == {"n": int}


# -- bodies --------------------------------------------------------------------------------------------------------


def _run(op: str, **attrs: Any) -> Any:
    (value,) = evaluate([make(op, 10.0, [1.0, 2.0], 7, **attrs)])
    return value


def test_body_receives_inputs_attributes_and_namespace(op: str) -> None:
    seen: list[Any] = []

    @kernel(op, host={"n": int})
    def body(xp: Any, x: Any, ys: Any, n: int, *, k: int, note: str) -> Any:
        seen.extend([xp, type(ys), n, type(n), k, note])
        return x + sum(ys)

    assert _run(op, k=5) == 13
    assert seen == [NumpyDevice(0).xp, tuple, 7, int, 5, ""]


def test_namespace_has_lazily_imported_numpy_modules() -> None:
    assert NumpyDevice(0).xp.fft is np.fft


def test_positional_parameter_with_default_is_not_an_input(op: str) -> None:
    @kernel(op)
    def body(x: Any, ys: Any, n: Any, out: Any = None) -> Any:
        return x if out is None else out

    assert _run(op) == 10


def test_binder_receives_the_node_and_session_state(op: str) -> None:
    seen: list[Binding] = []

    @binder(op)
    def bind(binding: Binding) -> Any:
        seen.append(binding)
        count = binding.shared(lambda: [0])

        def body(x: Any, ys: Any, n: Any) -> Any:
            count[0] += 1
            return np.float32(count[0])

        return body

    x = af.placeholder("float32", [None])
    y = make(op, x, [af.constant([1.0])], 7, name="node")
    state: dict[str, Any] = {}
    feeds = {x: np.zeros(3, np.float32)}
    assert [evaluate([y], feeds, state=state)[0] for _ in range(3)] == [1, 2, 3], "the state is the session's"
    assert evaluate([y], feeds)[0] == 1
    binding = seen[0]
    assert (binding.name, binding.op_type, binding.xp) == ("node", op, NumpyDevice(0).xp)
    assert binding.attrs["k"] == 3
    assert binding.input_dtypes == (dtypes.float32, dtypes.float32, dtypes.int32)
    assert binding.input_dims == ((None,), (1,), ())
    assert binding.output_dtypes == (dtypes.float32,)
    assert binding.constants[0] is None
    assert [np.asarray(constant).tolist() for constant in binding.constants[1:]] == [[1.0], 7]


def test_elementwise_registers_a_table_of_ufuncs() -> None:
    one, two = next(_NAMES), next(_NAMES)
    for name in (one, two):
        define_op(name, "x: T, y: T", "z: T", ["T: {numbers}"], shape=lambda ctx: ctx.dims("x"))
    elementwise({one: "hypot", two: Ufunc("subtract", "{0} - {1}", {"T": "floats"})})
    (first,), (second,) = KERNELS.for_op(one), KERNELS.for_op(two)
    for found in (first, second):
        assert found.fresh
        assert found.takes_out
        assert not found.retains
    assert (first.expression, second.expression) == (None, "{0} - {1}")
    assert KERNELS.find(two, "CPU", {"T": dtypes.int32}) is None
    values = evaluate([make(one, 3.0, 4.0), make(two, 3.0, 4.0)])
    assert values == [5.0, -1.0]
    for name in (one, two):
        del KERNELS._kernels[name]


def test_every_kernel_serves_a_defined_op_and_names_real_inputs() -> None:
    """Check the whole registry: host inputs and dtype limits use only names that the op has."""
    for found in KERNELS:
        op_def = OPS.get(found.op)
        assert set(found.host) <= {a.name for a in op_def.inputs}, found.op
        assert set(found.dtypes) <= set(op_def.attrs), found.op
        if found.takes_out:
            assert len(op_def.outputs) == 1, found.op
            assert found.fresh, f"{found.op}: a result in a buffer of its own is fresh"
        for name, allowed in found.dtypes.items():
            limits = op_def.attrs[name].allowed
            assert limits is None or allowed & set(limits), f"{found.op} never has such a {name}"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"host": {"axis": int}}, "host= .*'axis'"),
        ({"takes": {"handle": int}}, "takes= .*'handle'"),
        ({"dtypes": {"S": "float32"}}, "dtypes= .*'S'"),
        ({"dtypes": {"N": "float32"}}, "dtypes= .*'N'"),
        ({"device": "cpu"}, "'CPU'"),
    ],
)
def test_kernel_options_must_name_parts_of_the_op(op: str, options: Any, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says) as caught:
        kernel(op, **options)(_plain)
    assert caught.value.op_type == op
    assert KERNELS.for_op(op) == []


def test_dtypes_outside_those_of_the_op_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="never") as caught:
        kernel("Tanh", dtypes={"T": "string"}, priority=1)(lambda x: x)
    assert caught.value.actual == "string"


def test_body_with_swapped_inputs_or_positional_attributes_is_refused() -> None:
    def swapped(y: Any, x: Any) -> Any:
        return x - y

    def positional(input: Any, reduction_indices: Any, keep_dims: bool = False) -> Any:
        return input

    for name, body in (("Sub", swapped), ("Sum", positional)):
        with pytest.raises(InvalidArgumentError, match="does not follow the signature") as caught:
            kernel(name, priority=1)(body)
        assert str(inspect.signature(body)) in caught.value.actual


@pytest.mark.parametrize("decorator", [kernel, binder])
def test_decorator_without_parentheses_is_refused(decorator: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="the name of an op"):
        decorator(lambda x: x)


def test_error_for_unknown_label_lists_existing_labels(op: str) -> None:
    kernel(op, label="there")(_plain)
    with pytest.raises(UnimplementedError, match="_kernel='there'") as caught:
        KERNELS.get(op, "CPU", {"_kernel": "elsewhere"})
    assert "elsewhere" in caught.value.actual
