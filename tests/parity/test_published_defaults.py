"""Defaults of attributes: a definition omits attributes with their default, so TensorFlow must have the same."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.formats.graphs.published.attributes import write_attributes
from aioflow.formats.graphs.published.tensors import Room, tensor_of
from aioflow.graph.opdef import OPS
from aioflow.protos import Message, message, parse, to_bytes

pytestmark = pytest.mark.parity


def test_attributes_have_the_defaults_of_tensorflow(tf: Any) -> None:
    registry = __import__("tensorflow.python.framework.op_def_registry", fromlist=["get"])
    different, compared = [], 0
    for op in OPS:
        theirs = registry.get(op.name)
        defaults = {a.name: a.default_value for a in theirs.attr} if theirs is not None else {}
        for key, attr in op.attrs.items():
            if attr.has_default and key in defaults:
                made = message("NodeDef")()
                write_attributes(made, op.name, {key: attr.default})
                compared += 1
                if plain(made.attr[key]) != plain(parse("AttrValue", defaults[key].SerializeToString())):
                    different.append((op.name, key, attr.default))
    assert not different
    assert compared > 400


def plain(value: Message) -> Any:
    """Return a form of the value that does not depend on the storage of its elements."""
    return tensor_of(value.tensor, Room()) if value.HasField("tensor") else to_bytes(value)
