r"""Patterns in the syntax of RE2 (the one that TensorFlow's ops take) as patterns of Python's `re`.

The two agree but for a few things: `$` and `\z` are the end of the text in RE2, not also the place before a last line
break; `\d`, `\w`, `\s` and `\b` know ASCII characters only; what is not UTF-8 matches no class and no `.`; classes may
name POSIX classes; and what RE2 does not have, such as references to groups and lookahead, is refused here too, so that
a pattern means the same in both systems. Unicode classes are not supported.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from typing import Final

from aioflow.errors import InvalidArgumentError

__all__ = ["compiled_pattern", "compiled_rewrite"]

_POSIX: Final = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "ascii": r"\x00-\x7f", "blank": r"\t ", "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9", "graph": "!-~", "lower": "a-z", "print": " -~", "punct": r"!-/:-@\[-`{-~", "space": r"\t-\r ",
    "upper": "A-Z", "word": "0-9A-Za-z_", "xdigit": "0-9A-Fa-f",
}  # fmt: skip
_ESCAPES: Final = frozenset("AnrtfvabB")
_DIGITS, _WORD, _SPACE = "0-9", "0-9A-Za-z_", r"\t\n\f\r "
# Letters for sets of ASCII characters: what is inside the brackets, for the set and for all else.
_SETS: Final = {
    "d": _DIGITS, "D": r"\x00-/:-\ud7ff\ue000-\U0010ffff",
    "w": _WORD, "W": r"\x00-/:-@\[-\^`{-\ud7ff\ue000-\U0010ffff",
    "s": _SPACE, "S": r"\x00-\x08\x0b\x0e-\x1f!-\ud7ff\ue000-\U0010ffff",
}  # fmt: skip
_NO_TEXT: Final = r"\ud800-\udfff"  # what stands for bytes that are not UTF-8
_GROUPS: Final = re.compile(r"\(\?(?!:|P<|[imsU-]+[:)])")
_REPEAT: Final = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_PLACES: Final = frozenset("AbBCz")
_BYTE: Final = re.compile(r"\\x[0-9A-Fa-f]{2}")
_MOST_REPEATS: Final = 1000  # as in RE2


def _refused(pattern: str, what: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"the pattern {what}", expected="the syntax of RE2", actual=repr(pattern))


def _translated(pattern: str) -> str:
    made: list[str] = []
    at = 0
    repeated = False  # whether the last piece says how often; a plus behind it is something else in Python
    while at < len(pattern):
        char = pattern[at]
        if repeated and char == "+":
            raise _refused(pattern, "repeats a repetition")
        repetition = _REPEAT.match(pattern, at)
        repeated = repetition is not None or char in "*+?"
        if repetition:
            piece, at = _repetition(pattern, repetition), repetition.end()
        else:
            piece, at = _piece(pattern, at)
        made.append(piece)
    return "".join(made)


def _repetition(pattern: str, found: re.Match[str]) -> str:
    if max(int(count) for count in found.groups() if count) > _MOST_REPEATS:
        raise _refused(pattern, f"repeats something more than {_MOST_REPEATS} times")
    return found[0]


def _piece(pattern: str, at: int) -> tuple[str, int]:
    """What begins at `at`, and where it ends."""
    char = pattern[at]
    if char == "\\":
        return _escape(pattern, at)
    if char == "[":
        return _character_class(pattern, at)
    if char == "$":
        return r"(?:\Z|(?m:$))" if _has_flag(pattern, "m") else r"\Z", at + 1
    if char == ".":
        return rf"(?:(?![{_NO_TEXT}]).)" if _has_flag(pattern, "s") else rf"[^\n{_NO_TEXT}]", at + 1
    if pattern.startswith("{,", at):
        return r"\{,", at + 2  # of RE2's repetitions, none begins like that
    if char == "(" and _GROUPS.match(pattern, at):
        raise _refused(pattern, "has a group that RE2 does not have")
    return char, at + 1


def _has_flag(pattern: str, flag: str) -> bool:
    return re.search(rf"\(\?[ims]*{flag}", pattern) is not None


def _escape(pattern: str, at: int) -> tuple[str, int]:
    """What is after a backslash, and where it ends."""
    char = pattern[at + 1 : at + 2]
    if char == "Q":
        end = pattern.find(r"\E", at)
        literal = pattern[at + 2 : end if end >= 0 else len(pattern)]
        return re.escape(literal), end + 2 if end >= 0 else len(pattern)
    if char == "z":
        return r"\Z", at + 2
    if char == "C":
        return r"(?s:.)", at + 2
    brace = re.compile(r"\\x\{([0-9A-Fa-f]+)\}").match(pattern, at)
    if brace and int(brace[1], 16) <= sys.maxunicode:
        return re.escape(chr(int(brace[1], 16))), brace.end()
    if char and char in _SETS:
        return f"[{_SETS[char]}]", at + 2
    if char and char in "bB":
        return rf"(?a:\{char})", at + 2
    if brace or not char or (char.isalnum() and char not in _ESCAPES and not _BYTE.match(pattern, at)):
        raise _refused(pattern, "has an escape that is not supported")
    return pattern[at : at + 2], at + 2


def _character_class(pattern: str, begin: int) -> tuple[str, int]:
    """The class that begins with the bracket at `begin`, and where it ends."""
    at = begin + 1
    made = ["["]
    if pattern[at : at + 1] == "^":
        made.append("^" + _NO_TEXT)
        at += 1
    first = True
    while at < len(pattern) and (first or pattern[at] != "]"):
        named = re.compile(r"\[:(\^?)(\w+):\]").match(pattern, at)
        if named:
            if named[1] or named[2] not in _POSIX:
                raise _refused(pattern, "names a class that is not supported")
            made.append(_POSIX[named[2]])
            at = named.end()
        elif pattern[at] == "\\" and pattern[at + 1 : at + 2] in _SETS:
            made.append(_SETS[pattern[at + 1]])
            at += 2
        elif pattern[at] == "\\":
            if pattern[at + 1 : at + 2] in _PLACES:
                raise _refused(pattern, "has a class with an escape that is no character")
            piece, at = _escape(pattern, at)
            made.append(piece)
        else:
            made.append("\\" + pattern[at] if pattern[at] in "[]&|~" else pattern[at])
            at += 1
        first = False
    if at >= len(pattern):
        raise _refused(pattern, "has a class that does not end")
    return "".join(made) + "]", at + 1


@lru_cache(maxsize=256)
def compiled_pattern(pattern: bytes) -> re.Pattern[str]:
    """The pattern, over text in which bytes that are not UTF-8 are surrogates.

    Raises:
        InvalidArgumentError: it is not valid, or has something that is not supported.
    """
    text = pattern.decode(errors="surrogateescape")
    try:
        return re.compile(_translated(text))
    except (re.error, OverflowError, RecursionError) as error:
        raise _refused(text, f"is not valid: {error}") from error


@lru_cache(maxsize=256)
def compiled_rewrite(rewrite: bytes, groups: int) -> str:
    r"""A replacement with `\0` to `\9` as Python's `re` takes it.

    Raises:
        InvalidArgumentError: it names a group that the pattern does not have, or ends in a backslash.
    """
    text = rewrite.decode(errors="surrogateescape")
    made: list[str] = []
    at = 0
    while at < len(text):
        char, following = text[at], text[at + 1 : at + 2]
        if char != "\\":
            made.append(char)
            at += 1
            continue
        if following == "\\":
            made.append(r"\\")
        elif following.isdigit() and following.isascii() and int(following) <= groups:
            made.append(rf"\g<{following}>")
        else:
            raise InvalidArgumentError(
                "the rewrite is not valid", expected=rf"\0..\{groups} or \\ after a backslash", actual=repr(text)
            )
        at += 2
    return "".join(made)
