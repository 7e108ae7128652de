"""`Fetchable`: the type that `Session.run` returns for a fetch, for type checkers."""

from __future__ import annotations

from typing import Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Fetchable(Protocol[T_co]):
    """An object for which `Session.run` returns a `T`: a tensor or variable an array, an operation None.

    A value of rank 0 is a NumPy scalar, which has the attributes of an array, or `bytes` for a string.
    """

    @property
    def _fetched(self) -> T_co:
        """The declared type of the fetched value. Has no meaning at run time."""
