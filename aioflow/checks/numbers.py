"""Checks of numbers from users and of their range: time limits, counts, sizes."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from aioflow.checks.brief import brief
from aioflow.errors import DTypeError, InvalidArgumentError


def check_seconds(value: Any, what: str) -> None:
    """Raise unless `value`, which `what` names, is a time limit: a number, or None for no limit.

    A limit of 0 or less has already expired.

    Raises:
        DTypeError: it is not a number.
        InvalidArgumentError: it is NaN, or too large for a float.
    """
    if value is not None:
        check_number(value, what, "a number of seconds, or None")


def check_number(value: Any, what: str, expected: str = "a number", above: float | None = None) -> None:
    """Raise if `value` is not a number, is NaN, or is not above a bound. Raises as `check_seconds`."""
    # A bool is an int in Python, but as a number it is a mistake of the caller.
    if isinstance(value, bool) or not isinstance(value, Real):
        raise wrong_kind(value, what, expected)
    try:
        number = float(value)
    except OverflowError as error:
        raise InvalidArgumentError(f"{what} is too large", expected=expected, actual="an int of any size") from error
    # Every comparison with NaN is false, so a limit of NaN would have no meaning.
    if math.isnan(number):
        raise InvalidArgumentError(f"{what} is not a number", expected=expected, actual=value)
    if above is not None and not number > above:
        raise InvalidArgumentError(f"{what} is out of range", expected=f"more than {above:g}", actual=value)


def check_whole(value: Any, what: str, least: int) -> None:
    """Raise DTypeError if `value` is not an int, InvalidArgumentError if it is less than `least`."""
    # NumPy's integers are `Integral`, but not `int`.
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise wrong_kind(value, what, "an int")
    if int(value) < least:
        raise InvalidArgumentError(f"{what} is out of range", expected=f"at least {least}", actual=value)


def wrong_kind(value: Any, what: str, expected: str) -> DTypeError:
    """Return the error for a value of the wrong type; `what` names the value."""
    actual = f"{brief(value)} ({type(value).__name__})"
    return DTypeError(f"wrong type for {what}", expected=expected, actual=actual)
