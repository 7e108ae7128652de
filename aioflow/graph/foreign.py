"""Graphs of TensorFlow, which people give to what reads graph definitions: recognised, so that the error can say so.

Only the first bytes are looked at; nothing is decoded.
"""

from __future__ import annotations

import re
from typing import Any, Final

from aioflow.checks.documents import document
from aioflow.errors import InvalidArgumentError
from aioflow.graph.names import NAME

__all__ = ["refuse_foreign", "refuse_foreign_object"]

_LENGTH: Final = rb"[\x80-\xff]{0,9}[\x00-\x7f]"  # a varint
_FORMS: Final = (
    # NodeDef: its name, then its op.
    ("a TensorFlow GraphDef (.pb)", rb"\n%b\n%b%b\x12%b[A-Za-z_]" % (_LENGTH, _LENGTH, NAME.encode(), _LENGTH)),
    # MetaInfoDef: the list of ops, which begins with the name of one.
    ("a TensorFlow MetaGraphDef (.meta)", rb"\n%b\x12%b\n%b\n%b[A-Za-z_]" % (_LENGTH, _LENGTH, _LENGTH, _LENGTH)),
    ("a TensorFlow SavedModel (saved_model.pb)", rb"\x08\x01\x12%b\n" % _LENGTH),
    (
        "a TensorFlow graph as text (.pbtxt)",
        rb"\s*(?:#[^\n]*\n\s*)*(?:node|versions|library|meta_info_def|meta_graphs|saved_model_schema_version)\s*[:{]",
    ),
)


def refuse_foreign(data: bytes | str) -> None:
    """Raise InvalidArgumentError if this is a graph as TensorFlow writes it."""
    start = data[:8192]
    found = start.encode(errors="replace") if isinstance(start, str) else bytes(start)
    for what, pattern in _FORMS:
        if re.match(pattern, found):
            raise _not_ours(what)


def refuse_foreign_object(value: Any) -> None:
    """Raise InvalidArgumentError if this is one of TensorFlow's messages, or the bytes of one."""
    if isinstance(value, bytes):
        refuse_foreign(value)
    kind = type(value)
    if kind.__module__.startswith("tensorflow.") and hasattr(value, "SerializeToString"):
        raise _not_ours(f"a {kind.__name__} of TensorFlow, a protocol buffer")


def _not_ours(what: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"this is {what}, which aioflow does not read: "
        f"{document('compatibility.md')} says how to bring such a graph over",
        expected="a graph definition of aioflow, as train.write_graph writes it",
        actual=what,
    )
