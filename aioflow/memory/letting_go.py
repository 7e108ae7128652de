"""Gradual release of thousands of objects, so that other threads run meanwhile.

Dropping the last reference to a container frees all objects that only it holds at once. For the nodes of a graph of
20,000 this takes 10 ms, in which no other thread gets the interpreter's lock and an event loop is blocked.
"""

from __future__ import annotations

from typing import Any


def let_go(*held: list[Any] | dict[Any, Any]) -> None:
    """Empty lists and dictionaries item by item. Nothing else may use them."""
    for items in held:
        pop = items.popitem if isinstance(items, dict) else items.pop
        while items:
            pop()
