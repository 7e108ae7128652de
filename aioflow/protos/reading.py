"""Parsing and serialization of messages. The input may come from an untrusted source."""

from __future__ import annotations

import re
from typing import Any, Final

from aioflow.errors import DataLossError
from aioflow.protos.messages import Message, message, pool

# A file is text if it begins with a field name and a delimiter. A binary file begins with the tag of a field.
_TEXT: Final = re.compile(rb"(?:\xef\xbb\xbf)?(?:\s|#[^\n]*\n)*[a-z_]{3,}\s*[:{<]")

# Strings and comments of a text, and a string whose escapes are all valid in C. They are checked here because protobuf
# leaves decoding to Python, which only warns of an unknown escape, whereas TensorFlow rejects the text.
_PIECE: Final = re.compile(r"""#[^\n]*|"(?:[^"\\\n]++|\\.)*+"|'(?:[^'\\\n]++|\\.)*+'""")
_ESCAPED: Final = re.compile(r"""(?:[^\\]++|\\(?:[\\'"abfnrtvuUx]|[0-3][0-7]{0,2}|[4-7][0-7]?(?![0-7])))*+""")


def parse(name: str, data: bytes) -> Message:
    """Return the message of that name that `data` encodes. protobuf limits nesting to a depth of 100.

    Raises:
        DataLossError: the bytes do not encode such a message.
    """
    from google.protobuf.message import DecodeError

    try:
        return message(name).FromString(data)
    except DecodeError as error:
        raise DataLossError(f"not a {name}: {error}") from error


def parse_text(name: str, text: str | bytes) -> Message:
    """Return the message of that name in text format. An `Any` may contain any message declared here.

    Raises:
        DataLossError: the text is not such a message.
    """
    from google.protobuf import text_format

    try:
        # An editor may have added a byte order mark, which protobuf's parser does not accept.
        decoded = (text.decode() if isinstance(text, bytes) else text).removeprefix("\ufeff")
        _check_escapes(decoded)
        return text_format.Parse(decoded, message(name)(), descriptor_pool=pool())
    except (text_format.ParseError, UnicodeDecodeError, TypeError, ValueError) as error:
        raise DataLossError(f"not a {name} as text: {error}") from error
    except RecursionError:
        raise DataLossError(f"not a {name} as text: nested too deeply") from None


def _check_escapes(text: str) -> None:
    """Raise ValueError if a string contains an invalid escape."""
    if "\\" not in text:
        return
    for piece in _PIECE.finditer(text):
        string = piece.group()
        if string[0] != "#" and "\\" in string and not _ESCAPED.fullmatch(string):
            line = text.count("\n", 0, piece.start()) + 1
            raise ValueError(f"{line}: a string has an invalid escape: {string[:60]}")


def read(name: str, data: bytes) -> Message:
    """Return the message, from bytes or text, detected by the content. Raise DataLossError if it is malformed."""
    return parse_text(name, data) if _TEXT.match(data) else parse(name, data)


def to_bytes(value: Message) -> bytes:
    """Return the bytes of a message; equal messages have equal bytes."""
    # Otherwise the entries of a map are written in any order.
    data: bytes = value.SerializeToString(deterministic=True)
    return data


def to_text(value: Message) -> str:
    """Return a message in protobuf's text format."""
    from google.protobuf import text_format

    text: Any = text_format.MessageToString(value, descriptor_pool=pool())
    return str(text)
