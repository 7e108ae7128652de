"""References to tensors and variables: keys of dictionaries and members of sets in TensorFlow's later programs."""

from __future__ import annotations

from typing import Any, Final, Generic, Self, TypeVar

from aioflow.errors import DTypeError

T = TypeVar("T")


class Reference(Generic[T]):
    """A hashable reference to an object, equal to every other reference to the same object."""

    __slots__ = ("_target",)

    def __init__(self, target: T) -> None:
        self._target: Final = target

    def deref(self) -> T:
        """Return the object."""
        return self._target

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, Reference):
            raise DTypeError("a reference equals references only", expected="x.ref() == y.ref()", actual=repr(other))
        return self._target is other._target

    def __hash__(self) -> int:
        return id(self._target)

    def __repr__(self) -> str:
        return f"<aioflow.Reference to {self._target!r}>"


class Referable:
    """Base class of tensors and variables, which can be keys themselves: their equality is identity."""

    __slots__ = ()

    def ref(self) -> Reference[Self]:
        """Return a hashable reference to this object; `deref()` returns the object."""
        return Reference(self)

    def experimental_ref(self) -> Reference[Self]:
        """Older name of `ref`."""
        return Reference(self)
