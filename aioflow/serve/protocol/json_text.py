"""Parsing of large JSON documents in pieces, without holding the GIL for long.

Python's own parser holds the GIL from the first byte to the last, which blocks the event loop for up to a tenth of a
second even if it runs in another thread. Small documents are parsed at once.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from json.scanner import py_make_scanner  # type: ignore[attr-defined]  # as old as the module
from typing import Any, Final, TypeAlias

PIECE: Final = 1024  # elements
_MARK: Final = b"\xef\xbb\xbf"  # byte order mark that some editors write
_SMALL: Final = 1 << 16  # bytes
_NUMBER: Final = r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_NUMBERS: Final = re.compile(rf"(?:{_NUMBER}[ \t\n\r]*,[ \t\n\r]*){{2,{PIECE}}}")
_SPACE: Final = re.compile(r"[ \t\n\r]*")


JsonObject: TypeAlias = dict[str, Any]  # an object of JSON


def parse_json(data: bytes) -> Any:
    """Parse UTF-8 text.

    Infinities in the text are the objects in `INFINITE`; all other infinities are numbers that are too large.

    Raises:
        ValueError, RecursionError: the text is not JSON.
    """
    text = data.removeprefix(_MARK).decode()
    return (_AT_ONCE if len(data) <= _SMALL else _InPieces()).decode(text)


def _object(members: list[tuple[str, object]]) -> dict[str, object]:
    """Return the members of an object by name.

    Raises ValueError for duplicate names: other parsers might use the other member.
    """
    found = dict(members)
    if len(found) < len(members):
        raise ValueError("an object contains a name twice")
    return found


INFINITE: Final = {"Infinity": math.inf, "-Infinity": -math.inf}
_CONSTANTS: Final = {"NaN": math.nan, **INFINITE}
_AT_ONCE: Final = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_CONSTANTS.__getitem__)


class _InPieces(json.JSONDecoder):
    """A decoder that scans arrays in Python, and parses runs of numbers in pieces."""

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=_object, parse_constant=_CONSTANTS.__getitem__)
        # The C scanner ignores `parse_array`; only the one in Python calls it.
        self.parse_array = _array
        self.scan_once = py_make_scanner(self)


def _array(text_and_begin: tuple[str, int], scan: Callable[[str, int], tuple[object, int]]) -> tuple[list[object], int]:
    """Parse the array whose elements begin at the given position. Return the array and the offset of its end."""
    text, at = text_and_begin
    values: list[object] = []
    at = _after_space(text, at)
    if text[at : at + 1] == "]":
        return values, at + 1
    while True:
        while numbers := _NUMBERS.match(text, at):
            # The match ends with a comma, which JSON does not allow before the bracket.
            values += json.loads(f"[{numbers[0].rstrip()[:-1]}]")
            at = numbers.end()
        try:
            value, at = scan(text, at)
        except StopIteration as stopped:
            raise json.JSONDecodeError("Expecting value", text, stopped.value) from None
        values.append(value)
        at = _after_space(text, at)
        following = text[at : at + 1]
        if following == "]":
            return values, at + 1
        if following != ",":
            raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
        at = _after_space(text, at + 1)


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()
