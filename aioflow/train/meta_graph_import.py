"""Import of stored graphs with their collections. See `meta_graph` for the export."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aioflow.errors import DTypeError, InvalidArgumentError, OpError, UnimplementedError
from aioflow.formats.graphs.older.references import modernized
from aioflow.formats.graphs.published.graphs import definition_of
from aioflow.formats.stores import store_of
from aioflow.graph.default_graph import default_graph
from aioflow.graph.graph import GraphKeys, Operation
from aioflow.graph.graphdef import VERSION, GraphDef, NodeDef
from aioflow.graph.opdef import OPS
from aioflow.graph.tensor_like import TensorLike
from aioflow.ops.importer import import_graph_def
from aioflow.protos import Message, is_message, parse, read, to_bytes
from aioflow.train.meta_graph import placed
from aioflow.train.saver import Saver
from aioflow.train.stored_collections import StoredCollections

_SHARDED: Final = "MergeV2Checkpoints"  # op of the last step of a saver that writes several shards


def import_meta_graph(
    meta_graph_or_file: Message | str | os.PathLike[str],
    clear_devices: bool = False,
    import_scope: str | None = None,
    *,
    input_map: Mapping[str, TensorLike | Operation] | None = None,
) -> Saver | None:
    """Add a stored graph, with its collections, to the default graph. Blocks on the file.

    The data may come from any source: nothing in it is executed. Gradients flow through its branches and loops.

    Args:
        meta_graph_or_file: A `MetaGraphDef`, or a binary or text file with one, written by TensorFlow or aioflow.
        clear_devices: Drop the devices of the nodes.
        import_scope: Name scope of the new nodes.
        input_map: As in `import_graph_def`.

    Returns:
        A saver for the variables of the stored saver, by the same names, with new nodes. If no saver is stored, a saver
        of all variables, or None if the graph has no variables.

    Raises:
        NotFoundError: there is no such file, or a collection refers to a node that the graph lacks.
        DataLossError: the data is damaged, or holds something else.
        UnimplementedError: the graph has ops that are not available here; the error lists all of them.
        AlreadyExistsError: the default graph already has a node of that name.
        InvalidArgumentError: a part of the data is invalid; the error names it.
    """
    meta = read_meta_graph(meta_graph_or_file)
    # Attributes at the producer's defaults may be dropped if aioflow lacks them.
    producer = meta.meta_info_def.stripped_op_list if meta.meta_info_def.HasField("stripped_op_list") else None
    nodes, functions = definition_of(meta.graph_def, producer=producer)
    nodes = tuple(placed(_written_at_once(nodes), clear_devices))
    library = {function.name for function in functions}
    inside = [node for function in functions for node in modernized(function.nodes)]
    missing = {n.op for n in (*modernized(nodes), *inside) if n.op not in OPS and n.op not in library}
    # Before the import, so that the error lists all missing ops and the default graph stays as it is.
    if missing:
        raise UnimplementedError("the graph has ops that are not here", expected="known ops", actual=sorted(missing))
    graph = default_graph()
    # The name is not taken yet: the import itself takes it.
    scope = f"{graph.unique_name(import_scope, mark_as_used=False)}/" if import_scope else ""
    import_graph_def(GraphDef(nodes, VERSION, functions), input_map, name=scope.removesuffix("/"))
    collections = StoredCollections(graph, scope)
    collections.add(meta.collection_def)
    return _saver(meta, collections)


def read_meta_graph(source: Any) -> Message:
    """Return the message of a `MetaGraphDef` or of a file with one. Raises as `import_meta_graph` does."""
    if is_message(source, "MetaGraphDef"):
        return parse("MetaGraphDef", source.SerializeToString())
    if not isinstance(source, str | os.PathLike):
        raise DTypeError("not a meta graph", expected="a MetaGraphDef or a file", actual=type(source).__name__)
    store, name = store_of(source)
    try:
        found = read("MetaGraphDef", store.read(name))
        if not found.HasField("graph_def"):
            raise InvalidArgumentError("there is no graph in it", expected="a MetaGraphDef", actual=store.path(name))
        return found
    except OpError as error:
        # The file's name is added once.
        if store.path(name) not in error.message:
            error.message = f"{store.path(name)}: {error.message}"
        raise


def _written_at_once(nodes: Sequence[NodeDef]) -> Sequence[NodeDef]:
    """Return the nodes without the merge steps of sharded savers and their consumers; the new saver needs none."""
    gone = {node.name for node in nodes if node.op == _SHARDED}
    while True:
        more = {node.name for node in nodes if node.name in gone or any(ref.node in gone for ref in node.refs())}
        if more == gone:
            return [node for node in nodes if node.name not in gone] if gone else nodes
        gone = more


def _saver(meta: Message, collections: StoredCollections) -> Saver | None:
    """Return the saver of the whole graph. Also make the savers of the collection, and reuse one if it is the same."""
    made: dict[bytes, Saver] = {}
    stored = meta.collection_def.get(GraphKeys.SAVERS)
    for value in () if stored is None else stored.bytes_list.value:
        saver_def = parse("SaverDef", value)
        made[to_bytes(saver_def)] = saver = Saver.from_proto(saver_def, collections.scope)
        collections.graph.add_to_collection(GraphKeys.SAVERS, saver)
    if meta.HasField("saver_def"):
        return made.get(to_bytes(meta.saver_def)) or Saver.from_proto(meta.saver_def, collections.scope)
    return Saver() if collections.graph.get_collection(GraphKeys.GLOBAL_VARIABLES) else None
