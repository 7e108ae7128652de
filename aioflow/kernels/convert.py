"""Converters for host inputs: from the small arrays that carry axes, shapes and sizes to plain Python values."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["as_array", "as_bool", "as_int", "as_ints", "as_text", "on_host"]


def on_host(value: Any) -> Any:
    """The value in host memory: an array of a device (they all have a method `get`) is copied, which waits for it."""
    return value if isinstance(value, np.ndarray) or not hasattr(value, "get") else value.get()


def as_int(value: Any) -> int:
    """A scalar (or a one-element array) as int."""
    return int(value) if np.ndim(value) == 0 else int(on_host(value).reshape(-1)[0])


def as_bool(value: Any) -> bool:
    """A scalar as bool."""
    return bool(value)


def as_ints(value: Any) -> tuple[int, ...]:
    """A vector, or a scalar, as a tuple of ints."""
    return tuple(np.asarray(on_host(value)).reshape(-1).tolist())


def as_text(value: Any) -> str:
    """A string scalar as str."""
    item = value.item() if isinstance(value, np.ndarray) else value
    return item.decode() if isinstance(item, bytes) else str(item)


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """The value as a NumPy array."""
    return np.asarray(on_host(value))
