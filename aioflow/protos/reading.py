"""Messages from bytes and text that may come from anywhere, and back."""

from __future__ import annotations

import re
from typing import Any, Final

from aioflow.errors import DataLossError
from aioflow.protos.messages import Message, message, pool

__all__ = ["parse", "parse_text", "read", "to_bytes", "to_text"]

# A file is text if it begins with the name of a field and what follows one. Binary ones begin with the tag of a field.
_TEXT: Final = re.compile(rb"(?:\xef\xbb\xbf)?(?:\s|#[^\n]*\n)*[a-z_]{3,}\s*[:{<]")


def parse(name: str, data: bytes) -> Message:
    """The message of that name which `data` encodes. Nested to a depth of at most 100, as protobuf has it.

    Raises:
        DataLossError: the bytes are no such message.
    """
    from google.protobuf.message import DecodeError

    try:
        return message(name).FromString(data)
    except DecodeError as error:
        raise DataLossError(f"not a {name}: {error}") from error


def parse_text(name: str, text: str | bytes) -> Message:
    """The message of that name which is written as text. An `Any` may hold each of the messages here.

    Raises:
        DataLossError: the text is no such message.
    """
    from google.protobuf import text_format

    try:
        decoded = text.decode() if isinstance(text, bytes) else text
        return text_format.Parse(decoded.removeprefix("\ufeff"), message(name)(), descriptor_pool=pool())
    except (text_format.ParseError, UnicodeDecodeError, TypeError, ValueError) as error:
        raise DataLossError(f"not a {name} as text: {error}") from error
    except RecursionError:
        raise DataLossError(f"not a {name} as text: nested too deeply") from None


def read(name: str, data: bytes) -> Message:
    """The message, from bytes or from text, whichever it is. Raises DataLossError."""
    return parse_text(name, data) if _TEXT.match(data) else parse(name, data)


def to_bytes(value: Message) -> bytes:
    """The bytes of a message: the same for equal ones."""
    data: bytes = value.SerializeToString(deterministic=True)
    return data


def to_text(value: Message) -> str:
    """A message as text that people can read."""
    from google.protobuf import text_format

    text: Any = text_format.MessageToString(value, descriptor_pool=pool())
    return str(text)
