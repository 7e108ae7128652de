"""`Fetchable`: for type checkers, what `Session.run` gives for a fetch."""

from __future__ import annotations

from typing import Protocol, TypeVar

__all__ = ["Fetchable"]

T_co = TypeVar("T_co", covariant=True)


class Fetchable(Protocol[T_co]):
    """What `Session.run` gives a `T` for: a tensor or variable an array, an operation None.

    A value of rank 0 is one of NumPy's scalars, which have the attributes of an array, and of a string `bytes`.
    """

    @property
    def _fetched(self) -> T_co:
        """Nothing at run time: by its type a class declares what is fetched for it."""
