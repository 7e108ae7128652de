"""Whether a number that somebody gives is one, and within its range: limits of time, counts, sizes."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from aioflow.checks.brief import brief
from aioflow.errors import DTypeError, InvalidArgumentError

__all__ = ["check_number", "check_seconds", "check_whole", "wrong_kind"]


def check_seconds(value: Any, what: str) -> None:
    """Raise unless `value`, which `what` names, is a time limit: None for no limit, or a number. 0 and less are over.

    Raises:
        DTypeError: it is not a number.
        InvalidArgumentError: it is NaN, or a number that no clock has.
    """
    if value is not None:
        check_number(value, what, "a number of seconds, or None")


def check_number(value: Any, what: str, expected: str = "a number", above: float | None = None) -> None:
    """Raise if this is not a number, is NaN, or is not above a bound. Raises as `check_seconds`."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise wrong_kind(value, what, expected)
    try:
        number = float(value)
    except OverflowError as error:
        raise InvalidArgumentError(f"{what} is too large", expected=expected, actual="an int of any size") from error
    if math.isnan(number):
        raise InvalidArgumentError(f"{what} is not a number", expected=expected, actual=value)
    if above is not None and not number > above:
        raise InvalidArgumentError(f"{what} is out of range", expected=f"more than {above:g}", actual=value)


def check_whole(value: Any, what: str, least: int) -> None:
    """Raise DTypeError if this is not an int, InvalidArgumentError if it is less than `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise wrong_kind(value, what, "an int")
    if int(value) < least:
        raise InvalidArgumentError(f"{what} is out of range", expected=f"at least {least}", actual=value)


def wrong_kind(value: Any, what: str, expected: str) -> DTypeError:
    """The error about a value, which `what` names, of a different type than is expected."""
    actual = f"{brief(value)} ({type(value).__name__})"
    return DTypeError(f"wrong type for {what}", expected=expected, actual=actual)
