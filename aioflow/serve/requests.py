"""Reading of ASGI requests within their limits, and sending of responses."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from aioflow.errors import ClientDisconnectedError, DeadlineExceededError
from aioflow.serve.memory_limits import HeldBytes
from aioflow.serve.protocol import (
    Limits,
    MalformedRequestError,
    TooLargeError,
    UnknownEncodingError,
    message_of,
    retry_after,
    status_of,
)

JSON: Final = b"application/json"
_PIECE: Final = 1 << 18  # bytes of a decompressed or sent piece
_SENT_PIECE: Final = 1 << 16  # bytes of a compressed piece
_PLAIN: Final = (b"", b"identity")
# The `wbits` argument of zlib, which selects the format.
_COMPRESSED: Final[Mapping[bytes, int]] = {b"gzip": 31, b"deflate": 15}
_ACCEPTED: Final = b", ".join(_COMPRESSED)


def path_of(scope: Scope) -> str:
    """Return the path of a request within this application, without the prefix where it is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def header(scope: Scope, name: bytes) -> bytes:
    """Return the value of a header, stripped, or b"" if it is missing.

    Raises:
        MalformedRequestError: the header occurs more than once.
    """
    found = [value for key, value in scope["headers"] if key == name]
    if len(found) > 1:
        raise MalformedRequestError(f"the header {name.decode()} occurs more than once", expected="once")
    return found[0].strip(b" \t") if found else b""


def whole_header(scope: Scope, name: bytes) -> int | None:
    """Return the value of a numeric header, or None if it is missing. Raises MalformedRequestError."""
    value = header(scope, name)
    if not value:
        return None
    if not value.isdigit() or len(value) > 18:
        raise MalformedRequestError(
            f"invalid value of the header {name.decode()}", expected="a whole number", actual=repr(value[:40])
        )
    return int(value)


async def read_body(scope: Scope, receive: Receive, limits: Limits, held: HeldBytes) -> bytes | memoryview:
    """Return the body of a request, read-only and decompressed.

    Raises:
        UnknownEncodingError: it is compressed, but not by gzip or deflate.
        MalformedRequestError: it does not match its Content-Encoding.
        TooLargeError: it is too large, before or after decompression.
        DeadlineExceededError, ResourceExhaustedError, ClientDisconnectedError: as in `_sent_body`.
    """
    encoding = header(scope, b"content-encoding").lower()
    if encoding in _PLAIN:
        return await _sent_body(scope, receive, limits, held)
    if encoding not in _COMPRESSED:
        raise UnknownEncodingError(
            "unsupported Content-Encoding of the request", expected=_ACCEPTED.decode(), actual=repr(encoding[:40])
        )
    return await _decompressed(await _sent_body(scope, receive, limits, held), _COMPRESSED[encoding], limits, held)


async def _decompressed(sent: bytes | memoryview, form: int, limits: Limits, held: HeldBytes) -> memoryview:
    """Decompress a body in pieces, up to the limit: a few bytes may expand to very many.

    Other tasks can run after each piece.
    """
    body, stream, compressed, at = bytearray(), zlib.decompressobj(form), memoryview(sent), 0
    try:
        for at in range(0, len(compressed), _SENT_PIECE):
            rest: bytes | memoryview = compressed[at : at + _SENT_PIECE]
            # `max_length` bounds each piece; the input that was not used waits in `unconsumed_tail`.
            while piece := stream.decompress(rest, _PIECE):
                rest = stream.unconsumed_tail
                held.take(len(piece))
                body += piece
                if len(body) > limits.body_bytes:
                    raise _too_large(limits, len(body))
                await asyncio.sleep(0)
            if stream.eof:
                break  # trailing data is rejected below
            await asyncio.sleep(0)
    except zlib.error as error:
        raise MalformedRequestError(
            "the request body does not match its Content-Encoding", actual=str(error)
        ) from error
    if not stream.eof or stream.unused_data or at + _SENT_PIECE < len(compressed):
        raise MalformedRequestError(
            "the request body does not match its Content-Encoding", expected="one complete stream"
        )
    return memoryview(body).toreadonly()


async def _sent_body(scope: Scope, receive: Receive, limits: Limits, held: HeldBytes) -> bytes | memoryview:
    """Return the body as it was sent.

    Raises:
        TooLargeError: it exceeds the limit; the excess is not stored.
        DeadlineExceededError: it does not arrive in time.
        ResourceExhaustedError: other requests use the available memory.
        ClientDisconnectedError: the client has disconnected.
    """
    length = whole_header(scope, b"content-length")
    if length is not None and length > limits.body_bytes:
        raise _too_large(limits, length)
    # A body that arrives in one message is returned without a copy.
    message = await _message(receive, limits)
    first: bytes = message.get("body", b"")
    held.take(len(first))
    if not message.get("more_body"):
        if len(first) > limits.body_bytes:
            raise _too_large(limits, len(first))
        return first
    # One growing buffer: joining many pieces would need twice the memory, and the freed pieces, scattered between those
    # of other requests, would fragment the heap.
    body, total = bytearray(first), len(first)
    try:
        async with asyncio.timeout(limits.body_seconds):
            while message.get("more_body"):
                if total > limits.body_bytes:
                    raise _too_large(limits, total)
                message = await _message(receive, None)
                piece = message.get("body", b"")
                held.take(len(piece))
                body += piece
                total += len(piece)
    except TimeoutError as error:
        raise _too_slow(limits) from error
    if total > limits.body_bytes:
        raise _too_large(limits, total)
    return memoryview(body).toreadonly()


async def _message(receive: Receive, limits: Limits | None) -> Message:
    if limits is None:
        message = await receive()
    else:
        try:
            async with asyncio.timeout(limits.body_seconds):
                message = await receive()
        except TimeoutError as error:
            raise _too_slow(limits) from error
    if message["type"] == "http.disconnect":
        raise ClientDisconnectedError("the client disconnected during its request")
    return message


def _too_large(limits: Limits, length: int) -> TooLargeError:
    return TooLargeError("the request is too large", expected=f"at most {limits.body_bytes} bytes", actual=length)


def _too_slow(limits: Limits) -> DeadlineExceededError:
    return DeadlineExceededError(
        "the request body did not arrive in time", expected=f"the whole body within {limits.body_seconds} s"
    )


# ── responses ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def answer(
    to: Send, status: int, body: bytes, kind: bytes = JSON, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Send a whole response, in pieces if it is large, so that the server never buffers more than one unread piece."""
    lines = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *headers]
    await to({"type": "http.response.start", "status": status, "headers": lines})
    if len(body) > _PIECE:
        for at in range(0, len(body), _PIECE):
            await to({"type": "http.response.body", "body": body[at : at + _PIECE], "more_body": True})
        body = b""
    await to({"type": "http.response.body", "body": body})


async def answer_json(to: Send, document: object, status: int = 200) -> None:
    """Send a JSON document."""
    await answer(to, status, json.dumps(document, separators=(",", ":")).encode())


async def answer_error(to: Send, error: BaseException, close: bool = False) -> None:
    """Send an error in the protocol's form.

    Args:
        to: The connection.
        error: The error.
        close: Whether to close the connection, because a part of the request is still unread.
    """
    headers = []
    after = retry_after(error)
    if after is not None:
        headers.append((b"retry-after", b"%d" % after))
    status = status_of(error)
    if status == 415:
        headers.append((b"accept-encoding", _ACCEPTED))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if close:
        headers.append((b"connection", b"close"))
    body = json.dumps({"error": message_of(error)}).encode()
    await answer(to, status, body, headers=headers)
