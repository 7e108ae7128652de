"""Slices of tensors: the `shape_and_slices` of the ops that save and restore.

The text lists the sizes of the whole tensor, then begin and length for each axis, or `-` for the whole axis:
"10 4 0,5:-" means the first five rows of a [10, 4] tensor. An empty text means the whole tensor.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from aioflow.errors import InvalidArgumentError

_FEW: Final = 64  # slices that are compared pairwise, which is exact but takes quadratic time
# A Mersenne prime: the numbers below it form a field, in which random products rarely coincide.
_PRIME: Final = 2**61 - 1


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """A box of a larger tensor.

    Attributes:
        full_shape: Sizes of the whole tensor.
        offset, shape: Begin and sizes of the slice.
    """

    full_shape: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def text(self) -> str:
        """The text form that the ops accept."""
        sizes = "".join(f"{size} " for size in self.full_shape)
        return sizes + ":".join(f"{o},{s}" for o, s in zip(self.offset, self.shape, strict=True))

    @property
    def index(self) -> tuple[slice, ...]:
        """The slice as an index into the whole tensor."""
        return tuple(slice(o, o + s) for o, s in zip(self.offset, self.shape, strict=True))

    def overlaps(self, other: TensorSlice) -> bool:
        """Return True if the two slices have an element in common."""
        mine, theirs = zip(self.offset, self.shape, strict=True), zip(other.offset, other.shape, strict=True)
        return all(max(a, b) < min(a + n, b + m) for (a, n), (b, m) in zip(mine, theirs, strict=True))


def parse_slice(text: str) -> TensorSlice | None:
    """Parse a text; an empty one returns None and stands for the whole tensor.

    Raises:
        InvalidArgumentError: the text is not a slice, or the slice lies outside of the tensor.
    """
    if not text:
        return None
    *sizes, parts = text.split(" ")
    try:
        full = tuple(int(size) for size in sizes)
        pairs = [(0, size) if part == "-" else _pair(part) for size, part in zip(full, parts.split(":"), strict=True)]
    except ValueError as error:
        raise InvalidArgumentError(
            "not a slice of a tensor", expected="sizes, then begin,length of each axis, as '10 4 0,5:-'", actual=text
        ) from error
    if not full or any(o < 0 or n < 0 or o + n > size for (o, n), size in zip(pairs, full, strict=True)):
        raise InvalidArgumentError("a slice lies outside its tensor", expected=f"inside {full}", actual=text)
    return TensorSlice(full, tuple(o for o, _ in pairs), tuple(n for _, n in pairs))


def _pair(text: str) -> tuple[int, int]:
    begin, length = text.split(",")
    return int(begin), int(length)


def check_cover(name: str, parts: Sequence[TensorSlice]) -> None:
    """Require that the slices partition one whole tensor.

    Raises:
        InvalidArgumentError: they do not.
    """
    full = parts[0].full_shape
    shapes = {part.full_shape for part in parts}
    if len(shapes) > 1:
        raise InvalidArgumentError(
            f"the slices of {name} belong to tensors of different shapes", expected="one shape", actual=sorted(shapes)
        )
    # Empty slices neither overlap nor cover anything.
    kept = [part for part in parts if 0 not in part.shape]
    if len(kept) > _FEW:
        _check_many(name, kept)
        return
    twice = next(((a, b) for i, a in enumerate(kept) for b in kept[:i] if a.overlaps(b)), None)
    if twice is not None:
        raise InvalidArgumentError(
            f"slices of {name} overlap", expected="each element once", actual=[part.text for part in twice]
        )
    # Slices inside the tensor that do not overlap cover it exactly if their sizes add up.
    if _elements(kept) != math.prod(full):
        raise InvalidArgumentError(
            f"the slices of {name} do not cover the tensor",
            expected=f"{math.prod(full)} elements of {full}",
            actual=f"{_elements(kept)} in {[part.text for part in parts]}",
        )


def _check_many(name: str, parts: Sequence[TensorSlice]) -> None:
    """Like `check_cover`, in time linear in the number of slices.

    Each position of each axis is assigned a random number. The measure of a box is the product over the axes of the
    number of the end minus the number of the begin. It is additive: the measures of boxes that partition the whole add
    up to the measure of the whole. The measures of other boxes add up to it with a probability of 2**-55, since the
    numbers cannot be predicted.
    """
    full = parts[0].full_shape
    numbers: list[dict[int, int]] = [{} for _ in full]

    def measure(offset: Sequence[int], shape: Sequence[int]) -> int:
        made = 1
        for known, begin, size in zip(numbers, offset, shape, strict=True):
            first, last = (known.setdefault(place, secrets.randbelow(_PRIME)) for place in (begin, begin + size))
            made = made * (last - first) % _PRIME
        return made

    if sum(measure(part.offset, part.shape) for part in parts) % _PRIME != measure([0] * len(full), full):
        raise InvalidArgumentError(
            f"the slices of {name} overlap, or do not cover the tensor",
            expected=f"each of {math.prod(full)} elements of {full} once",
            actual=f"{_elements(parts)} in {len(parts)} slices",
        )


def _elements(parts: Iterable[TensorSlice]) -> int:
    return sum(math.prod(part.shape) for part in parts)
