"""Maps from a checkpoint's values to the variables that a model's own nodes restore from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from aioflow.graph.graphdef import FunctionDef, FunctionRef, InputRef, NodeDef, TensorData
from aioflow.protos import Message

_VALUE: Final = "VARIABLE_VALUE"


def restored_variables(nodes: Iterable[NodeDef], functions: Iterable[FunctionDef], restore: str) -> dict[str, str]:
    """Return the nodes of the variables' handles, by the keys of their values in the checkpoint.

    Args:
        nodes: The nodes of the graph.
        functions: The functions of the graph; a restoring node may call one that assigns the variables.
        restore: The node that restores all variables, as named in the SaverDef.
    """
    library = {function.name: function for function in functions}
    by_name = {node.name: node for node in nodes}
    found: dict[str, str] = {}
    for node in _ancestors(by_name, restore):
        called = [library[v.name] for v in node.attrs.values() if isinstance(v, FunctionRef) and v.name in library]
        for function in called:
            inner = {each.name: each for each in function.nodes}
            place = {arg.name: i for i, arg in enumerate(function.inputs)}
            refs = node.refs()
            for key, handle in _assigned(inner, inner.values()):
                # An argument of the function stands for the handle that the call passes there.
                if handle in place and place[handle] < len(refs):
                    found[key] = refs[place[handle]].node
    found.update(_assigned(by_name, _ancestors(by_name, restore)))
    return {key: name for key, name in found.items() if name in by_name}


def captured_variables(nodes: Iterable[NodeDef], saved: Message, checkpointed: Message) -> dict[str, str]:
    """Like `restored_variables`, for the objects that functions capture: a call passes them after its arguments.

    Args:
        nodes: The nodes of the graph.
        saved: The SavedObjectGraph, which lists the captured objects of each function by number.
        checkpointed: The TrackableObjectGraph of the checkpoint, which has the same numbers for the objects.
    """
    keys = checkpointed_values(checkpointed)
    found: dict[str, str] = {}
    for node in nodes:
        names = [v.name for v in node.attrs.values() if isinstance(v, FunctionRef)]
        for bound in (saved.concrete_functions[n].bound_inputs for n in names if n in saved.concrete_functions):
            # Control inputs have negative ports.
            inputs = [ref for ref in node.refs() if ref.port >= 0]
            # The captured objects are the last inputs, in the order of `bound_inputs`.
            for number, ref in zip(bound, inputs[len(inputs) - len(bound) :], strict=False):
                found.update((key, ref.node) for key in keys.get(number, ()))
    return found


def checkpointed_values(checkpointed: Message) -> dict[int, list[str]]:
    """Return the checkpoint keys of the variables' values, by the objects' numbers in its TrackableObjectGraph."""
    return {
        i: [value.checkpoint_key for value in each.attributes if value.name == _VALUE]
        for i, each in enumerate(checkpointed.nodes)
        if each.attributes
    }


def _ancestors(nodes: Mapping[str, NodeDef], name: str) -> list[NodeDef]:
    left, found = [name], dict[str, NodeDef]()
    while left:
        name = left.pop()
        if name in nodes and name not in found:
            found[name] = nodes[name]
            left += [ref.node for ref in nodes[name].refs()]
    return list(found.values())


def _assigned(nodes: Mapping[str, NodeDef], among: Iterable[NodeDef]) -> Iterator[tuple[str, str]]:
    """Yield the checkpoint key of the value and the node of the handle, for each assignment of a restored value."""
    for node in among:
        refs = node.refs()
        if node.op in ("AssignVariableOp", "Assign") and len(refs) > 1:
            key = _key(nodes, refs[1])
            if key is not None:
                yield key, refs[0].node


def _key(nodes: Mapping[str, NodeDef], value: InputRef) -> str | None:
    """Return the checkpoint key of a value, or None if it is not restored, or is a slice of a stored tensor."""
    # A malformed graph may have a cycle, so the walk takes no more steps than there are nodes.
    for _ in range(len(nodes)):
        node = nodes.get(value.node)
        if node is None:
            return None
        refs = node.refs()
        if node.op == "RestoreV2" and len(refs) > 2:
            names, slices = (_texts(nodes.get(ref.node)) for ref in refs[1:3])
            known = value.port < len(names) and value.port < len(slices) and not slices[value.port]
            return names[value.port].decode(errors="replace") if known else None
        if node.op not in ("Identity", "Reshape") or not refs:
            return None
        value = refs[0]
    return None


def _texts(node: NodeDef | None) -> tuple[bytes, ...]:
    value = None if node is None else node.attrs.get("value")
    return value.data if isinstance(value, TensorData) and isinstance(value.data, tuple) else ()
