"""Types of values at run time."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np

# A value that the engine passes from node to node without looking at it: an array, a NumPy scalar, a handle of a
# resource, a dead value, or the item of an async source.
Value: TypeAlias = object

# The operands of kernels. Arrays of every backend have NumPy's methods and operators, so kernels are checked against
# NumPy's types, which are far more exact than a protocol could be. On the CPU a NumPy scalar may stand for a 0-d array.
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
NpDType: TypeAlias = np.dtype[Any]
Buffer: TypeAlias = bytes | bytearray | memoryview
Shape: TypeAlias = tuple[int, ...]


class Namespace(Protocol):
    """The functions of a backend, by NumPy's names: `xp.add`, `xp.linalg.solve`. NumPy itself is one."""

    def __getattr__(self, name: str, /) -> ArrayFunction:
        """Return a function, a type or a nested namespace."""


class ArrayFunction(Namespace, Protocol):
    """A function of a namespace, and what is inside it, as `xp.add.reduce`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Array:
        """Call the function. Those with several results return a tuple of arrays, which unpacks as an array does."""
