"""Checks of arguments, which raise before anything else can fail, and the display of values and names in messages."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any, Final

from aioflow.errors import DTypeError, InvalidArgumentError

_CUTOFF: Final = 0.7  # of difflib's ratio: names less similar than this mislead
_SHORT_CUTOFF: Final = 0.66  # for names of up to three letters, where one letter is a third of the name
_COUNT: Final = 3


def brief(value: Any, most: int = 80) -> str:
    """Return `repr` of the value, truncated to `most` characters."""
    if isinstance(value, list | tuple) and len(value) > most:
        value = value[:most]  # formatting all of it would be slow
    try:
        text = repr(value)
    # `repr` handles a list that contains itself, but not one that is nested more deeply than the stack allows.
    except RecursionError:
        text = f"a {type(value).__name__}, nested too deeply"
    return text if len(text) <= most else text[: most - 3] + "..."


def near_names(name: str, names: Iterable[str]) -> list[str]:
    """Return the known names most similar to `name`, the nearest first. Letter case is ignored."""
    # Imported here: difflib alone takes one percent of the time of `import aioflow`.
    import difflib

    by_lower = {known.lower(): known for known in names}
    cutoff = _CUTOFF if len(name) > 3 else _SHORT_CUTOFF
    return [by_lower[n] for n in difflib.get_close_matches(name.lower(), by_lower, _COUNT, cutoff)]


def did_you_mean(near: Iterable[str]) -> str:
    """Return the end of a message: "; did you mean 'a' or 'b'?", or "" if `near` is empty."""
    *others, last = [repr(name) for name in near] or [""]
    if not last:
        return ""
    return f"; did you mean {', '.join(others)} or {last}?" if others else f"; did you mean {last}?"


def wrong_kind(value: Any, what: str, expected: str) -> DTypeError:
    """Return the error for a value of the wrong type; `what` names the value."""
    actual = f"{brief(value)} ({type(value).__name__})"
    return DTypeError(f"wrong type for {what}", expected=expected, actual=actual)


# ── types ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── numbers: time limits, counts, sizes ───────────────────────────────────────────────────────────────────────────────


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
