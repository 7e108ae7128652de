"""What a model file has, told without importing it: also of models that cannot be imported."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from aioflow.errors import DataLossError, UnimplementedError
from aioflow.formats.checkpoint import CheckpointReader, checkpoint_exists
from aioflow.formats.files import file_errors
from aioflow.formats.stores import is_url, store_at
from aioflow.formats.tensor_bundle import OBJECT_GRAPH
from aioflow.graph.graphdef import GraphDef, TensorData
from aioflow.interop.tensorflow.saved_model_parts import VARIABLES, saved_model
from aioflow.interop.unsupported import UnsupportedOp
from aioflow.saved.opening import (
    AIOFLOW,
    CHECKPOINT,
    GRAPH,
    ONNX,
    SAVED_MODEL,
    WEIGHTS,
    Kind,
    checkpoint_prefix,
    missing_ops,
)
from aioflow.saved.places import Place
from aioflow.saved.reading import read_folder
from aioflow.train.graph_io import read_graph

__all__ = ["Parameter", "Survey", "survey"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor of weights. `dtype` is the file's name for it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Survey:
    """What is in a file.

    Attributes:
        kind: The format.
        producer: What wrote it, for people; "" where it does not say.
        versions: Of what, as the file calls it: {"format": "1"}, {"IR": "8", "opset": "17"}.
        ops: How many nodes of each op there are, those of functions and branches included.
        parameters: Weights: values of variables, and constants with more than one element.
        unsupported: Nodes of ops that nobody has registered, where that can be told.
    """

    kind: Kind
    producer: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    ops: Mapping[str, int] = field(default_factory=dict)
    parameters: tuple[Parameter, ...] = ()
    unsupported: tuple[UnsupportedOp, ...] = ()


def survey(path: str | os.PathLike[str], kind: Kind) -> Survey:
    """What a model of that format has. Blocks on the disk.

    Raises:
        OpError: it is damaged, or the package that reads the format is not installed.
    """
    return _SURVEYS[kind](os.fspath(path))


# -- definitions ------------------------------------------------------------------------------------------------------


def _folder(path: str) -> Survey:
    place = Place(path if is_url(path) or Path(path).is_dir() else Path(path).parent)
    manifest, definition, _ = read_folder(place)
    weights = [
        Parameter(w.name, w.dtype.name, shape, _bytes(shape, w.dtype.size))
        for w in manifest.variables
        for shape in [tuple(size or 0 for size in w.shape or ())]
    ]
    return Survey(
        AIOFLOW,
        f"aioflow {manifest.producer}",
        {"format": str(manifest.version), "graph": str(definition.version)},
        _counted(definition),
        (*weights, *_constants(definition)),
        tuple(missing_ops(definition)),
    )


def _graph(path: str) -> Survey:
    definition = read_graph(path)
    versions = {"graph": str(definition.version)}
    return Survey(
        GRAPH, "", versions, _counted(definition), tuple(_constants(definition)), tuple(missing_ops(definition))
    )


def _counted(definition: GraphDef) -> Mapping[str, int]:
    nodes = [*definition.nodes, *(node for function in definition.functions for node in function.nodes)]
    return Counter(node.op for node in nodes)


def _constants(definition: GraphDef) -> Iterator[Parameter]:
    """Constants that are arrays: weights of a frozen graph are."""
    for node in (*definition.nodes, *(node for function in definition.functions for node in function.nodes)):
        for value in node.attrs.values():
            if isinstance(value, TensorData) and _count(value.shape) > 1:
                size = sum(map(len, value.data)) if isinstance(value.data, tuple) else len(value.data)
                yield Parameter(node.name, value.dtype.name, value.shape, size)


def _count(shape: Iterable[int]) -> int:
    return int(np.prod([int(size) for size in shape], dtype=object))


def _bytes(shape: Iterable[int], each: int) -> int:
    return _count(shape) * each


# -- weights ----------------------------------------------------------------------------------------------------------


def _weights(path: str) -> Survey:
    place = Path(path)
    files = sorted(place.glob("*.safetensors")) if place.is_dir() else [place]
    if place.name.endswith(".index.json"):
        files = sorted(place.parent.glob("*.safetensors"))
    found = [parameter for file in files for parameter in _values(str(file))]
    return Survey(WEIGHTS, "", {"files": str(len(files))}, {}, tuple(found))


def _checkpoint(path: str) -> Survey:
    return Survey(CHECKPOINT, "", {}, {}, tuple(_values(checkpoint_prefix(Path(path)) or path)))


def _values(prefix: str) -> Iterator[Parameter]:
    """What a checkpoint has, besides how the objects of a program are connected."""
    reader = CheckpointReader(prefix)
    for name in reader.names():
        if name != OBJECT_GRAPH:
            shape, dtype = reader.shape(name), reader.dtype(name)
            yield Parameter(name, dtype.name, shape, _bytes(shape, dtype.size))


# -- formats of others ------------------------------------------------------------------------------------------------


def _onnx(path: str) -> Survey:
    try:
        onnx: Any = import_module("onnx")
    except ImportError as error:
        raise UnimplementedError(
            "ONNX models need the onnx package: pip install 'aioflow[onnx]'", expected="onnx", actual=str(error)
        ) from error
    with file_errors(path), open(path, "rb") as file:
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
            bodies += [a.g for a in node.attribute if a.HasField("g")] + [g for a in node.attribute for g in a.graphs]
            held = [a.t for a in node.attribute if a.HasField("t") and _count(a.t.dims) > 1]
            parameters += [_initializer(onnx, each, node.output[0]) for each in held if node.output]
        parameters += [_initializer(onnx, each, each.name) for each in getattr(body, "initializer", ())]
    versions = {"IR": str(model.ir_version)}
    versions |= {f"opset {_text(each.domain)}".strip(): str(each.version) for each in model.opset_import}
    producer = f"{_text(model.producer_name)} {_text(model.producer_version)}".strip()
    return Survey(ONNX, producer, versions, ops, tuple(parameters))


def _text(name: str | bytes) -> str:
    """A name of a protocol buffer, which comes as bytes where it is not UTF-8."""
    return name if isinstance(name, str) else name.decode(errors="backslashreplace")


def _initializer(onnx: Any, tensor: Any, given: str | bytes) -> Parameter:
    name, shape = _text(given), tuple(tensor.dims)
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except KeyError:
        return Parameter(name, f"type {tensor.data_type}", shape, 0)
    return Parameter(name, str(dtype), shape, _bytes(shape, dtype.itemsize))


def _saved_model(path: str) -> Survey:
    place = Path(path) if Path(path).is_dir() else Path(path).parent
    model = saved_model(store_at(place), str(place))
    ops: Counter[str] = Counter()
    versions: dict[str, str] = {}
    producers: set[str] = set()
    for meta in model.meta_graphs:
        info = meta.meta_info_def
        producers.add(f"TensorFlow {info.tensorflow_version}".strip())
        versions["tags"] = ", ".join(sorted({*filter(None, versions.get("tags", "").split(", ")), *info.tags}))
        versions["graph"] = str(meta.graph_def.versions.producer)
        ops.update(node.op for node in meta.graph_def.node)
        ops.update(node.op for function in meta.graph_def.library.function for node in function.node_def)
    return Survey(SAVED_MODEL, ", ".join(sorted(producers)), versions, ops, tuple(_restored(place)))


def _restored(place: Path) -> Iterator[Parameter]:
    """The variables of a SavedModel: what its checkpoint has."""
    prefix = str(place / VARIABLES)
    return _values(prefix) if checkpoint_exists(prefix) else iter(())


_SURVEYS: Final = {
    AIOFLOW: _folder,
    CHECKPOINT: _checkpoint,
    GRAPH: _graph,
    ONNX: _onnx,
    SAVED_MODEL: _saved_model,
    WEIGHTS: _weights,
}
