"""Errors as data: an error of a peer is raised here as the same class of `aioflow.errors`.

Only text and numbers are sent, no objects. Each text is truncated, so that the whole fits into a header.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Mapping
from typing import Final

from aioflow import errors
from aioflow.arguments import brief
from aioflow.errors import CancelledError, DataLossError, DeadlineExceededError, OpError, SourceLine, UnknownError
from aioflow.net.framing import Document
from aioflow.net.limits import DEFAULT_LIMITS

_CLASSES: Final[Mapping[str, type[OpError]]] = {
    name: found
    for name in errors.__all__
    if isinstance(found := getattr(errors, name), type) and issubclass(found, OpError)
}


def encode_error(error: BaseException, room: int = DEFAULT_LIMITS.header_bytes) -> Document:
    """Return an error as a document for a header of at most `room` bytes, of which it uses at most three quarters.

    An error that is not an OpError becomes an UnknownError with the name of its class.
    """
    known = error if isinstance(error, OpError) else _translated(error)
    source = known.source
    # Errors of subclasses defined elsewhere are sent as their nearest public base class.
    name = next((c.__name__ for c in type(known).__mro__ if _CLASSES.get(c.__name__) is c), OpError.__name__)
    return {
        # The shares of the texts below add up to 11/16 of the room.
        "error": name,
        "message": _cut(known.message, room // 8),
        "node": _cut(known.node, room // 16),
        "op": _cut(known.op_type, room // 16),
        "source": source and [_cut(source.filename, room // 16), source.lineno, _cut(source.function, room // 16)],
        "expected": _cut(known.expected, room // 32),
        "actual": _cut(known.actual, room // 32),
        "applied": known.may_have_been_applied,
        "traceback": _cut("".join(traceback.format_exception(error)), room // 4, end=True),
    }


def _translated(error: BaseException) -> OpError:
    if isinstance(error, asyncio.CancelledError):
        return CancelledError("stopped")
    if isinstance(error, TimeoutError):
        return DeadlineExceededError(str(error) or "the time has run out")
    return UnknownError(f"{type(error).__name__}: {error}")


def _cut(value: object, most: int, end: bool = False) -> str | None:
    """Return the text of a value truncated to `most` bytes of UTF-8, keeping its start, or its end if `end` is set."""
    if value is None:
        return None
    encoded = str(value).encode("utf-8", "replace")
    if len(encoded) > most:
        encoded = b"..." + encoded[3 - most :] if end else encoded[: most - 3] + b"..."
    # The cut may split a character; the rest of its bytes is dropped.
    return encoded.decode("utf-8", "ignore")


def decode_error(document: Document, peer: str) -> OpError:
    """Return the error in a document, with "From <peer>: " before its message and the peer's traceback as a note.

    Raises:
        DataLossError: the document is malformed.
    """
    for key, (what, accepts) in _FIELDS.items():
        if key not in document or not accepts(document[key]):
            raise DataLossError(f"a malformed error from {peer}: {key}", expected=what, actual=brief(document.get(key)))
    error = _CLASSES[document["error"]](
        f"From {peer}: {document['message']}",
        node=document["node"],
        op_type=document["op"],
        source=document["source"] and SourceLine(*document["source"]),
        expected=document["expected"],
        actual=document["actual"],
    )
    if not document["applied"]:
        error.may_have_been_applied = False
    # A note, since a traceback of another process cannot become part of this one's.
    error.add_note(f"traceback at {peer}:\n{document['traceback']}")
    return error


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_optional_text(value: object) -> bool:
    return value is None or type(value) is str


def _is_source(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, list) and [type(item) for item in value] == [str, int, str]


_FIELDS: Final[Mapping[str, tuple[str, Callable[[object], bool]]]] = {
    "error": ("the name of an error", lambda value: _is_text(value) and value in _CLASSES),
    "message": ("text", _is_text),
    "node": ("text or none", _is_optional_text),
    "op": ("text or none", _is_optional_text),
    "source": ("file, line and function, or none", _is_source),
    "expected": ("text or none", _is_optional_text),
    "actual": ("text or none", _is_optional_text),
    "applied": ("whether updates may have been made", lambda value: type(value) is bool),
    "traceback": ("text", _is_text),
}
