"""The string ops that ONNX can express. ONNX strings are UTF-8 text, aioflow's are bytes."""

from __future__ import annotations

from aioflow.graph import dtypes
from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.values import ModelValue


@exporter("StringJoin")
def string_join(node: ExportedNode, *inputs: ModelValue) -> ModelValue:
    """Export the concatenation of strings with a separator."""
    node.needs_opset(20, "StringConcat")
    made, *others = inputs
    separator = node.attr("separator")
    for other in others:
        if separator:
            made = node.make("StringConcat", made, node.const(separator.encode(), dtypes.string))
        made = node.make("StringConcat", made, other)
    return made


@exporter("StaticRegexFullMatch")
def static_full_match(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export the test that a pattern matches the whole string."""
    node.needs_opset(20, "RegexFullMatch")
    return node.make("RegexFullMatch", x, pattern=node.attr("pattern"))


@exporter("RegexFullMatch")
def full_match(node: ExportedNode, x: ModelValue, pattern: ModelValue) -> ModelValue:
    """Export the test that a constant pattern matches the whole string."""
    node.needs_opset(20, "RegexFullMatch")
    text = node.known(pattern, "a pattern that is not constant").reshape(-1)[0]
    return node.make("RegexFullMatch", x, pattern=text.decode())


@exporter("StringToNumber")
def string_to_number(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export the number that each string spells."""
    return node.cast(x, node.dtype)


@exporter("AsString")
def as_string(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export integers as decimal strings. Floats are refused, since ONNX does not specify their digits."""
    if not x.dtype.is_integer or node.attr("width") > 0 or node.attr("fill"):
        node.refuse(f"{x.dtype.name} written out in a given form")
    return node.cast(x, dtypes.string)
