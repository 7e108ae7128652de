"""Decoding of REST requests: JSON, followed by the bytes of the binary tensors.

Any input results in a request or an `OpError`. Everything is validated, and no more memory is allocated than the size
of the body justifies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from aioflow.memory.values import Array, Buffer
from aioflow.serve.protocol.binary_data import from_bytes
from aioflow.serve.protocol.errors import MalformedRequestError, TooLargeError
from aioflow.serve.protocol.json_data import from_json
from aioflow.serve.protocol.json_text import JsonObject, parse_json
from aioflow.serve.protocol.limits import Limits
from aioflow.serve.protocol.messages import InferRequest, RequestedOutput, scheduling
from aioflow.serve.protocol.schemas import FORMS, PARAMETERS, shown
from aioflow.serve.protocol.tensors import check_count, read_input, read_output

_BINARY_SIZE: Final = "binary_data_size"
_REQUEST: Final = FORMS["InferRequest"]


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
    _REQUEST.check(document, "the request")
    parameters = document.get("parameters") or {}
    PARAMETERS.check(parameters, "the request")
    timeout, priority = scheduling(parameters)
    inputs, end = _inputs(document["inputs"], body, json_length, limits)
    if end != total:
        raise MalformedRequestError("the body is longer than its tensors", expected=f"{end} bytes", actual=total)
    binary = parameters.get("binary_data_output", False)
    outputs = _outputs(document.get("outputs") or (), binary, limits)
    return InferRequest(inputs, outputs, document.get("id", ""), binary, timeout, priority, parameters)


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
        raise MalformedRequestError("the request is not a JSON object", actual=shown(found))
    return found


def _inputs(entries: Sequence[Any], body: Buffer, at: int, limits: Limits) -> tuple[dict[str, Array], int]:
    """Return the arrays by name, and the offset of the end of the last one's bytes."""
    found: dict[str, Array] = {}
    check_count(len(entries), "inputs", limits)
    for entry in entries:
        name, dtype, shape, parameters = read_input(entry, found, limits)
        size = parameters.get(_BINARY_SIZE)
        if size is None:
            if "data" not in entry:
                raise MalformedRequestError(f"input {name!r} has no data", expected=f"data, or {_BINARY_SIZE}")
            found[name] = from_json(entry["data"], dtype, shape, name)
            continue
        if size > len(body) - at or "data" in entry:
            raise MalformedRequestError(
                f"{_BINARY_SIZE} of input {name!r} is wrong",
                expected=f"0 to {len(body) - at}, the bytes that are left, and no data",
                actual=shown(size),
            )
        found[name] = from_bytes(body, at, size, dtype, shape, name)
        at += size
    return found, at


def _outputs(entries: Sequence[Any], binary: bool, limits: Limits) -> tuple[RequestedOutput, ...] | None:
    found: dict[str, RequestedOutput] = {}
    check_count(len(entries), "outputs", limits)
    for entry in entries:
        name, parameters = read_output(entry, found)
        found[name] = RequestedOutput(name, parameters.get("binary_data", binary))
    return tuple(found.values()) or None
