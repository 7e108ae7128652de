"""The REST form of an answer: JSON, and behind it the bytes of the tensors that were asked for as such."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, NamedTuple

from aioflow.graph.dtypes import as_dtype
from aioflow.serve.protocol.binary_data import to_bytes
from aioflow.serve.protocol.datatypes import datatype_of
from aioflow.serve.protocol.json_data import Nan, to_json
from aioflow.serve.protocol.messages import InferResponse

__all__ = ["EncodedResponse", "encode_response"]


class EncodedResponse(NamedTuple):
    """A body, and how many bytes of it are JSON; None where all are."""

    body: bytes
    json_length: int | None


def encode_response(response: InferResponse, binary: Collection[str] = (), nan: Nan = "error") -> EncodedResponse:
    """An answer as bytes. The outputs are copied once, into them.

    Args:
        binary: The names of the outputs that go behind the JSON.
        nan: As of `ModelOptions.json_nan`.

    Raises:
        UnimplementedError: the protocol has no name for the type of an output.
        MalformedRequestError: strings that are not text, NaN or infinities were not asked for as bytes.
    """
    tails: list[Any] = []
    outputs = [_output(name, array, name in binary, tails, nan) for name, array in response.outputs.items()]
    document: dict[str, Any] = {"model_name": response.model_name, "model_version": response.model_version}
    if response.id:
        document["id"] = response.id
    head = f'{_dumped(document)[:-1]},"outputs":[{",".join(outputs)}]}}'.encode()
    if not binary:
        return EncodedResponse(head, None)
    return EncodedResponse(b"".join([head, *tails]), len(head))


def _output(name: str, array: Any, is_binary: bool, tails: list[Any], nan: Nan) -> str:
    """An output in the JSON; its bytes, if it goes as such, are put behind `tails`."""
    dtype = as_dtype(array.dtype)
    entry: dict[str, Any] = {
        "name": name,
        "datatype": datatype_of(dtype, f"output {name!r}"),
        "shape": list(array.shape),
    }
    if not is_binary:
        return f'{_dumped(entry)[:-1]},"data":{to_json(array, dtype, name, nan)}}}'
    tails.append(to_bytes(array, dtype))
    entry["parameters"] = {"binary_data_size": len(tails[-1])}
    return _dumped(entry)


def _dumped(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))
