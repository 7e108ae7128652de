"""Near names, for the errors about a name that is not there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["did_you_mean", "near_names"]

_CUTOFF: Final = 0.7  # of difflib's ratio: below it the suggestions are further off than no suggestion
_SHORT_CUTOFF: Final = 0.66  # of names of up to three letters, where one letter is a third of all
_COUNT: Final = 3


def near_names(name: str, names: Iterable[str]) -> list[str]:
    """The names that are most like `name`, the nearest first; letter case does not count."""
    import difflib  # of every hundred milliseconds that aioflow takes to be imported it would take one

    by_lower = {known.lower(): known for known in names}
    cutoff = _CUTOFF if len(name) > 3 else _SHORT_CUTOFF
    return [by_lower[n] for n in difflib.get_close_matches(name.lower(), by_lower, _COUNT, cutoff)]


def did_you_mean(near: Iterable[str]) -> str:
    """The end of a message: "; did you mean 'a' or 'b'?", or nothing where nothing is near."""
    *others, last = [repr(name) for name in near] or [""]
    if not last:
        return ""
    return f"; did you mean {', '.join(others)} or {last}?" if others else f"; did you mean {last}?"
