"""The import of an ONNX file as a model."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError
from onnx import IR_VERSION, GraphProto, ModelProto, TypeProto

from aioflow.arguments import check_kind
from aioflow.errors import DataLossError, InvalidArgumentError, NotFoundError, UnimplementedError
from aioflow.formats.files import file_errors
from aioflow.graph import dtypes
from aioflow.graph.graph import Graph, Tensor
from aioflow.graph.shapes import Dims, ShapeLike, dims_of, format_dims, is_compatible, merge_dims
from aioflow.interop.model import DEFAULT_SIGNATURE, Model, Signature
from aioflow.interop.onnx.names import node_name
from aioflow.interop.onnx.schemas import NEWEST
from aioflow.interop.onnx.sequences import TensorKind, kind_of_type, placed, standing_for, stored
from aioflow.interop.onnx.tensors import WeightFiles, without_weights
from aioflow.interop.onnx.types import dims_of_type, element_type_name
from aioflow.interop.onnx.walking import ModelImport, VisibleNames
from aioflow.interop.onnx.weights import ModelWeights, statistics_of
from aioflow.interop.unsupported import UnsupportedError, UnsupportedOp
from aioflow.memory.collector import full_collections_postponed
from aioflow.ops.variables.collections import variables_initializer
from aioflow.session.session import Session

_IR_OF_DEFAULTS: Final = 4
_SHAPELESS: Final = "no shape in the file; give it, as by load(…, shapes={name: [None, 3]}) or --shape NAME=?,3"


@full_collections_postponed()
def load(
    model: str | os.PathLike[str] | bytes | ModelProto,
    shapes: Mapping[str, ShapeLike] | None = None,
    *,
    trainable: bool = False,
) -> Model:
    """Import an ONNX model as a graph of its own.

    The call blocks on the disk and while the graph is built, for about a second if a model is large.
    `await asyncio.to_thread(load, path)` keeps an event loop responsive meanwhile.

        model = aioflow.interop.onnx.load("model.onnx")
        async with aioflow.Session(graph=model.graph) as session:
            await session.run(model.outputs, {model.inputs["x"]: x})

    Args:
        model: A file's path, its bytes, or a `ModelProto` that the onnx package has read.
        shapes: Shapes of inputs by name, `{"x": [None, 3]}`, for inputs whose shape the file lacks. Many ops can only
            be imported if the rank of their inputs is known.
        trainable: Whether weights become variables, if they have a floating dtype and are neither scalars nor the
            running moments of batch normalization. An optimizer trains variables, a `Saver` saves them, and
            `initialize` of the model sets them to the values in the file. Initializers and `Constant` nodes count as
            weights, except in subgraphs and functions. All other weights are constants, which the compiler folds
            where it can. A quantized model has integer weights, which stay constants, and no gradient passes through
            its rounding.

    Returns:
        A model whose `inputs` and `outputs` have ONNX's names. Inputs with an initializer are its `optional` inputs,
        except those whose value the import must know. Nodes are named after the model's nodes, with "_" for
        characters that names of nodes must not contain. Further nodes made for a node of the model are in a scope of
        its name.

    Raises:
        UnsupportedError: the model has ops that cannot be imported; the error lists them all.
        NotFoundError: the file does not exist.
        DataLossError: the file is truncated or altered.
        InvalidArgumentError: the path is not a regular file; a shape does not match its input; or the model violates
            the ONNX standard at the named node.
        ResourceExhaustedError: functions and loops of the model expand into too large a graph.
        UnimplementedError: the installed onnx does not know the version of the file format or of an opset.
    """
    proto, source, files = _opened(model)
    _check(proto)
    try:
        walk, signature = _imported(proto, source, files, trainable, _given(proto, shapes))
    except RecursionError as error:
        raise InvalidArgumentError("the model's graphs or functions are nested too deeply") from error
    return Model(
        walk.graph,
        {DEFAULT_SIGNATURE: signature},
        walk.weights.variables,
        _initialize(walk.graph, walk.weights),
        f"{source}, by {proto.producer_name}" if proto.producer_name else source,
    )


def _given(proto: ModelProto, shapes: Mapping[str, ShapeLike] | None) -> dict[str, Dims]:
    """Return the caller's shapes, merged with those of the file."""
    check_kind(shapes, (Mapping, type(None)), "the shapes", "a dictionary of shapes by the names of inputs")
    inputs = {each.name: each.type for each in proto.graph.input}
    found: dict[str, Dims] = {}
    for name, shape in (shapes or {}).items():
        if name not in inputs:
            raise InvalidArgumentError(
                f"no input {name!r}", expected=f"one of {', '.join(inputs) or 'none'}", actual=repr(name)
            )
        declared, dims = dims_of_type(inputs[name].tensor_type), dims_of(shape)
        if not inputs[name].HasField("tensor_type") or not is_compatible(declared, dims):
            kind = format_dims(declared) if inputs[name].HasField("tensor_type") else "no tensor"
            raise InvalidArgumentError(
                f"input {name!r} cannot have that shape", expected=kind, actual=format_dims(dims)
            )
        found[name] = merge_dims(declared, dims)
    return found


def _imported(
    proto: ModelProto, source: str, files: WeightFiles, trainable: bool, shapes: Mapping[str, Dims]
) -> tuple[ModelImport, Signature]:
    """Import the model with as many of its optional inputs as possible.

    A translation may need the value of an input, such as axes. If an attempt fails because of that, a second one makes
    the inputs whose values were needed constants, and a last one makes all optional inputs constants.
    """
    every = defaults = {name: shapes.get(name, dims) for name, dims in _defaults(proto).items()}
    while True:
        weights = ModelWeights(trainable, statistics_of(proto.graph), defaults)
        # A new graph for each attempt: a failed one leaves nodes behind.
        walk = ModelImport(proto, Graph(), files, weights)
        try:
            return walk, _walked(proto, walk, source, shapes)
        except (UnsupportedError, InvalidArgumentError):
            # No translation asked for the value of an input, so constants would not help.
            if not weights.asked:
                raise
            is_first = defaults is every
            defaults = {name: dims for name, dims in every.items() if is_first and name not in weights.asked}


def _defaults(proto: ModelProto) -> dict[str, Dims]:
    """Return the inputs that have an initializer, with their shapes."""
    # Before version 4 of the format all weights had to be inputs.
    if proto.ir_version < _IR_OF_DEFAULTS:
        return {}
    weights = {each.name for each in proto.graph.initializer}
    return {each.name: dims_of_type(each.type.tensor_type) for each in proto.graph.input if each.name in weights}


def _initialize(graph: Graph, weights: ModelWeights) -> Callable[[Session], Awaitable[None]]:
    with graph.as_default():
        initial = variables_initializer(list(weights.variables.values())) if weights.variables else None

    async def initialize(session: Session) -> None:
        if initial is not None:
            await session.run(initial)

    return initialize


def _walked(proto: ModelProto, walk: ModelImport, source: str, shapes: Mapping[str, Dims]) -> Signature:
    with walk.graph.as_default():
        scope = VisibleNames(walk.opsets)
        inputs = _inputs(proto.graph, scope, walk, shapes)
        walk.initializers(proto.graph, scope, walk.weights)
        walk.run_nodes(proto.graph.node, scope)
        if walk.unsupported:
            # A rank that is unknown usually follows from an input without a shape, so the error names these inputs,
            # too.
            if any("unknown" in each.why for each in walk.unsupported):
                shapeless = [name for name, tensor in inputs.items() if tensor.dims is None]
                walk.unsupported.update(
                    dict.fromkeys(UnsupportedOp("an input", each, _SHAPELESS) for each in shapeless)
                )
            raise UnsupportedError(source, walk.unsupported)
        outputs = {each.name: stored(scope.find(each.name)) for each in proto.graph.output}
        return Signature(inputs, outputs, optional=walk.weights.optional)


def read_model(model: str | os.PathLike[str] | bytes | ModelProto) -> tuple[ModelProto, str]:
    """Return the model as a `ModelProto`, and its name in messages. Raise the same errors as `load`."""
    if isinstance(model, ModelProto):
        return model, "the ONNX model"
    data, source = _bytes_of(model)
    return _parsed(data, source), source


def _opened(model: str | os.PathLike[str] | bytes | ModelProto) -> tuple[ModelProto, str, WeightFiles]:
    """Return the model, its name in messages, and the files of its weights, of which its own is one."""
    if isinstance(model, ModelProto):
        return model, "the ONNX model", WeightFiles(None)
    data, source = _bytes_of(model)
    # Parsing holds the interpreter's lock for a copy of all weights, some 50 ms for 100 MB.
    rest, location = without_weights(data)
    return _parsed(rest, source), source, WeightFiles(None if isinstance(model, bytes) else Path(model), data, location)


def _bytes_of(model: str | os.PathLike[str] | bytes) -> tuple[bytes, str]:
    """Return the bytes of a model, and its name in messages."""
    if isinstance(model, bytes):
        return model, "the ONNX model"
    check_kind(model, (str, os.PathLike), "the model", "a path, bytes or a ModelProto")
    path = Path(model)
    with file_errors(path):
        if not path.exists():
            raise NotFoundError("there is no such model", expected="an ONNX file", actual=str(path))
        if not path.is_file():  # reading a pipe may block forever, a device may not end
            raise InvalidArgumentError("the model is no file", expected="an ONNX file", actual=str(path))
        return path.read_bytes(), str(path)


def _parsed(data: bytes, source: str) -> ModelProto:
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise DataLossError(f"{source} is no ONNX model", expected="a ModelProto", actual=str(error)) from error
    return proto


def _check(proto: ModelProto) -> None:
    if proto.ir_version > IR_VERSION:
        raise UnimplementedError(
            f"the installed onnx does not know version {proto.ir_version} of its files",
            expected=f"at most {IR_VERSION}",
            actual=proto.ir_version,
        )
    if not proto.HasField("graph"):
        raise InvalidArgumentError("the model has no graph", expected="a ModelProto with a graph", actual="none")
    for each in proto.opset_import:
        newest = NEWEST.get("" if each.domain == "ai.onnx" else each.domain)
        if newest is not None and not 1 <= each.version <= newest:
            raise UnimplementedError(
                f"the installed onnx does not know opset {each.version} of {each.domain or 'ai.onnx'}",
                expected=f"opset 1 to {newest}",
                actual=each.version,
            )


def _inputs(graph: GraphProto, scope: VisibleNames, walk: ModelImport, shapes: Mapping[str, Dims]) -> dict[str, Tensor]:
    weights = {each.name for each in graph.initializer} | {each.values.name for each in graph.sparse_initializer}
    found = {}
    for each in graph.input:
        # These inputs are optional or constants, which `initializers` defines.
        if each.name in weights:
            continue
        kind = kind_of_type(each.type)
        if kind is None:
            walk.unsupported[UnsupportedOp("an input", each.name, f"its type is {_shown(each.type)}")] = None
            # Any kind will do: the import goes on only to list what else is unsupported.
            kind = TensorKind(dtypes.float32, None)
        if isinstance(kind, TensorKind) and each.name in shapes:
            kind = TensorKind(kind.dtype, shapes[each.name])
        found[each.name] = standing_for(kind, node_name(each.name, "input"))
        scope.define(each.name, placed(kind, found[each.name]))
    return found


def _shown(proto: TypeProto) -> str:
    which = proto.WhichOneof("value")
    if which != "tensor_type":
        return str(which)
    return f"a tensor of {element_type_name(proto.tensor_type.elem_type)}"
