"""Detection of other TensorFlow files where a graph definition is expected, to suggest their reader in the error.

Only the first bytes are examined; nothing is decoded.
"""

from __future__ import annotations

import re
from typing import Final

from aioflow.errors import InvalidArgumentError

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
    """Raise InvalidArgumentError if this is another kind of TensorFlow file."""
    for what, reader, pattern in _FORMS:
        if re.match(pattern, data[:8192]):
            raise InvalidArgumentError(f"this is {what}, which {reader} reads", expected="a GraphDef", actual=what)
