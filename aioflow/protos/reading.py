"""Messages from bytes and text that may come from anywhere, and back."""

from __future__ import annotations

import re
from typing import Any, Final

from aioflow.errors import DataLossError
from aioflow.protos.messages import Message, message, pool

__all__ = ["parse", "parse_text", "read", "to_bytes", "to_text"]

# A file is text if it begins with the name of a field and what follows one. Binary ones begin with the tag of a field.
_TEXT: Final = re.compile(rb"(?:\xef\xbb\xbf)?(?:\s|#[^\n]*\n)*[a-z_]{3,}\s*[:{<]")

# Strings and comments of a text, and a string all of whose escapes are C's. The rest is read by protobuf, which lets
# Python decode strings: that only warns of an escape that it does not know, where TensorFlow refuses the text.
_PIECE: Final = re.compile(r"""#[^\n]*|"(?:[^"\\\n]++|\\.)*+"|'(?:[^'\\\n]++|\\.)*+'""")
_ESCAPED: Final = re.compile(r"""(?:[^\\]++|\\(?:[\\'"abfnrtvuUx]|[0-3][0-7]{0,2}|[4-7][0-7]?(?![0-7])))*+""")


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
        decoded = (text.decode() if isinstance(text, bytes) else text).removeprefix("\ufeff")
        _check_escapes(decoded)
        return text_format.Parse(decoded, message(name)(), descriptor_pool=pool())
    except (text_format.ParseError, UnicodeDecodeError, TypeError, ValueError) as error:
        raise DataLossError(f"not a {name} as text: {error}") from error
    except RecursionError:
        raise DataLossError(f"not a {name} as text: nested too deeply") from None


def _check_escapes(text: str) -> None:
    """Raise ValueError for a string with an escape that is none."""
    if "\\" not in text:
        return
    for piece in _PIECE.finditer(text):
        string = piece.group()
        if string[0] != "#" and "\\" in string and not _ESCAPED.fullmatch(string):
            line = text.count("\n", 0, piece.start()) + 1
            raise ValueError(f"{line}: a string has an escape that is none: {string[:60]}")


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
