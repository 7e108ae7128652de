"""Server reflection: the services and their file descriptors, for clients without the messages, such as grpcurl.

The package grpcio-reflection supports v1alpha only, and puts its messages into the default pool, which a client in this
process also uses.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aioflow.errors import NotFoundError, OpError, UnimplementedError
from aioflow.serve.grpc.messages import Fields, Message, pool
from aioflow.serve.protocol import code_of, said_of


def reflected(request: Message, services: Iterable[str]) -> Fields:
    """Return the fields of the response to a ServerReflectionRequest. Errors are part of the response."""
    try:
        answer = _answer(request, services)
    except OpError as error:
        answer = {"error_response": {"error_code": code_of(error), "error_message": said_of(error)}}
    return {"valid_host": request.host, "original_request": request, **answer}


def _answer(request: Message, services: Iterable[str]) -> Fields:
    kind = request.WhichOneof("message_request")
    if kind == "list_services":
        return {"list_services_response": {"service": [{"name": each} for each in sorted(services)]}}
    if kind not in ("file_by_filename", "file_containing_symbol"):
        raise UnimplementedError("files and their symbols are all that is known", actual=str(kind))
    asked = getattr(request, kind)
    try:
        file = pool().FindFileByName(asked) if kind == "file_by_filename" else _containing(asked)
    except KeyError as error:
        raise NotFoundError("there is no such file or symbol", actual=asked[:80]) from error
    # One file suffices: the files import no others.
    return {"file_descriptor_response": {"file_descriptor_proto": [file.serialized_pb]}}


def _containing(symbol: str) -> Any:
    """Return the file that declares a symbol. Raises KeyError."""
    try:
        return pool().FindFileContainingSymbol(symbol)
    except KeyError:
        # The pool does not find methods as symbols.
        return pool().FindMethodByName(symbol).containing_service.file
