"""How thousands of objects are freed so that other threads run meanwhile.

What nobody holds any more is freed at once, with all that it alone held: 10 ms for the nodes of a graph of 20,000, in
which no other thread gets the interpreter's lock, and an event loop waits.
"""

from __future__ import annotations

from typing import Any

__all__ = ["let_go"]


def let_go(*held: list[Any] | dict[Any, Any]) -> None:
    """Empty lists and dictionaries that nobody else uses, item by item."""
    for items in held:
        pop = items.popitem if isinstance(items, dict) else items.pop
        while items:
            pop()
