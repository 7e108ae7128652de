"""Numbers from text, by the rules of record formats: decimal, with blanks around, and within the dtype's range."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from aioflow.graph.dtypes import DType

__all__ = ["number_parser"]

_INTEGER: Final = re.compile(rb"\s*[+-]?[0-9]+\s*")
_FLOAT: Final = re.compile(
    # Possessive, so that a long text that is no number is not tried again from every digit.
    rb"\s*+[+-]?(?:(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:e[+-]?[0-9]++)?|inf(?:inity)?|nan)\s*+",
    re.IGNORECASE,
)


_LONGEST: Final = 4000  # digits: Python refuses to convert many more at once


def number_parser(dtype: DType) -> Callable[[bytes], Any]:
    """A function from text to a number of that dtype, or to None if the text is not a number."""
    if dtype.is_integer:
        return _integers(int(dtype.min), int(dtype.max))
    kind: Any = dtype.np_dtype.type

    def parse(text: bytes) -> Any:
        return kind(text.decode()) if _FLOAT.fullmatch(text) else None

    return parse


def _integers(low: int, high: int) -> Callable[[bytes], int | None]:
    def parse(text: bytes) -> int | None:
        if not _INTEGER.fullmatch(text) or len(text) > _LONGEST:
            return None
        value = int(text)
        return value if low <= value <= high else None

    return parse
