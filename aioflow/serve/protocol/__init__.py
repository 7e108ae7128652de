"""The Open Inference Protocol, version 2, without I/O: bytes to requests, and arrays to bytes.

`rest` implements the REST form, with tensors as JSON (`json_data`) or as bytes (`binary_data`). `tf_rest` implements
TensorFlow Serving's REST API, which has other messages for the same requests. All transports
share the other modules: requests, responses and checks of their tensors (`messages`), `datatypes`, limits (`Limits`),
and the mapping of errors to statuses (`errors`).
"""

from aioflow.serve.protocol.datatypes import DATATYPES, datatype_of, spelled
from aioflow.serve.protocol.errors import (
    MalformedRequestError,
    TooLargeError,
    UnknownEncodingError,
    code_of,
    message_of,
    retry_after,
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
    "message_of",
    "retry_after",
    "spelled",
    "status_of",
]
