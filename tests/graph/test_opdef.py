"""Op definitions: the notation, checks of attributes, the registry, and the inputs of shape functions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.autodiff.reverse import lookup_gradient
from aioflow.errors import (
    AlreadyExistsError,
    DTypeError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    UnimplementedError,
)
from aioflow.graph import dtypes, traits
from aioflow.graph.gradient_registry import GRADIENTS, gradient, not_differentiable
from aioflow.graph.opdef import OPS, OpDef, OpRegistry, ShapeContext, define_op
from aioflow.graph.signature.arguments import per_argument
from aioflow.graph.signature.attributes import AttrDef
from aioflow.graph.signature.reading import GROUPS
from aioflow.ops.apply import apply_op, make, make_list

_NAMES = (f"TestOpdef{i}" for i in itertools.count())


def _define(inputs: str = "", outputs: str = "", attrs: tuple[str, ...] = (), **settings: Any) -> OpDef:
    return define_op(next(_NAMES), inputs, outputs, attrs, **settings)


def _attr(text: str) -> AttrDef:
    (attr,) = _define(attrs=(text,)).attrs.values()
    return attr


# -- the notation --------------------------------------------------------------------------------------------------


def test_arguments_are_parsed() -> None:
    op = _define(
        "x: T, n: int32, many: N*T, ints: N*int64, any: list:Tin",
        "y: T, z: list:Tin",
        ("T: type", "N: int >= 1", "Tin: list(type)"),
    )
    kinds = [(a.name, a.dtype, a.type_attr, a.list_attr, a.number_attr, a.is_sequence) for a in op.inputs]
    assert kinds == [
        ("x", None, "T", None, None, False),
        ("n", dtypes.int32, None, None, None, False),
        ("many", None, "T", None, "N", True),
        ("ints", dtypes.int64, None, None, "N", True),
        ("any", None, None, "Tin", None, True),
    ]
    assert [a.name for a in op.outputs] == ["y", "z"]
    assert not op.stateful
    assert OPS.get(op.name) is op


@pytest.mark.parametrize(
    ("text", "kind", "default", "minimum"),
    [
        ("a: int", "int", None, None),
        ("a: int >= 1", "int", None, 1),
        ("a: int >= -1 = 0", "int", 0, -1),
        ("a: float = 1e-3", "float", 1e-3, None),
        ("a: bool = False", "bool", False, None),
        ("a: string = 'x = y'", "string", "x = y", None),
        ("a: type = int32", "type", dtypes.int32, None),
        ("a: shape = None", "shape", None, None),
        ("a: shape = [2, -1]", "shape", (2, None), None),
        ("a: list(int) = [1, 2]", "list(int)", (1, 2), None),
        ("a: list(type) >= 1", "list(type)", None, 1),
        ("a: tensor", "tensor", None, None),
        ("a: func", "func", None, None),
    ],
)
def test_attributes_are_parsed(text: str, kind: str, default: Any, minimum: int | None) -> None:
    attr = _attr(text)
    assert (attr.name, attr.kind, attr.minimum) == ("a", kind, minimum)
    assert attr.default == default
    assert attr.has_default is (" = " in text)


def test_signature_lists_allowed_values_and_a_default() -> None:
    assert _attr("T: {float32, int32}").allowed == (dtypes.float32, dtypes.int32)
    assert _attr("T: {float32, int32} = int32").default is dtypes.int32
    assert _attr("p: {'SAME', 'VALID'} = 'SAME'").allowed == ("SAME", "VALID")
    listed = _attr("T: list({index})")
    assert (listed.kind, listed.allowed) == ("list(type)", (dtypes.int32, dtypes.int64))
    reals = _attr("T: {reals}").allowed or ()
    assert {t.name for t in reals} == set(GROUPS["floats"]) | set(GROUPS["ints"])
    mixed = _attr("T: {floats, bool}").allowed or ()
    assert len(mixed) == len(GROUPS["floats"]) + 1


@pytest.mark.parametrize("text", ["", "a", "a int", "a: {float32} >= x", "1:2:3"])
def test_malformed_attributes_are_rejected(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        _attr(text)


def test_a_default_must_be_allowed() -> None:
    with pytest.raises(InvalidArgumentError):
        _attr("p: {'SAME', 'VALID'} = 'ROUND'")
    with pytest.raises(InvalidArgumentError):
        _attr("n: int >= 1 = 0")


def test_a_name_is_defined_once() -> None:
    op = _define()
    with pytest.raises(AlreadyExistsError, match=op.name):
        define_op(op.name)


# -- checks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value", "canonical"),
    [
        ("a: int", np.int64(3), 3),
        ("a: float", 1, 1.0),
        ("a: float", np.float32(0.5), 0.5),
        ("a: bool", np.bool_(True), True),
        ("a: bool", 0, False),
        ("a: string", b"x", "x"),
        ("a: type", "float32", dtypes.float32),
        ("a: type", np.int32, dtypes.int32),
        ("a: shape", [2, None], (2, None)),
        ("a: shape", None, None),
        ("a: list(int)", [1, np.int32(2)], (1, 2)),
        ("a: list(int)", 1, (1,)),
        ("a: list(string)", "ab", ("ab",)),
        ("a: list(type)", ("float32", bool), (dtypes.float32, dtypes.bool_)),
        ("a: list(int)", (), ()),
    ],
)
def test_values_are_canonicalized(text: str, value: Any, canonical: Any) -> None:
    checked = _attr(text).check(value)
    assert checked == canonical
    assert type(checked) is type(canonical)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: int", True),
        ("a: int", 1.0),
        ("a: int", "1"),
        ("a: int", np.zeros(2, np.int32)),
        ("a: int >= 1", 0),
        ("a: float", "1"),
        ("a: float", None),
        ("a: float", 10**400),
        ("a: bool", "yes"),
        ("a: bool", None),
        ("a: string", 1),
        ("a: string", b"\xff"),
        ("a: type", "float33"),
        ("a: shape", [-2]),
        ("T: {float32, int32}", "int64"),
        ("p: {'SAME', 'VALID'}", "same"),
        ("a: list(int)", [1, "2"]),
        ("a: list(int) >= 2", [1]),
        ("T: list({index})", ["int32", "float32"]),
    ],
)
def test_invalid_values_are_rejected(text: str, value: Any) -> None:
    attr = _attr(text)
    with pytest.raises(InvalidArgumentError) as caught:
        attr.check(value)
    assert attr.name in str(caught.value) or isinstance(caught.value, DTypeError)
    assert caught.value.expected is not None


# -- nodes of defined ops ------------------------------------------------------------------------------------------


def test_attributes_are_inferred_from_the_inputs() -> None:
    op = _define("xs: N*T, any: list:Tin", "y: T", ("N: int >= 1", "T: {reals}", "Tin: list(type)", "k: int = 7"))
    y = make(op.name, [1.0, 2.0], [af.constant(1), af.constant("a")])
    assert y.op.attrs == {"N": 2, "T": dtypes.float32, "Tin": (dtypes.int32, dtypes.string), "k": 7}
    assert y.dtype is dtypes.float32
    assert y.dims is None  # no shape function


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda op: apply_op(op, 1.0), InvalidArgumentError),
        (lambda op: apply_op(op, 1.0, 2), InvalidArgumentError),
        (lambda op: apply_op(op, 1.0, [2], k="x"), InvalidArgumentError),
        (lambda op: apply_op(op, 1.0, [2], nothing=1), NotFoundError),
        (lambda op: apply_op(op, "a", [2]), InvalidArgumentError),
        (lambda op: apply_op(op, 1.0, []), InvalidArgumentError),
        (lambda op: apply_op(op, af.constant(1.0), [af.constant(1), af.constant(1.0)]), DTypeError),
        (lambda op: apply_op(op, af.constant(1.0), [af.constant(1)], T="float64"), DTypeError),
    ],
)
def test_a_node_must_follow_its_definition(make: Any, kind: type[OpError]) -> None:
    op = _define("x: T, ns: N*int32", "y: T", ("T: {floats}", "N: int >= 1", "k: int"))
    with pytest.raises(kind) as caught:
        make(op.name)
    assert caught.value.op_type == op.name
    assert caught.value.source is not None
    assert caught.value.source.filename == __file__


def test_a_missing_attribute_is_named() -> None:
    op = _define("x: T", "y: T", ("T: type", "k: int"))
    with pytest.raises(InvalidArgumentError, match="'k' is missing"):
        apply_op(op.name, 1.0)


def test_a_failed_node_leaves_nothing_in_the_graph(graph: af.Graph) -> None:
    x = af.constant(1.0)
    op = _define("x: T", "y: T", ("T: type", "k: int"))
    before = graph.get_operations()
    with pytest.raises(InvalidArgumentError):
        apply_op(op.name, x)
    assert graph.get_operations() == before


# -- the registry --------------------------------------------------------------------------------------------------


def test_registry_refuses_a_second_definition() -> None:
    registry = OpRegistry()
    matmul = registry.register(OpDef("MatMul", (), ()))
    assert "MatMul" in registry
    assert list(registry) == [matmul]
    assert len(registry) == 1
    with pytest.raises(AlreadyExistsError):
        registry.register(OpDef("MatMul", (), ()))
    with pytest.raises(NotFoundError) as caught:
        registry.get("Matmul")
    assert "did you mean 'MatMul'?" in str(caught.value)
    with pytest.raises(NotFoundError):
        matmul.attr("transpose")


# -- gradients -----------------------------------------------------------------------------------------------------


def test_gradients_are_found_by_op() -> None:
    differentiable, constant, neither = (_define("x: T", "y: T", ("T: type",)).name for _ in range(3))

    @gradient(differentiable)
    def grad(op: af.Operation, grad: af.Tensor) -> af.Tensor:
        return grad

    not_differentiable(constant)
    assert lookup_gradient(make(differentiable, 1.0).op) is grad
    assert lookup_gradient(make(constant, 1.0).op) is None
    with pytest.raises(UnimplementedError, match=neither) as caught:
        lookup_gradient(make(neither, 1.0, name="node").op)
    assert caught.value.node == "node"
    for name in (differentiable, constant):
        with pytest.raises(AlreadyExistsError):
            not_differentiable(name)
    for name in (differentiable, constant):
        del GRADIENTS[name]


# -- inputs of shape functions -------------------------------------------------------------------------------------


def test_a_shape_function_sees_inputs_by_name() -> None:
    seen: dict[str, Any] = {}

    def shape(ctx: ShapeContext) -> Any:
        seen.update(
            dims=ctx.dims("x"),
            many=ctx.dims_list("xs"),
            known=ctx.value("n"),
            unknown=ctx.value("x"),
            rank=ctx.rank("x"),
            flat=len(ctx.tensors),
            k=ctx.attrs["k"],
        )
        return ctx.require_rank("x", 1, 2)

    op = _define("x: float32, xs: N*float32, n: int32", "y: float32", ("N: int", "k: int"), shape=shape)
    x = af.placeholder("float32", [None, 3])
    y = make(op.name, x, [1.0, [2.0]], 5, k=4)
    assert y.dims == (None, 3)
    assert seen.pop("known") == 5
    assert seen == {"dims": (None, 3), "many": [(), (1,)], "unknown": None, "rank": 2, "flat": 4, "k": 4}
    with pytest.raises(InvalidArgumentError) as caught:
        make(op.name, af.zeros([1, 2, 3]), [1.0], 5, k=4)
    assert (caught.value.expected, caught.value.actual) == ("rank 1..2", "(1, 2, 3)")


def test_a_shape_vector_may_be_known_in_part() -> None:
    op = _define("s: int32", "y: float32", shape=lambda ctx: ctx.partial_shape("s"))
    x = af.placeholder("float32", [None, 3])
    n = af.placeholder("int32", [])
    cases: list[tuple[Any, Any]] = [
        ([2, 3], (2, 3)),
        ([2, -1], (2, None)),
        (af.shape(x), (None, 3)),
        ([n, 3], (None, 3)),
        (af.cast(af.shape(x, out_type=af.int64), "int32"), (None, 3)),
        (af.placeholder("int32", [2]), (None, None)),
        (af.placeholder("int32", [None]), None),
        (af.placeholder("int32", None), None),
    ]
    for value, dims in cases:
        assert make(op.name, value).dims == dims, value


def test_several_outputs_have_a_shape_each() -> None:
    op = _define("x: float32", "a: float32, b: N*float32", ("N: int",), shape=lambda ctx: [(1,), (2,), (3,)])
    assert [t.dims for t in make_list(op.name, 1.0, N=2)] == [(1,), (2,), (3,)]


@pytest.mark.parametrize("value", [object(), af.int8, np.array(["text"], object), [b"a", None], {}])
def test_arrays_of_python_objects_are_rejected_as_attributes(value: Any) -> None:
    with pytest.raises(DTypeError, match="wrong type"):
        af.raw_ops.Const(value=value, dtype=af.string)


def test_flat_inputs_are_split_by_the_signature() -> None:
    op_def = _define("x: T, many: N*T, any: list:Tlist, last: int32", "", ("T: type", "N: int", "Tlist: list(type)"))
    attrs = {"T": dtypes.float32, "N": 2, "Tlist": ()}
    split = {arg.name: values for arg, values in per_argument(op_def.inputs, attrs, "abcd")}
    assert split == {"x": "a", "many": "bc", "any": "", "last": "d"}
    attrs = {"T": dtypes.float32, "N": 0, "Tlist": (dtypes.int32, dtypes.bool_)}
    split = {arg.name: values for arg, values in per_argument(op_def.inputs, attrs, "abcd")}
    assert split == {"x": "a", "many": "", "any": "bc", "last": "d"}


@pytest.mark.parametrize(
    ("inputs", "outputs", "attrs", "says"),
    [
        ("x", "y: int32", [], "'x'"),
        ("x: T", "y: T", [], "'T: type'|\"T: type\""),
        ("x: flaot32", "", [], "flaot32"),
        ("x: N*int32", "", ["N: float"], "N: int"),
        ("x: list:Tin", "", ["Tin: type"], r"Tin: list\(type\)"),
        ("x: k", "", ["k: int"], "k: type"),
        ("x: int32, x: int32", "", [], "actual:   x"),
        ("x: int32", "", ["x: int"], "actual:   x"),
        ("", "y: int32, y: int32", [], "actual:   y"),
        ("", "", ["k: int", "k: float"], "actual:   k"),
        ("", "", ["k: itn"], "itn"),
        ("", "", ["k: list(itn)"], "itn"),
        ("", "", ["k: int = one"], "one"),
        ("", "", ["k"], "name: kind"),
        ("", "", "k: int", "a string for each"),
    ],
)
def test_errors_of_a_definition_name_the_op(inputs: str, outputs: str, attrs: Any, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says) as caught:
        define_op("TestWrongDefinition", inputs, outputs, attrs)
    assert caught.value.op_type == "TestWrongDefinition"
    assert "TestWrongDefinition" not in OPS


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ({"shape": (1, 2)}, "shape= must be a function"),
        ({"traits": traits.elementwise}, r"traits\.elementwise\(\)"),
        ({"traits": traits.elementwise(cost=3.0)}, r"traits\.transcendental"),  # type: ignore[arg-type]  # the mistake
        ({"name": "two words"}, "not an identifier"),
        ({"name": ""}, "not an identifier"),
    ],
)
def test_invalid_rules_of_a_definition_are_rejected(rules: Any, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        define_op(**{"name": "TestWrongDefinition", **rules})
    assert "TestWrongDefinition" not in OPS
