"""The messages over gRPC without a network: the table of messages, decoding, rejections and encoding."""

from __future__ import annotations

import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aioflow import errors
from aioflow.errors import OpError
from aioflow.serve import Limits
from aioflow.serve.grpc.coding import decode_split, encode_answer, field_head, fields_of, split_request
from aioflow.serve.grpc.messages import MESSAGES, message, pool
from aioflow.serve.protocol import InferRequest, InferResponse, MalformedRequestError, TooLargeError, code_of, status_of
from tests.serve.triton_grpc import triton_grpc

FIELDS = {
    "BOOL": ("bool_contents", np.bool_),
    "INT8": ("int_contents", np.int8),
    "INT16": ("int_contents", np.int16),
    "INT32": ("int_contents", np.int32),
    "INT64": ("int64_contents", np.int64),
    "UINT8": ("uint_contents", np.uint8),
    "UINT16": ("uint_contents", np.uint16),
    "UINT32": ("uint_contents", np.uint32),
    "UINT64": ("uint64_contents", np.uint64),
    "FP32": ("fp32_contents", np.float32),
    "FP64": ("fp64_contents", np.float64),
}


def decoded(request: Any, **limits: int) -> InferRequest:
    data = request if isinstance(request, bytes) else request.SerializeToString()
    return decode_split(split_request(data, Limits(**limits)), Limits(**limits))


def asked(*inputs: dict[str, Any], **more: Any) -> Any:
    return message("ModelInferRequest")(model_name="m", inputs=inputs, **more)


def extremes(dtype: Any) -> Any:
    if np.dtype(dtype).kind in "iu":
        return np.array([[np.iinfo(dtype).min, np.iinfo(dtype).max]], dtype)
    return np.array([[0, 1]], dtype)


# ── decoding ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("datatype", FIELDS)
def test_every_datatype_as_numbers_and_as_bytes(datatype: str) -> None:
    field, dtype = FIELDS[datatype]
    array = extremes(dtype)
    typed = {"name": "x", "datatype": datatype, "shape": [1, 2], "contents": {field: array.ravel().tolist()}}
    found = decoded(asked(typed))
    raw = decoded(asked({**typed, "contents": None}, raw_input_contents=[array.tobytes()]))
    for request, binary in ((found, False), (raw, True)):
        assert request.binary is binary
        assert request.inputs["x"].dtype == dtype
        np.testing.assert_array_equal(request.inputs["x"], array)


def test_strings_and_half_precision() -> None:
    strings = {"name": "s", "datatype": "BYTES", "shape": [2], "contents": {"bytes_contents": [b"\xff", b""]}}
    assert decoded(asked(strings)).inputs["s"].tolist() == [b"\xff", b""]
    for datatype, dtype in (("FP16", np.float16), ("BF16", ml_dtypes.bfloat16)):
        half = {"name": "h", "datatype": datatype, "shape": [2]}
        array = np.array([1.5, -2], dtype)
        np.testing.assert_array_equal(decoded(asked(half, raw_input_contents=[array.tobytes()])).inputs["h"], array)
        with pytest.raises(MalformedRequestError) as raised:
            decoded(asked({**half, "contents": {"fp32_contents": [1.5, -2]}}))
        assert raised.value.expected == "raw_input_contents"


def test_raw_inputs_are_views_of_the_message() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    entry = {"name": "x", "datatype": "FP32", "shape": x.shape}
    data = asked(entry, raw_input_contents=[x.tobytes()]).SerializeToString()
    array = decoded(data).inputs["x"]
    assert np.shares_memory(array, np.frombuffer(data, np.uint8))


def test_fields_may_come_in_any_order_and_unknown_ones_are_skipped() -> None:
    x, y = np.ones(3, np.float32), np.zeros(2, np.float32)
    entries = [{"name": name, "datatype": "FP32", "shape": array.shape} for name, array in (("x", x), ("y", y))]
    head = asked(*entries, id="7").SerializeToString()
    parts = [field_head(7, 12), x.tobytes(), field_head(99, 3), b"abc", b"\xa0\x06\x07", head]
    request = decoded(b"".join([*parts, field_head(7, 8), y.tobytes()]))
    assert request.id == "7"
    np.testing.assert_array_equal(request.inputs["x"], x)
    np.testing.assert_array_equal(request.inputs["y"], y)


def test_parameters_and_outputs() -> None:
    request = asked(
        # Only JSON requests have parameters of this name, so here it may have any value.
        outputs=[{"name": "y", "parameters": {"binary_data": {"int64_param": 1}}}],
        parameters={"timeout": {"int64_param": 250_000}, "priority": {"uint64_param": 3}, "a": {"bool_param": True}},
    )
    found = decoded(request)
    assert (found.timeout, found.priority, found.parameters["a"]) == (0.25, 2, True)
    assert [each.name for each in found.outputs or ()] == ["y"]
    assert found.within(0.1).timeout == 0.1
    assert found.within(9).timeout == found.within(None).timeout == 0.25


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"shape": [1, 3]}, MalformedRequestError),
        ({"shape": [-2, -1]}, MalformedRequestError),
        ({"shape": [1 << 62, 1 << 62]}, TooLargeError),
        ({"shape": [0, 1 << 40]}, TooLargeError),
        ({"shape": [1] * 17}, TooLargeError),
        ({"datatype": "FP8"}, MalformedRequestError),
        ({"datatype": "FP64"}, MalformedRequestError),
        ({"name": ""}, MalformedRequestError),
        ({"contents": {"fp32_contents": [1, 2]}}, MalformedRequestError),
        ({"parameters": {"shared_memory_region": {"string_param": "r"}}}, MalformedRequestError),
    ],
)
def test_invalid_raw_inputs_are_rejected(change: dict[str, Any], kind: type[OpError]) -> None:
    right = {"name": "x", "datatype": "FP32", "shape": [1, 2]}
    assert decoded(asked(right, raw_input_contents=[bytes(8)])).inputs["x"].shape == (1, 2)
    with pytest.raises(kind):
        decoded(asked({**right, **change}, raw_input_contents=[bytes(8)]))


@pytest.mark.parametrize(
    ("datatype", "contents"),
    [
        ("INT8", {"int_contents": [128, 0]}),
        ("UINT16", {"uint_contents": [65536, 0]}),
        ("INT32", {"int_contents": [1]}),
        ("INT32", {"int64_contents": [1, 2]}),
        ("INT32", {"int_contents": [1, 2], "fp32_contents": [1, 2]}),
        ("BYTES", {"bytes_contents": [b""] * 3}),
        ("FP32", {}),
    ],
)
def test_invalid_typed_contents_are_rejected(datatype: str, contents: dict[str, Any]) -> None:
    with pytest.raises(MalformedRequestError):
        decoded(asked({"name": "x", "datatype": datatype, "shape": [2], "contents": contents}))


def test_invalid_requests_are_rejected() -> None:
    x = {"name": "x", "datatype": "UINT8", "shape": [1]}
    for request in (
        asked(x, raw_input_contents=[b"1", b"2"]),
        asked(x, x, raw_input_contents=[b"1", b"2"]),
        asked(x, {**x, "name": "y"}, raw_input_contents=[b"1"]),
        asked(outputs=[{"name": "y"}, {"name": "y"}]),
        asked(outputs=[{"name": "y", "parameters": {"classification": {"int64_param": -3}}}]),
        asked(parameters={"timeout": {"string_param": "1"}}),
        asked(parameters={"timeout": {}}),
    ):
        with pytest.raises(MalformedRequestError):
            decoded(request)


def test_excess_is_rejected_before_parsing() -> None:
    many = b"\x2a\x00" * 300  # inputs of two bytes, each of which becomes an object of protobuf
    for number in (5, 6, 7):
        with pytest.raises(TooLargeError, match="too many"):
            split_request(field_head(number, 0) * 257, Limits())
    with pytest.raises(TooLargeError, match="raw_input_contents"):
        split_request(field_head(3, 1000) + b"x" * 1000, Limits(json_bytes=999))
    assert len(split_request(many, Limits(tensors=300)).head.inputs) == 300


def test_scan_of_many_small_fields_stops_early() -> None:
    """A field may have two bytes: to scan a message of the largest size would hold the GIL for half a minute."""
    many = _Counted(asked().SerializeToString() + b"\x78\x00" * 100_000)
    with pytest.raises(TooLargeError, match="too many fields"):
        split_request(many, Limits())
    assert many.looked < 10_000


class _Counted(bytes):
    """Bytes that count the reads of items and slices."""

    looked = 0

    def __getitem__(self, key: Any) -> Any:
        self.looked += 1
        return super().__getitem__(key)


def test_bytes_that_are_not_a_message_are_rejected() -> None:
    for data in (b"\x0a", b"\x0a\x05ab", b"\x80" * 11, b"\x00\x00", b"\x0b", b"\x0d\x00", b"\x09\x00\x00", b"\x38\x01"):
        with pytest.raises(MalformedRequestError):
            split_request(data, Limits())
    random_bytes = random.Random(5)
    x = asked({"name": "x", "datatype": "FP32", "shape": [1, 2]}, raw_input_contents=[bytes(8)], id="1")
    whole = x.SerializeToString()
    for _ in range(3000):
        damaged = bytearray(whole[: random_bytes.randrange(len(whole) + 1)])
        for _ in range(random_bytes.randrange(3)):
            if damaged:
                damaged[random_bytes.randrange(len(damaged))] = random_bytes.randrange(256)
        try:
            request = decoded(bytes(damaged))
        except OpError as error:
            assert status_of(error) in (400, 413)  # noqa: PT017  # any error must be the client's
        else:
            assert all(array.nbytes <= len(damaged) for array in request.inputs.values())


# ── encoding ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_responses_as_bytes_and_as_numbers() -> None:
    outputs = {"y": np.array([[1.5, 2]], np.float32), "s": np.array([b"a", b""], object), "b": np.array([True])}
    answer = InferResponse("m", "3", outputs, "n")
    typed = message("ModelInferResponse").FromString(encode_answer(answer, False))
    assert [list(each.shape) for each in typed.outputs] == [[1, 2], [2], [1]]
    assert list(typed.outputs[0].contents.fp32_contents) == [1.5, 2]
    assert list(typed.outputs[1].contents.bytes_contents) == [b"a", b""]
    raw = message("ModelInferResponse").FromString(encode_answer(answer, True))
    assert list(raw.raw_output_contents) == [outputs["y"].tobytes(), b"\1\0\0\0a\0\0\0\0", b"\1"]
    assert (raw.model_name, raw.model_version, raw.id) == ("m", "3", "n")
    half = InferResponse("m", "3", {"y": outputs["y"], "h": np.ones(2, np.float16)})
    assert len(message("ModelInferResponse").FromString(encode_answer(half, False)).raw_output_contents) == 2
    with pytest.raises(errors.UnimplementedError):
        encode_answer(InferResponse("m", "3", {"c": np.ones(2, np.complex64)}), True)


def test_large_fields_have_long_heads() -> None:
    for size in (0, 127, 128, 1 << 20):
        (field,) = fields_of(field_head(6, size) + bytes(size))
        assert (field.number, field.end - field.inside) == (6, size)


# ── the table, and errors ────────────────────────────────────────────────────────────────────────────────────────────


_IN_PART = ("ModelConfig", "ModelInput", "ModelOutput", "ModelStatistics")


def test_message_table_equals_the_published_messages() -> None:
    """Compare number, name and type of every field with those that the independent client has compiled."""
    files = [triton_grpc(f".{name}").DESCRIPTOR for name in ("service_pb2", "model_config_pb2")]
    published = {name: each for file in files for name, each in file.message_types_by_name.items()}
    numbers = {each.name: each.number for each in files[1].enum_types_by_name["DataType"].values}
    ours = message("ModelInput").DESCRIPTOR.fields_by_name["data_type"].enum_type
    assert {each.name: each.number for each in ours.values} == numbers

    def shape(field: Any) -> Any:
        inner = field.message_type.full_name if field.message_type else ""
        return field.name, field.type, inner, field.is_repeated, getattr(field.containing_oneof, "name", "")

    lines = [line for line in MESSAGES.strip().splitlines() if not line.startswith((" ", "enum ", "service "))]
    heads = [line.partition(":")[0] for line in lines]
    assert len(heads) > 30
    for head in heads:
        theirs = published[head.partition(".")[0]]
        if "." in head:
            theirs = theirs.nested_types_by_name[head.partition(".")[2]]
        fields = {field.number: shape(field) for field in message(head).DESCRIPTOR.fields}
        wanted = {field.number: shape(field) for field in theirs.fields}
        assert fields == {number: wanted[number] for number in fields}, head
        assert fields.keys() == wanted.keys() or head in _IN_PART
    theirs = files[0].services_by_name["GRPCInferenceService"].methods_by_name
    for method in pool().FindServiceByName("inference.GRPCInferenceService").methods:
        same = theirs[method.name]
        assert method.input_type.full_name == same.input_type.full_name
        assert method.output_type.full_name == same.output_type.full_name


def test_errors_map_to_http_and_grpc_statuses() -> None:
    table = {
        errors.InvalidArgumentError: (400, 3),
        errors.NotFoundError: (404, 5),
        errors.DeadlineExceededError: (504, 4),
        errors.UnavailableError: (503, 14),
        errors.ClosedSessionError: (503, 14),
        errors.UnauthenticatedError: (401, 16),
        errors.InternalError: (500, 13),
        errors.DataLossError: (500, 15),
        TooLargeError: (413, 8),
        ValueError: (500, 13),
    }
    for kind, (status, code) in table.items():
        assert (status_of(kind("x")), code_of(kind("x"))) == (status, code), kind
