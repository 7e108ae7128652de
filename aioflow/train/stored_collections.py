"""Storage of a graph's collections as `CollectionDef` messages."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from aioflow import errors
from aioflow.errors import OpError
from aioflow.graph.graph import Graph, GraphKeys, Operation, Tensor
from aioflow.ops.control.stored_contexts import CONTEXTS, context_defs, take_up_contexts
from aioflow.ops.lookup.mutable import MutableHashTable
from aioflow.ops.queues.queues import QueueBase
from aioflow.ops.variables.variable import Variable
from aioflow.protos import Message, message, parse, to_bytes
from aioflow.train.queue_runner import QueueRunner

_LOGGER: Final = logging.getLogger("aioflow.train")
_OWN: Final = "__"  # prefix of the collections that are internal to the library
_NONE: Final = "items that cannot be stored"
_OF_VARIABLES: Final = frozenset(
    {
        GraphKeys.GLOBAL_VARIABLES,
        GraphKeys.TRAINABLE_VARIABLES,
        GraphKeys.LOCAL_VARIABLES,
        GraphKeys.MODEL_VARIABLES,
        GraphKeys.METRIC_VARIABLES,
        GraphKeys.MOVING_AVERAGE_VARIABLES,
        GraphKeys.GLOBAL_STEP,
    }
)
# aioflow 0.1 stored variables in these, too, as messages.
_ONCE_OF_VARIABLES: Final = frozenset({GraphKeys.WEIGHTS, GraphKeys.BIASES})
# Collections handled separately: branches and loops, and savers, which the import of a meta graph creates.
_LEFT: Final = frozenset({*CONTEXTS, GraphKeys.SAVERS})
_CLASSES: Final[Mapping[int, type[errors.OpError]]] = {
    vars(kind)["code"]: kind for kind in vars(errors).values() if isinstance(kind, type) and "code" in vars(kind)
}


def written_collections(graph: Graph, names: Iterable[object], nodes: set[str], into: Message) -> None:
    """Write collections into a map of CollectionDef messages.

    Variables, runners, savers, nodes, strings and numbers can be stored. A collection with anything else, or of several
    kinds, is left out and logged. As in TensorFlow, variables and runners in collections of other names than its own
    are stored as nodes.

    Args:
        graph: The graph.
        names: Keys of the collections.
        nodes: Names of the stored nodes; references to others are left out.
        into: The map.
    """
    # Keys that are not text have no place in the message's map.
    for name in sorted(name for name in names if isinstance(name, str) and not name.startswith(_OWN)):
        items = [_form(name, item, nodes) for item in graph.get_collection(name)]
        # A CollectionDef holds one kind of list.
        kinds = sorted({kind for kind, _ in items if kind})
        if len(kinds) > 1 or _NONE in kinds:
            _LOGGER.warning("collection %r is not stored with the graph: it has %s", name, " and ".join(kinds))
        elif kinds:
            getattr(into[name], kinds[0]).value.extend(value for kind, value in items if kind)


def written_contexts(graph: Graph, names: Iterable[object] | None, nodes: set[str], into: Message) -> None:
    """Write the branches and loops of the graph into the map, in the collections where TensorFlow looks for them.

    Args:
        graph: The graph.
        names: Keys of the requested collections; None for all.
        nodes: Names of the stored nodes.
        into: The map.
    """
    for name, defs in context_defs(graph.get_operations(), nodes).items():
        if names is None or name in names:
            into[name].bytes_list.value.extend(to_bytes(each) for each in defs)


def _form(name: str, item: object, nodes: set[str]) -> tuple[str, object]:
    """Return the list kind and the stored value of an item of a collection.

    The kind is "" for an item to leave out, such as a node that is not stored, and `_NONE` for an unsupported item.
    """
    if isinstance(item, Variable):
        if name in _OF_VARIABLES:
            return "bytes_list", to_bytes(item.to_proto())
        item = item.handle
    if isinstance(item, QueueRunner):
        if name == GraphKeys.QUEUE_RUNNERS:
            return "bytes_list", to_bytes(_runner_def(item))
        item = item.queue.queue_ref.op
    if isinstance(item, MutableHashTable):
        return "", None  # the restore nodes identify the table
    if name == GraphKeys.SAVERS and hasattr(item, "as_saver_def"):
        stored = item.as_saver_def()
        return ("bytes_list", to_bytes(stored)) if stored is not None else ("", None)
    if isinstance(item, Tensor | Operation):
        node = item.op if isinstance(item, Tensor) else item
        return ("node_list", item.name) if node.name in nodes else ("", None)
    if isinstance(item, str | bytes):
        return "bytes_list", item.encode() if isinstance(item, str) else item
    # After str and bytes; bool is an int, which is stored as 0 or 1.
    if isinstance(item, bool | int):
        return "int64_list", int(item)
    return ("float_list", item) if isinstance(item, float) else (_NONE, None)


def _runner_def(runner: QueueRunner) -> Message:
    return message("QueueRunnerDef")(
        queue_name=runner.name,
        enqueue_op_name=[op.name for op in runner.enqueue_ops],
        close_op_name=runner.close_op.name,
        cancel_op_name=runner.cancel_op.name,
        queue_closed_exception_types=[kind.code for kind in runner.queue_closed_exception_types],
    )


class StoredCollections:
    """Import of stored collections into a graph.

    Args:
        graph: The graph.
        scope: Prefix of the stored names: "" or a name that ends with "/".
    """

    def __init__(self, graph: Graph, scope: str) -> None:
        self.graph = graph
        self.scope = scope
        self._variables: dict[str, Variable] = {}

    def add(self, stored: Mapping[str, Message]) -> None:
        """Add the contents of the messages to the graph.

        Strings come back as bytes, and the handle of a variable as the variable if another collection holds that.

        Raises:
            NotFoundError: a message refers to a node that the graph lacks.
            DataLossError: a message is damaged.
        """
        conds, loops = (
            [parse(kind, value) for value in (stored[name].bytes_list.value if name in stored else ())]
            for name, kind in CONTEXTS.items()
        )
        take_up_contexts(self.graph, conds, loops, self.scope)
        # Variables first: other collections refer to them.
        for name in sorted(set(stored) - _LEFT, key=lambda name: (name not in _OF_VARIABLES, name)):
            kind = stored[name].WhichOneof("kind")
            # An `any_list` holds objects of arbitrary types, which only their own programs can decode.
            if kind is None or kind == "any_list":
                continue
            for value in getattr(stored[name], kind).value:
                try:
                    self.graph.add_to_collection(name, self._item(name, kind, value))
                except OpError as error:
                    error.message = f"collection {name!r}: {error.message}"
                    raise

    def _item(self, name: str, kind: str, value: Any) -> object:
        if kind == "node_list":
            # A variable is stored by the name of its handle.
            variable = self._variables.get(value)
            return self.graph.as_graph_element(self.scope + value) if variable is None else variable
        if kind != "bytes_list":
            return value
        if name in _OF_VARIABLES or name in _ONCE_OF_VARIABLES:
            return self._variable(parse("VariableDef", value))
        return self._runner(parse("QueueRunnerDef", value)) if name == GraphKeys.QUEUE_RUNNERS else value

    def _variable(self, stored: Message) -> Variable:
        """Return the variable: one object, however many collections contain it."""
        name = stored.variable_name
        if name not in self._variables:
            with self.graph.as_default():
                self._variables[name] = Variable.from_proto(stored, self.scope)
        return self._variables[name]

    def _runner(self, stored: Message) -> QueueRunner:
        handle = self.graph.as_graph_element(self.scope + stored.queue_name)
        # The queue may be stored by its handle or by its node.
        node = handle.op if isinstance(handle, Tensor) else handle
        names = (*stored.enqueue_op_name, stored.close_op_name, stored.cancel_op_name)
        *fill, close, cancel = (self.graph.get_operation_by_name(self.scope + name) for name in names)
        queue = QueueBase(node.attrs["component_types"], node.attrs.get("shapes") or None, None, node.outputs[0])
        kinds = tuple(_CLASSES[code] for code in stored.queue_closed_exception_types if code in _CLASSES)
        return QueueRunner(queue, fill, close, cancel, kinds or None)
