"""The Open Inference Protocol, version 2, without I/O: bytes to requests, and arrays to bytes.

`request` and `response` implement the REST form with its binary tensors. All transports share the rest: requests
(`InferRequest`), responses (`InferResponse`), `datatypes`, limits (`Limits`), checks of tensors (`tensors`), and the
mapping of errors to statuses (`errors`).
"""

from aioflow.serve.protocol.datatypes import DATATYPES, datatype_of, spelled
from aioflow.serve.protocol.errors import (
    MalformedRequestError,
    TooLargeError,
    UnknownEncodingError,
    code_of,
    retry_after,
    said_of,
    status_of,
)
from aioflow.serve.protocol.limits import Limits
from aioflow.serve.protocol.messages import InferRequest, InferResponse, RequestedOutput
from aioflow.serve.protocol.rest import EncodedResponse, decode_request, encode_response

__all__ = [
    "DATATYPES",
    "EncodedResponse",
    "InferRequest",
    "InferResponse",
    "Limits",
    "MalformedRequestError",
    "RequestedOutput",
    "TooLargeError",
    "UnknownEncodingError",
    "code_of",
    "datatype_of",
    "decode_request",
    "encode_response",
    "retry_after",
    "said_of",
    "spelled",
    "status_of",
]
