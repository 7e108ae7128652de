"""`Graph`, `Operation` and `Tensor`: building never computes, it appends nodes.

A graph only grows. Existing nodes keep their inputs and attributes, so whatever was compiled from them stays valid when
the graph is extended; the few exceptions (a device set later, an added control input) count up `Graph.mutations`.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

from aioflow.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    SourceLine,
)
from aioflow.graph import scopes
from aioflow.graph.calls import EXPANDERS
from aioflow.graph.default_session import current_session
from aioflow.graph.dtypes import DType
from aioflow.graph.graphdef import GraphDef, graph_def_of
from aioflow.graph.keys import GraphKeys
from aioflow.graph.opdef import OPS
from aioflow.graph.operation import Operation
from aioflow.graph.shapes import Dims
from aioflow.graph.tensor import OPERATORS, Tensor

__all__ = ["OPERATORS", "Graph", "GraphKeys", "Operation", "Tensor"]

_ENGINE: Final = str(Path(__file__).parents[1]) + os.sep  # with the separator: `aioflow_more` is somebody else's
_NODE_NAME: Final = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")


class Graph:
    """A set of nodes, append-only and safe to extend from several threads and tasks."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._own = scopes.Body()
        self._collections: dict[str, list[Any]] = {}
        self._unfeedable: set[Tensor] = set()
        self._unfetchable: set[Operation] = set()
        self._finalized = False
        self.held: list[Any] = []  # what lives as long as the graph, such as the Python functions of its nodes
        self.functions: dict[str, Any] = {}  # what calls name
        self.mutations = 0
        self.seed: int | None = None

    # -- nodes ------------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """How many nodes have been made."""
        return len(self._own.nodes)

    @property
    def finalized(self) -> bool:
        """Whether `finalize` was called."""
        return self._finalized

    def finalize(self) -> None:
        """Refuse new nodes from now on."""
        self._finalized = True

    def note_mutation(self) -> None:
        """Record that an existing node changed, so that compiled plans are made anew."""
        self._check_open()
        self.mutations += 1

    def create_op(
        self,
        op_type: str,
        inputs: Sequence[Tensor],
        attrs: Mapping[str, Any],
        output_specs: Sequence[tuple[DType, Dims]],
        *,
        name: str | None = None,
        control_inputs: Sequence[Operation] = (),
        device: str = "",
        source: SourceLine | None = None,
        expand: bool = True,
    ) -> Operation:
        """Append a node whose attributes and output specs are already worked out (`ops.apply` does that).

        A call is expanded with it, unless `expand` is false.

        Raises:
            FailedPreconditionError: the graph is finalised.
            InvalidArgumentError: an input belongs to another graph, or the name is malformed.
        """
        op_def = OPS.get(op_type)
        with self._lock:
            self._check_open()
            for tensor in inputs:
                self._check_owned(tensor, op_type)
            full_name = self._node_name(op_type if name is None else name)
            scope = scopes.current_scope(self)
            wait = scopes.control_inputs_for(scope, [t.op for t in inputs])
            read, waited = _through_context(
                scope.context, full_name, op_type, tuple(inputs), tuple(dict.fromkeys((*control_inputs, *wait)))
            )
            op = Operation(self, op_def, full_name, read, dict(attrs))
            op.control_inputs = waited
            op.source = source or user_line()
            for controller in scope.controllers:
                controller.members.add(op)
            if scope.colocation and "_class" not in op.attrs:
                op.attrs["_class"] = tuple(f"loc:@{g}" for g in sorted(scope.colocation))
            if op_type in scope.gradients:
                op.attrs.setdefault("_gradient_op_type", scope.gradients[op_type])
            op.device = device
            scopes.request_device(op, scope)
            op.outputs = [Tensor(op, i, dtype, dims) for i, (dtype, dims) in enumerate(output_specs)]
            op.call = scope.call
            nodes = self._home().nodes
            op.id = len(nodes)
            nodes[full_name] = op
            if scope.context is not None:
                self._put_inside(op, scope.context)
            if expand and op_type in EXPANDERS:
                self._expand(op)
            return op

    def _home(self) -> scopes.Body:
        """Where a new node goes: the function that is being traced, or the graph."""
        return scopes.body_of(scopes.current_scope(self)) or self._own

    def _expand(self, op: Operation) -> None:
        scope = replace(scopes.current_scope(self), name=op.name, call=op, gradients={})
        with (
            self._home().undone_on_error(op.id),
            self.as_default(),
            scopes.enter_scope(self, scope),
            self.control_dependencies(op.control_inputs),
            self.device(op.device),
        ):
            EXPANDERS[op.type](op)

    def _put_inside(self, op: Operation, context: scopes.Context) -> None:
        op.control_flow_context = context
        self.prevent_fetching(op)
        for tensor in op.outputs:
            self.prevent_feeding(tensor)

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Where the block raises, none of the nodes that it added stay. Nobody else adds nodes meanwhile."""
        with self._lock:
            home = self._home()
            names, functions = dict(home.names), dict(self.functions)
            try:
                with home.undone_on_error(len(home.nodes)):
                    yield
            except BaseException:
                home.names, self.functions = names, functions
                raise

    def as_graph_def(self, from_version: int | None = None, add_shapes: bool = False) -> GraphDef:
        """The graph as plain data, to save, send or import.

        Args:
            from_version: Only the nodes made after `version` had this value.
            add_shapes: Add the static shapes, in the attribute `_output_shapes`.

        Raises:
            InvalidArgumentError: an attribute has no plain form, such as a Python function; the error names the node.
        """
        return graph_def_of(self.get_operations(), from_version or 0, add_shapes, self.functions)

    def _node_name(self, name: str) -> str:
        if name.endswith("/"):  # an absolute name, as given by a name scope
            name = name[:-1]
            home = self._home()
            if name in home.nodes:
                raise AlreadyExistsError(f"a node {name!r} exists already", node=name)
            home.names.setdefault(name.lower(), 1)
            return name
        prefix = scopes.current_scope(self).name
        if not name or not _NODE_NAME.fullmatch(f"{prefix}/{name}" if prefix else name):
            raise InvalidArgumentError(
                f"{name!r} is not a valid node name", expected="letters, digits, _.-/", actual=name
            )
        return self.unique_name(name)

    def _check_open(self) -> None:
        if self._finalized:
            raise FailedPreconditionError("the graph is finalized and cannot be modified").at(
                "<new node>", "", user_line()
            )

    def _check_owned(self, tensor: Any, op_type: str) -> None:
        if not isinstance(tensor, Tensor):
            raise InvalidArgumentError(
                "an input is not a tensor", op_type=op_type, expected="Tensor", actual=repr(tensor)
            )
        if tensor.op.graph is not self:
            raise InvalidArgumentError(
                f"tensor {tensor.name!r} is from another graph",
                op_type=op_type,
                expected=repr(self),
                actual=repr(tensor.op.graph),
            ).at(tensor.op.name, tensor.op.type, tensor.op.source)

    def unique_name(self, name: str, mark_as_used: bool = True) -> str:
        """`name` under the current name scope, with `_1`, `_2`, … where it is taken (letter case does not count)."""
        prefix = scopes.current_scope(self).name
        full = f"{prefix}/{name}" if prefix else name
        with self._lock:
            return self._home().unique(full, mark_as_used)

    def get_operations(self) -> list[Operation]:
        """All nodes, in the order of their making."""
        with self._lock:
            return list(self._own.nodes.values())

    def get_operation_by_name(self, name: str) -> Operation:
        """The node of that name. Raises NotFoundError."""
        found = self._own.nodes.get(name)
        if found is None:
            raise NotFoundError(f"no node {name!r} in the graph", node=None, expected=self._near(name), actual=name)
        return found

    def get_tensor_by_name(self, name: str) -> Tensor:
        """The tensor `node:index`.

        Raises:
            NotFoundError: there is no such node.
            InvalidArgumentError: the name has no index.
            OutOfRangeError: the node has fewer outputs.
        """
        node, colon, index = name.rpartition(":")
        if not colon or not (index.isascii() and index.isdigit()):
            raise InvalidArgumentError("not a tensor name", expected="'node:index'", actual=name)
        op = self.get_operation_by_name(node)
        if int(index) >= len(op.outputs):
            raise OutOfRangeError(
                f"node {node!r} has {len(op.outputs)} outputs",
                expected=f"an index below {len(op.outputs)}",
                actual=int(index),
            ).at(op.name, op.type, op.source)
        return op.outputs[int(index)]

    def _near(self, name: str) -> str:
        near = difflib.get_close_matches(name, self._own.nodes, n=3)
        return f"one of {self.version} nodes" + (f", such as {', '.join(near)}" if near else "")

    def as_graph_element(self, obj: Any, allow_tensor: bool = True, allow_operation: bool = True) -> Tensor | Operation:
        """The node or tensor of this graph that `obj` (a name, a node, a tensor or something that wraps one) stands
        for.

        Raises:
            NotFoundError: a name that the graph does not have.
            InvalidArgumentError: it belongs to another graph, or is nothing of that kind.
        """
        convert = getattr(obj, "_as_graph_element", None)
        element = convert() if convert is not None else obj
        if isinstance(element, bytes):
            element = element.decode()
        if isinstance(element, str):
            element = self._element_by_name(element, allow_operation)
        if isinstance(element, Tensor) and allow_tensor:
            self._check_owned(element, element.op.type)
            return element
        if isinstance(element, Operation) and allow_operation:
            if element.graph is not self:
                raise InvalidArgumentError(f"node {element.name!r} is from another graph").at(
                    element.name, element.type, element.source
                )
            return element
        wanted = " or ".join(w for w, ok in (("a Tensor", allow_tensor), ("an Operation", allow_operation)) if ok)
        raise InvalidArgumentError(
            f"{obj!r} is not an element of the graph", expected=wanted, actual=type(obj).__name__
        )

    def _element_by_name(self, name: str, allow_operation: bool) -> Tensor | Operation:
        if ":" in name or not allow_operation:
            return self.get_tensor_by_name(name)
        return self.get_operation_by_name(name)

    # -- feeding and fetching ---------------------------------------------------------------------------------------

    def prevent_feeding(self, tensor: Tensor) -> None:
        """Refuse `tensor` as a feed."""
        self._unfeedable.add(tensor)

    def is_feedable(self, tensor: Tensor) -> bool:
        """Whether a value may be fed for `tensor`."""
        return tensor not in self._unfeedable

    def prevent_fetching(self, op: Operation) -> None:
        """Refuse the outputs of `op` as fetches."""
        self._unfetchable.add(op)

    def is_fetchable(self, element: Tensor | Operation) -> bool:
        """Whether `element` may be fetched."""
        return (element.op if isinstance(element, Tensor) else element) not in self._unfetchable

    # -- collections ------------------------------------------------------------------------------------------------

    def add_to_collection(self, name: str, value: Any) -> None:
        """Append `value` to the collection of that name."""
        with self._lock:
            self._collections.setdefault(name, []).append(value)

    def add_to_collections(self, names: Iterable[str] | str, value: Any) -> None:
        """Append `value` to each of the collections."""
        for name in dict.fromkeys([names] if isinstance(names, str) else names):
            self.add_to_collection(name, value)

    def get_collection(self, name: str, scope: str | None = None) -> list[Any]:
        """A copy of the collection; with `scope`, only the items whose name the regular expression matches."""
        with self._lock:
            items = list(self._collections.get(name, ()))
        if scope is None:
            return items
        pattern = re.compile(scope)
        return [item for item in items if hasattr(item, "name") and pattern.match(item.name)]

    def get_collection_ref(self, name: str) -> list[Any]:
        """The collection itself."""
        with self._lock:
            return self._collections.setdefault(name, [])

    def clear_collection(self, name: str) -> None:
        """Empty the collection."""
        with self._lock:
            self._collections.pop(name, None)

    def get_all_collection_keys(self) -> list[str]:
        """Names of the collections that hold something."""
        with self._lock:
            return [k for k, v in self._collections.items() if v]

    # -- scopes -----------------------------------------------------------------------------------------------------

    def as_default(self) -> AbstractContextManager[Graph]:
        """Make this graph the default inside a `with` block, for this task or thread."""
        return scopes.enter_graph(self)

    def name_scope(self, name: str | None) -> AbstractContextManager[str]:
        """Prefix the names of new nodes; yields the prefix with its "/"."""
        return scopes.name_scope(self, name)

    def get_name_scope(self) -> str:
        """The current name scope, without a "/" at its end; "" at the root."""
        return scopes.current_scope(self).name

    def device(self, target: scopes.DeviceLike) -> AbstractContextManager[None]:
        """Ask for a device for new nodes: a name, a function of the node, or None to close off the outer scopes."""
        return scopes.device(self, target)

    def control_dependencies(self, control_inputs: Iterable[Any] | None) -> AbstractContextManager[None]:
        """Make new nodes wait for these nodes or tensors; None closes off the outer blocks."""
        if control_inputs is None:
            return scopes.control_dependencies(self, None)
        elements = [self.as_graph_element(c) for c in control_inputs]
        return scopes.control_dependencies(self, [e.op if isinstance(e, Tensor) else e for e in elements])

    def colocate_with(self, op: Any, ignore_existing: bool = False) -> AbstractContextManager[None]:
        """Put new nodes on the device of `op`."""
        element = None if op is None else self.as_graph_element(op)
        return scopes.colocate_with(self, element.op if isinstance(element, Tensor) else element, ignore_existing)

    def gradient_override_map(self, op_type_map: Mapping[str, str]) -> AbstractContextManager[None]:
        """Give new nodes of these ops the gradient that `RegisterGradient` registered under another name."""
        return scopes.gradient_override_map(self, op_type_map)

    def container(self, name: str) -> AbstractContextManager[str]:
        """Keep the resources of new stateful nodes in the container of that name."""
        return scopes.container(self, name)

    def default_session(self) -> Any:
        """The innermost session opened as default for this graph, or None. (Set by `Session`.)"""
        return current_session(self)


def _through_context(
    context: scopes.Context | None,
    name: str,
    op_type: str,
    inputs: tuple[Tensor, ...],
    control: tuple[Operation, ...],
) -> tuple[tuple[Tensor, ...], tuple[Operation, ...]]:
    """The inputs and control inputs of a new node, with what comes from outside brought into its context."""
    if context is not None:
        return context.admit(name, op_type, inputs, control)
    for source in (*(t.op for t in inputs), *control):
        if source.control_flow_context is not None and op_type != "Exit":
            source.control_flow_context.check_readable(source)
    return inputs, control


def user_line() -> SourceLine | None:
    """The innermost stack frame outside the engine: the user's own line."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_ENGINE):
            return SourceLine(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return None
