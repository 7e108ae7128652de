r"""Patterns in the syntax of RE2 (the one that TensorFlow's ops take) as patterns of Python's `re`.

The two agree but for a few things: `$` and `\z` are the end of the text in RE2, not also the place before a last line
break; character classes may name POSIX classes; and what RE2 does not have, such as references to groups and
lookahead, is refused here too, so that a pattern means the same in both systems. Unicode classes are not supported.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from aioflow.errors import InvalidArgumentError

__all__ = ["compiled_pattern", "compiled_rewrite"]

_POSIX: Final = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "ascii": r"\x00-\x7f", "blank": r"\t ", "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9", "graph": "!-~", "lower": "a-z", "print": " -~", "punct": r"!-/:-@\[-`{-~", "space": r"\t-\r ",
    "upper": "A-Z", "word": "0-9A-Za-z_", "xdigit": "0-9A-Fa-f",
}  # fmt: skip
_ESCAPES: Final = frozenset("dDwWsSbBAnrtfvax")
_GROUPS: Final = re.compile(r"\(\?(?!:|P<|[aimsU-]*[:)]|[ims-]+[:)])")


def _refused(pattern: str, what: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"the pattern {what}", expected="the syntax of RE2", actual=repr(pattern))


def _translated(pattern: str) -> str:
    made: list[str] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            piece, at = _escape(pattern, at)
        elif char == "[":
            piece, at = _character_class(pattern, at)
        elif char == "$":
            piece, at = r"(?:\Z|(?m:$))" if _has_flag(pattern, "m") else r"\Z", at + 1
        elif pattern.startswith("{,", at):
            piece, at = r"\{,", at + 2  # of RE2's repetitions, none begins like that
        elif char == "(" and _GROUPS.match(pattern, at):
            raise _refused(pattern, "has a group that RE2 does not have")
        else:
            piece, at = char, at + 1
        made.append(piece)
    return "".join(made)


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
    if brace:
        return re.escape(chr(int(brace[1], 16))), brace.end()
    if not char or (char.isalnum() and char not in _ESCAPES):
        raise _refused(pattern, "has an escape that is not supported")
    return pattern[at : at + 2], at + 2


def _character_class(pattern: str, begin: int) -> tuple[str, int]:
    """The class that begins with the bracket at `begin`, and where it ends."""
    at = begin + 1
    made = ["["]
    if pattern[at : at + 1] == "^":
        made.append("^")
        at += 1
    first = True
    while at < len(pattern) and (first or pattern[at] != "]"):
        named = re.compile(r"\[:(\^?)(\w+):\]").match(pattern, at)
        if named:
            if named[1] or named[2] not in _POSIX:
                raise _refused(pattern, "names a class that is not supported")
            made.append(_POSIX[named[2]])
            at = named.end()
        elif pattern[at] == "\\":
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
        return re.compile(_translated(text), re.ASCII)
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
