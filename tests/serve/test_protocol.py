"""The Open Inference Protocol without I/O: decoding, encoding, and the status of every rejection."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioflow import errors
from aioflow.serve.protocol import (
    InferRequest,
    InferResponse,
    Limits,
    MalformedRequestError,
    TooLargeError,
    decode_request,
    encode_response,
    json_text,
    message_of,
    retry_after,
    status_of,
)
from aioflow.serve.protocol.schemas import FORMS, Form

NUMPY = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "FP16": np.float16,
    "BF16": ml_dtypes.bfloat16, "FP32": np.float32, "FP64": np.float64,
}  # fmt: skip
SMALL = Limits(body_bytes=4096, json_bytes=2048, rank=4, elements=1000, tensors=4)


def tensor(**changes: Any) -> dict[str, Any]:
    return {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]} | changes


def body(*inputs: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"inputs": list(inputs), **more}).encode()


def binary(head: dict[str, Any], *tails: bytes) -> tuple[bytes, int]:
    text = json.dumps(head).encode()
    return b"".join([text, *tails]), len(text)


# ── decoding ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("datatype", sorted(NUMPY))
@pytest.mark.parametrize("nested", [True, False])
def test_decode_numbers_in_json(datatype: str, nested: bool) -> None:
    wanted = np.arange(6).reshape(2, 3).astype(NUMPY[datatype])
    plain = wanted.astype(float).tolist() if datatype.startswith(("FP", "BF")) else wanted.tolist()
    data = plain if nested else np.ravel(plain).tolist()
    found = decode_request(body(tensor(shape=[2, 3], datatype=datatype, data=data))).inputs["x"]
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("datatype", sorted(NUMPY))
def test_decoded_bytes_are_a_view_of_the_body(datatype: str) -> None:
    wanted = np.arange(6).reshape(2, 3).astype(NUMPY[datatype])
    tail = wanted.tobytes()
    given = tensor(shape=[2, 3], datatype=datatype, parameters={"binary_data_size": len(tail)})
    del given["data"]
    data, length = binary({"inputs": [given]}, tail)
    found = decode_request(data, length).inputs["x"]
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)
    assert np.shares_memory(found, np.frombuffer(data, np.uint8))
    assert not found.flags.writeable


def test_strings_in_json_and_as_bytes() -> None:
    texts = [b"", "grüße".encode(), b"\xff\x00"]
    tail = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    head = {"name": "s", "shape": [3], "datatype": "BYTES", "parameters": {"binary_data_size": len(tail)}}
    data, length = binary({"inputs": [head]}, tail)
    found = decode_request(data, length).inputs["s"]
    assert found.tolist() == texts
    encoded = encode_response(InferResponse("m", "1", {"s": found}), ["s"])
    assert encoded.json_length is not None
    assert encoded.body[encoded.json_length :] == tail
    in_json = decode_request(body(tensor(shape=[2], datatype="BYTES", data=["a", "grüße"]))).inputs["x"]
    assert in_json.tolist() == [b"a", "grüße".encode()]
    assert json.loads(encode_response(InferResponse("m", "1", {"s": in_json})).body)["outputs"][0]["data"] == [
        "a",
        "grüße",
    ]
    with pytest.raises(MalformedRequestError, match="not UTF-8 text"):
        encode_response(InferResponse("m", "1", {"s": found}))


def test_binary_and_json_inputs_may_be_mixed() -> None:
    """Binary data is in the order in which its inputs are listed, whatever inputs are between them."""
    first, last = np.array([1.5, 2.5]), np.array([[True], [False]])
    data, length = binary(
        {
            "inputs": [
                {"name": "a", "shape": [2], "datatype": "FP64", "parameters": {"binary_data_size": 16}},
                tensor(),
                {"name": "c", "shape": [2, 1], "datatype": "BOOL", "parameters": {"binary_data_size": 2}},
                {"name": "d", "shape": [0, 3], "datatype": "INT8", "parameters": {"binary_data_size": 0}},
            ],
        },
        first.tobytes(),
        last.tobytes(),
    )
    found = decode_request(data, length).inputs
    assert list(found) == ["a", "x", "c", "d"]
    np.testing.assert_array_equal(found["a"], first)
    np.testing.assert_array_equal(found["c"], last)
    assert found["d"].shape == (0, 3)


def test_decode_parameters_and_outputs() -> None:
    request = decode_request(
        body(
            tensor(),
            id="17",
            parameters={"timeout": 250_000, "priority": 3, "binary_data_output": True, "own": "x"},
            outputs=[{"name": "a"}, {"name": "b", "parameters": {"binary_data": False}}],
        )
    )
    assert (request.id, request.timeout, request.priority, request.binary) == ("17", 0.25, 2, True)
    assert request.outputs is not None
    assert [(each.name, each.binary) for each in request.outputs] == [("a", True), ("b", False)]
    assert request.parameters["own"] == "x"
    plain = decode_request(body(tensor()))
    assert (plain.id, plain.timeout, plain.priority, plain.binary, plain.outputs) == ("", None, 0, False, None)
    assert decode_request(body(tensor(), outputs=[])).outputs is None


@pytest.mark.parametrize("datatype", sorted(NUMPY))
def test_encode_responses_in_json_and_as_bytes(datatype: str) -> None:
    array = np.array([[0, 1], [1, 0]]).astype(NUMPY[datatype]).T  # not in row-major order
    response = InferResponse("m", "2", {"y": array, "z": np.array(2.5, np.float32)}, "7")
    document = json.loads(encode_response(response).body)
    assert {**document, "outputs": None} == {"model_name": "m", "model_version": "2", "id": "7", "outputs": None}
    assert document["outputs"][0] == {"name": "y", "datatype": datatype, "shape": [2, 2], "data": [0, 1, 1, 0]}
    assert document["outputs"][1] == {"name": "z", "datatype": "FP32", "shape": [], "data": [2.5]}
    encoded = encode_response(response, ["y"])
    assert encoded.json_length is not None
    document = json.loads(encoded.body[: encoded.json_length])
    tail = encoded.body[encoded.json_length :]
    assert document["outputs"][0]["parameters"] == {"binary_data_size": len(tail)}
    np.testing.assert_array_equal(np.frombuffer(tail, array.dtype).reshape(2, 2), array)
    assert document["outputs"][1]["data"] == [2.5]


def test_id_of_any_text_is_returned() -> None:
    for text in ('"', "\ud800", "\u2028", "x" * 1000):
        request = decode_request(body(tensor(), id=text))
        answer = encode_response(InferResponse("m", "1", {}, request.id))
        assert json.loads(answer.body)["id"] == text


# ── rejections ───────────────────────────────────────────────────────────────────────────────────────────────────────

MALFORMED = {
    "no json": b"{",
    "not utf-8": b'{"inputs": "\xff"}',
    "deep": b'{"inputs": ' + b"[" * 100_000,
    **{
        f"nested {member}": b'{"inputs": [], %b: %b}' % (member.encode(), b"[" * 800 + b"]" * 800)
        for member in ('"id"', '"outputs"', '"parameters"', '"inputs"')
    },
    "nested name": b'{"inputs": [{"name": %b}]}' % (b"[" * 800 + b"]" * 800),
    "long number": b'{"inputs": ' + b"1" * 10_000 + b"}",
    "a list": b"[]",
    "utf-16": body(tensor()).decode().encode("utf-16"),
    "data twice": body(tensor()).replace(b'"data":', b'"data": [9, 9, 9, 9], "data":'),
    "large data twice": body(tensor()).replace(b'"data":', b'"data": [9, 9, 9, 9], "data":') + b" " * 70_000,
    "no inputs": b"{}",
    "inputs are an object": b'{"inputs": {}}',
    "an input is a number": b'{"inputs": [1]}',
    "no name": body(tensor(name="")),
    "name is a number": body(tensor(name=1)),
    "twice": body(tensor(), tensor()),
    "no datatype": body(tensor(datatype=None)),
    "datatype": body(tensor(datatype="FP8")),
    "datatype is a list": body(tensor(datatype=[])),
    "shape is a number": body(tensor(shape=4)),
    "negative": body(tensor(shape=[-1, 4])),
    "size is a bool": body(tensor(shape=[True, 4])),
    "size is a float": body(tensor(shape=[1.0, 4])),
    "fewer": body(tensor(data=[1, 2, 3])),
    "more": body(tensor(data=[1, 2, 3, 4, 5])),
    "ragged": body(tensor(data=[[1, 2], [3]])),
    "too deep": body(tensor(data=[[[1], [2]], [[3], [4]]])),
    "mixed": body(tensor(data=[1, 2, 3, [4]])),
    "an object": body(tensor(data={})),
    "null": body(tensor(data=[1, 2, 3, None])),
    "text": body(tensor(data=["1", "2", "3", "4"])),
    "bools as numbers": body(tensor(data=[True, False, 1, 0])),
    "numbers as bools": body(tensor(datatype="BOOL", data=[0, 1, 0, 1])),
    "fractions": body(tensor(datatype="INT32", data=[1.5, 2, 3, 4])),
    "beyond": body(tensor(datatype="UINT8", data=[256, 0, 0, 0])),
    "below": body(tensor(datatype="UINT64", data=[-1, 0, 0, 0])),
    "huge": body(tensor(datatype="INT64", data=[2**70, 0, 0, 0])),
    "huge float": body(tensor(data=[10**400, 0, 0, 0])),
    "beyond float32": body(tensor(data=[1e39, 0, 0, 0])),
    "beyond float64": body(tensor(datatype="FP64", data=[1, 2, 3, 4])).replace(b"4]", b"-1e400]"),
    "far beyond float32": body(tensor(data=[1, 2, 3, 4])).replace(b"4]", b"1e400]") + b" " * 70_000,
    "surrogate": b'{"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["\\ud800"]}]}',
    "no data": body({"name": "x", "shape": [1], "datatype": "FP32"}),
    "size without bytes": body(tensor(parameters={"binary_data_size": 4})),
    "parameters are a list": body(tensor(), parameters=[]),
    "id": body(tensor(), id=1),
    "timeout": body(tensor(), parameters={"timeout": "1"}),
    "negative timeout": body(tensor(), parameters={"timeout": -1}),
    "priority": body(tensor(), parameters={"priority": True}),
    "huge priority": body(tensor(), parameters={"priority": 2**64}),
    "flag": body(tensor(), parameters={"binary_data_output": 1}),
    "outputs": body(tensor(), outputs={}),
    "output twice": body(tensor(), outputs=[{"name": "y"}, {"name": "y"}]),
    "output flag": body(tensor(), outputs=[{"name": "y", "parameters": {"binary_data": "yes"}}]),
    "shared memory": body(tensor(parameters={"shared_memory_region": "r"})),
    "shared memory out": body(tensor(), outputs=[{"name": "y", "parameters": {"shared_memory_region": "r"}}]),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_requests_are_400(data: bytes) -> None:
    with pytest.raises(MalformedRequestError) as raised:
        decode_request(data)
    assert status_of(raised.value) == 400
    assert len(message_of(raised.value)) < 1000


@pytest.mark.parametrize("more", [b"", b" " * 70_000])
def test_infinities_and_nan_are_accepted(more: bytes) -> None:
    found = decode_request(body(tensor(data=[np.inf, -np.inf, np.nan, 1.0])) + more).inputs["x"]
    np.testing.assert_array_equal(found.ravel(), [np.inf, -np.inf, np.nan, 1.0])


def test_byte_order_mark_is_skipped() -> None:
    for more in (b"", b" " * 70_000):
        assert decode_request(b"\xef\xbb\xbf" + body(tensor()) + more).inputs.keys() == {"x"}


def test_binary_data_of_the_wrong_size_is_400() -> None:
    def given(size: Any, datatype: str = "FP32", shape: Any = (2,), tail: bytes = bytes(8)) -> tuple[bytes, int]:
        entry = {"name": "x", "shape": list(shape), "datatype": datatype, "parameters": {"binary_data_size": size}}
        return binary({"inputs": [entry]}, tail)

    assert decode_request(*given(8)).inputs["x"].shape == (2,)
    wrong = [
        given(7), given(9), given(-8), given(8.0), given("8"), given(True), given(2**70), given(4), given(8, tail=b""),
        given(8, tail=bytes(9)), given(8, shape=(3,)), given(0, shape=(2,)), given(2, "BOOL", tail=b"\x02\x01"),
        given(8, "BYTES", (3,)), given(8, "BYTES", (1,)), given(8, "BYTES", (1,), b"\xff\xff\xff\xffabcd"),
        given(8, "BYTES", (1,), b"\x05\0\0\0abcd"), given(8, "BYTES", (500_000,)),
    ]  # fmt: skip
    for data, length in wrong:
        with pytest.raises(MalformedRequestError):
            decode_request(data, length)
    data, length = given(8)
    for other in (-1, len(data) + 1, length - 1, length + 1, 0):
        with pytest.raises(MalformedRequestError):
            decode_request(data, other)


def test_excess_is_413_before_memory_is_allocated() -> None:
    too_much = [
        body(tensor(shape=[2**62, 2**62], data=[])),
        body(tensor(shape=[0, 10**18], data=[])),
        body(tensor(shape=[1] * 5, data=[1])),
        body(tensor(shape=[1001], data=[])),
        body(*[tensor(name=str(n), shape=[0], data=[]) for n in range(5)]),
        body(tensor(), outputs=[{"name": str(n)} for n in range(5)]),
        body(tensor(name="x" * 3000)),
    ]
    for data in too_much:
        with pytest.raises(TooLargeError) as raised:
            decode_request(data, limits=SMALL)
        assert status_of(raised.value) == 413
        assert retry_after(raised.value) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    ),
    st.sampled_from([None, 1]),
    st.integers(0, 200),
    st.integers(0, 255),
)
def test_large_json_is_parsed_like_json_loads(value: Any, indent: int | None, place: int, byte: int) -> None:
    """Compare the incremental parser with `json.loads`, for valid and invalid documents."""
    data = json.dumps([[1, -2.5, 3e-7] * 2000, value, list(range(3000)), [], {}], indent=indent).encode()
    assert json_text.parse_json(data + b" " * 70_000) == json.loads(data)
    broken = bytearray(data)
    broken[-1 - place % len(data)] = byte
    assert outcome(json_text.parse_json, bytes(broken) + b" " * 70_000) == outcome(at_once, bytes(broken))


def at_once(data: bytes) -> Any:
    return json.loads(data, object_pairs_hook=without_twins)


def without_twins(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in members:
        if name in found:
            raise ValueError(name)
        found[name] = value
    return found


def outcome(parse: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return repr(parse(data))
    except ValueError:
        return None


@given(st.data())
def test_random_mutations_are_decoded_or_rejected(data: st.DataObject) -> None:
    """Mutate a valid request by random values, bytes and lengths."""
    tail = np.arange(4, dtype=np.float32).tobytes()
    value = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    )
    entry = tensor(parameters={"binary_data_size": 16})
    del entry["data"]
    document: dict[str, Any] = {"inputs": [entry, tensor(name="z")], "outputs": [{"name": "y"}], "parameters": {}}
    for place in data.draw(st.lists(st.sampled_from([document, entry, entry["parameters"]]), max_size=3)):
        keys = [*place, "data", "id", "binary_data_size", "timeout", "priority"]
        place[data.draw(st.sampled_from(keys))] = data.draw(value)
    text = json.dumps(document).encode()
    whole = bytearray(text + tail)
    for _ in range(data.draw(st.integers(0, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    length = data.draw(st.sampled_from([len(text), None, 0, len(text) - 1, len(whole)]))
    found = decoded(bytes(whole), length)
    if isinstance(found, InferRequest):
        assert all(array.size <= SMALL.elements for array in found.inputs.values())
        encode_response(InferResponse("m", "1", found.inputs, found.id), list(found.inputs))
    else:
        assert status_of(found) in (400, 413)
        assert json.dumps(message_of(found))


def decoded(data: bytes, length: int | None) -> InferRequest | errors.OpError:
    try:
        return decode_request(data, length, SMALL)
    except (MalformedRequestError, TooLargeError) as error:
        return error


def test_published_schemas_admit_what_is_accepted() -> None:
    values: list[Any] = [None, True, 0, -1, 1.0, 2**63 - 1, 2**63, "", "FP32", "x", [], [0], [-1], [True], {}, [{}]]
    for name, form in FORMS.items():
        for member, schema in form.schema["properties"].items():
            for value in values:
                document = {**VALID[name], member: value}
                assert admits(schema, value) == is_accepted(form, document), (name, member, value)


VALID: dict[str, dict[str, Any]] = {
    "InputTensor": tensor(),
    "RequestedOutput": {"name": "y"},
    "InferRequest": {"inputs": []},
    "IndexRequest": {},
    "ExamplesRequest": {"examples": []},
    "PredictRequest": {},
    "GenerateRequest": {},
}
KINDS = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "null": type(None)}


def admits(schema: dict[str, Any], value: Any) -> bool:
    if "type" not in schema:
        return True  # a reference, or data
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    return (
        type(value) in {KINDS[kind] for kind in kinds}
        and (type(value) is not int or schema["minimum"] <= value <= schema.get("maximum", value))
        and (
            type(value) is not str
            or (len(value) >= schema.get("minLength", 0) and value in schema.get("enum", [value]))
        )
        and (type(value) is not list or all(admits(schema["items"], each) for each in value))
    )


def is_accepted(form: Form, document: dict[str, Any]) -> bool:
    try:
        form.check(document, "it")
    except MalformedRequestError:
        return False
    return True


# ── statuses ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_error_has_its_status() -> None:
    full = errors.ResourceExhaustedError("full")
    full.retry_after = 1.5
    expected = {
        MalformedRequestError("x"): 400,
        errors.DTypeError("x"): 400,
        errors.NotFoundError("x"): 404,
        TooLargeError("x"): 413,
        full: 429,
        errors.ResourceExhaustedError("a value would be too large"): 413,
        errors.UnavailableError("x"): 503,
        errors.ClosedSessionError("x"): 503,
        errors.DeadlineExceededError("x"): 504,
        errors.ClientDisconnectedError("x"): 499,
        errors.UnauthenticatedError("x"): 401,
        errors.PermissionDeniedError("x"): 403,
        errors.InternalError("x"): 500,
        errors.FailedPreconditionError("x"): 500,
        RuntimeError("/etc/secret"): 500,
    }
    assert {error: status_of(error) for error in expected} == expected
    assert retry_after(full) == 2
    assert retry_after(errors.UnavailableError("x")) == 1
    assert retry_after(errors.InvalidArgumentError("x")) is None


def test_error_details_do_not_reveal_paths() -> None:
    assert message_of(RuntimeError("/etc/secret")) == "internal error"
    source = errors.SourceLine("/home/me/model.py", 3, "f")
    error = errors.InvalidArgumentError("wrong rows", expected=2, actual=3).at("node", "MatMul", source)
    assert message_of(error) == "wrong rows; expected: 2; actual: 3; node: 'node'"
