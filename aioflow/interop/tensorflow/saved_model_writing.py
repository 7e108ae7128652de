"""Export of SavedModels in the form of TensorFlow 1, which TensorFlow 2 can load, too.

A model has the graph that the signatures need, nodes that save and restore its variables and tables, and a checkpoint
of their contents.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from aioflow.arguments import check_kind
from aioflow.concurrency.threads import in_thread
from aioflow.errors import AlreadyExistsError, DTypeError, InvalidArgumentError
from aioflow.formats.graphs.published.graphs import message_of
from aioflow.formats.stores import joined, store_at, store_of
from aioflow.formats.tensor_bundle_writer import write_bundle
from aioflow.graph import dtypes
from aioflow.graph.default_session import check_session
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Graph, GraphKeys, Operation, Tensor
from aioflow.graph.graphdef import NodeDef, TensorData
from aioflow.graph.opdef import OPS
from aioflow.graph.shapes import Dims
from aioflow.graph.signature.attributes import Attrs
from aioflow.interop.assets import asset_names, assets_of, keeping_assets
from aioflow.interop.model import DEFAULT_SIGNATURE, Signature
from aioflow.interop.tensorflow.pruning import pruned
from aioflow.interop.tensorflow.saved_model_parts import ASSETS, FILES, INIT_SIGNATURES, VARIABLES
from aioflow.interop.unsupported import UnsupportedError, UnsupportedOp
from aioflow.memory.values import Array
from aioflow.ops.apply import make
from aioflow.ops.lookup.definitions import is_kept_table
from aioflow.ops.lookup.mutable import ExportedTable
from aioflow.ops.variables.variable import Variable
from aioflow.protos import Message, message, to_bytes
from aioflow.session.session import Session

# The nodes that save and restore the variables and tables of a SavedModel, named as by TensorFlow 1's Saver

SAVER_FILE: Final = "save/Const:0"
SAVED: Final = "save/control_dependency:0"
RESTORE: Final = "save/restore_all"


def names_of(i: int) -> tuple[str, str]:
    """Return the names of the nodes that read and restore the i-th variable."""
    return f"save/Read_{i}", f"save/Assign_{i}"


def restoring_nodes(
    variables: Sequence[tuple[str, DType, Dims]], tables: Sequence[tuple[str, DType, DType]] = ()
) -> list[NodeDef]:
    """Return the nodes that save and restore these variables and tables.

    The nodes include reads and assignments of each variable that are not needed to restore it: TensorFlow looks for a
    read and an initializer of each variable.

    Args:
        variables: Name of the handle, dtype and shape of each variable.
        tables: Name of the handle, dtype of the keys and dtype of the values of each table.
    """
    names = [name for name, *_ in variables] + [key for name, *_ in tables for key in table_keys(name)]
    dtypes_ = [dtype for _, dtype, _ in variables] + [dtype for _, *both in tables for dtype in both]
    about = ("save/Const", "save/{}/tensor_names", "save/{}/shape_and_slices")
    reads = [f"save/Read_{i}" for i in range(len(variables))]
    # An export has two outputs, keys and values; the first has no number.
    reads += [f"save/Export_{i}{port}" for i in range(len(tables)) for port in ("", ":1")]
    waits = [f"^save/Assign_{i}" for i in range(len(variables))] + [f"^save/Import_{i}" for i in range(len(tables))]
    save, restore = (tuple(text.format(kind) for text in about) for kind in ("SaveV2", "RestoreV2"))
    attrs = {"dtypes": tuple(dtypes_)}
    return [
        *_about_the_file(names),
        *(_read(i, name, dtype) for i, (name, dtype, _) in enumerate(variables)),
        *(_export(i, *table) for i, table in enumerate(tables)),
        NodeDef("save/SaveV2", "SaveV2", (*save, *reads), attrs=attrs),
        NodeDef("save/control_dependency", "Identity", ("save/Const", "^save/SaveV2"), attrs={"T": dtypes.string}),
        NodeDef("save/RestoreV2", "RestoreV2", restore, attrs=attrs),
        *(_assign(i, name, dtype) for i, (name, dtype, _) in enumerate(variables)),
        *(_import(i, len(variables) + 2 * i, *table) for i, table in enumerate(tables)),
        NodeDef(RESTORE, "NoOp", tuple(waits)),
    ]


def table_keys(name: str) -> tuple[str, str]:
    """Return the checkpoint keys of a table's keys and values, which no node or variable can have as its name."""
    return f"{name}:table-keys", f"{name}:table-values"


def _about_the_file(names: Sequence[str]) -> list[NodeDef]:
    default: Attrs = {"dtype": dtypes.string, "shape": ()}
    nodes = [
        _constant("save/filename/input", np.array(b"model", object)),
        NodeDef("save/filename", "PlaceholderWithDefault", ("save/filename/input",), attrs=default),
        NodeDef("save/Const", "PlaceholderWithDefault", ("save/filename",), attrs=default),
    ]
    for kind in ("SaveV2", "RestoreV2"):
        nodes.append(_constant(f"save/{kind}/tensor_names", np.array([name.encode() for name in names], object)))
        nodes.append(_constant(f"save/{kind}/shape_and_slices", np.array([b""] * len(names), object)))
    return nodes


def _constant(name: str, value: Array) -> NodeDef:
    return NodeDef(name, "Const", attrs={"dtype": dtypes.string, "value": TensorData.of(value)})


def _read(i: int, name: str, dtype: DType) -> NodeDef:
    return NodeDef(f"save/Read_{i}", "ReadVariableOp", (name,), attrs={"dtype": dtype})


def _assign(i: int, name: str, dtype: DType) -> NodeDef:
    # The first output of a node has no number in TensorFlow's notation.
    value = "save/RestoreV2" if i == 0 else f"save/RestoreV2:{i}"
    return NodeDef(f"save/Assign_{i}", "AssignVariableOp", (name, value), attrs={"dtype": dtype})


def _export(i: int, name: str, key: DType, value: DType) -> NodeDef:
    return NodeDef(f"save/Export_{i}", "LookupTableExportV2", (name,), attrs={"Tkeys": key, "Tvalues": value})


def _import(i: int, port: int, name: str, key: DType, value: DType) -> NodeDef:
    restored = ["save/RestoreV2" if at == 0 else f"save/RestoreV2:{at}" for at in (port, port + 1)]
    return NodeDef(f"save/Import_{i}", "LookupTableImportV2", (name, *restored), attrs={"Tin": key, "Tout": value})


_START: Final = "save/initialize_assets"
_METHOD: Final = "tensorflow/serving/predict"


async def save_saved_model(
    session: Session,
    folder: str | os.PathLike[str],
    signatures: Mapping[str, Signature] | Signature,
    tags: Iterable[str] = ("serve",),
    assets: Mapping[Tensor, str | os.PathLike[str]] | None = None,
    overwrite: bool = False,
) -> None:
    """Write the part of the session's graph that the signatures need, and its current state, as a SavedModel.

    The state is the values of the variables and the entries of the tables. The values are consistent if no step that
    changes variables is running. The entries of a table that an asset fills are not saved; the table is filled from the
    asset again when the model is loaded.

    Args:
        session: The session whose graph and values are written.
        folder: A folder, which is created, or its URL in a store.
        signatures: The ways to call the model, by name; a single one is called "serving_default".
        tags: Tags by which `load_saved_model(tags=)` and TensorFlow's loaders find the graph.
        assets: For each string scalar that holds the path of a file, that file, which is copied. When the model is
            loaded, the scalar is fed the copy's path only while variables and tables are initialized.
        overwrite: Whether to replace an existing SavedModel.

    Raises:
        InvalidArgumentError: there is no signature, or one names a tensor of another graph.
        AlreadyExistsError: the folder has a SavedModel.
        UnsupportedError: the graph has ops that TensorFlow lacks; the error lists all of them.
        FailedPreconditionError: a variable has no value, or a table no entries.
        PermissionDeniedError, ResourceExhaustedError, …: the file system refuses; the error names the file.
    """
    check_session(session)
    await in_thread(_check_free, os.fspath(folder), overwrite, effects=False)
    check_kind(signatures, (Mapping, Signature), "the signatures", "a Signature, or several by name")
    named = {DEFAULT_SIGNATURE: signatures} if isinstance(signatures, Signature) else dict(signatures)
    graph: Graph = session.graph
    paths = assets_of(graph, assets or {})
    wanted = [tensor.name for tensor in (*_tensors(graph, named), *paths)]
    graph_def = graph.as_graph_def()
    whole = message_of(graph_def.nodes, graph_def.functions)
    part = pruned(whole, wanted)
    # Nodes that fill a table from an asset are not needed by a call, but by the initialization.
    starting = keeping_assets(graph, paths, {node.name for node in part.node})
    part = pruned(whole, [*wanted, *starting]) if starting else part
    _refuse_own_ops(part)
    handles = [graph.get_operation_by_name(node.name) for node in part.node if node.op == "VarHandleOp"]
    tables = _tables(graph, part, starting)
    reads = [*_reads(graph, handles), *(each for table in tables for each in _contents(graph, table))]
    # In the order of `reads`.
    keys = [*(handle.name for handle in handles), *(key for table in tables for key in table_keys(table.name))]
    values = dict(zip(keys, await session.run(reads), strict=True))
    names = asset_names(paths.values())
    meta = _meta_graph(part, handles, tables, named, tags)
    _add_variables(meta, graph, handles)
    _add_assets(meta, {tensor: names[path] for tensor, path in paths.items()}, starting)
    await in_thread(_write, os.fspath(folder), meta, values, names, overwrite)


def _check_free(folder: str, overwrite: bool) -> None:
    """Raise AlreadyExistsError if the folder has a SavedModel and must not be overwritten."""
    store = store_at(folder)
    if not overwrite and any(store.size(name) is not None for name in FILES):
        raise AlreadyExistsError(f"there is a SavedModel in {folder}", expected="nothing there, or overwrite=True")


def _tensors(graph: Graph, signatures: Mapping[str, Signature]) -> list[Tensor]:
    if not signatures:
        raise InvalidArgumentError("a SavedModel needs a signature", expected="at least one", actual=0)
    found = []
    for name, signature in signatures.items():
        check_kind(signature, Signature, f"signature {name!r}", "a Signature")
        for given in (signature.inputs, signature.outputs):
            for key, tensor in given.items():
                element = graph.as_graph_element(tensor)
                if not isinstance(element, Tensor):
                    raise DTypeError(f"{key!r} of signature {name!r} is no tensor", expected="a Tensor", actual=element)
                found.append(element)
    return found


def _refuse_own_ops(graph: Message) -> None:
    nodes = [("", node) for node in graph.node]
    nodes += [(f"{f.signature.name}/", node) for f in graph.library.function for node in f.node_def]
    own = [
        UnsupportedOp(node.op, where + node.name, "an op of aioflow alone") for where, node in nodes if _is_own(node.op)
    ]
    if own:
        raise UnsupportedError("the graph", own)


def _is_own(op: str) -> bool:
    return op in OPS and not OPS.get(op).published


def _reads(graph: Graph, handles: Sequence[Operation]) -> list[Variable | Tensor]:
    """Return fetches of the variables' values: the variables themselves if the graph has them, else new reads."""
    known = {
        v.op.name: v
        for key in (GraphKeys.GLOBAL_VARIABLES, GraphKeys.LOCAL_VARIABLES)
        for v in graph.get_collection(key)
    }
    with graph.as_default(), graph.control_dependencies(None):
        return [
            known[handle.name] if handle.name in known else make("ReadVariableOp", handle.outputs[0], **_dtype(handle))
            for handle in handles
        ]


def _tables(graph: Graph, part: Message, starting: Sequence[str]) -> list[Operation]:
    """Return the tables whose entries are saved, without those that an asset fills when the model is loaded."""
    begun = {tensor.op for name in starting for tensor in graph.get_operation_by_name(name).inputs}
    found = [graph.get_operation_by_name(node.name) for node in part.node if is_kept_table(node.op)]
    return [table for table in found if table not in begun]


def _contents(graph: Graph, table: Operation) -> list[Tensor]:
    with graph.as_default(), graph.control_dependencies(None):
        key, value = _dtypes(table)
        return ExportedTable(table.outputs[0], key, value).exported()


def _dtypes(table: Operation) -> tuple[DType, DType]:
    return table.attrs["key_dtype"], table.attrs["value_dtype"]


def _dtype(handle: Operation) -> Attrs:
    return {"dtype": handle.attrs["dtype"]}


def _meta_graph(
    part: Message,
    handles: Sequence[Operation],
    tables: Sequence[Operation],
    signatures: Mapping[str, Signature],
    tags: Iterable[str],
) -> Message:
    meta = message("MetaGraphDef")()
    meta.meta_info_def.tags.extend(sorted(tags))
    variables = [(h.name, h.attrs["dtype"], h.attrs["shape"]) for h in handles]
    kept = variables or tables
    added = restoring_nodes(variables, [(t.name, *_dtypes(t)) for t in tables]) if kept else []
    meta.graph_def.CopyFrom(part)
    meta.graph_def.node.extend(message_of(added, ()).node)
    if kept:
        saver = meta.saver_def
        saver.filename_tensor_name, saver.save_tensor_name, saver.restore_op_name = SAVER_FILE, SAVED, RESTORE
        # The format of the checkpoint: SaveV2.
        saver.version = 2
    for name, signature in signatures.items():
        made = meta.signature_def[name]
        made.method_name = signature.method or _METHOD
        for infos, given in ((made.inputs, signature.inputs), (made.outputs, signature.outputs)):
            for key, tensor in given.items():
                _write_info(infos[key], tensor)
    return meta


def _add_variables(meta: Message, graph: Graph, handles: Sequence[Operation]) -> None:
    """Add the collections by which TensorFlow finds the variables and the trainable ones."""
    trained = {v.handle.op for v in graph.get_collection(GraphKeys.TRAINABLE_VARIABLES) if hasattr(v, "handle")}
    for i, handle in enumerate(handles):
        value, assigned = names_of(i)
        variable = message("VariableDef")(
            variable_name=handle.outputs[0].name,
            initializer_name=assigned,
            snapshot_name=f"{value}:0",
            is_resource=True,
            trainable=handle in trained,
        )
        for key in (GraphKeys.GLOBAL_VARIABLES, *([GraphKeys.TRAINABLE_VARIABLES] if handle in trained else [])):
            meta.collection_def[key].bytes_list.value.append(variable.SerializeToString())


def _add_assets(meta: Message, names: Mapping[Tensor, str], starting: Sequence[str]) -> None:
    for tensor, name in names.items():
        asset = meta.asset_file_def.add(filename=name)
        asset.tensor_info.name = tensor.name
    if starting:
        meta.graph_def.node.add(name=_START, op="NoOp", input=[f"^{name}" for name in starting])
        meta.signature_def[INIT_SIGNATURES[0]].outputs[INIT_SIGNATURES[0]].name = _START


def _write_info(info: Message, tensor: Tensor) -> None:
    info.name = tensor.name
    info.dtype = tensor.dtype.as_datatype_enum
    if tensor.dims is None:
        info.tensor_shape.unknown_rank = True
    else:
        for size in tensor.dims:
            info.tensor_shape.dim.add(size=-1 if size is None else size)
        # A scalar has no sizes; without this call its shape would not be stored, and count as unknown.
        info.tensor_shape.SetInParent()


def _write(folder: str, meta: Message, values: Mapping[str, Array], assets: Mapping[str, str], overwrite: bool) -> None:
    """Write the assets, the checkpoint and at last the graph, so that an interrupted write leaves no model."""
    _check_free(folder, overwrite)
    store = store_at(folder)
    for path, name in assets.items():
        source, last = store_of(path)
        with source.open(last) as file, store_at(joined(folder, ASSETS)).creating(name) as upload:
            shutil.copyfileobj(file, upload.file)
            upload.commit()
    if values:
        write_bundle(joined(folder, VARIABLES), {name: np.asarray(value) for name, value in values.items()})
    model = message("SavedModel")(saved_model_schema_version=1)
    model.meta_graphs.append(meta)
    with store.creating(FILES[0]) as upload:
        upload.file.write(to_bytes(model))
        upload.commit()
    # The text form of a model that was overwritten.
    store.remove(FILES[1])
