"""Surveys: the contents of a model file, found without importing it, even if it cannot be imported."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError

from aioflow.errors import DataLossError, UnimplementedError
from aioflow.formats.files import file_errors, open_file
from aioflow.formats.stores import is_url
from aioflow.release import install_command
from aioflow.saved.contents import open_folder
from aioflow.saved.findings import Parameter, Survey, constants, count, counted, is_weight, parameter
from aioflow.saved.opening import (
    AIOFLOW,
    CHECKPOINT,
    GRAPH,
    META_GRAPH,
    ONNX,
    SAVED_MODEL,
    WEIGHTS,
    Kind,
    missing_ops,
)
from aioflow.saved.places import Place
from aioflow.saved.tensorflow_surveys import meta_graph_file, saved_model_folder
from aioflow.saved.weight_surveys import checkpoint, weights
from aioflow.train.graph_io import read_graph

__all__ = ["Survey", "survey"]


def survey(path: str | os.PathLike[str], kind: Kind) -> Survey:
    """Survey a model of a given format. Blocks on the disk.

    Raises:
        OpError: a file is missing or damaged, or the package that reads the format is not installed.
    """
    return _SURVEYS[kind](os.fspath(path))


# -- definitions ------------------------------------------------------------------------------------------------------


def _folder(path: str) -> Survey:
    place = Place(path if is_url(path) or Path(path).is_dir() else Path(path).parent)
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


# -- other formats ----------------------------------------------------------------------------------------------------


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
