"""Text as tokens: byte-level byte-pair encoding (Sennrich et al. 2016; Radford et al. 2019), or plain bytes."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Final, Protocol

__all__ = ["BytePairs", "Bytes", "Tokenizer"]

_CONTRACTION: Final = re.compile(r"'(?:s|t|re|ve|m|ll|d)")
# Of a text in which each character stands for its kind: Letters, Numbers, Others, Whitespace, and the space itself.
# Whitespace leaves its last character to the word behind it.
_WORD: Final = re.compile(r" ?L+| ?N+| ?O+|[ W]+(?![LNO])|[ W]+")


class Tokenizer(Protocol):
    """Text as numbers."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""

    def decode(self, tokens: Iterable[int]) -> bytes:
        """The text of tokens, in UTF-8; a token may be a part of a character."""


class Bytes:
    """Each byte is a token."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        return list(text.encode())

    def decode(self, tokens: Iterable[int]) -> bytes:
        """The text of tokens."""
        return bytes(tokens)


class BytePairs:
    """Bytes that are joined by rules, words at a time.

    Args:
        vocabulary: The number of each token, whose bytes are written as printable characters.
        merges: Pairs of tokens that become one, the most important first.
    """

    def __init__(self, vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> None:
        self._numbers = vocabulary
        self._tokens = {number: token for token, number in vocabulary.items()}
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}
        self._signs = _signs()
        self._bytes = {sign: byte for byte, sign in self._signs.items()}
        self._joined = lru_cache(maxsize=1 << 15)(self._join)

    @classmethod
    def of(cls, folder: Path) -> BytePairs:
        """That of a folder with `vocab.json` and `merges.txt`."""
        vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
        rules = [line.split(" ") for line in lines if line and not line.startswith("#version")]
        return cls(vocabulary, [(first, second) for first, second in rules])

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        return [number for word in words(text) for number in self._joined(word)]

    def decode(self, tokens: Iterable[int]) -> bytes:
        """The text of tokens. A token that is not made of bytes, such as the end of a text, stands for its name."""
        return b"".join(self._decoded(self._tokens[int(number)]) for number in tokens)

    def _decoded(self, token: str) -> bytes:
        return bytes(self._bytes[sign] for sign in token) if self._bytes.keys() >= set(token) else token.encode()

    def _join(self, word: str) -> tuple[int, ...]:
        parts = [self._signs[byte] for byte in word.encode()]
        while len(parts) > 1:
            rank, at = min((self._ranks.get(pair, len(self._ranks)), i) for i, pair in enumerate(pairwise(parts)))
            if rank == len(self._ranks):
                break
            first, second = parts[at : at + 2]
            parts = _joined(parts, first, second)
        return tuple(self._numbers[part] for part in parts)


def _joined(parts: list[str], first: str, second: str) -> list[str]:
    """With each such pair as one, from the left."""
    result: list[str] = []
    for part in parts:
        if part == second and result and result[-1] == first:
            result[-1] = first + second
        else:
            result.append(part)
    return result


def words(text: str) -> list[str]:
    """The pieces of a text that are encoded on their own; together they are the text."""
    kinds = "".join(map(_kind, text))
    found, at = [], 0
    while at < len(text):
        match = _CONTRACTION.match(text, at) or _WORD.match(kinds, at)
        assert match is not None  # every kind begins a word
        found.append(text[at : match.end()])
        at = match.end()
    return found


def _kind(character: str) -> str:
    if character.isspace():
        return " " if character == " " else "W"
    category = unicodedata.category(character)[0]
    return category if category in "LN" else "O"


def _signs() -> dict[int, str]:
    """A printable character for each byte: itself, or one beyond the first 256."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
