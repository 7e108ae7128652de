"""Lists of addresses in one text: shell ranges, "worker-{0..3}.svc:2222", and Slurm hostlists, "node[1-3,07]".

The number of names is computed and bounded before any name is made.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from aioflow.arguments import brief
from aioflow.errors import InvalidArgumentError

_MOST: Final = 1 << 16  # names: the maximum number of tasks of a job
_MOST_TEXT: Final = 1 << 20  # characters
_MOST_NAME: Final = 512  # characters of one address without its ranges
_BRACES: Final = re.compile(r"\{([0-9]{1,9})\.\.([0-9]{1,9})\}")
_BRACKETS: Final = re.compile(r"\[([^][]*)\]")
_RANGE: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def expand_addresses(text: str) -> list[str]:
    """Expand "host:port,…", where "{0..3}" stands for the numbers 0 to 3 and "{00..10}" for numbers of two digits.

    Of several ranges in one address, the last one varies fastest.

    Raises:
        InvalidArgumentError: a part is empty, a range is malformed, the text or an address is too long, or there are
            more than 65,536 addresses.
    """
    _require_short(text)
    found: list[str] = []
    for part in text.split(","):
        if not part:
            raise InvalidArgumentError("an address is missing", expected="HOST:PORT[,…]", actual=brief(text))
        # With two groups in the pattern, `split` returns literal, low, high, literal, and so on.
        literals = _BRACES.split(part)
        if any(letter in literal for literal in literals[::3] for letter in "{}"):
            raise InvalidArgumentError("not a range of addresses", expected="such as job-{0..3}", actual=brief(part))
        ranges = (_range(low, high) for low, high in zip(literals[1::3], literals[2::3], strict=True))
        found += _product(literals[::3], ranges, text, _MOST - len(found))
    return found


def _range(low: str, high: str) -> list[str]:
    """Return the numbers of a range, padded with zeros if one of its ends is."""
    if int(low) > int(high):
        raise InvalidArgumentError("a range runs backwards", expected=f"{{{high}..{low}}}", actual=f"{{{low}..{high}}}")
    # Checked before the numbers are made: a range may have a billion of them.
    _require_few(int(high) - int(low) + 1, f"{low}..{high}", _MOST)
    padded = any(end.startswith("0") and len(end) > 1 for end in (low, high))
    width = max(len(low), len(high)) if padded else 0
    return [f"{number:0{width}}" for number in range(int(low), int(high) + 1)]


def expand_hostlist(text: str) -> list[str]:
    """Expand a Slurm hostlist, "login,node[1-3,07],rack[0-1]n[1-2]".

    Numbers are zero-padded to the width of the lower end of their range.

    Raises:
        InvalidArgumentError: the list is malformed or too long, or names more than 65,536 hosts.
    """
    _require_short(text)
    found: list[str] = []
    for part in _parts(text):
        # With one group in the pattern, `split` returns literal, inside, literal, and so on.
        literals = _BRACKETS.split(part)
        malformed = any(letter in literal for literal in literals[::2] for letter in "[]")
        if malformed or not part:
            raise InvalidArgumentError("not a list of hosts", expected="such as node[1-3],login", actual=brief(text))
        ranges = (_numbers(inside, text) for inside in literals[1::2])
        found += _product(literals[::2], ranges, text, _MOST - len(found))
    return found


def _parts(text: str) -> Iterator[str]:
    """Yield the parts between commas outside of brackets."""
    depth = start = 0
    for place, letter in enumerate(text):
        if letter in "[]":
            depth += 1 if letter == "[" else -1
        elif letter == "," and not depth:
            yield text[start:place]
            start = place + 1
    yield text[start:]


def _numbers(inside: str, text: str) -> list[str]:
    found: list[str] = []
    for part in inside.split(","):
        match = _RANGE.fullmatch(part)
        if match is None or int(match[1]) > int(match[2] or match[1]):
            raise InvalidArgumentError("not a list of hosts", expected="numbers, as in [1-3,7]", actual=brief(text))
        low, high = int(match[1]), int(match[2] or match[1])
        _require_few(high - low + 1, text, _MOST - len(found))
        found += [f"{number:0{len(match[1])}}" for number in range(low, high + 1)]
    return found


def _product(literals: Sequence[str], ranges: Iterable[Sequence[str]], text: str, most: int) -> list[str]:
    """Return all combinations of the literals with one number of each range between them."""
    if sum(map(len, literals)) > _MOST_NAME:
        raise InvalidArgumentError("too long an address", expected=f"at most {_MOST_NAME} letters", actual=brief(text))
    made: list[Sequence[str]] = []
    count = 1
    _require_few(count, text, most)
    for numbers in ranges:  # a lazy iterable: no range is expanded after the limit is exceeded
        count *= len(numbers)
        _require_few(count, text, most)
        made.append(numbers)
    first, *rest = literals
    return [
        first + "".join(number + literal for number, literal in zip(numbers, rest, strict=True))
        for numbers in itertools.product(*made)
    ]


def _require_few(count: int, text: str, most: int) -> None:
    if count > most:
        raise InvalidArgumentError("too many addresses", expected=f"at most {_MOST}", actual=brief(text))


def _require_short(text: str) -> None:
    if len(text) > _MOST_TEXT:
        raise InvalidArgumentError("too long a list", expected=f"at most {_MOST_TEXT} letters", actual=len(text))
