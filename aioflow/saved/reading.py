"""`load`: load a model that `save` wrote, into a graph of its own.

A folder is untrusted. Each file is verified against the manifest, the graph is checked like every definition, and the
signatures and weights are checked against the graph.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import numpy as np

from aioflow.arguments import brief, check_kind
from aioflow.concurrency.threads import in_thread
from aioflow.errors import AbortedError, DataLossError, InvalidArgumentError, NotFoundError, OpError
from aioflow.graph import dtypes
from aioflow.graph.arrays import string_array
from aioflow.graph.graph import Graph, GraphKeys, Operation, Tensor
from aioflow.graph.graphdef import GraphDef, InputRef, NodeDef, TensorData
from aioflow.graph.shapes import format_dims, is_compatible
from aioflow.interop import safetensors
from aioflow.interop.model import Model, Signature, TokenLoop
from aioflow.interop.token_loop import check_token_loop
from aioflow.memory.collector import full_collections_postponed
from aioflow.ops.apply import constant, make_list
from aioflow.ops.importer import import_graph_def
from aioflow.ops.variables.adopted import AdoptedVariable
from aioflow.ops.variables.variable import Variable
from aioflow.saved.contents import Contents, open_folder
from aioflow.saved.manifest import StoredSignature, TensorInfo, Weight
from aioflow.saved.places import ModelFolder
from aioflow.saved.stored_graph import PLACEHOLDER, VARIABLE
from aioflow.saved.stored_weights import StoredWeights, table_initializers
from aioflow.session.session import Session
from aioflow.train.saved_variables import Saved, check_saved


@full_collections_postponed()
def load(folder: str | os.PathLike[str]) -> Model:
    """Load the model in a folder. Blocks on the disk: in a coroutine, use `asyncio.to_thread`.

        model = await asyncio.to_thread(aioflow.saved.load, "model")
        async with aioflow.Session(graph=model.graph) as session:
            await model.initialize(session)
            values = await session.run(model.outputs, {model.inputs["x"]: x})

    The loaded version stays valid while the graph lives, even if the model is replaced in its folder. In a store it
    stays valid until the model has been replaced twice: then `initialize` raises an error. The assets of a model in a
    store are copied to a temporary folder, which is deleted with the graph.

    `initialize`, or the initializers of the variables, read the values of the variables, which are not read before. The
    entries of the tables are read by `initialize` or by `tables_initializer()`. Large constants are arrays over the
    mapped file, which is read once to verify their digests. A model is a program: its graph may read and write files
    like any graph. Nothing else in the folder is executed.

    Args:
        folder: A path, or the URL of a folder in a store.

    Raises:
        NotFoundError: there is no model, a file of it is missing, or an op of it is not registered.
        DataLossError: a file is truncated, altered, or does not fit the others; the error names it.
        PermissionDeniedError: a file is a link that leads out of the folder.
        UnimplementedError: only a later release, which the error names, can read the model.
        InvalidArgumentError: the graph does not fit the ops of this release; the error names the node.
        AbortedError: the model is replaced faster than it can be read.
    """
    check_kind(folder, (str, os.PathLike), "the folder of a model", "a str or a path")
    place = ModelFolder(folder).followed()
    with ExitStack() as kept:
        model = _model(place, open_folder(place, kept))
        # The graph reads these files later, so their locks and copies must live as long as the graph does.
        weakref.finalize(model.graph, kept.pop_all().close)
    return model


def _model(place: ModelFolder, contents: Contents) -> Model:
    manifest, weights, paths = contents.manifest, contents.weights, contents.assets
    graph = Graph()
    with graph.as_default():
        import_graph_def(_with_paths(contents.definition, paths), name="")
    signatures = {name: _signature(graph, name, stored) for name, stored in manifest.signatures.items()}
    assets = {graph.get_tensor_by_name(tensor): path for tensor, path in paths.items()}
    variables = _variables(graph, place, manifest.variables, weights)
    tables = table_initializers(graph, weights.prefix if weights else None)
    return Model(
        graph,
        signatures,
        variables,
        partial(_initialize, place, variables, tables, weights),
        source=f"{place.name}, by aioflow {manifest.producer}",
        assets=assets,
        token_loop=_token_loop(manifest.token_loop, signatures),
    )


def _token_loop(loop: TokenLoop | None, signatures: Mapping[str, Signature]) -> TokenLoop | None:
    if loop is not None:
        try:
            check_token_loop(loop, signatures)
        except InvalidArgumentError as error:
            raise DataLossError(error.message, expected=error.expected, actual=error.actual) from error
    return loop


def _with_paths(definition: GraphDef, paths: Mapping[str, str]) -> GraphDef:
    """Return the definition with constants for the paths of assets."""
    placeholders = {node.name for node in definition.nodes if node.op == PLACEHOLDER}
    constants: dict[str, NodeDef] = {}
    for tensor, path in paths.items():
        ref = InputRef.parse(tensor)
        if ref.node not in placeholders or ref.port:
            raise DataLossError("an asset has no place in the graph", expected="a placeholder", actual=brief(tensor))
        value = TensorData.of(string_array(np.array(os.fsencode(path), object)))
        constants[ref.node] = NodeDef(ref.node, "Const", attrs={"dtype": dtypes.string, "value": value})
    return replace(definition, nodes=tuple(constants.get(node.name, node) for node in definition.nodes))


# ── signatures ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _signature(graph: Graph, name: str, stored: StoredSignature) -> Signature:
    inputs, outputs = (
        {info.name: _tensor(graph, name, info) for info in infos} for infos in (stored.inputs, stored.outputs)
    )
    return Signature(inputs, outputs, stored.method)


def _tensor(graph: Graph, signature: str, info: TensorInfo) -> Tensor:
    try:
        tensor = graph.get_tensor_by_name(info.tensor)
    except OpError as error:
        raise DataLossError(
            f"signature {signature!r} does not fit the graph", expected=f"tensor {info.tensor}", actual=error.message
        ) from error
    if tensor.dtype is not info.dtype or not is_compatible(tensor.dims, info.shape):
        raise DataLossError(
            f"{info.name!r} of signature {signature!r} does not fit the graph",
            expected=f"{info.dtype.name} {format_dims(info.shape)}",
            actual=f"{tensor.dtype.name} {format_dims(tensor.dims)}",
        )
    if info.shape is not None:
        # The graph may know less than the writer did.
        tensor.set_shape(info.shape)
    return tensor


# ── weights ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _variables(
    graph: Graph, place: ModelFolder, wanted: tuple[Weight, ...], weights: StoredWeights | None
) -> dict[str, Variable]:
    handles = {op.name: op for op in graph.get_operations() if op.type == VARIABLE}
    # The manifest is untrusted: names must match exactly.
    if set(handles) != {weight.name for weight in wanted} or (handles and weights is None):
        raise DataLossError(
            f"the weights in {place.name} do not fit the graph",
            expected=f"values of {sorted(handles)[:8]}",
            actual=sorted(weight.name for weight in wanted)[:8],
        )
    if not handles or weights is None:
        return {}
    for weight in wanted:
        _check_weight(handles[weight.name], weight)
    restored = _restored(graph, weights.prefix, wanted)
    # The read that the writer made represents the variable, so that no second one is added.
    reads = {op.inputs[0].op.name: op.outputs[0] for op in graph.get_operations() if _is_value(op)}
    collections = (GraphKeys.GLOBAL_VARIABLES,)
    found: dict[str, Variable] = {}
    for weight, value in zip(wanted, restored, strict=True):
        handle, given = handles[weight.name].outputs[0], _given(value)
        found[weight.name] = AdoptedVariable(handle, given, reads.get(weight.name), weight.trainable, collections)
    check_saved(weights.prefix, [Saved(name, variable) for name, variable in found.items()], reshape=False)
    return found


def _check_weight(handle: Operation, weight: Weight) -> None:
    dtype, shape = handle.attrs["dtype"], handle.attrs["shape"]
    if dtype is not weight.dtype or not is_compatible(shape, weight.shape):
        raise DataLossError(
            f"variable {weight.name!r} does not fit the graph",
            expected=f"{dtype.name} {format_dims(shape)}",
            actual=f"{weight.dtype.name} {format_dims(weight.shape)}",
        )


def _restored(graph: Graph, prefix: str, weights: tuple[Weight, ...]) -> list[Tensor]:
    """Return the outputs of a node that reads the values: the initial values of the variables."""
    with graph.as_default(), graph.name_scope("restored"):
        names = constant([weight.name for weight in weights], dtypes.string, name="tensor_names")
        slices = constant([""] * len(weights), dtypes.string, name="slices")
        wanted = [weight.dtype for weight in weights]
        return make_list("RestoreV2", constant(prefix, name="prefix"), names, slices, dtypes=wanted)


def _is_value(op: Operation) -> bool:
    """Return True if the op is the read that represents a variable in the program that built the graph."""
    if op.type != "ReadVariableOp" or op.waits_for:
        return False
    return bool(op.name == f"{op.inputs[0].op.name}/Read/ReadVariableOp")


def _given(value: Tensor) -> Callable[[], Tensor]:
    # A function, because a lambda in the caller's loop would return the value of the last iteration.
    return lambda: value


async def _initialize(
    place: ModelFolder,
    variables: Mapping[str, Variable],
    tables: list[Operation],
    weights: StoredWeights | None,
    session: Session,
) -> None:
    """Initialize variables and tables.

    Values in a local file become arrays over the mapped memory, if the variables are in this process.
    """
    mapped = None if weights is None else await in_thread(weights.values, list(variables), effects=False)
    # Mapped values are assigned below instead, without a copy.
    initializers = [variable.initializer for variable in variables.values()] if mapped is None else []
    try:
        if tables or initializers:
            await session.run([*tables, *initializers])
    except NotFoundError as error:
        # The error may have other causes, such as a file that an op of the model reads.
        if weights is None or await in_thread(weights.are_there, effects=False):
            raise
        raise AbortedError(
            f"the model in {place.name} was replaced since it was loaded: load it again",
            expected="its weights",
            actual=error.message,
        ) from error
    if mapped is not None and variables:
        await safetensors.assign(session, mapped, variables=variables.values())
