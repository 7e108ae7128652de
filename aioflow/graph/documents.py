"""Graph definitions as documents of aioflow's own encoding (see `encoding`), as the first release wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from aioflow.checks.brief import brief
from aioflow.checks.versions import readable_version
from aioflow.errors import InvalidArgumentError, OpError
from aioflow.graph.definitions import MAX_DEPTH, FunctionArg, FunctionDef, FunctionRef, NodeDef, TensorData, require
from aioflow.graph.dtypes import ALL, DType

VERSION: Final = 1
_DTYPES: Final = {dtype.name: dtype for dtype in ALL}


def to_document(nodes: Sequence[NodeDef], version: int, functions: Sequence[FunctionDef]) -> dict[str, Any]:
    """Return the document to encode for a graph definition."""
    document = {"version": version, "nodes": _node_documents(nodes)}
    if functions:
        document["functions"] = [_function_document(function) for function in functions]
    return document


def _node_documents(nodes: Sequence[NodeDef]) -> list[Any]:
    return [
        {
            "name": node.name,
            "op": node.op,
            "inputs": list(node.inputs),
            "device": node.device,
            "attrs": {key: _plain(value) for key, value in node.attrs.items()},
        }
        for node in nodes
    ]


def _function_document(function: FunctionDef) -> dict[str, Any]:
    inputs, outputs = (
        [[a.name, a.dtype.name, _plain(a.dims)] for a in args] for args in (function.inputs, function.outputs)
    )
    return {
        "name": function.name,
        "inputs": inputs,
        "outputs": outputs,
        "nodes": _node_documents(function.nodes),
        "returns": list(function.returns),
        "control_returns": list(function.control_returns),
        "gradient": function.gradient,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, DType):
        return {"$dtype": value.name}
    if isinstance(value, FunctionRef):
        return {"$function": value.name}
    if isinstance(value, TensorData):
        data = list(value.data) if isinstance(value.data, tuple) else value.data
        return {"$tensor": {"dtype": value.dtype.name, "shape": list(value.shape), "data": data}}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def from_document(document: Any) -> tuple[tuple[NodeDef, ...], int, tuple[FunctionDef, ...]]:
    """Return nodes, version and functions of a definition.

    Raises:
        InvalidArgumentError: the document is not a graph definition.
        UnimplementedError: reading it requires a later release.
    """
    fields = _known_fields(document, "graph definition", "version", "nodes")
    version = fields["version"]
    # `type(…) is int`, because True would be version 1.
    if type(version) is int and version > 0:  # otherwise GraphDef rejects the version
        version = readable_version("the graph definition", fields, range(1, VERSION + 1))
    functions = tuple(_function(item) for item in _list(fields.get("functions", []), "list of functions"))
    return _nodes(fields["nodes"]), version, functions


def _nodes(items: Any) -> tuple[NodeDef, ...]:
    return tuple(_node(item) for item in _list(items, "list of nodes"))


def _function(item: Any) -> FunctionDef:
    keys = ("name", "inputs", "outputs", "nodes", "returns", "control_returns", "gradient")
    fields = _known_fields(item, "function", *keys)
    inputs, outputs = (
        tuple(_argument(arg) for arg in _list(fields[k], "list of arguments")) for k in ("inputs", "outputs")
    )
    returns, control = (tuple(_list(fields[k], "list of names")) for k in ("returns", "control_returns"))
    return FunctionDef(fields["name"], inputs, outputs, _nodes(fields["nodes"]), returns, control, fields["gradient"])


def _argument(item: Any) -> FunctionArg:
    require(isinstance(item, list) and len(item) == 3, "argument", item)
    return FunctionArg(item[0], _dtype(item[1]), _value(item[2], 1))


def _node(item: Any) -> NodeDef:
    fields = _known_fields(item, "node", "name", "op", "inputs", "device", "attrs")
    attrs = fields["attrs"]
    require(isinstance(attrs, dict), "mapping of attributes", attrs)
    try:
        values = {key: _value(value, MAX_DEPTH) for key, value in attrs.items()}
    except OpError as error:
        raise error.at(brief(fields["name"]), brief(fields["op"]), None) from error.__cause__
    return NodeDef(
        fields["name"], fields["op"], tuple(_list(fields["inputs"], "list of inputs")), fields["device"], values
    )


def _value(value: Any, depth: int) -> Any:
    if isinstance(value, list):
        require(depth > 0, "attribute value", "nested too deeply")
        return tuple(_value(item, depth - 1) for item in value)
    if not isinstance(value, dict):
        return value  # NodeDef validates it
    if "$dtype" in value:
        return _dtype(_fields(value, "dtype", "$dtype")["$dtype"])
    if "$function" in value:
        return FunctionRef(_fields(value, "function", "$function")["$function"])
    inner = _fields(_fields(value, "attribute value", "$tensor")["$tensor"], "tensor", "dtype", "shape", "data")
    data = inner["data"]
    return TensorData(
        _dtype(inner["dtype"]),
        tuple(_list(inner["shape"], "shape")),
        tuple(data) if isinstance(data, list) else data,
    )


def _dtype(name: Any) -> DType:
    found = _DTYPES.get(name) if isinstance(name, str) else None
    if found is None:
        raise InvalidArgumentError("no such dtype", expected=f"one of {sorted(_DTYPES)}", actual=brief(name))
    return found


def _known_fields(value: Any, what: str, *names: str) -> dict[str, Any]:
    """Return the map, which must have at least these keys. Later releases may add others: see `checks/versions.py`."""
    # Only the known fields are checked: unknown ones come from a later release, which `readable_version` judges.
    known = {key: value[key] for key in names if key in value} if isinstance(value, dict) else value
    _fields(known, what, *names)
    found: dict[str, Any] = value
    return found


def _fields(value: Any, what: str, *names: str) -> dict[str, Any]:
    """Return the map, which must have exactly these keys."""
    if not isinstance(value, dict) or set(value) != set(names):
        actual = sorted(value, key=str)[:8] if isinstance(value, dict) else type(value).__name__
        raise InvalidArgumentError(f"not a {what}", expected=f"a map with {', '.join(names)}", actual=actual)
    return value


def _list(value: Any, what: str) -> Sequence[Any]:
    require(isinstance(value, list), what, value)
    found: list[Any] = value
    return found
