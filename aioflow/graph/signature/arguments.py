"""The inputs and outputs of a signature, and where each lies in the flat list that a node has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias, TypeVar

from aioflow.graph.dtypes import DType

__all__ = ["ArgDef", "per_argument", "places"]

_Flat = TypeVar("_Flat")  # what the inputs or outputs of a node are given as
_Split: TypeAlias = "tuple[ArgDef, Sequence[_Flat]]"


@dataclass(frozen=True, slots=True)
class ArgDef:
    """One input or output of a signature.

    Exactly one of `dtype` (fixed), `type_attr` (an attribute of kind type) and `list_attr` (of kind list(type)) says
    the dtype; with `number_attr` the argument is a sequence of that many tensors.
    """

    name: str
    dtype: DType | None = None
    type_attr: str | None = None
    list_attr: str | None = None
    number_attr: str | None = None

    @property
    def is_sequence(self) -> bool:
        """Whether the argument takes a sequence of tensors."""
        return self.number_attr is not None or self.list_attr is not None

    def count(self, attrs: Mapping[str, Any]) -> int:
        """How many tensors it is, for a node with these attributes."""
        if self.number_attr is not None:
            number: int = attrs[self.number_attr]
            return number
        return 1 if self.list_attr is None else len(attrs[self.list_attr])


def per_argument(args: Sequence[ArgDef], attrs: Mapping[str, Any], flat: Sequence[_Flat]) -> Iterator[_Split[_Flat]]:
    """The flat inputs or outputs of a node with these attributes, argument by argument of its signature."""
    yield from zip(args, (flat[place] for place in places(arg.count(attrs) for arg in args)), strict=True)


def places(counts: Iterable[int]) -> list[slice]:
    """Where each argument lies in a flat list, from how many values each of them is."""
    ends = accumulate(counts := list(counts))
    return [slice(end - count, end) for count, end in zip(counts, ends, strict=True)]
