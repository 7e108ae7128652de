"""Reading and writing of graph definitions in all formats. `GraphDef` loads this module with the first use of one."""

from __future__ import annotations

import re
from typing import Final

from aioflow import protos
from aioflow.errors import DataLossError, InvalidArgumentError
from aioflow.formats.graphs import documents
from aioflow.formats.graphs.documents import Parts, from_document, to_document
from aioflow.formats.graphs.published.graphs import definition_of, message_of
from aioflow.graph.graphdef import VERSION, GraphDef


def read(data: bytes) -> Parts:
    """Read a definition of any format. Raises as `GraphDef.FromString`."""
    # The formats are told apart by their first bytes.
    if data.startswith(documents.MAGIC):
        return from_bytes(data)
    if data.lstrip()[:1] == b"{":
        return from_json(data)
    # A MetaGraphDef or SavedModel is refused first: its reader gives the better error.
    refuse_foreign(data)
    graph = protos.read("GraphDef", data)
    # Protocol buffers skip unknown fields, so bytes of another message decode to a GraphDef without fields.
    if data and not graph.ListFields():
        raise DataLossError("not a graph definition", actual=data[:20])
    return from_message(graph)


# ── the format that TensorFlow publishes ──────────────────────────────────────────────────────────────────────────────


def to_published(graph: GraphDef) -> bytes:
    """Return the bytes of the published message."""
    return protos.to_bytes(message_of(graph.nodes, graph.functions))


def to_published_text(graph: GraphDef) -> str:
    """Return the published message as text."""
    return protos.to_text(message_of(graph.nodes, graph.functions))


def from_message(graph: protos.Message) -> Parts:
    """Read a published message of any library's class. Raises as `GraphDef.FromString`."""
    # A class of another library: convert by way of the bytes.
    if not isinstance(graph, protos.message("GraphDef")):
        graph = protos.parse("GraphDef", graph.SerializeToString())
    nodes, functions = definition_of(graph)
    return nodes, VERSION, functions


# ── aioflow's own format ──────────────────────────────────────────────────────────────────────────────────────────────


def to_bytes(graph: GraphDef) -> bytes:
    """Return the binary encoding."""
    return documents.to_bytes(to_document(graph))


def to_json(graph: GraphDef) -> str:
    """Return the JSON text."""
    return documents.to_text(to_document(graph))


def from_bytes(data: bytes) -> Parts:
    """Decode the binary encoding. Raises as `GraphDef.from_bytes`."""
    return from_document(documents.from_bytes(data))


def from_json(text: str | bytes) -> Parts:
    """Decode the JSON text. Raises as `GraphDef.from_bytes`."""
    try:
        return from_document(documents.from_text(text))
    except DataLossError as error:
        error.message = f"not a graph definition of aioflow: {error.message}"
        raise


# ── other TensorFlow files ────────────────────────────────────────────────────────────────────────────────────────────

_LENGTH: Final = rb"[\x80-\xff]{0,9}[\x00-\x7f]"  # a varint
_SPACE: Final = rb"\s*(?:#[^\n]*\n\s*)*"
_FORMS: Final = (
    # MetaInfoDef: the list of ops, which begins with the name of an op, or with optional fields before it, and tags.
    (
        "a MetaGraphDef (.meta)",
        "train.import_meta_graph",
        rb"\n%b(?:\n%b[^\n]*)?\x12%b\n%b\n%b[A-Za-z_]" % (_LENGTH, _LENGTH, _LENGTH, _LENGTH, _LENGTH),
    ),
    ("a MetaGraphDef as text", "train.import_meta_graph", rb"%bmeta_info_def\s*[:{]" % _SPACE),
    (
        "a SavedModel (saved_model.pb)",
        "interop.tensorflow.load_saved_model",
        rb"\x08\x01\x12%b\n|%b(?:meta_graphs|saved_model_schema_version)\s*[:{]" % (_LENGTH, _SPACE),
    ),
)


def refuse_foreign(data: bytes) -> None:
    """Raise InvalidArgumentError, with the reader of such files, if this is another kind of TensorFlow file.

    Only the first bytes are examined; nothing is decoded.
    """
    for what, reader, pattern in _FORMS:
        if re.match(pattern, data[:8192]):
            raise InvalidArgumentError(f"this is {what}, which {reader} reads", expected="a GraphDef", actual=what)
