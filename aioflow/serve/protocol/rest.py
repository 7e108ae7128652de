"""Decoding of REST requests and encoding of responses: JSON, followed by the bytes of the binary tensors."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from aioflow.graph.dtypes import as_dtype
from aioflow.memory.values import Array, Buffer
from aioflow.serve.protocol.binary_data import from_bytes, to_bytes
from aioflow.serve.protocol.datatypes import datatype_of
from aioflow.serve.protocol.errors import MalformedRequestError, TooLargeError
from aioflow.serve.protocol.json_data import Nan, from_json, to_json
from aioflow.serve.protocol.json_text import JsonObject, parse_json
from aioflow.serve.protocol.limits import Limits
from aioflow.serve.protocol.messages import (
    InferRequest,
    InferResponse,
    RequestedOutput,
    check_count,
    read_input,
    read_output,
    scheduling,
)
from aioflow.serve.protocol.schemas import FORMS, INPUT_PARAMETERS, OUTPUT_PARAMETERS, PARAMETERS, shown

# ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# Any input results in a request or an `OpError`. Everything is validated, and no more memory is allocated than the size
# of the body justifies.


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
        INPUT_PARAMETERS.check(parameters, f"input {name!r:.60}")
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
        OUTPUT_PARAMETERS.check(parameters, f"output {name!r:.60}")
        classes = parameters.get("classification", 0)
        found[name] = RequestedOutput(name, parameters.get("binary_data", binary), classes)
    return tuple(found.values()) or None


# ── responses ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class EncodedResponse(NamedTuple):
    """A body, and the length of its JSON in bytes; None if it is all JSON."""

    body: bytes
    json_length: int | None


def encode_response(response: InferResponse, binary: Collection[str] = (), nan: Nan = "error") -> EncodedResponse:
    """Encode a response. The outputs are copied only once.

    Args:
        response: The response.
        binary: The names of the outputs that are sent as bytes after the JSON.
        nan: The form of NaN and infinities, as in `ModelOptions.json_nan`.

    Raises:
        UnimplementedError: the protocol has no name for the dtype of an output.
        MalformedRequestError: a JSON output has strings that are not text, NaN or infinities.
    """
    tails: list[Buffer] = []
    outputs = [_output(name, array, name in binary, tails, nan) for name, array in response.outputs.items()]
    document: JsonObject = {"model_name": response.model_name, "model_version": response.model_version}
    if response.id:
        document["id"] = response.id
    head = f'{_dumped(document)[:-1]},"outputs":[{",".join(outputs)}]}}'.encode()
    if not binary:
        return EncodedResponse(head, None)
    return EncodedResponse(b"".join([head, *tails]), len(head))


def _output(name: str, array: Array, is_binary: bool, tails: list[Buffer], nan: Nan) -> str:
    """Return the JSON of an output. Append its bytes to `tails` if it is binary."""
    dtype = as_dtype(array.dtype)
    entry: JsonObject = {
        "name": name,
        "datatype": datatype_of(dtype, f"output {name!r}"),
        "shape": list(array.shape),
    }
    if not is_binary:
        return f'{_dumped(entry)[:-1]},"data":{to_json(array, dtype, name, nan)}}}'
    tails.append(to_bytes(array, dtype))
    entry["parameters"] = {"binary_data_size": len(tails[-1])}
    return _dumped(entry)


def _dumped(document: JsonObject) -> str:
    return json.dumps(document, separators=(",", ":"))
