"""The inputs and outputs of a signature, and their positions in the flat lists of a node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias, TypeVar

from aioflow.graph.dtypes import DType

_Flat = TypeVar("_Flat")  # any representation of an input or output of a node
_Split: TypeAlias = "tuple[ArgDef, Sequence[_Flat]]"


@dataclass(frozen=True, slots=True)
class ArgDef:
    """One input or output of a signature.

    Exactly one of `dtype` (fixed), `type_attr` (an attribute of kind type) and `list_attr` (of kind list(type))
    determines the dtype. With `number_attr` the argument is a sequence of that many tensors.
    """

    name: str
    dtype: DType | None = None
    type_attr: str | None = None
    list_attr: str | None = None
    number_attr: str | None = None

    @property
    def is_sequence(self) -> bool:
        """True if the argument is a sequence of tensors."""
        return self.number_attr is not None or self.list_attr is not None

    def count(self, attrs: Mapping[str, Any]) -> int:
        """Return the number of tensors for a node with these attributes."""
        if self.number_attr is not None:
            number: int = attrs[self.number_attr]
            return number
        return 1 if self.list_attr is None else len(attrs[self.list_attr])


def per_argument(args: Sequence[ArgDef], attrs: Mapping[str, Any], flat: Sequence[_Flat]) -> Iterator[_Split[_Flat]]:
    """Yield each argument with its items of `flat`, the flat inputs or outputs of a node with these attributes."""
    yield from zip(args, (flat[place] for place in places(arg.count(attrs) for arg in args)), strict=True)


def places(counts: Iterable[int]) -> list[slice]:
    """Return the slice of each argument in a flat list, given the number of its values."""
    ends = accumulate(counts := list(counts))
    return [slice(end - count, end) for count, end in zip(counts, ends, strict=True)]
