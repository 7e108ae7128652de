"""SavedModels, as TensorFlow 1 and 2 write them: a graph with signatures, a checkpoint of its variables, and assets.

The graph that is imported is what the signatures need and what gives the variables their values; the model's own nodes
restore them, from the checkpoint beside it, so there are no constants of them in the graph.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from aioflow.errors import InvalidArgumentError, NotFoundError, OpError, ResourceExhaustedError
from aioflow.formats.checkpoint import CheckpointReader, checkpoint_exists
from aioflow.formats.stores import Store, joined, store_at
from aioflow.formats.tensor_bundle import OBJECT_GRAPH
from aioflow.graph.graph import Graph
from aioflow.graph.graphdef import GraphDef
from aioflow.graph.opdef import OPS
from aioflow.graph.published.graphs import definition_of
from aioflow.graph.tensor import Tensor
from aioflow.interop.model import Model, Signature
from aioflow.interop.tensorflow.pruning import node_of, pruned
from aioflow.interop.tensorflow.restored import captured_variables, restored_variables
from aioflow.interop.unsupported import UnsupportedError, UnsupportedOp
from aioflow.ops.importer import import_graph_def
from aioflow.ops.variables.adopted import AdoptedVariable
from aioflow.ops.variables.variable import Variable
from aioflow.protos import Message, parse, read
from aioflow.session.session import Session
from aioflow.train.saver import Saver

__all__ = ["ASSETS", "FILES", "INIT_SIGNATURES", "VARIABLES", "load_saved_model"]

FILES: Final = ("saved_model.pb", "saved_model.pbtxt")
VARIABLES: Final = "variables/variables"
ASSETS: Final = "assets"
INIT_SIGNATURES: Final = ("__saved_model_init_op", "__saved_model_train_op")  # nodes in the form of signatures
_INIT_COLLECTIONS: Final = ("saved_model_main_op", "legacy_init_op")
_ASSET_COLLECTION: Final = "saved_model_assets"
_SERVE: Final = frozenset({"serve"})
_MAX_BYTES: Final = 1 << 31  # what a message may have


def load_saved_model(folder: str | os.PathLike[str], tags: Iterable[str] | str | None = None) -> Model:
    """The model in a folder that TensorFlow, Keras or `save_saved_model` wrote. Blocks on the disk or the network.

        model = load_saved_model("exported")
        async with aioflow.Session(graph=model.graph) as session:
            await model.initialize(session)
            values = await session.run(model.outputs, {model.inputs["x"]: x})

    Args:
        folder: The folder with `saved_model.pb` (or `.pbtxt`), or its URL in a store.
        tags: Those of the graph that is wanted; by default "serve", or those of the only one.

    Returns:
        The graph, whose nodes have the model's names; its signatures; the variables by the names that the checkpoint
        has for their values. A sparse input or output "x" is three, "x/indices", "x/values" and "x/dense_shape", and
        another composite one "x/0", "x/1", ….

    Raises:
        NotFoundError: there is no SavedModel, or none of its graphs has these tags.
        DataLossError: the file is damaged.
        UnsupportedError: the signatures need ops that are not there; it says all of them.
        InvalidArgumentError: the model is inconsistent, or names files outside of its folder.
    """
    store = store_at(folder)
    place = os.fspath(folder)
    meta = _meta_graph(_saved_model(store, place), tags, place)
    parts = _Parts.of(meta)
    wanted = [*parts.tensors(), *parts.init, *([parts.restore, parts.filename] if parts.restore else [])]
    graph_def = _definition(pruned(meta.graph_def, wanted), meta, place)
    graph = Graph()
    with graph.as_default():
        import_graph_def(graph_def, name="")
    signatures = {name: _signature(graph, given) for name, given in parts.signatures.items()}
    prefix = _checkpoint(place)
    restored = restored_variables(graph_def.nodes, graph_def.functions, node_of(parts.restore)) if parts.restore else {}
    captured = _captured(graph_def, meta, prefix)
    variables = _variables(graph, {**restored, **captured}, meta)
    others = {key: variables[key] for key in captured if captured[key] not in restored.values() and key in variables}
    initialize = _initializer(graph, parts, prefix, others, place)
    version = meta.meta_info_def.tensorflow_version
    return Model(graph, signatures, variables, initialize, f"{place}, a SavedModel of TensorFlow {version}".rstrip())


# -- the file ---------------------------------------------------------------------------------------------------------


def _saved_model(store: Store, place: str) -> Message:
    for name in FILES:
        size = store.size(name)
        if size is None:
            continue
        if size > _MAX_BYTES:
            raise ResourceExhaustedError(f"{store.path(name)} is too large", expected=_MAX_BYTES, actual=size)
        try:
            data = store.read(name)
            return read("SavedModel", data) if name.endswith("txt") else parse("SavedModel", data)
        except OpError as error:
            error.message = f"{store.path(name)}: {error.message}"
            raise
    raise NotFoundError(f"there is no SavedModel in {place}", expected=" or ".join(FILES), actual=store.names()[:10])


def _meta_graph(model: Message, tags: Iterable[str] | str | None, place: str) -> Message:
    known = [frozenset(meta.meta_info_def.tags) for meta in model.meta_graphs]
    if tags is None:
        wanted = known[0] if len(known) == 1 else _SERVE
    else:
        wanted = frozenset([tags] if isinstance(tags, str) else tags)
    for own, meta in zip(known, model.meta_graphs, strict=True):
        if own == wanted:
            return meta
    raise NotFoundError(
        f"no graph of the SavedModel in {place} has these tags",
        expected=f"one of {[sorted(own) for own in known]}",
        actual=sorted(wanted),
    )


@dataclass(frozen=True)
class _Parts:
    """What there is around the graph.

    Attributes:
        signatures: Those that can be called.
        init: Nodes to be run when the variables have their values.
        restore, filename: The node that restores the variables, and the tensor that names the checkpoint; "" for none.
        assets: Names of files, by the tensors that stand for them.
    """

    signatures: Mapping[str, Message]
    init: tuple[str, ...]
    restore: str
    filename: str
    assets: Mapping[str, str]

    @classmethod
    def of(cls, meta: Message) -> _Parts:
        signatures = {k: meta.signature_def[k] for k in sorted(meta.signature_def) if k not in INIT_SIGNATURES}
        init = [
            tensor.name
            for name in INIT_SIGNATURES[:1]
            if name in meta.signature_def
            for tensor in meta.signature_def[name].outputs.values()
        ]
        for name in _INIT_COLLECTIONS:
            if not init and name in meta.collection_def:
                init = list(meta.collection_def[name].node_list.value)
        saver = meta.saver_def
        return cls(
            signatures,
            tuple(node_of(n) for n in init),
            saver.restore_op_name,
            saver.filename_tensor_name,
            _assets(meta),
        )

    def tensors(self) -> Iterator[str]:
        """Names of the tensors of the signatures, and of those that stand for assets."""
        for signature in self.signatures.values():
            for given in (signature.inputs, signature.outputs):
                yield from (name for key in given for _, name in _components(key, given[key]))
        yield from self.assets


def _assets(meta: Message) -> dict[str, str]:
    found = list(meta.asset_file_def)
    if _ASSET_COLLECTION in meta.collection_def:
        # An Any says which message it holds by a name that depends on who wrote it; what it holds is the same.
        held = meta.collection_def[_ASSET_COLLECTION].any_list.value
        found += [parse("AssetFileDef", each.value) for each in held]
    assets = {each.tensor_info.name: each.filename for each in found}
    for name in assets.values():
        parts = name.replace("\\", "/").split("/")
        if ".." in parts or "" in parts or ":" in parts[0] or "\0" in name:
            raise InvalidArgumentError("an asset is outside of the model", expected="a file in it", actual=repr(name))
    return assets


def _components(key: str, info: Message) -> list[tuple[str, str]]:
    """Names for the tensors of one input or output, and the tensors' own."""
    if info.HasField("coo_sparse"):
        sparse = info.coo_sparse
        names = (sparse.indices_tensor_name, sparse.values_tensor_name, sparse.dense_shape_tensor_name)
        return [(f"{key}/{part}", name) for part, name in zip(("indices", "values", "dense_shape"), names, strict=True)]
    if info.HasField("composite_tensor"):
        parts = info.composite_tensor.components
        return [found for i, part in enumerate(parts) for found in _components(f"{key}/{i}", part)]
    return [(key, info.name)] if info.name else []


# -- the graph --------------------------------------------------------------------------------------------------------


def _definition(graph: Message, meta: Message, place: str) -> GraphDef:
    refused: list[UnsupportedOp] = []

    def refuse(op: str, node: str, why: str) -> None:
        refused.append(UnsupportedOp(op, node, why))

    ops = meta.meta_info_def.stripped_op_list
    nodes, functions = definition_of(graph, refuse, ops)
    library = {function.name for function in functions} | {each.signature.name for each in graph.library.function}
    for where, each in [("", nodes), *((f"{f.name}/", f.nodes) for f in functions)]:
        refused += [UnsupportedOp(n.op, where + n.name) for n in each if n.op not in OPS and n.op not in library]
    if refused:
        raise UnsupportedError(f"the SavedModel in {place}", refused)
    return GraphDef(nodes, functions=functions)


def _signature(graph: Graph, given: Message) -> Signature:
    inputs, outputs = (
        {part: _tensor(graph, name) for key in sorted(infos) for part, name in _components(key, infos[key])}
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


def _checkpoint(place: str) -> str:
    """The prefix of the checkpoint; "" where there are no variables."""
    prefix = joined(place, VARIABLES)
    return prefix if checkpoint_exists(prefix) else ""


def _captured(graph_def: GraphDef, meta: Message, prefix: str) -> dict[str, str]:
    if not prefix or not meta.object_graph_def.concrete_functions:
        return {}
    reader = CheckpointReader(prefix)
    if OBJECT_GRAPH not in reader:
        return {}
    objects = parse("TrackableObjectGraph", bytes(reader.read(OBJECT_GRAPH).reshape(-1)[0]))
    return captured_variables(graph_def.nodes, meta.object_graph_def, objects)


def _variables(graph: Graph, handles: Mapping[str, str], meta: Message) -> dict[str, Variable]:
    fixed = _fixed(meta)
    found: dict[str, Variable] = {}
    for key, node in sorted(handles.items()):
        operation = graph.get_operation_by_name(node)
        if operation.type == "VarHandleOp":
            found[key] = AdoptedVariable(operation.outputs[0], trainable=node not in fixed)
    return found


def _fixed(meta: Message) -> set[str]:
    """Names of the variables that are not to be trained."""
    objects = {
        o.variable.name for o in meta.object_graph_def.nodes if o.HasField("variable") and not o.variable.trainable
    }
    kept = {
        name: {parse("VariableDef", data).variable_name for data in meta.collection_def[name].bytes_list.value}
        for name in ("variables", "trainable_variables")
        if name in meta.collection_def
    }
    others = kept.get("variables", set()) - kept["trainable_variables"] if "trainable_variables" in kept else set()
    return objects | {node_of(name) for name in others}


def _initializer(
    graph: Graph, parts: _Parts, prefix: str, others: Mapping[str, Variable], place: str
) -> Callable[[Session], Awaitable[None]]:
    """Runs the model's own nodes; `others` are variables that those leave out, since only Python loads them."""
    feeds = {_tensor(graph, name): joined(place, f"{ASSETS}/{file}") for name, file in parts.assets.items()}
    restore = graph.get_operation_by_name(node_of(parts.restore)) if parts.restore and prefix else None
    init = [graph.get_operation_by_name(name) for name in parts.init]
    with graph.as_default():
        saver = Saver(dict(others), name="restore_captured") if others else None

    async def initialize(session: Session) -> None:
        if restore is not None:
            await session.run(restore, {**feeds, _tensor(graph, parts.filename): prefix})
        if saver is not None:
            await saver.restore(session, prefix)
        if init:
            await session.run(init, feeds)

    return initialize
