"""Decoding of REST requests: JSON, followed by the bytes of the binary tensors.

Any input results in a request or an `OpError`. Everything is validated, and no more memory is allocated than the size
of the body justifies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aioflow.memory.values import Array, Buffer
from aioflow.serve.protocol.binary_data import from_bytes
from aioflow.serve.protocol.errors import MalformedRequestError, TooLargeError
from aioflow.serve.protocol.json_data import from_json
from aioflow.serve.protocol.json_text import JsonObject, parse_json
from aioflow.serve.protocol.limits import Limits
from aioflow.serve.protocol.messages import InferRequest, Parameters, RequestedOutput, scheduling
from aioflow.serve.protocol.tensors import (
    check_count,
    check_input,
    check_output,
    kind,
    shown,
    tensor_dtype,
    tensor_name,
    tensor_shape,
)

_BINARY_SIZE: Final = "binary_data_size"


def decode_request(body: Buffer, json_length: int | None = None, limits: Limits | None = None) -> InferRequest:
    """Decode a body.

    Args:
        body: Bytes that must not change: the inputs are views of them.
        json_length: Length of the JSON in bytes, from the header `Inference-Header-Content-Length`; None for all.
        limits: The limits; None for the defaults.

    Raises:
        MalformedRequestError: the request violates the protocol.
        TooLargeError: the request exceeds the limits.
    """
    limits = limits or Limits()
    total = len(body)
    if json_length is None:
        json_length = total
    elif not 0 <= json_length <= total:
        raise MalformedRequestError(
            "Inference-Header-Content-Length is not within the body", expected=f"0 to {total}", actual=json_length
        )
    document = json_object(body if json_length == total else memoryview(body)[:json_length], limits)
    parameters = _parameters(document, "the request")
    timeout, priority = scheduling(parameters)
    inputs, end = _inputs(document, body, json_length, limits)
    if end != total:
        raise MalformedRequestError("the body is longer than its tensors", expected=f"{end} bytes", actual=total)
    binary = flag_of(parameters, "binary_data_output", "the request")
    return InferRequest(
        inputs, _outputs(document, binary, limits), _id(document), binary, timeout, priority, parameters
    )


def json_object(data: Buffer, limits: Limits) -> JsonObject:
    """Return the JSON object in a body. Raises as `decode_request`."""
    if len(data) > limits.json_bytes:
        raise TooLargeError(
            "the JSON of the request is too large; tensors may be sent as bytes behind it",
            expected=f"at most {limits.json_bytes} bytes",
            actual=len(data),
        )
    try:
        found = parse_json(bytes(data))
    except (ValueError, RecursionError) as error:
        raise MalformedRequestError("the request is not JSON", expected="a JSON object", actual=str(error)) from error
    if type(found) is not dict:
        raise MalformedRequestError("the request is not a JSON object", actual=kind(found))
    return found


def _inputs(document: JsonObject, body: Buffer, at: int, limits: Limits) -> tuple[dict[str, Array], int]:
    """Return the arrays by name, and the offset of the end of the last one's bytes."""
    found: dict[str, Array] = {}
    for entry in _entries(document, "inputs", limits, is_required=True):
        name = tensor_name(entry.get("name"), found, "input")
        dtype = tensor_dtype(entry.get("datatype"), name)
        shape = tensor_shape(entry.get("shape"), name, limits)
        parameters = _parameters(entry, f"input {name!r}")
        check_input(parameters, name)
        size = parameters.get(_BINARY_SIZE)
        if size is None:
            if "data" not in entry:
                raise MalformedRequestError(f"input {name!r} has no data", expected=f"data, or {_BINARY_SIZE}")
            found[name] = from_json(entry["data"], dtype, shape, name)
            continue
        if type(size) is not int or not 0 <= size <= len(body) - at or "data" in entry:
            raise MalformedRequestError(
                f"{_BINARY_SIZE} of input {name!r} is wrong",
                expected=f"0 to {len(body) - at}, the bytes that are left, and no data",
                actual=shown(size),
            )
        found[name] = from_bytes(body, at, size, dtype, shape, name)
        at += size
    return found, at


def _outputs(document: JsonObject, binary: bool, limits: Limits) -> tuple[RequestedOutput, ...] | None:
    if document.get("outputs") is None:
        return None
    found: dict[str, RequestedOutput] = {}
    for entry in _entries(document, "outputs", limits, is_required=False):
        name = tensor_name(entry.get("name"), found, "output")
        parameters = _parameters(entry, f"output {name!r}")
        check_output(parameters, name)
        own = flag_of(parameters, "binary_data", f"output {name!r}") if "binary_data" in parameters else binary
        found[name] = RequestedOutput(name, own)
    return tuple(found.values()) or None


# -- parts of the document --------------------------------------------------------------------------------------------


def _entries(document: JsonObject, key: str, limits: Limits, is_required: bool) -> Iterator[JsonObject]:
    entries = document.get(key)
    if type(entries) is not list or (is_required and not entries and key not in document):
        raise MalformedRequestError(f"{key!r} is not a list", expected="a list of tensors", actual=kind(entries))
    check_count(len(entries), key, limits)
    for entry in entries:
        if type(entry) is not dict:
            raise MalformedRequestError(f"an element of {key!r} is not an object", actual=kind(entry))
        yield entry


def _parameters(entry: JsonObject, what: str) -> JsonObject:
    found = entry.get("parameters")
    if found is None:
        return {}
    if type(found) is not dict:
        wrong = f"'parameters' of {what} is not an object"
        raise MalformedRequestError(wrong, expected="an object", actual=kind(found))
    return found


def flag_of(parameters: Parameters, key: str, what: str) -> bool:
    """Return a boolean member, false by default. Raises MalformedRequestError."""
    found = parameters.get(key, False)
    if type(found) is not bool:
        raise MalformedRequestError(f"{key!r} of {what} is wrong", expected="true or false", actual=shown(found))
    return found


def _id(document: JsonObject) -> str:
    found = document.get("id", "")
    if type(found) is not str:
        raise MalformedRequestError("the id of the request is not a text", expected="a text", actual=kind(found))
    return found
