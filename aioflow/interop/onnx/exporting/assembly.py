"""Assembly of a ModelProto from the result of the walk: it names the outputs and drops unread values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from onnx import GraphProto, ModelProto, NodeProto, defs, helper

from aioflow.interop.onnx.exporting.scope import GraphBuilder
from aioflow.interop.onnx.exporting.types import mention_proto, tensor_proto, value_info
from aioflow.interop.onnx.exporting.values import Made, ModelGraph, ModelValue
from aioflow.memory.values import Array
from aioflow.release import RELEASE

_PRODUCER: Final = "aioflow"
_SMALL: Final = 1024  # bytes; smaller constants are always in the model


def assembled(
    scope: GraphBuilder, outputs: Mapping[str, ModelValue], outside: dict[str, Array] | None = None
) -> ModelProto:
    """Return the model.

    Args:
        scope: The result of the walk.
        outputs: The output values by their names in the model.
        outside: Receives the constants of more than 1 KiB, by name, which the model then only refers to. By default,
            all constants are in the model.
    """
    _name_outputs(scope, outputs)
    body, constants = scope.body, scope.parts.constants
    _drop_unread(body, scope.parts.opset)
    read = body.reads()
    kept = {name: array for name, array in constants.items() if name in read}
    if outside is not None:
        outside.update(
            (name, array) for name, array in kept.items() if array.nbytes > _SMALL and not array.dtype.hasobject
        )
    graph = _graph_proto(body, kept, outside or {})
    opset = scope.parts.opset
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(
        graph,
        opset_imports=imports,
        ir_version=helper.find_min_ir_version_for(imports),
        producer_name=_PRODUCER,
        producer_version=RELEASE,
    )


def _name_outputs(scope: GraphBuilder, outputs: Mapping[str, ModelValue]) -> None:
    """Name the output values: rename each where it is computed, or else copy it with an Identity."""
    # Inputs and initializers are not made by nodes, and their names are fixed, so they are copied.
    here = {name for node in scope.body.nodes for name in node.outputs}
    renamed = dict(scope.parts.preferred)
    taken: set[str] = set()
    for name, value in outputs.items():
        if value.name in here and value.name not in taken:
            taken.add(value.name)
            renamed[value.name] = name
        else:
            scope.body.nodes.append(Made("Identity", scope.parts.unique_node(name), [value.name], [name]))
        scope.body.outputs.append(ModelValue(name, value.dtype, value.dims))
    _rename(scope.body, renamed)


def _rename(body: ModelGraph, renamed: Mapping[str, str]) -> None:
    for node in body.nodes:
        node.inputs = [renamed.get(name, name) for name in node.inputs]
        node.outputs = [renamed.get(name, name) for name in node.outputs]
        for inner in node.bodies:
            _rename(inner, renamed)
            inner.outputs = [ModelValue(renamed.get(v.name, v.name), v.dtype, v.dims) for v in inner.outputs]


def _drop_unread(body: ModelGraph, opset: int) -> None:
    """Drop nodes whose outputs are unread, and names of unread trailing outputs."""
    read = {value.name for value in body.outputs}
    kept: list[Made] = []
    # From the end: a node is read only by later ones, so its readers are known when it is reached.
    for node in reversed(body.nodes):
        if read.isdisjoint(node.outputs):
            continue
        for inner in node.bodies:
            _drop_unread(inner, opset)
        # After the bodies are reduced, so that reads of dropped inner nodes do not count.
        read |= node.reads()
        # The outputs of a node with bodies correspond to the outputs of the bodies by position.
        if not node.bodies:
            node.outputs = _without_unread(node, read, opset)
        kept.append(node)
    body.nodes = kept[::-1]


def _without_unread(node: Made, read: set[str], opset: int) -> list[str]:
    formals = defs.get_schema(node.op, opset).outputs
    optional = [formal.option == defs.OpSchema.FormalParameterOption.Optional for formal in formals]
    names = [
        name if i >= len(optional) or not optional[i] or name in read else "" for i, name in enumerate(node.outputs)
    ]
    # Only trailing names may be left out; an unused output in the middle keeps an empty name.
    while names and not names[-1]:
        names.pop()
    return names


def _graph_proto(body: ModelGraph, constants: Mapping[str, Array], outside: Mapping[str, Array]) -> GraphProto:
    """Return a graph. Nested graphs share the constants of the main graph; those in `outside` are only referenced."""
    return helper.make_graph(
        [_node_proto(node) for node in body.nodes],
        body.name,
        [value_info(value) for value in body.inputs],
        [value_info(value) for value in body.outputs],
        [
            mention_proto(array, name) if name in outside else tensor_proto(array, name)
            for name, array in constants.items()
        ],
    )


def _node_proto(node: Made) -> NodeProto:
    attrs = {
        key: _graph_proto(value, {}, {}) if isinstance(value, ModelGraph) else value
        for key, value in node.attrs.items()
        # Attributes with an underscore are notes of the export, not of ONNX.
        if not key.startswith("_")
    }
    return helper.make_node(node.op, node.inputs, node.outputs, node.name, **attrs)
