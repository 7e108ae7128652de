"""The variables of a SavedModel: their names, their values in its checkpoint, and which of them are trainable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from aioflow.graph.graphdef import FunctionDef, FunctionRef, GraphDef, InputRef, NodeDef, TensorData
from aioflow.interop.tensorflow.pruning import node_of
from aioflow.protos import Message, parse

# ── the variables that a model's own nodes restore from a checkpoint's values ─────────────────────────────────────────


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


# ── names, and which variables are trainable ──────────────────────────────────────────────────────────────────────────


_PASSING: Final = frozenset({"ReadVariableOp", "Identity", "Cast"})
_ASSIGNING: Final = frozenset({"AssignVariableOp", "Assign"})
_CALLS: Final = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_NORMALIZING: Final = frozenset({"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"})
_MOMENTS: Final = (3, 4)  # the inputs of these ops that are mean and variance


@dataclass(frozen=True, slots=True)
class SavedModelVariable:
    """A variable of a SavedModel.

    Attributes:
        name: Its name in the original program if that is unique, otherwise the name of its node.
        key: The checkpoint key of its value.
        node: The node of its handle.
        trainable: Whether optimizers change it by default.
    """

    name: str
    key: str
    node: str
    trainable: bool


def stored_variables(
    handles: Mapping[str, str], meta: Message, graph: GraphDef, checkpointed: Message
) -> list[SavedModelVariable]:
    """Return the variables of a model.

    The model's objects or its collections determine which variables are trainable. If neither has a variable, it is
    trainable unless it is a moving moment of batch normalization.

    Args:
        handles: The nodes of the variables, by the checkpoint keys of their values.
        meta: The MetaGraphDef.
        graph: The part of its graph that is needed.
        checkpointed: The TrackableObjectGraph of the checkpoint, or None.
    """
    objects = _objects(meta.object_graph_def, checkpointed)
    # A variable may have several keys; it gets the first in order.
    keys = {node: key for key, node in sorted(handles.items(), reverse=True)}
    known = {node: objects[key].trainable for node, key in keys.items() if key in objects}
    collected = _collected(meta)
    left = keys.keys() - known.keys() - collected.keys()
    moments = _moments(graph, left) if left else set()
    names = _names({node: objects[key].name if key in objects else "" for node, key in keys.items()})
    return [
        SavedModelVariable(names[node], key, node, known.get(node, collected.get(node, node not in moments)))
        for node, key in sorted(keys.items())
    ]


def _names(given: Mapping[str, str]) -> dict[str, str]:
    """Return a name for each node: the given one if it is unique and no other node's, else the node's own."""
    count = Counter(given.values())
    return {
        node: name if name and count[name] == 1 and (name == node or name not in given) else node
        for node, name in given.items()
    }


def _objects(saved: Message, checkpointed: Message) -> dict[str, Message]:
    """Return the SavedVariable messages by the checkpoint keys of their values."""
    found = {}
    for number, keys in (checkpointed_values(checkpointed) if checkpointed is not None else {}).items():
        if number < len(saved.nodes) and saved.nodes[number].HasField("variable"):
            found.update(dict.fromkeys(keys, saved.nodes[number].variable))
    return found


def _collected(meta: Message) -> dict[str, bool]:
    """Return by node whether TensorFlow 1's collections list a variable as trainable; empty if they list none."""
    kept = {
        name: {node_of(parse("VariableDef", data).variable_name) for data in meta.collection_def[name].bytes_list.value}
        for name in ("variables", "trainable_variables")
        if name in meta.collection_def
    }
    trained = kept.get("trainable_variables", set())
    return {node: node in trained for node in (*kept.get("variables", ()), *trained)} if trained else {}


# ── moments ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Uses:
    """The readers of each node, in the graph and in each function."""

    def __init__(self, graph: GraphDef) -> None:
        self._library = {function.name: function for function in graph.functions}
        self._bodies = {"": graph.nodes, **{name: each.nodes for name, each in self._library.items()}}
        self._readers: dict[str, dict[str, list[tuple[NodeDef, int]]]] = {}

    def ends(self, node: str) -> Iterator[tuple[NodeDef | None, int]]:
        """Yield each node that uses a variable's value, with the input's index; None where a function returns it."""
        left, seen = [("", node)], set[tuple[str, str]]()
        while left:
            here = left.pop()
            if here in seen:
                continue
            seen.add(here)
            body, name = here
            if body and any(InputRef.parse(text).node == name for text in self._library[body].returns):
                # The caller's use of a function's result is not followed, so the variable counts as used in another
                # way.
                yield None, 0
            for reader, i in self._read(body).get(name, ()):
                called = self._called(reader)
                # An assignment to the variable does not use its value.
                if reader.op in _ASSIGNING and i == 0:
                    continue
                if reader.op in _PASSING:
                    left.append((body, reader.name))
                elif called is not None and i < len(self._library[called].inputs):
                    left.append((called, self._library[called].inputs[i].name))
                else:
                    yield reader, i

    def _read(self, body: str) -> Mapping[str, Iterable[tuple[NodeDef, int]]]:
        if body not in self._readers:
            found = self._readers[body] = {}
            for node in self._bodies[body]:
                for i, ref in enumerate(node.refs()):
                    if ref.port >= 0:
                        found.setdefault(ref.node, []).append((node, i))
        return self._readers[body]

    def _called(self, node: NodeDef) -> str | None:
        given = node.attrs.get("f") if node.op in _CALLS else None
        name = given.name if isinstance(given, FunctionRef) else node.op
        return name if name in self._library else None


def _moments(graph: GraphDef, nodes: Collection[str]) -> set[str]:
    """Return the variables that only batch normalization reads, as mean or variance."""
    uses, found = _Uses(graph), set()
    for node in nodes:
        ends = list(uses.ends(node))
        if ends and all(end is not None and end.op in _NORMALIZING and i in _MOMENTS for end, i in ends):
            found.add(node)
    return found
