"""JSON that is large, in pieces: Python's own functions hold the interpreter from the first byte to the last, which in
a thread beside an event loop would be a tenth of a second. What is small goes through them at once.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from json.scanner import py_make_scanner  # type: ignore[attr-defined]  # as old as the module
from typing import Any, Final

__all__ = ["INFINITE", "PIECE", "parse_json"]

PIECE: Final = 1024  # elements
_MARK: Final = b"\xef\xbb\xbf"  # of some editors
_SMALL: Final = 1 << 16  # bytes
_NUMBER: Final = r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_NUMBERS: Final = re.compile(rf"(?:{_NUMBER}[ \t\n\r]*,[ \t\n\r]*){{2,{PIECE}}}")
_SPACE: Final = re.compile(r"[ \t\n\r]*")


def parse_json(data: bytes) -> Any:
    """What a text in UTF-8 stands for. Infinities that it names are those of `INFINITE`; others are numbers too large.

    Raises:
        ValueError, RecursionError: it is no JSON.
    """
    text = data.removeprefix(_MARK).decode()
    return (_AT_ONCE if len(data) <= _SMALL else _InPieces()).decode(text)


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """The members of an object by name, of which none may be there twice: others would take the other one."""
    found = dict(members)
    if len(found) < len(members):
        raise ValueError("a name is there twice in an object")
    return found


INFINITE: Final = {"Infinity": math.inf, "-Infinity": -math.inf}
_CONSTANTS: Final = {"NaN": math.nan, **INFINITE}
_AT_ONCE: Final = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_CONSTANTS.__getitem__)


class _InPieces(json.JSONDecoder):
    """Has Python look at every array, and takes the numbers in it by the piece."""

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=_object, parse_constant=_CONSTANTS.__getitem__)
        self.parse_array = _array
        self.scan_once = py_make_scanner(self)


def _array(text_and_begin: tuple[str, int], scan: Callable[[str, int], tuple[Any, int]]) -> tuple[list[Any], int]:
    """The array whose elements begin there, and where it ends."""
    text, at = text_and_begin
    values: list[Any] = []
    at = _after_space(text, at)
    if text[at : at + 1] == "]":
        return values, at + 1
    while True:
        while numbers := _NUMBERS.match(text, at):
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
