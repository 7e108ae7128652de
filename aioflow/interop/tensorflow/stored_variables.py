"""What a SavedModel says of its variables, beside their values: what they are called, and which are trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from aioflow.graph.graphdef import FunctionRef, GraphDef, InputRef, NodeDef
from aioflow.interop.tensorflow.pruning import node_of
from aioflow.interop.tensorflow.restored import checkpointed_values
from aioflow.protos import Message, parse

__all__ = ["StoredVariable", "stored_variables"]

_PASSING: Final = frozenset({"ReadVariableOp", "Identity", "Cast"})
_ASSIGNING: Final = frozenset({"AssignVariableOp", "Assign"})
_CALLS: Final = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_NORMALIZING: Final = frozenset({"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"})
_MOMENTS: Final = (3, 4)  # inputs of those


@dataclass(frozen=True, slots=True)
class StoredVariable:
    """One variable.

    Attributes:
        name: What the program called it, if no other has that name; otherwise its node.
        key: What the checkpoint calls its value.
        node: Its handle.
        trainable: Whether optimizers change it by default.
    """

    name: str
    key: str
    node: str
    trainable: bool


def stored_variables(
    handles: Mapping[str, str], meta: Message, graph: GraphDef, checkpointed: Message
) -> list[StoredVariable]:
    """The variables of a model. Whether one is trained is said by the model's objects, or by its collections; where
    neither does, the moving moments of batch normalization are not.

    Args:
        handles: Their nodes, by the names of their values.
        meta: The MetaGraphDef.
        graph: What of its graph is needed.
        checkpointed: The TrackableObjectGraph of the checkpoint, or None.
    """
    objects = _objects(meta.object_graph_def, checkpointed)
    keys = {node: key for key, node in sorted(handles.items(), reverse=True)}  # one of each, if it has several
    known = {node: objects[key].trainable for node, key in keys.items() if key in objects}
    collected = _collected(meta)
    left = keys.keys() - known.keys() - collected.keys()
    moments = _moments(graph, left) if left else set()
    names = _names({node: objects[key].name if key in objects else "" for node, key in keys.items()})
    return [
        StoredVariable(names[node], key, node, known.get(node, collected.get(node, node not in moments)))
        for node, key in sorted(keys.items())
    ]


def _names(given: Mapping[str, str]) -> dict[str, str]:
    """A name for each node: the one that is given, if that is no other's."""
    count = Counter(given.values())
    return {
        node: name if name and count[name] == 1 and (name == node or name not in given) else node
        for node, name in given.items()
    }


def _objects(saved: Message, checkpointed: Message) -> dict[str, Message]:
    """The SavedVariable messages, by the names of their values."""
    found = {}
    for number, keys in (checkpointed_values(checkpointed) if checkpointed is not None else {}).items():
        if number < len(saved.nodes) and saved.nodes[number].HasField("variable"):
            found.update(dict.fromkeys(keys, saved.nodes[number].variable))
    return found


def _collected(meta: Message) -> dict[str, bool]:
    """Which variables TensorFlow 1's collections list as trained, by node; nothing if they do not tell."""
    kept = {
        name: {node_of(parse("VariableDef", data).variable_name) for data in meta.collection_def[name].bytes_list.value}
        for name in ("variables", "trainable_variables")
        if name in meta.collection_def
    }
    trained = kept.get("trainable_variables", set())
    return {node: node in trained for node in (*kept.get("variables", ()), *trained)} if trained else {}


# -- moments ----------------------------------------------------------------------------------------------------------


class _Uses:
    """What reads what, in the graph and in each function."""

    def __init__(self, graph: GraphDef) -> None:
        self._library = {function.name: function for function in graph.functions}
        self._bodies = {"": graph.nodes, **{name: each.nodes for name, each in self._library.items()}}
        self._readers: dict[str, dict[str, list[tuple[NodeDef, int]]]] = {}

    def ends(self, node: str) -> Iterator[tuple[NodeDef | None, int]]:
        """The nodes that use the value of a variable, and as which input; None where a function returns it."""
        left, seen = [("", node)], set[tuple[str, str]]()
        while left:
            here = left.pop()
            if here in seen:
                continue
            seen.add(here)
            body, name = here
            if body and any(InputRef.parse(text).node == name for text in self._library[body].returns):
                yield None, 0
            for reader, i in self._read(body).get(name, ()):
                called = self._called(reader)
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
    """Those of the variables that batch normalization takes as mean or variance, and nothing else reads."""
    uses, found = _Uses(graph), set()
    for node in nodes:
        ends = list(uses.ends(node))
        if ends and all(end is not None and end.op in _NORMALIZING and i in _MOMENTS for end, i in ends):
            found.add(node)
    return found
