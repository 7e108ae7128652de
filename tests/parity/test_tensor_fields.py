"""Constants of every dtype in each form of a TensorProto, against TensorFlow: read, and written again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.formats.tensor_proto import decode_tensor
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.graphdef import GraphDef
from aioflow.saved.stored_weights import with_constants, without_constants

DTYPES = [t for t in dtypes.ALL if t.is_plain or t.is_quantized if t is not dtypes.float8_e8m0fnu]


def values_of(dtype: DType, shape: list[int]) -> Any:
    count = int(np.prod(shape))
    signed = np.arange(count) % 3 - (0 if dtype.is_unsigned or dtype.name.startswith("quint") else 1)
    if dtype.name in ("int2", "uint2"):
        signed = signed % 2
    return signed.reshape(shape).astype(dtype.np_dtype)


def graph_of(proto: Any) -> Any:
    from tensorflow.core.framework import graph_pb2

    graph = graph_pb2.GraphDef()
    node = graph.node.add(name="c", op="Const")
    node.attr["dtype"].type = proto.dtype
    node.attr["value"].tensor.CopyFrom(proto)
    return graph


def read_both(proto: Any, dtype: DType) -> Any:
    """Read the tensor by both of our readers, and check that TensorFlow reads the same after we write it."""
    import tensorflow as tf

    read = GraphDef.FromString(graph_of(proto).SerializeToString())
    found: Any = read.nodes[0].attrs["value"]
    assert found.dtype is dtype
    array = found.to_array()
    np.testing.assert_array_equal(decode_tensor(proto.SerializeToString(), dtype), array)
    again = tf.compat.v1.GraphDef.FromString(read.SerializeToString()).node[0].attr["value"].tensor
    assert again.dtype == proto.dtype
    assert tf.make_ndarray(again).tobytes() == array.tobytes()
    return array


def theirs(proto: Any, dtype: DType) -> Any:
    """Return the tensor as TensorFlow's runtime reads it."""
    import tensorflow as tf

    parsed = tf.io.parse_tensor(proto.SerializeToString(), tf.as_dtype(proto.dtype)).numpy()
    return np.frombuffer(parsed.tobytes(), dtype.np_dtype).reshape(parsed.shape)


@pytest.mark.parametrize("shape", [[], [1], [2, 3], [0, 2]], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_make_tensor_proto(dtype: DType, shape: list[int]) -> None:
    tf = pytest.importorskip("tensorflow")
    their = tf.as_dtype(dtype.as_datatype_enum)
    values = values_of(dtype, shape)
    if "fnuz" in dtype.name and values.size < 2:
        pytest.skip("make_tensor_proto has no single element of it")
    proto = tf.make_tensor_proto(values.view(their.as_numpy_dtype), their, shape)
    np.testing.assert_array_equal(read_both(proto, dtype), values)


@pytest.mark.parametrize("given", [0, 1, 3, 4])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_last_element_fills_the_rest(dtype: DType, given: int) -> None:
    tf = pytest.importorskip("tensorflow")
    proto = tf.make_tensor_proto(0)
    proto.Clear()
    proto.dtype = dtype.as_datatype_enum
    proto.tensor_shape.dim.add(size=2)
    proto.tensor_shape.dim.add(size=2)
    values = values_of(dtype, [given])
    if dtype.is_complex:
        field = "scomplex_val" if dtype is dtypes.complex64 else "dcomplex_val"
        getattr(proto, field).extend(values.view(values.real.dtype).tolist())
    elif dtype.is_narrow and dtype.is_floating:
        proto.float8_val = values.tobytes()
    elif dtype.name in ("float16", "bfloat16"):
        proto.half_val.extend(values.view(np.uint16).tolist())
    else:
        own = {"float32": "float_val", "float64": "double_val", "int64": "int64_val", "bool": "bool_val"}
        field = {**own, "uint32": "uint32_val", "uint64": "uint64_val"}.get(dtype.name, "int_val")
        getattr(proto, field).extend(values.astype(bool if field == "bool_val" else values.dtype).tolist())
    found = read_both(proto, dtype)
    np.testing.assert_array_equal(found, theirs(proto, dtype))


@pytest.mark.parametrize(
    ("dtype", "value"), [("int8", -129), ("uint8", 256), ("int16", 2**15), ("uint16", -1), ("quint8", -1)]
)
def test_too_large_integers_lose_their_high_bits(dtype: str, value: int) -> None:
    tf = pytest.importorskip("tensorflow")
    kind = dtypes.as_dtype(dtype)
    proto = tf.make_tensor_proto([0], tf.as_dtype(kind.as_datatype_enum) if not kind.is_quantized else tf.int32)
    proto.Clear()
    proto.dtype = kind.as_datatype_enum
    proto.tensor_shape.dim.add(size=1)
    proto.int_val.append(value)
    np.testing.assert_array_equal(read_both(proto, kind), theirs(proto, kind))


def test_half_values_of_more_than_16_bits() -> None:
    tf = pytest.importorskip("tensorflow")
    proto = tf.make_tensor_proto([1.0], tf.float16)
    proto.Clear()
    proto.dtype = 19
    proto.tensor_shape.dim.add(size=2)
    proto.half_val.extend([0x13C00, -1])
    np.testing.assert_array_equal(read_both(proto, dtypes.float16), theirs(proto, dtypes.float16))


@pytest.mark.parametrize("dtype", [t for t in DTYPES if t.is_quantized or t.is_narrow], ids=str)
async def test_constant_keeps_its_dtype_through_a_graph(dtype: DType) -> None:
    """Import a constant, fetch it, and export it with its own dtype."""
    tf = pytest.importorskip("tensorflow")
    their = tf.as_dtype(dtype.as_datatype_enum)
    values = values_of(dtype, [5000])
    proto = tf.make_tensor_proto(values.view(their.as_numpy_dtype), their, [5000])
    with af.Graph().as_default() as graph:
        (made,) = af.import_graph_def(GraphDef.FromString(graph_of(proto).SerializeToString()), return_elements=["c:0"])
        same = af.identity(made)
        async with af.Session() as session:
            np.testing.assert_array_equal(await session.run(same), values)
        definition = graph.as_graph_def()
    assert same.dtype is dtype
    assert with_constants(*_kept(definition)) == definition
    again = tf.compat.v1.GraphDef.FromString(definition.SerializeToString())
    with tf.Graph().as_default():
        tf.import_graph_def(again, name="")
    (written,) = [node.attr["value"].tensor for node in again.node if node.op == "Const"]
    assert written.dtype == dtype.as_datatype_enum
    assert tf.make_ndarray(written).tobytes() == values.tobytes()


def _kept(definition: GraphDef) -> tuple[GraphDef, Any]:
    without, values = without_constants(definition)
    return without, values.__getitem__
