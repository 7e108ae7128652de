"""Similar names, for errors about unknown names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_CUTOFF: Final = 0.7  # of difflib's ratio: names less similar than this mislead
_SHORT_CUTOFF: Final = 0.66  # for names of up to three letters, where one letter is a third of the name
_COUNT: Final = 3


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
