"""The graph stored beside each checkpoint (`prefix.meta`).

It is exported again only if the graph has changed: most saves write the same bytes as the one before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Final

from aioflow.errors import OpError
from aioflow.formats.stores import store_of
from aioflow.graph.graph import Graph
from aioflow.protos import Message, to_bytes

_LOGGER: Final = logging.getLogger("aioflow.train")
_KEPT_BYTES: Final = 1 << 26  # larger graphs are exported at every save instead of being cached in memory


class GraphBeside:
    """The stored form of a graph, cached between saves.

    Args:
        graph: The graph to store.
        export: Function that returns its message; the argument tells whether to strip attributes with default values.
    """

    def __init__(self, graph: Graph, export: Callable[[bool], Message]) -> None:
        self._graph = graph
        self._export = export
        self._made: tuple[Hashable, bytes | None] | None = None
        self._items: list[object] = []  # keeps the objects alive, so that the ids in `_state` stay unique

    def write(self, file: str, strip_default_attrs: bool) -> None:
        """Write the graph to a file. Blocks.

        A graph that has no published form must not prevent a checkpoint: this is logged once, and no file is written.

        Raises:
            PermissionDeniedError, …: the operating system refuses; the error names the file.
        """
        state, items = self._state(strip_default_attrs)
        if self._made is None or self._made[0] != state:
            data = self._bytes(file, strip_default_attrs)
            self._made = None if data is not None and len(data) > _KEPT_BYTES else (state, data)
            self._items = items
        else:
            data = self._made[1]
        if data is not None:
            store, name = store_of(file)
            store.put(name, data)

    def _bytes(self, file: str, strip_default_attrs: bool) -> bytes | None:
        try:
            return to_bytes(self._export(strip_default_attrs))
        except OpError as error:
            _LOGGER.warning("the graph has no published form, so there is no %s: %s", file, error)
            return None

    def _state(self, strip_default_attrs: bool) -> tuple[Hashable, list[object]]:
        """Return a key of everything that determines the bytes, and the objects whose ids the key contains."""
        graph = self._graph
        lists = {name: graph.get_collection(name) for name in graph.get_all_collection_keys()}
        named = tuple((name, tuple(map(id, items))) for name, items in lists.items())
        state = (strip_default_attrs, graph.version, graph.mutations, len(graph.functions), named)
        return state, [item for items in lists.values() for item in items]
