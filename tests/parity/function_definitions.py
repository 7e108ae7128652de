"""Graph definitions with a library of functions, from TensorFlow's form to ours and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from aioflow.graph.dtypes import as_dtype
from aioflow.graph.graphdef import FunctionArg, FunctionDef, FunctionRef, GraphDef, InputRef, NodeDef
from aioflow.graph.opdef import OPS
from tests.parity.test_graphdef import _set_attr, plain

# What says how the runtime should execute a call, and what the tracer left behind.
DROPPED = {"config", "config_proto", "executor_type", "_has_manual_control_dependencies", "_read_only_resource_inputs"}


def our_attrs(tf: Any, attrs: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in attrs.items():
        kind = value.WhichOneof("value")
        if key in DROPPED:
            continue
        if kind == "func":
            found[key] = FunctionRef(value.func.name)
        elif kind == "type":
            found[key] = as_dtype(value.type)
        elif kind == "list" and value.list.func:
            found[key] = tuple(FunctionRef(f.name) for f in value.list.func)
        elif kind == "list" and value.list.type:
            found[key] = tuple(as_dtype(t) for t in value.list.type)
        else:
            found[key] = plain(tf, value)
    return found


def _counts(args: Any, attr: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for arg in args:
        if arg.number_attr:
            yield arg.name, attr[arg.number_attr].i
        else:
            yield arg.name, len(attr[arg.type_list_attr].list.type) if arg.type_list_attr else 1


def _op_def(node: Any) -> Any:
    from tensorflow.python.framework import op_def_registry

    return op_def_registry.get(node.op)


def _flat(text: str, nodes: Mapping[str, Any], library: Mapping[str, Any]) -> str:
    """ "node:output:1" as "node:3"."""
    parts = text.split(":")
    if len(parts) < 3:
        return text
    name, output, index = parts
    first = 0
    signature = library[nodes[name].op].signature if nodes[name].op in library else _op_def(nodes[name])
    for arg, count in _counts(signature.output_arg, nodes[name].attr):
        if arg == output:
            return str(InputRef(name, first + int(index)))
        first += count
    raise AssertionError(text)


def our_function(tf: Any, function: Any, library: Mapping[str, Any], gradients: Mapping[str, str]) -> FunctionDef:
    nodes = {node.name: node for node in function.node_def}
    shapes = {i: attrs.attr["_output_shapes"].list.shape for i, attrs in function.arg_attr.items()}

    def dims(i: int) -> Any:
        if not shapes.get(i) or shapes[i][0].unknown_rank:
            return None
        return tuple(None if d.size < 0 else d.size for d in shapes[i][0].dim)

    return FunctionDef(
        function.signature.name,
        tuple(FunctionArg(a.name, as_dtype(a.type), dims(i)) for i, a in enumerate(function.signature.input_arg)),
        tuple(FunctionArg(a.name, as_dtype(a.type)) for a in function.signature.output_arg),
        tuple(
            NodeDef(n.name, n.op, tuple(_flat(t, nodes, library) for t in n.input), n.device, our_attrs(tf, n.attr))
            for n in function.node_def
        ),
        tuple(_flat(function.ret[a.name], nodes, library) for a in function.signature.output_arg),
        tuple(function.control_ret.values()),
        gradients.get(function.signature.name, ""),
    )


def our_graph(tf: Any, definition: Any) -> GraphDef:
    """TensorFlow's definition as one of ours."""
    nodes = tuple(NodeDef(n.name, n.op, tuple(n.input), n.device, our_attrs(tf, n.attr)) for n in definition.node)
    gradients = {g.function_name: g.gradient_func for g in definition.library.gradient}
    library = {f.signature.name: f for f in definition.library.function}
    functions = tuple(our_function(tf, f, library, gradients) for f in library.values())
    return GraphDef(nodes, 1, functions)


def _their_node(tf: Any, made: Any, node: NodeDef) -> None:
    made.name, made.op, made.device = node.name, node.op, node.device
    kinds = {k: a.kind for k, a in OPS.get(node.op).attrs.items()}
    for key, value in node.attrs.items():
        if isinstance(value, FunctionRef):
            made.attr[key].func.name = value.name
        elif isinstance(value, tuple) and kinds.get(key) == "list(func)":
            for ref in value:
                assert isinstance(ref, FunctionRef)
                made.attr[key].list.func.add().name = ref.name
        else:
            _set_attr(tf, made.attr[key], kinds.get(key, "list(string)"), value)


def _reference(text: str, nodes: Mapping[str, Any]) -> str:
    """ "node:3" as "node:output:1"."""
    name, port = InputRef.parse(text)
    if port < 0 or name not in nodes:
        return text
    for output, count in _counts(_op_def(nodes[name]).output_arg, nodes[name].attr):
        if port < count:
            return f"{name}:{output}:{port}"
        port -= count
    raise AssertionError(text)


def _their_function(tf: Any, made: Any, function: FunctionDef) -> None:
    made.signature.name = function.name
    made.signature.is_stateful = bool(function.control_returns)
    for i, arg in enumerate(function.inputs):
        made.signature.input_arg.add(name=arg.name, type=arg.dtype.as_datatype_enum)
        shape = made.arg_attr[i].attr["_output_shapes"].list.shape.add()
        shape.CopyFrom(tf.TensorShape(arg.dims).as_proto())
    for arg in function.outputs:
        made.signature.output_arg.add(name=arg.name, type=arg.dtype.as_datatype_enum)
    for node in function.nodes:
        _their_node(tf, made.node_def.add(), node)
    nodes = {node.name: node for node in made.node_def}
    for node in function.nodes:
        nodes[node.name].input.extend(_reference(text, nodes) for text in node.inputs)
    for arg, text in zip(function.outputs, function.returns, strict=True):
        made.ret[arg.name] = _reference(text, nodes)
    for name in function.control_returns:
        made.control_ret[name] = name
        made.signature.control_output.append(name)


def their_graph(tf: Any, definition: GraphDef) -> Any:
    """Our definition as one of TensorFlow's."""
    result = tf.GraphDef()
    result.versions.producer = 2000
    for node in definition.nodes:
        made = result.node.add()
        _their_node(tf, made, node)
        made.input.extend(node.inputs)
    for function in definition.functions:
        _their_function(tf, result.library.function.add(), function)
        if function.gradient:
            result.library.gradient.add(function_name=function.name, gradient_func=function.gradient)
    return result
