"""Release of the items of collections, one at a time."""

from __future__ import annotations

from typing import Any

from aioflow.memory.collector import let_go


def test_items_are_freed_one_by_one() -> None:
    """The items before the freed one are still held."""
    left: list[int] = []

    class Noted:
        def __init__(self, held: Any) -> None:
            self.held = held

        def __del__(self) -> None:
            left.append(len(self.held))

    items: list[Any] = []
    items += [Noted(items) for _ in range(3)]
    entries: dict[Any, Any] = {}
    entries.update((number, Noted(entries)) for number in range(3))
    let_go(items, entries)
    assert left == [2, 1, 0, 2, 1, 0]
