"""How a value is shown in a message."""

from __future__ import annotations

from typing import Any

__all__ = ["brief"]


def brief(value: Any, most: int = 80) -> str:
    """`repr` of the value, cut off after `most` characters."""
    if isinstance(value, list | tuple) and len(value) > most:
        value = value[:most]  # all of it would take its time, and is not shown
    try:
        text = repr(value)
    except RecursionError:
        text = f"a {type(value).__name__}, nested too deeply"
    return text if len(text) <= most else text[: most - 3] + "..."
