"""The display of a value in a message."""

from __future__ import annotations

from typing import Any


def brief(value: Any, most: int = 80) -> str:
    """Return `repr` of the value, truncated to `most` characters."""
    if isinstance(value, list | tuple) and len(value) > most:
        value = value[:most]  # formatting all of it would be slow
    try:
        text = repr(value)
    # `repr` handles a list that contains itself, but not one that is nested more deeply than the stack allows.
    except RecursionError:
        text = f"a {type(value).__name__}, nested too deeply"
    return text if len(text) <= most else text[: most - 3] + "..."
