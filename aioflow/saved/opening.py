"""Models of every supported format. The format is detected from the contents of a path, not from its name.

The reader of a format is imported with the first model of that format, since some readers need optional packages.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from aioflow.errors import InvalidArgumentError, NotFoundError, OpError
from aioflow.formats.checkpoint import checkpoint_exists, committing_file
from aioflow.formats.files import file_errors
from aioflow.formats.graphs.documents import MAGIC
from aioflow.formats.manifests import MANIFEST as MANIFEST_SUFFIX
from aioflow.formats.slice_tables import plain_prefix
from aioflow.formats.stores import is_url, local_path
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.graphdef import GraphDef
from aioflow.graph.opdef import OPS, traits_of
from aioflow.graph.shapes import ShapeLike
from aioflow.interop.model import DEFAULT_SIGNATURE, Model, Signature
from aioflow.interop.tensorflow.saved_model_parts import FILES as SAVED_MODEL_FILES
from aioflow.interop.unsupported import UnsupportedError, UnsupportedOp
from aioflow.ops.importer import import_graph_def
from aioflow.saved.manifest import MANIFEST
from aioflow.saved.stored_graph import PLACEHOLDER
from aioflow.train.checkpoint_state import latest_checkpoint
from aioflow.train.graph_io import read_graph


class ModelFormat(NamedTuple):
    """A model format.

    Attributes:
        name: Name for display.
        open: The function that reads a model, as "module:function"; "" if the format has no signatures to call.
    """

    name: str
    open: str = ""


AIOFLOW: Final = ModelFormat("aioflow's own folder", "aioflow.saved.reading:load")
SAVED_MODEL: Final = ModelFormat("SavedModel", "aioflow.interop.tensorflow:load_saved_model")
ONNX: Final = ModelFormat("ONNX", "aioflow.interop.onnx:load")
GRAPH: Final = ModelFormat("graph definition", "aioflow.saved.opening:open_graph")
META_GRAPH: Final = ModelFormat("meta graph")
WEIGHTS: Final = ModelFormat("safetensors")
CHECKPOINT: Final = ModelFormat("checkpoint")

_READERS: Final = {META_GRAPH: "; train.import_meta_graph reads it in a program"}  # of formats without signatures

_WHOLE: Final = ("model.safetensors", "model.safetensors.index.json")
_TEXT: Final = re.compile(rb"\s*(?:#[^\n]*\n\s*)*(?:node|versions|library)\s*[:{]")
_META_TEXT: Final = re.compile(rb"\s*(?:#[^\n]*\n\s*)*(?:\w+_def|asset_file_def)\s*[:{]")
_CHECKPOINT_FILE: Final = re.compile(rf"(.+)(?:\.index|\.data-\d{{5}}-of-\d{{5}}|{re.escape(MANIFEST_SUFFIX)}|\.meta)")
_SHARD: Final = re.compile(r"(.+)(?<!\.data)-\d{5}-of-\d{5}")  # shards of TensorFlow's checkpoints of version 1
_UNREGISTERED: Final = "no such op; first import the module that registers it (commands: --import)"
_FIELDS: Final = 64  # maximum number of fields of a message that are inspected
_LENGTH, _VARINT = 2, 0  # wire types
_SKIPPED: Final = {1: 8, 5: 4}  # other wire types, with the size of their values


def kind_of(path: str | os.PathLike[str]) -> ModelFormat:
    """Detect the format of a path. Reads at most 512 bytes of a file, and the tags of 64 fields.

    Raises:
        NotFoundError: the path does not exist.
        InvalidArgumentError: the format is unknown.
    """
    text = os.fspath(path)
    if is_url(text):
        return AIOFLOW  # other formats must be local files
    place = local_path(text)
    if checkpoint_prefix(place) is not None:
        return CHECKPOINT
    with file_errors(place):
        found = _kind_of_folder(place) if place.is_dir() else _kind_of_file(place)
    if found is None:
        raise InvalidArgumentError(
            f"{text} is not a model in a known format",
            expected="an ONNX file, a SavedModel, a graph definition, an aioflow folder, or weights",
            actual="a folder without any of these" if place.is_dir() else "a file of an unknown format",
        )
    return found


def checkpoint_prefix(place: Path) -> str | None:
    """Return the prefix of the checkpoint that `place` names, by the prefix or by a file; None for any other path."""
    if place.name.endswith((".safetensors", ".safetensors.index.json", ".meta")):
        return None  # such a file is a model or weights of its own, even beside a checkpoint
    for pattern in (_CHECKPOINT_FILE, _SHARD):
        if (found := pattern.fullmatch(str(place))) and _is_prefix(found[1]):
            return found[1]
    return str(place) if _is_prefix(str(place)) else None


def _is_prefix(text: str) -> bool:
    return not Path(text).is_dir() and checkpoint_exists(text)


def checkpoints_in(folder: Path) -> list[str]:
    """Return the prefixes of the checkpoints in a folder, the newest last, by the state file or by modification times.

    Checkpoints of TensorFlow's version 1 are found if the state file names them, or if a meta graph is beside them.
    """
    with file_errors(folder):
        parts = [pattern.fullmatch(str(entry)) for entry in folder.iterdir() for pattern in (_CHECKPOINT_FILE, _SHARD)]
    prefixes = {part[1]: committing_file(part[1]) for part in parts if part is not None and _is_prefix(part[1])}
    # A prefix has several files; the one written last tells when the checkpoint was complete.
    times = {prefix: Path(file).stat().st_mtime_ns for prefix, file in prefixes.items() if file is not None}
    # Ties are broken by name, so the order does not depend on the folder's.
    found = sorted(times, key=lambda prefix: (times[prefix], prefix))
    with suppress(OpError):  # a file of another kind may have the state file's name
        if (latest := latest_checkpoint(folder)) is not None:
            newest = str(folder / plain_prefix(Path(latest).name))
            # The state file is right even if files were copied in another order.
            return [*(prefix for prefix in found if prefix != newest), newest]
    return found


def whole_weights(place: Path) -> Path | None:
    """Return the file that lists all tensors of a path: an index, or a whole file or index in a folder; else None."""
    if not place.is_dir():
        return place if place.name.endswith(".safetensors.index.json") else None
    return next((place / name for name in _WHOLE if (place / name).exists()), None)


def _kind_of_folder(place: Path) -> ModelFormat | None:
    if (place / MANIFEST).exists():
        return AIOFLOW
    if any((place / name).exists() for name in SAVED_MODEL_FILES):
        return SAVED_MODEL
    if whole_weights(place) is not None:
        return WEIGHTS
    if checkpoints_in(place):
        return CHECKPOINT
    return WEIGHTS if any(place.glob("*.safetensors")) else None


def _kind_of_file(place: Path) -> ModelFormat | None:
    if place.name in SAVED_MODEL_FILES:
        return SAVED_MODEL
    if place.name == MANIFEST:
        return AIOFLOW
    if place.name.endswith(".safetensors.index.json"):
        return WEIGHTS
    if not place.exists():
        raise NotFoundError(f"there is no model {place}", expected="a file or a folder", actual="none")
    if not place.is_file():
        return None
    size = place.stat().st_size
    with place.open("rb") as file:
        start = file.read(512)
        # A safetensors file begins with the length of its JSON header.
        if len(start) > 8 and start[8:9] == b"{" and 2 <= struct.unpack("<Q", start[:8])[0] <= size - 8:
            return WEIGHTS
        # Our own binary form, JSON, or TensorFlow's text form.
        if start.startswith(MAGIC) or start.lstrip()[:1] == b"{" or _TEXT.match(start):
            return GRAPH
        if _META_TEXT.match(start):
            return META_GRAPH
        file.seek(0)
        return _kind_of_message(*_fields(file, size), place.name.endswith(".meta"))


def _kind_of_message(fields: Mapping[int, int], is_whole: bool, is_meta: bool) -> ModelFormat | None:
    """Detect the format of a protocol buffer by its fields and their wire types.

    A graph without a saver is a meta graph only if the file is named like one.
    """
    if fields.get(1) == _VARINT and fields.get(7) == _LENGTH:
        return ONNX  # its version and its graph; a truncated file is ONNX too, and its reader reports the error
    if not is_whole:
        return None
    if fields.get(1) == _VARINT and fields.get(2) == _LENGTH:
        return SAVED_MODEL  # its version and its graphs
    if fields.get(2) == _LENGTH and (is_meta or fields.get(3) == _LENGTH or fields.get(5) == _LENGTH):
        return META_GRAPH  # its graph, and a saver or a signature
    return GRAPH if fields.get(1) == _LENGTH else None  # nodes


def _fields(file: BinaryIO, size: int) -> tuple[dict[int, int], bool]:
    """Return the wire types of a message's fields, and whether the file includes the end of the last field.

    The dictionary is empty if a wire type is invalid.
    """
    found: dict[int, int] = {}
    for _ in range(_FIELDS):
        tag = _varint(file)
        if tag is None:
            break
        kind = tag & 7
        if kind not in (_LENGTH, _VARINT, *_SKIPPED):
            return {}, False
        # The last occurrence of a field decides; only its wire type matters here.
        found[tag >> 3] = kind
        length = _varint(file) if kind in (_LENGTH, _VARINT) else _SKIPPED[kind]
        if length is None or (kind != _VARINT and file.seek(length, os.SEEK_CUR) > size):
            return found, False
    return found, True


def _varint(file: BinaryIO) -> int | None:
    value = 0
    for shift in range(0, 64, 7):
        byte = file.read(1)
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    return None


def open_model(
    path: str | os.PathLike[str], kind: ModelFormat | None = None, shapes: Mapping[str, ShapeLike] | None = None
) -> Model:
    """Load the model at a path, of any format. Blocks on the disk.

    Args:
        path: A path, or the URL of a folder in a store.
        kind: The format, if known.
        shapes: Shapes of inputs by name, for an ONNX model whose file does not specify them.

    Raises:
        UnsupportedError: the model has ops that cannot be imported; the error lists them all.
        InvalidArgumentError: shapes are given for another format, or for no input; or the path is not a model. Weights
            alone and meta graphs are not models, since they have no signatures.
        OpError: the error of the format's reader.
    """
    found = kind or kind_of(path)
    if not found.open:
        raise InvalidArgumentError(
            f"{os.fspath(path)} has no signature to call",
            expected="a model with signatures, as written by aioflow.saved.save",
            actual=f"{found.name}, which has no signatures{_READERS.get(found, '')}",
        )
    if shapes and found is not ONNX:
        raise InvalidArgumentError(
            f"{os.fspath(path)} already defines the shapes of its inputs",
            expected="no shapes; they are for ONNX models only",
            actual=f"{found.name}, and shapes of {', '.join(shapes)}",
        )
    place = Path(path) if not is_url(os.fspath(path)) else None
    if place is not None and place.is_file() and found in (SAVED_MODEL, AIOFLOW):
        path = place.parent  # the path of the file in the folder was given
    module, _, function = found.open.partition(":")
    reader: Callable[..., Model] = getattr(import_module(module), function)
    return reader(path, shapes=shapes) if shapes else reader(path)


# ── graph definitions ─────────────────────────────────────────────────────────────────────────────────────────────────


def missing_ops(definition: GraphDef) -> list[UnsupportedOp]:
    """Return the nodes of a definition, including its functions, whose ops are not registered."""
    functions = {function.name for function in definition.functions}
    nodes = [*definition.nodes, *(node for function in definition.functions for node in function.nodes)]
    unknown = [node for node in nodes if node.op not in OPS and node.op not in functions]
    return [UnsupportedOp(node.op, node.name, _UNREGISTERED) for node in unknown]


def open_graph(path: str | os.PathLike[str]) -> Model:
    """Load a graph definition of `train.write_graph` or of TensorFlow.

    A definition has no signature: the inputs are its placeholders, the outputs are tensors that no node reads.

    Raises:
        UnsupportedError: the graph has ops that are not registered.
        OpError: as for `train.read_graph` and `import_graph_def`.
    """
    definition = read_graph(path)
    missing = missing_ops(definition)
    if missing:
        raise UnsupportedError(os.fspath(path), missing)
    graph = Graph()
    with graph.as_default():
        import_graph_def(definition, name="")
    return Model(graph, {DEFAULT_SIGNATURE: _guessed(graph, definition)}, source=os.fspath(path))


def _guessed(graph: Graph, definition: GraphDef) -> Signature:
    # Only the definition's own nodes: the import may add others.
    own = [graph.get_operation_by_name(node.name) for node in definition.nodes]
    read = {tensor for op in graph.get_operations() for tensor in op.inputs}
    inputs = [op.outputs[0] for op in own if op.type == PLACEHOLDER]
    outputs = [t for op in own if _computes(op) and not read.intersection(op.outputs) for t in op.outputs]
    return Signature({_short(t): t for t in inputs}, {_short(t): t for t in outputs})


def _computes(op: Operation) -> bool:
    return not traits_of(op.type).is_resident and op.type != PLACEHOLDER and op.graph.is_fetchable(op)


def _short(tensor: Tensor) -> str:
    return tensor.name.removesuffix(":0")
