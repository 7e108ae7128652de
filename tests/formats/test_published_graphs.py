"""Graph definitions as protocol buffer messages. The parity tests check that TensorFlow reads them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import aioflow as af
from aioflow import errors, protos
from aioflow.graph.graphdef import FunctionArg, FunctionDef, FunctionRef, GraphDef, NodeDef, TensorData
from aioflow.testing.evaluate import evaluate


def tensor_graph(dtype: int, sizes: list[int], **fields: Any) -> Any:
    """Return a GraphDef message with one constant."""
    graph = protos.message("GraphDef")()
    node = graph.node.add(name="c", op="Const")
    node.attr["dtype"].type = dtype
    tensor = node.attr["value"].tensor
    tensor.dtype = dtype
    for size in sizes:
        tensor.tensor_shape.dim.add(size=size)
    for key, value in fields.items():
        if isinstance(value, bytes):
            setattr(tensor, key, value)
        else:
            getattr(tensor, key).extend(value)
    return graph


def constant(*args: Any, **fields: Any) -> Any:
    definition = GraphDef.FromString(tensor_graph(*args, **fields).SerializeToString())
    value = definition.nodes[0].attrs["value"]
    assert isinstance(value, TensorData)
    return value.to_array()


def every_attribute() -> GraphDef:
    attrs: Any = {
        "_bool": True,
        "_int": -3,
        "_float": 0.1,
        "_text": "näme",
        "_type": af.bfloat16,
        "_shape": (2, None),
        "_any_shape": None,
        "_tensor": TensorData.of(np.arange(3)),
        "_function": FunctionRef("f"),
        "_ints": (1, 2),
        "_texts": ("a", "b"),
        "_shapes": ((1,), None, ()),
        "_types": (af.float32, af.string),
        "_functions": (FunctionRef("f"), FunctionRef("f")),
        "_empty": (),
    }
    body = (
        NodeDef("parts", "Split", ("axis", "x"), "", {"num_split": 2, "T": af.float32}),
        NodeDef("sum", "AddV2", ("parts", "parts:1", "^parts"), "", {"T": af.float32}),
    )
    inputs = (FunctionArg("axis", af.int32, ()), FunctionArg("x", af.float32, (None, 4)))
    function = FunctionDef("f", inputs, (FunctionArg("out", af.float32),), body, ("sum",), ("sum",), "g")
    identity = FunctionDef("g", (FunctionArg("x", af.float32),), (FunctionArg("y", af.float32),), (), ("x",))
    return GraphDef((NodeDef("n", "NoOp", ("^m",), "/job:a", attrs), NodeDef("m", "NoOp")), 1, (function, identity))


def test_a_definition_round_trips_through_every_encoding() -> None:
    definition = every_attribute()
    assert GraphDef.FromString(definition.SerializeToString()) == definition
    assert GraphDef.FromString(memoryview(definition.SerializeToString())) == definition
    assert GraphDef.FromString(definition.to_text().encode()) == definition
    assert GraphDef.FromString(definition.to_bytes()) == definition
    assert GraphDef.FromString(definition.to_json().encode()) == definition
    assert GraphDef.from_message(protos.parse("GraphDef", definition.SerializeToString())) == definition


def test_the_nodes_of_a_function_read_outputs_by_name() -> None:
    function = protos.parse("GraphDef", every_attribute().SerializeToString()).library.function[0]
    assert list(function.node_def[0].input) == ["axis", "x"]
    assert list(function.node_def[1].input) == ["parts:output:0", "parts:output:1", "^parts"]
    assert dict(function.ret) == {"out": "sum:z:0"}
    assert dict(function.control_ret) == {"sum": "sum"}


def test_parse_from_string_works_as_in_published_code() -> None:
    with af.Graph().as_default() as graph:
        af.constant([1.0, 2.0], name="c")
    data = graph.as_graph_def().SerializeToString()
    graph_def = af.GraphDef()
    assert graph_def.ParseFromString(data) == len(data)
    assert graph_def == graph.as_graph_def()
    with pytest.raises(errors.FailedPreconditionError):
        graph_def.ParseFromString(data)
    assert graph_def == graph.as_graph_def()


def test_a_message_is_imported_directly() -> None:
    message = tensor_graph(1, [2], float_val=[1.5])
    with af.Graph().as_default():
        (found,) = af.import_graph_def(message, return_elements=["c:0"])
        assert [list(v) for v in evaluate([found])] == [[1.5, 1.5]]


@pytest.mark.parametrize(
    ("dtype", "field", "values", "expected"),
    [
        (1, "float_val", [1.5, 2], np.array([1.5, 2, 2, 2], np.float32)),
        (2, "double_val", [1e300], np.full(4, 1e300)),
        (3, "int_val", [], np.zeros(4, np.int32)),
        (4, "int_val", [255, 7], np.array([255, 7, 7, 7], np.uint8)),
        (5, "int_val", [-5], np.full(4, -5, np.int16)),
        (6, "int_val", [1, 2, 3, -4], np.array([1, 2, 3, -4], np.int8)),
        (7, "string_val", [b"a", b"\xff"], np.array([b"a", b"\xff", b"\xff", b"\xff"], object)),
        (8, "scomplex_val", [1, 2, 3, 4], np.array([1 + 2j, 3 + 4j, 3 + 4j, 3 + 4j], np.complex64)),
        (9, "int64_val", [2**62], np.full(4, 2**62)),
        (10, "bool_val", [True, False], np.array([True, False, False, False])),
        (14, "half_val", [0x3F80], np.ones(4, ml_dtypes.bfloat16)),
        (17, "int_val", [65535], np.full(4, 65535, np.uint16)),
        (18, "dcomplex_val", [0, 1], np.full(4, 1j)),
        (19, "half_val", [0x3C00, 0xC000], np.array([1, -2, -2, -2], np.float16)),
        (22, "uint32_val", [2**32 - 1], np.full(4, 2**32 - 1, np.uint32)),
        (23, "uint64_val", [2**64 - 1], np.full(4, 2**64 - 1, np.uint64)),
        (24, "float8_val", b"\x3c\xc0", np.array([1, -2, -2, -2], ml_dtypes.float8_e5m2)),
        (29, "int_val", [-8, 7], np.array([-8, 7, 7, 7], ml_dtypes.int4)),
        (11, "int_val", [-128], np.full(4, -128, np.int8)),
        (16, "int_val", [65535], np.full(4, 65535, np.uint16)),
    ],
)
def test_the_last_element_stands_for_omitted_ones(dtype: int, field: str, values: Any, expected: Any) -> None:
    found = constant(dtype, [2, 2], **{field: values})
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected.reshape(2, 2))


def test_strings_in_tensor_content_are_read() -> None:
    long = b"x" * 200
    found = constant(7, [3], tensor_content=b"\x01\x00\xc8\x01a" + long)
    assert found.tolist() == [b"a", b"", long]


@pytest.mark.parametrize(
    ("graph", "error"),
    [
        (tensor_graph(1, [3], tensor_content=b"\0" * 8), errors.InvalidArgumentError),
        (tensor_graph(1, [1], float_val=[1, 2]), errors.InvalidArgumentError),
        (tensor_graph(8, [2], scomplex_val=[1, 2, 3]), errors.InvalidArgumentError),
        (tensor_graph(7, [2], tensor_content=b"\x05\x05abc"), errors.InvalidArgumentError),
        (
            tensor_graph(7, [2], tensor_content=b"\xff" * 2_000_000),
            errors.InvalidArgumentError,
        ),  # rejected without delay
        (tensor_graph(7, [1], string_val=[b"", b""]), errors.InvalidArgumentError),
        (tensor_graph(10, [1], tensor_content=b"\x02"), errors.InvalidArgumentError),
        (tensor_graph(1, [1], int_val=[1]), errors.InvalidArgumentError),
        (tensor_graph(3, [-1], int_val=[1]), errors.InvalidArgumentError),
        (tensor_graph(3, [-7], int_val=[1]), errors.InvalidArgumentError),
        (tensor_graph(3, [1] * 70, int_val=[1]), errors.InvalidArgumentError),
        (tensor_graph(1, [2**20, 2**20], float_val=[1]), errors.ResourceExhaustedError),
        (tensor_graph(1, [2**40, 2**40], float_val=[1]), errors.OpError),
        (tensor_graph(7, [2**40], string_val=[b"a"]), errors.ResourceExhaustedError),
        (tensor_graph(20, [1]), errors.DTypeError),
        (tensor_graph(21, []), errors.DTypeError),
        (tensor_graph(0, []), errors.DTypeError),
        (tensor_graph(9999, []), errors.DTypeError),
    ],
)
def test_the_error_of_an_invalid_constant_names_its_node(graph: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        GraphDef.FromString(graph.SerializeToString())
    assert raised.value.node == "c"  # type: ignore[attr-defined]  # of OpError


def test_a_small_message_cannot_expand_to_large_constants() -> None:
    graph = protos.message("GraphDef")()
    for i in range(40):
        graph.node.add().CopyFrom(tensor_graph(1, [2**22], float_val=[i]).node[0])
    with pytest.raises(errors.ResourceExhaustedError):
        GraphDef.from_message(graph)


def test_reference_dtypes_become_their_base_dtypes() -> None:
    graph = protos.message("GraphDef")()
    graph.node.add(name="s", op="NoOp").attr["_T"].type = 101
    assert GraphDef.from_message(graph).nodes[0].attrs["_T"] is af.float32


def test_an_old_placeholder_has_no_shape() -> None:
    graph = protos.message("GraphDef")()
    node = graph.node.add(name="p", op="Placeholder")
    node.attr["dtype"].type = 1
    node.attr["shape"].shape.SetInParent()
    assert GraphDef.from_message(graph).nodes[0].attrs["shape"] == ()
    graph.versions.producer = 20
    assert GraphDef.from_message(graph).nodes[0].attrs["shape"] is None


def test_bytes_that_configure_the_runtime_are_left_out() -> None:
    graph = protos.message("GraphDef")()
    node = graph.node.add(name="p", op="StatefulPartitionedCall")
    node.attr["config_proto"].s = b"\x82\x01\x00"
    node.attr["f"].func.name = "f"
    assert GraphDef.from_message(graph).nodes[0].attrs == {"f": FunctionRef("f")}
    graph.node.add(name="q", op="Placeholder").attr["dtype"].s = b"\x82"
    with pytest.raises(errors.InvalidArgumentError, match="not text"):
        GraphDef.from_message(graph)


def test_a_graph_for_a_later_consumer_is_refused() -> None:
    graph = protos.message("GraphDef")()
    graph.versions.min_consumer = 10**6
    with pytest.raises(errors.UnimplementedError):
        GraphDef.from_message(graph)


@pytest.mark.parametrize(
    "text",
    [
        "signature { name: 'f' output_arg { name: 'y' type: DT_FLOAT } }",
        "signature { name: 'f' } node_def { name: 'n' op: 'NoOp' input: 'a:b:0' }",
        "signature { name: 'f' } node_def { name: 'n' op: 'Neg' } node_def { name: 'm' op: 'Neg' input: 'n:z:0' }",
        "signature { name: 'f' } node_def { name: 'n' op: 'Neg' } node_def { name: 'm' op: 'Neg' input: 'n:y:-1' }",
        "signature { name: 'f' } node_def { name: 'n' op: 'Split' } node_def { op: 'Neg' input: 'n:output:0' }",
        f"signature {{ name: 'f' }} node_def {{ name: 'n' op: 'Neg' input: 'n:y:{'9' * 5000}' }}",
        "signature { name: 'f' } node_def { name: '' op: 'Neg' }",
        "signature { name: '' }",
        "signature { name: 'f' attr { name: 'T' type: 'type' } }",
    ],
)
def test_invalid_functions_are_rejected(text: str) -> None:
    with pytest.raises(errors.OpError):
        GraphDef.FromString(f"library {{ function {{ {text} }} }}".encode())
