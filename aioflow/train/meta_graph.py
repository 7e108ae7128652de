"""Export of a graph together with its training objects, also beside each checkpoint of a saver.

The result is a `MetaGraphDef` message in TensorFlow's format, in a file of its own or beside a checkpoint (.meta).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from aioflow.errors import DTypeError, OpError, UnimplementedError
from aioflow.formats.files import file_errors
from aioflow.formats.graphs.lowering import lowered
from aioflow.formats.graphs.published.graphs import message_of
from aioflow.formats.stores import is_url, store_of
from aioflow.graph.default_graph import default_graph
from aioflow.graph.graph import Graph, GraphKeys
from aioflow.graph.graphdef import GraphDef, NodeDef, TensorData
from aioflow.graph.opdef import OPS
from aioflow.protos import Message, message, to_bytes, to_text
from aioflow.train.stored_collections import written_collections, written_contexts


def export_meta_graph(
    filename: str | os.PathLike[str] | None = None,
    meta_info_def: Message = None,
    graph_def: GraphDef | None = None,
    saver_def: Message = None,
    collection_list: Sequence[str] | None = None,
    as_text: bool = False,
    graph: Graph | None = None,
    export_scope: None = None,
    clear_devices: bool = False,
    clear_extraneous_savers: bool = False,
    strip_default_attrs: bool = False,
    save_debug_info: bool = False,
) -> Message:
    """Return the graph and its collections as a `MetaGraphDef`. If `filename` is set, write it to that file; blocks.

    Variables, queue runners, savers, nodes, tensors, strings and numbers are stored. A collection that contains
    anything else, or several kinds, is left out and logged. Ops that only aioflow has are expressed by TensorFlow's
    where possible.

    Args:
        filename: A path, or the URL of a file in a store.
        meta_info_def: Message that becomes part of the result.
        graph_def: Definition to store instead of the graph's own.
        saver_def: Message that becomes part of the result.
        collection_list: Names of the collections to store; None for all.
        as_text: Write readable text instead of binary.
        graph: The graph; None for the default graph.
        export_scope: Part of the published signature; must be None.
        clear_devices: Drop the devices of the nodes.
        clear_extraneous_savers: Drop all savers of the collection except `saver_def`.
        strip_default_attrs: Drop attributes with default values, for programs that do not know these attributes yet.
        save_debug_info: Part of the published signature; ignored.

    Returns:
        The message.

    Raises:
        UnimplementedError: `export_scope` is set.
        InvalidArgumentError: an attribute of a node cannot be stored.
        PermissionDeniedError, …: the operating system refuses; the error names the file.
    """
    if export_scope is not None:
        raise UnimplementedError("a part of a graph is not exported", expected="export_scope=None", actual=export_scope)
    graph = graph or default_graph()
    if not isinstance(graph, Graph):
        raise DTypeError("not a graph", expected="Graph", actual=type(graph).__name__)
    definition = lowered(graph.as_graph_def(add_shapes=True) if graph_def is None else graph_def)
    made = message("MetaGraphDef")()
    if meta_info_def is not None:
        # By way of the bytes: the message may come from another library's classes.
        made.meta_info_def.ParseFromString(to_bytes(meta_info_def))
    if strip_default_attrs:
        functions = tuple(replace(f, nodes=tuple(map(_stripped, f.nodes))) for f in definition.functions)
        definition = replace(definition, nodes=tuple(map(_stripped, definition.nodes)), functions=functions)
        made.meta_info_def.stripped_default_attrs = True
    made.graph_def.CopyFrom(message_of(placed(definition.nodes, clear_devices), definition.functions))
    if saver_def is not None:
        made.saver_def.ParseFromString(to_bytes(saver_def))
    names = graph.get_all_collection_keys() if collection_list is None else collection_list
    kept = [name for name in names if not (clear_extraneous_savers and name == GraphKeys.SAVERS)]
    nodes = {node.name for node in definition.nodes}
    written_collections(graph, kept, nodes, made.collection_def)
    # The collection was left out above, so its only entry is the given saver.
    if saver_def is not None and len(kept) < len(names):
        made.collection_def[GraphKeys.SAVERS].bytes_list.value.append(to_bytes(saver_def))
    written_contexts(graph, collection_list, nodes, made.collection_def)
    if filename is not None:
        _put(filename, to_text(made).encode() if as_text else to_bytes(made))
    return made


def placed(nodes: Iterable[NodeDef], clear_devices: bool) -> list[NodeDef]:
    """Return the nodes, without their devices if `clear_devices`."""
    return [replace(node, device="") if clear_devices and node.device else node for node in nodes]


def _stripped(node: NodeDef) -> NodeDef:
    """Return the node without the attributes that have default values."""
    known = OPS.get(node.op).attrs if node.op in OPS else {}
    defaults = {key: _plain(attr.default) for key, attr in known.items() if attr.has_default}
    kept = {key: value for key, value in node.attrs.items() if key not in defaults or value != defaults[key]}
    return replace(node, attrs=kept)


def _plain(value: object) -> object:
    return TensorData.of(value) if isinstance(value, np.ndarray) else value


def _put(filename: str | os.PathLike[str], data: bytes) -> None:
    store, name = store_of(filename)
    if not is_url(os.fspath(filename)):
        with file_errors(filename):
            Path(filename).parent.mkdir(parents=True, exist_ok=True)
    store.put(name, data)


# ── the graph stored beside each checkpoint (`prefix.meta`) ───────────────────────────────────────────────────────────
#
# It is exported again only if the graph has changed: most saves write the same bytes as the one before.


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
