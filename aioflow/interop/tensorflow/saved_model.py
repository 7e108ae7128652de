"""SavedModels, as TensorFlow 1 and 2 write them: a graph with signatures, a checkpoint of its variables, and assets.

The import keeps only the nodes that the signatures and the initialization of the variables need. The model's own nodes
restore the variables from the checkpoint beside it, so the graph holds no constants of their values.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from aioflow.errors import InvalidArgumentError, NotFoundError, OpError
from aioflow.formats.checkpoint import CheckpointReader, checkpoint_exists
from aioflow.formats.stores import joined, store_at
from aioflow.formats.tensor_bundle import INDEX, OBJECT_GRAPH
from aioflow.graph import dtypes
from aioflow.graph.definitions import NodeDef, TensorData
from aioflow.graph.graph import Graph, Tensor
from aioflow.graph.graphdef import GraphDef
from aioflow.graph.shapes import is_compatible
from aioflow.interop.model import Model, Signature
from aioflow.interop.tensorflow.graphs import supported
from aioflow.interop.tensorflow.pruning import node_of, pruned
from aioflow.interop.tensorflow.saved_model_parts import (
    ASSETS,
    VARIABLES,
    MetaGraphParts,
    components,
    meta_graph,
    saved_model,
)
from aioflow.interop.tensorflow.stored_variables import (
    SavedModelVariable,
    captured_variables,
    restored_variables,
    stored_variables,
)
from aioflow.memory.collector import full_collections_postponed
from aioflow.ops.apply import constant, make_list
from aioflow.ops.importer import import_graph_def
from aioflow.ops.lookup.definitions import is_mutable_table
from aioflow.ops.variables.adopted import AdoptedVariable
from aioflow.ops.variables.variable import Variable
from aioflow.protos import Message, parse
from aioflow.session.session import Session
from aioflow.train.saved_variables import Saved, check_saved


@full_collections_postponed()
def load_saved_model(
    folder: str | os.PathLike[str],
    tags: Iterable[str] | str | None = None,
    signatures: Iterable[str] | str | None = None,
) -> Model:
    """Load the model in a folder that TensorFlow, Keras or `save_saved_model` wrote. Blocks on the disk or the network.

        model = load_saved_model("exported")
        async with aioflow.Session(graph=model.graph) as session:
            await model.initialize(session)
            values = await session.run(model.outputs, {model.inputs["x"]: x})

    Args:
        folder: The folder with `saved_model.pb` (or `.pbtxt`), or its URL in a store.
        tags: Tags of the wanted graph; by default those of the only graph, or "serve" if there are several.
        signatures: Names of the signatures to load, with the nodes and variables that they need; by default all.
            Parts that only the other signatures need may be unsupported.

    Returns:
        The model. Its nodes have their original names. Its variables have their names in the program that made the
        model where these are unique, and otherwise the names of their nodes. Initializers set the variables to the
        values of the file, but only `initialize` also fills the tables and runs the model's other initialization.
        A sparse input or output "x" becomes three, "x/indices", "x/values" and "x/dense_shape". Another composite one
        becomes "x/0", "x/1", ….

    Raises:
        NotFoundError: the folder has no SavedModel, or the model has no graph with these tags or no such signature.
        DataLossError: the file is damaged.
        UnsupportedError: the signatures need unsupported ops; the error lists all of them.
        InvalidArgumentError: the model is inconsistent, or names files outside its folder.
    """
    store = store_at(folder)
    place = os.fspath(folder)
    meta = meta_graph(saved_model(store, place), tags, place)
    parts = MetaGraphParts.of(meta).only(signatures, place)
    values = _values(meta, parts, place)
    graph = Graph()
    with graph.as_default():
        import_graph_def(_with_assets(values.graph_def, parts, place), name="")
    calls = {name: _signature(graph, given) for name, given in parts.signatures.items()}
    stored = [
        each
        for each in stored_variables(values.handles, meta, values.graph_def, values.checkpointed)
        if graph.get_operation_by_name(each.node).type == "VarHandleOp"
    ]
    variables = _variables(graph, stored, values.prefix)
    others = {each.key: variables[each.name] for each in stored if each.node in values.others}
    initialize = _initializer(graph, parts, values, others, place)
    version = meta.meta_info_def.tensorflow_version
    source = f"{place}, a SavedModel of TensorFlow {version}".rstrip()
    assets = {_tensor(graph, name): joined(place, f"{ASSETS}/{asset}") for name, asset in parts.assets.items()}
    return Model(graph, calls, variables, initialize, source, assets)


# ── the graph ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _signature(graph: Graph, given: Message) -> Signature:
    inputs, outputs = (
        {part: _tensor(graph, name) for key in sorted(infos) for part, name in components(key, infos[key])}
        for infos in (given.inputs, given.outputs)
    )
    return Signature(inputs, outputs, given.method_name)


def _tensor(graph: Graph, name: str) -> Tensor:
    try:
        return graph.get_tensor_by_name(name if ":" in name else f"{name}:0")
    except OpError as error:
        raise InvalidArgumentError(
            f"a signature names a tensor that is not there: {name!r}", expected="one of the graph", actual=name
        ) from error


@dataclass(frozen=True)
class _Values:
    """The graph to import, and the way in which its variables get their values.

    Attributes:
        graph_def: The part of the graph that is needed.
        prefix: Path prefix of the checkpoint; "" if there is no checkpoint.
        handles: The nodes of the variables, by the checkpoint keys of their values.
        others: The nodes of the variables that the model's own nodes do not restore.
        restore: The node that restores the rest; "" if nothing remains.
        checkpointed: The TrackableObjectGraph of the checkpoint, or None.
    """

    graph_def: GraphDef
    prefix: str
    handles: Mapping[str, str]
    others: Collection[str]
    restore: str
    checkpointed: Message


def _values(meta: Message, parts: MetaGraphParts, place: str) -> _Values:
    """Find the needed part of the graph, and the variables to restore.

    If the objects that the signatures capture are known and cover all variables, only these are restored. Otherwise the
    model's own nodes restore everything that they restore, including tables.
    """
    prefix = joined(place, VARIABLES)
    prefix = prefix if checkpoint_exists(prefix) else ""
    wanted = [*parts.tensors(), *parts.init]
    what, ops = f"the SavedModel in {place}", meta.meta_info_def.stripped_op_list
    graph_def = supported(pruned(meta.graph_def, wanted), what, ops)
    checkpointed = checkpointed_objects(prefix)
    captured = _captured(graph_def, meta, prefix, checkpointed)
    handles = {node.name for node in graph_def.nodes if node.op == "VarHandleOp"}
    assigned = (ref for node in graph_def.nodes if node.op == "AssignVariableOp" for ref in node.refs()[:1])
    # Variables that the model's initialization itself assigns, for example the names of assets.
    handles -= {ref.node for ref in assigned}
    if handles and not prefix:
        raise NotFoundError(
            f"the variables of the SavedModel in {place} are missing",
            expected=joined(place, VARIABLES) + INDEX,
            actual=f"none, for {len(handles)} variables",
        )
    # Tables have no captured objects, so only the model's own nodes restore them.
    known = handles <= set(captured.values()) and not any(is_mutable_table(node.op) for node in graph_def.nodes)
    if not (prefix and parts.restore) or (handles and known):
        return _Values(graph_def, prefix, captured, set(captured.values()), "", checkpointed)
    # The restoring nodes may need ops that the signatures do not, so they are added only if required.
    graph_def = supported(pruned(meta.graph_def, [*wanted, parts.restore, parts.filename]), what, ops)
    restore = node_of(parts.restore)
    restored = restored_variables(graph_def.nodes, graph_def.functions, restore)
    others = set(captured.values()) - set(restored.values())
    return _Values(graph_def, prefix, {**restored, **captured}, others, restore, checkpointed)


def checkpointed_objects(prefix: str) -> Message:
    """Return the TrackableObjectGraph of a checkpoint, which connects its objects, or None."""
    reader = CheckpointReader(prefix) if prefix else None
    if reader is None or OBJECT_GRAPH not in reader:
        return None
    return parse("TrackableObjectGraph", bytes(reader.read(OBJECT_GRAPH).reshape(-1)[0]))


def _captured(graph_def: GraphDef, meta: Message, prefix: str, checkpointed: Message) -> dict[str, str]:
    if checkpointed is None or not meta.object_graph_def.concrete_functions:
        return {}
    reader = CheckpointReader(prefix)
    found = captured_variables(graph_def.nodes, meta.object_graph_def, checkpointed)
    return {key: node for key, node in found.items() if key in reader}


def _variables(graph: Graph, stored: Sequence[SavedModelVariable], prefix: str) -> dict[str, Variable]:
    """Return the variables by name. Their initializers assign the values of the checkpoint."""
    handles = {each.key: graph.get_operation_by_name(each.node).outputs[0] for each in stored}
    values = _restored(graph, handles, prefix) if prefix else {}
    return {
        each.name: AdoptedVariable(handles[each.key], values.get(each.key), trainable=each.trainable) for each in stored
    }


def _restored(graph: Graph, handles: Mapping[str, Tensor], prefix: str) -> dict[str, Callable[[], Tensor]]:
    """Return functions that return the restored value, for the variables whose dtype and shape fit the stored ones."""
    reader = CheckpointReader(prefix)
    wanted = {
        key: handle.op.attrs["dtype"]
        for key, handle in handles.items()
        if key in reader
        and reader.dtype(key) is handle.op.attrs["dtype"]
        and is_compatible(handle.op.attrs["shape"], reader.shape(key))
    }
    if not wanted:
        return {}
    with graph.as_default(), graph.name_scope("restored"):
        names = constant(list(wanted), dtypes.string, name="tensor_names")
        slices = constant([""] * len(wanted), dtypes.string, name="slices")
        file = constant(prefix, name="prefix")
        values = make_list("RestoreV2", file, names, slices, dtypes=list(wanted.values()))
    # `partial`, since a lambda would see the last value of the loop.
    return {key: partial(_same, value) for key, value in zip(wanted, values, strict=True)}


def _same(value: Tensor) -> Tensor:
    return value


def _with_assets(graph_def: GraphDef, parts: MetaGraphParts, place: str) -> GraphDef:
    """Return the graph with the paths of the assets in this folder, instead of those where the model was saved."""
    paths = {node_of(name): joined(place, f"{ASSETS}/{asset}") for name, asset in parts.assets.items()}

    def here(node: NodeDef) -> NodeDef:
        value = node.attrs.get("value")
        if node.name not in paths or not isinstance(value, TensorData):  # a placeholder is fed by `initialize`
            return node
        return replace(node, attrs={**node.attrs, "value": replace(value, data=(os.fsencode(paths[node.name]),))})

    return replace(graph_def, nodes=tuple(map(here, graph_def.nodes)))


def _initializer(
    graph: Graph, parts: MetaGraphParts, values: _Values, others: Mapping[str, Variable], place: str
) -> Callable[[Session], Awaitable[None]]:
    feeds: dict[Tensor, str] = {
        _tensor(graph, name): joined(place, f"{ASSETS}/{asset}") for name, asset in parts.assets.items()
    }
    file = {_tensor(graph, parts.filename): values.prefix} if values.restore else {}
    restore = graph.get_operation_by_name(values.restore) if values.restore else None
    init = [graph.get_operation_by_name(name) for name in parts.init]
    if others:
        check_saved(values.prefix, [Saved(key, variable) for key, variable in others.items()], reshape=False)
    initializers = [variable.initializer for variable in others.values()]

    async def initialize(session: Session) -> None:
        if restore is not None:
            # In this order: the model's initialization may read variables.
            await session.run(restore, {**feeds, **file})
        if initializers:
            await session.run(initializers)
        if init:
            await session.run(init, feeds)

    return initialize
