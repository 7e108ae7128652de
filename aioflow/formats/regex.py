"""Patterns and rewrites of RE2, the library that TensorFlow's ops use.

Matching takes time linear in the length of the text, for every pattern. Texts are bytes. Bytes that are not UTF-8 match
no character class and no `.`.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any, TypeAlias

from aioflow.concurrency.stopping import checkpoint
from aioflow.errors import InvalidArgumentError, UnimplementedError

# Literal text, and the numbers of the groups that are inserted.
Rewrite: TypeAlias = tuple[bytes | int, ...]


def _re2() -> Any:
    """Import RE2. Raises UnimplementedError if it is not installed."""
    # Imported with the first pattern: the import takes longer than that of all other kernels together.
    try:
        return importlib.import_module("re2")
    except ImportError as error:
        raise UnimplementedError(
            "patterns are matched by RE2, which is not installed: pip install google-re2",
            expected="google-re2",
            actual="none",
        ) from error


@lru_cache(maxsize=256)
def compiled_pattern(pattern: bytes) -> Any:
    """Compile a pattern. The result has the methods `fullmatch` and `search` for bytes.

    Raises:
        InvalidArgumentError: the pattern is not valid.
        UnimplementedError: RE2 is not installed.
    """
    re2 = _re2()
    options = re2.Options()
    options.log_errors = False  # the error is raised to the caller instead
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise InvalidArgumentError(
            f"the pattern is not valid: {_text(error.args[0] if error.args else '')}",
            expected="the syntax of RE2",
            actual=repr(pattern),
        ) from error


def _text(message: object) -> str:
    return message.decode(errors="replace") if isinstance(message, bytes) else str(message)


@lru_cache(maxsize=256)
def compiled_rewrite(rewrite: bytes, groups: int) -> Rewrite:
    r"""Parse a replacement text with `\0` to `\9`.

    Raises:
        InvalidArgumentError: a backslash is not followed by another one or by the number of a group of the pattern.
    """
    first, *others = rewrite.split(b"\\")
    made: list[bytes | int] = [first]
    while others:
        piece = others.pop(0)
        number = piece[:1]
        if not piece and others:  # two backslashes stand for one
            made.append(b"\\" + others.pop(0))
        elif number.isdigit() and int(number) <= groups:
            made += int(number), piece[1:]
        else:
            raise InvalidArgumentError(
                "the rewrite is not valid", expected=rf"\0..\{groups} or \\ after a backslash", actual=repr(rewrite)
            )
    return tuple(piece for piece in made if piece != b"")


def replaced(text: bytes, pattern: Any, rewrite: Rewrite, everywhere: bool) -> bytes:
    """Replace the first match, or every match if `everywhere`, like `RE2::Replace` and `RE2::GlobalReplace`."""
    made: list[bytes] = []
    at, last = 0, -1
    # `<=`, since a pattern may match the empty text at the end.
    while at <= len(text) and (match := pattern.search(text, at)) is not None:
        begin, end = match.span()
        made.append(text[at:begin])
        if begin == end == last:  # RE2 ignores an empty match directly after another match
            at = begin + _character(text, begin)
            made.append(text[begin:at])
            # At the end of the text no character follows; the loop must advance all the same.
            at = max(at, begin + 1)
            continue
        made += [piece if isinstance(piece, bytes) else match.group(piece) or b"" for piece in rewrite]
        at = last = end
        checkpoint()
        if not everywhere:
            break
    return b"".join([*made, text[at:]])


def _character(text: bytes, at: int) -> int:
    """Return the length in bytes of the character at a position: 1 if it is not UTF-8, 0 at the end."""
    for size in range(1, 5):
        try:
            if len(text[at : at + size].decode()) == 1:
                return size
        except UnicodeDecodeError:
            continue
    return min(1, len(text) - at)
