"""Surveys: the contents of a model file, found without importing it, even if it cannot be imported."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError

from aioflow.arguments import brief
from aioflow.errors import DataLossError, InvalidArgumentError, UnimplementedError
from aioflow.formats.checkpoint import CheckpointReader, checkpoint_exists
from aioflow.formats.files import file_errors, open_file
from aioflow.formats.graphs.older.references import modernized
from aioflow.formats.stores import is_url, store_at
from aioflow.formats.tensor_bundle import OBJECT_GRAPH
from aioflow.graph.dtypes import DType
from aioflow.graph.graphdef import GraphDef, NodeDef, TensorData
from aioflow.interop import safetensors
from aioflow.interop.tensorflow.graphs import definition_and_refused
from aioflow.interop.tensorflow.pruning import pruned
from aioflow.interop.tensorflow.saved_model import checkpointed_objects
from aioflow.interop.tensorflow.saved_model_parts import VARIABLES, MetaGraphParts, saved_model
from aioflow.interop.tensorflow.stored_variables import checkpointed_values
from aioflow.interop.unsupported import UnsupportedOp
from aioflow.protos import Message
from aioflow.release import install_command
from aioflow.saved.contents import open_folder
from aioflow.saved.opening import (
    AIOFLOW,
    CHECKPOINT,
    GRAPH,
    META_GRAPH,
    ONNX,
    SAVED_MODEL,
    WEIGHTS,
    ModelFormat,
    checkpoint_prefix,
    checkpoints_in,
    missing_ops,
    whole_weights,
)
from aioflow.saved.places import ModelFolder
from aioflow.saved.stored_graph import VARIABLE
from aioflow.train.graph_io import read_graph
from aioflow.train.meta_graph_import import read_meta_graph

__all__ = ["Survey", "survey"]


# ── the result of a survey, and the criterion for constants that are weights ──────────────────────────────────────────


# Dtypes of sizes, indices, masks and words. Weights are floating-point numbers, or integers of one byte.
_NO_WEIGHTS: Final = frozenset(
    {"bool", "int16", "int32", "int64", "uint16", "uint32", "uint64", "object", "string", "resource", "variant"}
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor of weights. `dtype` is the file's name for its dtype, `size` its size in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Survey:
    """The contents of a model file.

    Attributes:
        kind: The format.
        producer: The program that wrote the file, for display; "" if unknown.
        versions: Version numbers, under the file's names for them: {"format": "1"}, {"IR": "8", "opset": "17"}.
        ops: Number of nodes of each op, including those in functions and branches.
        parameters: Weights: values of variables, and constants that are weights (`is_weight`).
        unsupported: Nodes of ops that are not registered, if the format allows finding them.
    """

    kind: ModelFormat
    producer: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    ops: Mapping[str, int] = field(default_factory=dict)
    parameters: tuple[Parameter, ...] = ()
    unsupported: tuple[UnsupportedOp, ...] = ()


def parameter(name: str, dtype: str, shape: Iterable[int | None], each: int) -> Parameter:
    """Return the entry of a tensor with `each` bytes per element. An unknown size counts as 0."""
    sizes = tuple(size or 0 for size in shape)
    return Parameter(name, dtype, sizes, count(sizes) * each)


def is_weight(dtype: str, shape: Iterable[int]) -> bool:
    """Return True if a constant counts as weights.

    Weights are floating-point or complex numbers, or integers of at most eight bits, as in quantized models, with more
    than one element. Wider integers are sizes, axes and indices; booleans are masks.
    """
    # Single numbers are parameters of ops, such as an epsilon.
    return dtype not in _NO_WEIGHTS and count(shape) > 1


def constants(definition: GraphDef) -> Iterator[Parameter]:
    """Yield the constants that are weights, like those of a frozen graph."""
    for node in (*definition.nodes, *(node for function in definition.functions for node in function.nodes)):
        for value in node.attrs.values():
            if isinstance(value, TensorData) and is_weight(value.dtype.name, value.shape):
                yield parameter(node.name, value.dtype.name, value.shape, value.dtype.size)


def counted(definition: GraphDef) -> Mapping[str, int]:
    """Return the number of nodes of each op."""
    # A function counts once, however often it is called.
    nodes = [*definition.nodes, *(node for function in definition.functions for node in function.nodes)]
    return Counter(node.op for node in nodes)


def count(shape: Iterable[int]) -> int:
    """Return the number of elements."""
    # As Python integers: the sizes that a file states may overflow int64.
    return math.prod(int(size) for size in shape)


# ── files with weights only: safetensors, and checkpoints of aioflow and TensorFlow ───────────────────────────────────


def weights(path: str) -> Survey:
    """Survey safetensors: a file, the files of an index, or all files of a folder without an index."""
    place = Path(path)
    whole = whole_weights(place)
    if whole is not None:
        opened = safetensors.open(whole)
        found = [_described(opened, name) for name in opened.names()]
        return Survey(WEIGHTS, "", {"files": str(len(opened.files))}, {}, tuple(found))
    files = sorted(place.glob("*.safetensors")) if place.is_dir() else [place]
    found = []
    for file in files:
        # Without an index, several files may use one name for different tensors.
        opened, prefix = safetensors.open(file), f"{file.name}: " if len(files) > 1 else ""
        found += [_described(opened, name, prefix) for name in opened.names()]
    return Survey(WEIGHTS, "", {"files": str(len(files))}, {}, tuple(found))


def _described(opened: safetensors.Weights, name: str, prefix: str = "") -> Parameter:
    entry = opened.entry(name)
    return Parameter(prefix + name, entry.dtype.name, entry.shape, entry.end - entry.begin)


def checkpoint(path: str) -> Survey:
    """Survey a checkpoint, or the newest one of a folder."""
    place = Path(path)
    if not place.is_dir():
        prefix = checkpoint_prefix(place) or path
        return Survey(CHECKPOINT, "", {}, {}, tuple(values(prefix)))
    prefixes = checkpoints_in(place)
    # `kind_of` returns CHECKPOINT for a folder only if it has one.
    newest = prefixes[-1]
    versions = {"newest": Path(newest).name, "of": str(len(prefixes))}
    return Survey(CHECKPOINT, "", versions, {}, tuple(values(newest)))


def values(prefix: str) -> Iterator[Parameter]:
    """Yield the tensors of a checkpoint, without its object graph."""
    reader = CheckpointReader(prefix)
    for name in reader.names():
        if name != OBJECT_GRAPH:
            dtype = reader.dtype(name)
            yield parameter(name, dtype.name, reader.shape(name), dtype.size)


# ── surveys of TensorFlow's SavedModels and meta graphs ───────────────────────────────────────────────────────────────


def saved_model_folder(path: str) -> Survey:
    """Survey a SavedModel, given its folder or its file."""
    place = Path(path) if Path(path).is_dir() else Path(path).parent
    metas = list(saved_model(store_at(place), str(place)).meta_graphs)
    tags = sorted({tag for meta in metas for tag in meta.meta_info_def.tags})
    # A dictionary, so that constants that several graphs share are listed once, in order.
    frozen = {each: None for meta in metas for each in constants(_needed(meta))}
    versions = {"tags": ", ".join(tags)} if metas else {}
    for meta in metas:
        versions["graph"] = str(meta.graph_def.versions.producer)
    return Survey(
        SAVED_MODEL, _producers(metas), versions, _counted(metas), (*_variables(str(place / VARIABLES), metas), *frozen)
    )


def _needed(meta: Message) -> GraphDef:
    """Return the part of the graph that the signatures need.

    Other constants may be initial values of variables, which the checkpoint has as well.
    """
    graph = pruned(meta.graph_def, MetaGraphParts.of(meta).tensors())
    return definition_and_refused(graph, meta.meta_info_def.stripped_op_list)[0]


def _variables(prefix: str, metas: Iterable[Message]) -> Iterator[Parameter]:
    """Yield the values in the checkpoint.

    If several objects share a variable, only the value that the functions read is included.
    """
    if not checkpoint_exists(prefix):
        return
    objects = checkpointed_objects(prefix)
    keys = {} if objects is None else checkpointed_values(objects)
    names: dict[str, str] = {}
    for saved in (meta.object_graph_def for meta in metas):
        functions = [saved.concrete_functions[name] for name in saved.concrete_functions]
        # A set: several functions capture the same variables.
        for number in {number for function in functions for number in function.bound_inputs}:
            # The file is untrusted, so a number may be out of range.
            if number < len(saved.nodes) and saved.nodes[number].HasField("variable"):
                names.update((key, saved.nodes[number].variable.name) for key in keys.get(number, ()))
    found = [each for each in values(prefix) if not names or each.name in names]
    # Variables of several objects may have the same name. Their keys in the checkpoint tell them apart.
    given = Counter(names.get(each.name, "") for each in found)
    for each in found:
        name = names.get(each.name, "")
        yield Parameter(name if name and given[name] == 1 else each.name, each.dtype, each.shape, each.size)


def meta_graph_file(path: str) -> Survey:
    """Survey a MetaGraphDef without its checkpoint. List variable nodes, or constants if it has no variables."""
    meta = read_meta_graph(path)
    definition, refused = definition_and_refused(meta.graph_def, meta.meta_info_def.stripped_op_list)
    nodes = modernized(definition.nodes)
    found = [_variable(node) for node in nodes if node.op == VARIABLE]
    found = found or list(constants(definition))
    versions = {"graph": str(meta.graph_def.versions.producer)}
    return Survey(META_GRAPH, _producers([meta]), versions, _counted([meta]), tuple(found), tuple(refused))


def _variable(node: NodeDef) -> Parameter:
    dtype, shape = node.attrs.get("dtype"), node.attrs.get("shape")
    if not isinstance(dtype, DType):
        raise InvalidArgumentError(f"variable {node.name} has no dtype", expected="a dtype", actual=brief(dtype))
    sizes = [size for size in shape if isinstance(size, int)] if isinstance(shape, tuple) else []
    return parameter(node.name, dtype.name, sizes, dtype.size)


def _producers(metas: Iterable[Message]) -> str:
    found = {meta.meta_info_def.tensorflow_version for meta in metas}
    return ", ".join(f"TensorFlow {version}" for version in sorted(found) if version)


def _counted(metas: Iterable[Message]) -> Counter[str]:
    ops: Counter[str] = Counter()
    for graph in (meta.graph_def for meta in metas):
        ops.update(node.op for node in graph.node)
        ops.update(node.op for function in graph.library.function for node in function.node_def)
    return ops


def survey(path: str | os.PathLike[str], kind: ModelFormat) -> Survey:
    """Survey a model of a given format. Blocks on the disk.

    Raises:
        OpError: a file is missing or damaged, or the package that reads the format is not installed.
    """
    return _SURVEYS[kind](os.fspath(path))


# ── definitions ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _folder(path: str) -> Survey:
    place = ModelFolder(path if is_url(path) or Path(path).is_dir() else Path(path).parent)
    with ExitStack() as kept:
        contents = open_folder(place.followed(), kept)
    manifest, definition = contents.manifest, contents.definition
    variables = [parameter(w.name, w.dtype.name, w.shape or (), w.dtype.size) for w in manifest.variables]
    return Survey(
        AIOFLOW,
        f"aioflow {manifest.producer}",
        {"format": str(manifest.version), "graph": str(definition.version)},
        counted(definition),
        (*variables, *constants(definition)),
        tuple(missing_ops(definition)),
    )


def _graph(path: str) -> Survey:
    definition = read_graph(path)
    versions = {"graph": str(definition.version)}
    return Survey(
        GRAPH, "", versions, counted(definition), tuple(constants(definition)), tuple(missing_ops(definition))
    )


# ── other formats ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _onnx(path: str) -> Survey:
    try:
        onnx: Any = import_module("onnx")
    except ImportError as error:
        raise UnimplementedError(
            f"ONNX models need the onnx package: {install_command('onnx')}", expected="onnx", actual=str(error)
        ) from error
    with file_errors(path), open_file(path) as file:
        data = file.read()
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise DataLossError(f"{path} is damaged", expected="an ONNX model", actual=str(error)) from error
    ops: Counter[str] = Counter()
    parameters: list[Parameter] = []
    bodies = [model.graph, *model.functions]
    while bodies:
        body = bodies.pop()
        for node in body.node:
            domain, op = _text(node.domain), _text(node.op_type)
            ops[f"{domain}:{op}" if domain not in ("", "ai.onnx") else op] += 1
            # Branches and loop bodies are searched, too.
            bodies += [a.g for a in node.attribute if a.HasField("g")] + [g for a in node.attribute for g in a.graphs]
            held = [a.t for a in node.attribute if a.HasField("t") and count(a.t.dims) > 1]
            parameters += [_initializer(onnx, each, node.output[0]) for each in held if node.output]
        parameters += [_initializer(onnx, each, each.name) for each in getattr(body, "initializer", ())]
    parameters = [each for each in parameters if is_weight(each.dtype, each.shape)]
    versions = {"IR": str(model.ir_version)}
    versions |= {f"opset {_text(each.domain)}".strip(): str(each.version) for each in model.opset_import}
    producer = f"{_text(model.producer_name)} {_text(model.producer_version)}".strip()
    return Survey(ONNX, producer, versions, ops, tuple(parameters))


def _text(name: str | bytes) -> str:
    """Decode a name of a protocol buffer, which is bytes if it is not UTF-8."""
    return name if isinstance(name, str) else name.decode(errors="backslashreplace")


def _initializer(onnx: Any, tensor: Any, given: str | bytes) -> Parameter:
    name, shape = _text(given), tuple(tensor.dims)
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except KeyError:
        # A type of a later onnx: its size is unknown.
        return Parameter(name, f"type {tensor.data_type}", shape, 0)
    return parameter(name, str(dtype), shape, dtype.itemsize)


_SURVEYS: Final = {
    AIOFLOW: _folder,
    CHECKPOINT: checkpoint,
    GRAPH: _graph,
    META_GRAPH: meta_graph_file,
    ONNX: _onnx,
    SAVED_MODEL: saved_model_folder,
    WEIGHTS: weights,
}
