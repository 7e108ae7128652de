"""Checks of the type of arguments, which raise DTypeError before anything else can fail."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aioflow.checks.numbers import wrong_kind


def check_kind(value: Any, kinds: type | tuple[type, ...], what: str, expected: str) -> None:
    """Raise DTypeError unless `value`, called `what` in the message, is of one of these kinds."""
    if not isinstance(value, kinds):
        raise wrong_kind(value, what, expected)


def check_text(value: Any, what: str) -> None:
    """Raise DTypeError if the value is not a str."""
    check_kind(value, str, what, "a str")


def check_list(value: Any, what: str) -> None:
    """Raise DTypeError if the value is neither a list nor a tuple."""
    check_kind(value, (list, tuple), what, "a list or a tuple")


def check_callable(value: Any, what: str) -> None:
    """Raise DTypeError if the value is not callable."""
    if not callable(value):
        raise wrong_kind(value, what, "a function")


def whole_number(value: Any, what: str) -> int:
    """Return the value as an int. Raises DTypeError if it is not a number."""
    if isinstance(value, str | bytes):
        raise wrong_kind(value, what, "an int")
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise wrong_kind(value, what, "an int") from error


def whole_numbers(values: Any, what: str) -> list[int]:
    """Return the values as a list of ints. Raises DTypeError for a single value, or if one is not a number."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise wrong_kind(values, what, "a list of ints")
    return [whole_number(value, what) for value in values]
