"""Parsing of decimal numbers in text formats: surrounding blanks are allowed, and integers must fit the dtype."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from aioflow.graph.dtypes import DType

_INTEGER: Final = re.compile(rb"\s*[+-]?[0-9]+\s*")
_FLOAT: Final = re.compile(
    # Possessive quantifiers: a long text that is not a number is not matched again from each digit.
    rb"\s*+[+-]?(?:(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:e[+-]?[0-9]++)?|inf(?:inity)?|nan)\s*+",
    re.IGNORECASE,
)


_LONGEST: Final = 4000  # in digits: Python refuses to convert much longer texts to int


def number_parser(dtype: DType) -> Callable[[bytes], Any]:
    """Return a function that parses text as a number of `dtype`, or returns None if the text is not such a number."""
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
