"""Encoding of gRPC inference responses: arrays to the bytes of a message."""

from __future__ import annotations

from typing import Final

from aioflow.graph.dtypes import as_dtype
from aioflow.serve.grpc.contents import FIELDS, to_contents
from aioflow.serve.grpc.fields import field_head
from aioflow.serve.grpc.messages import message
from aioflow.serve.protocol import InferResponse, datatype_of
from aioflow.serve.protocol.binary_data import Buffer, to_bytes

_RAW: Final = 6  # raw_output_contents of ModelInferResponse


def encode_answer(response: InferResponse, binary: bool) -> bytes:
    """Encode a response as a message. The outputs are copied only once.

    Args:
        response: The response.
        binary: Whether to send the outputs as bytes. All outputs are sent as bytes in any case if one has a dtype
            without a contents field.

    Raises:
        UnimplementedError: the protocol has no name for the dtype of an output.
    """
    found = {name: (array, as_dtype(array.dtype)) for name, array in response.outputs.items()}
    as_bytes = binary or any(dtype not in FIELDS for _, dtype in found.values())
    head = message("ModelInferResponse")(
        model_name=response.model_name, model_version=response.model_version, id=response.id
    )
    tails: list[Buffer] = []
    for name, (array, dtype) in found.items():
        entry = head.outputs.add(name=name, datatype=datatype_of(dtype, f"output {name!r}"), shape=array.shape)
        if not as_bytes:
            to_contents(array, dtype, entry.contents)
            continue
        data = to_bytes(array, dtype)
        tails += (field_head(_RAW, len(data)), data)
    return b"".join([head.SerializeToString(), *tails])
