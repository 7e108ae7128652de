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
# Matches a text in which each character is replaced by its kind: Letter, Number, Other, Whitespace, or the space
# itself. Whitespace leaves its last character to the following word.
_WORD: Final = re.compile(r" ?L+| ?N+| ?O+|[ W]+(?![LNO])|[ W]+")


class Tokenizer(Protocol):
    """A mapping between text and token numbers."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""

    def decode(self, tokens: Iterable[int]) -> bytes:
        """Return the text of tokens in UTF-8; a token may be a part of a character."""


class Bytes:
    """A tokenizer with one token per byte."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return list(text.encode())

    def decode(self, tokens: Iterable[int]) -> bytes:
        """Return the text of tokens."""
        return bytes(tokens)


class BytePairs:
    """A tokenizer that merges bytes by rules, word by word.

    Args:
        vocabulary: Number of each token, whose bytes are written as printable characters.
        merges: Pairs of tokens to merge, the most important first.
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
        """Return the tokenizer of a folder with `vocab.json` and `merges.txt`."""
        vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
        rules = [line.split(" ") for line in lines if line and not line.startswith("#version")]
        return cls(vocabulary, [(first, second) for first, second in rules])

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return [number for word in words(text) for number in self._joined(word)]

    def decode(self, tokens: Iterable[int]) -> bytes:
        """Return the text of tokens.

        A token that does not consist of bytes, such as the end of a text, yields its name.
        """
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
    """Merge each occurrence of the pair, from the left."""
    result: list[str] = []
    for part in parts:
        if part == second and result and result[-1] == first:
            result[-1] = first + second
        else:
            result.append(part)
    return result


def words(text: str) -> list[str]:
    """Split a text into pieces that are encoded separately; concatenated, they are the text."""
    kinds = "".join(map(_kind, text))
    found, at = [], 0
    while at < len(text):
        match = _CONTRACTION.match(text, at) or _WORD.match(kinds, at)
        assert match is not None  # every kind starts a word
        found.append(text[at : match.end()])
        at = match.end()
    return found


def _kind(character: str) -> str:
    if character.isspace():
        return " " if character == " " else "W"
    category = unicodedata.category(character)[0]
    return category if category in "LN" else "O"


def _signs() -> dict[int, str]:
    """Return a printable character for each byte: the byte itself, or a character beyond the first 256."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
