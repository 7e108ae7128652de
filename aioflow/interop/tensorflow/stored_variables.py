"""The names of a SavedModel's variables, and which of them are trainable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from aioflow.graph.graphdef import FunctionRef, GraphDef, InputRef, NodeDef
from aioflow.interop.tensorflow.pruning import node_of
from aioflow.interop.tensorflow.restored import checkpointed_values
from aioflow.protos import Message, parse

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


# -- moments ----------------------------------------------------------------------------------------------------------


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
