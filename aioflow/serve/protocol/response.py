"""Encoding of REST responses: JSON, followed by the bytes of the tensors that were requested as binary."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import NamedTuple

from aioflow.graph.dtypes import as_dtype
from aioflow.memory.values import Array, Buffer
from aioflow.serve.protocol.binary_data import to_bytes
from aioflow.serve.protocol.datatypes import datatype_of
from aioflow.serve.protocol.json_data import Nan, to_json
from aioflow.serve.protocol.json_text import JsonObject
from aioflow.serve.protocol.messages import InferResponse


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
