"""`Graph`, `Operation` and `Tensor`: building never computes, it appends nodes.

A graph only grows. Existing nodes keep their inputs and attributes, so whatever was compiled from them stays valid when
the graph is extended; the few exceptions (a device set later, an added control input) increment `Graph.mutations`.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import aioflow
from aioflow.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    SourceLine,
)
from aioflow.graph import scopes
from aioflow.graph.argument_kinds import check_kind, check_text
from aioflow.graph.calls import EXPANDERS
from aioflow.graph.collections import Collections
from aioflow.graph.default_session import current_session
from aioflow.graph.dtypes import DType
from aioflow.graph.graphdef import GraphDef, graph_def_of
from aioflow.graph.keys import GraphKeys
from aioflow.graph.lookup_errors import (
    needs_tensor,
    no_node,
    no_output,
    no_tensor,
    not_a_tensor_name,
    not_an_element,
    of_another_graph,
)
from aioflow.graph.names import NODE_NAME
from aioflow.graph.opdef import OPS
from aioflow.graph.operation import Operation
from aioflow.graph.shapes import Dims
from aioflow.graph.tensor import OPERATORS, Tensor
from aioflow.graph.tensor_like import NodeLike

__all__ = ["OPERATORS", "Graph", "GraphKeys", "Operation", "Tensor"]

_ENGINE: Final = str(Path(__file__).parents[1]) + os.sep  # with the separator: `aioflow_more` is somebody else's
_LOOP: Final = str(Path(os.__file__).parent / "asyncio") + os.sep  # whose lines are below those of a task of the engine
_NUMBERS: Final = itertools.count(1)  # of graphs, so that messages tell them apart


class Graph(Collections):
    """A set of nodes, append-only and safe to extend from several threads and tasks: `lock` is for who changes it.

    Attributes:
        source: The user's line that made it; None for the default graph of the process.
    """

    def __init__(self) -> None:
        super().__init__()
        self._number = next(_NUMBERS)
        self.source: SourceLine | None = user_line()
        self.mark = object()  # stands for the graph where nothing may keep it alive
        self._own = scopes.Body()
        self._unfeedable: set[Tensor] = set()
        self._unfetchable: set[Operation] = set()
        self._variables: dict[Tensor, Any] = {}  # by handle, and by value
        self._finalized = False
        self.held: list[Any] = []  # what lives as long as the graph, such as the Python functions of its nodes
        self.functions: dict[str, Any] = {}  # what calls name
        self.optimizations: dict[str, bool] = {}  # switches that hold where a session does not say otherwise
        self.copied = 0  # nodes that were copied from the bodies of functions
        self.mutations = 0
        self.seed: int | None = None

    def __repr__(self) -> str:
        origin = "a default graph" if self.source is None else f"made at {self.source}"
        nodes = f"{self.version} node{'s' * (self.version != 1)}"
        return f"<aioflow.Graph {self._number}, {origin}, with {nodes}>"

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

    def unfinalize(self) -> None:
        """Accept new nodes again: a monitored session leaves the graph as it found it."""
        self._finalized = False

    def note_mutation(self) -> None:
        """Record that an existing node changed, so that compiled plans are made anew."""
        self._check_open(None)
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
            InvalidArgumentError: an input belongs to another graph, the name is malformed, or only the compiler makes
                nodes of that op.
        """
        op_def = OPS.get(op_type)
        if op_def.made_by != "user":
            raise InvalidArgumentError(
                f"nodes of op {op_type} cannot be in a graph", expected="an op for users", actual=op_type
            )
        with self.lock:
            self._check_open(op_type)
            for tensor in inputs:
                self._check_owned(tensor, op_type)
            scope = scopes.current_scope(self)
            full_name = self._node_name(op_type if name is None else name, scope)
            wait = scopes.control_inputs_for(scope, [t.op for t in inputs])
            read, waited = _through_context(
                scope.context, full_name, op_type, tuple(inputs), tuple(dict.fromkeys((*control_inputs, *wait)))
            )
            op = Operation(self, op_def, full_name, read, dict(attrs))
            op.waits_for = waited
            op.source = source or user_line()
            for controller in scope.controllers:
                controller.add(op)
            if scope.colocation and "_class" not in op.attrs:
                op.attrs["_class"] = tuple(f"loc:@{g}" for g in sorted(scope.colocation))
            if op_type in scope.gradients:
                op.attrs.setdefault("_gradient_op_type", scope.gradients[op_type])
            op.outputs = [Tensor(op, i, dtype, dims) for i, (dtype, dims) in enumerate(output_specs)]
            op.device = device
            scopes.request_device(op, scope)
            op.call = scope.call
            nodes = self._home(scope).nodes
            op.id = len(nodes)
            nodes[full_name] = op
            if scope.context is not None:
                self._put_inside(op, scope.context)
            if expand and op_type in EXPANDERS:
                self._expand(op)
            return op

    def _home(self, scope: scopes.Scope) -> scopes.Body:
        """Where a new node goes: the function that is being traced, or the graph."""
        return scopes.body_of(scope) or self._own

    def _expand(self, op: Operation) -> None:
        with (
            self._home(scopes.current_scope(self)).undone_on_error(op.id),
            self.as_default(),
            scopes.enter_scope(self, lambda outer: outer._replace(name=op.name, call=op, gradients={})),
            self.control_dependencies(op.waits_for),
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
        with self.lock:
            home = self._home(scopes.current_scope(self))
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

    def _node_name(self, name: str, scope: scopes.Scope) -> str:
        check_text(name, "the name of a node")
        home = self._home(scope)
        full = name[:-1] if name.endswith("/") else scope.under(name)
        if not name or not NODE_NAME.fullmatch(full):
            raise InvalidArgumentError(
                f"{name!r} is not a valid node name", expected="letters, digits, _.-/", actual=name
            )
        if name.endswith("/"):  # an absolute name, as given by a name scope
            name = full
            if name in home.nodes:
                raise AlreadyExistsError(f"there is already a node {name!r}", node=name)
            home.names.setdefault(name.lower(), 1)
            return name
        return home.unique(full)

    def _check_open(self, op_type: str | None) -> None:
        """`op_type`: of the node that is being made; None where one changes that is there."""
        if self._finalized:
            error = FailedPreconditionError("the graph is finalized and cannot be modified", op_type=op_type)
            error.source = user_line()
            raise error

    def _check_owned(self, tensor: Any, op_type: str) -> None:
        if not isinstance(tensor, Tensor):
            raise InvalidArgumentError(
                "an input is not a tensor", op_type=op_type, expected="Tensor", actual=repr(tensor)
            )
        if tensor.op.graph is not self:
            raise of_another_graph(self, tensor.op, f"tensor {tensor.name!r}")

    def take_scope_name(self, op: Operation, prefix: str) -> None:
        """Give the node that was made last the name of its name scope, as `name_scope` yields it, if it is in it.

        Nothing refers to that node yet. Of any other the name stays as it is.
        """
        with self.lock:
            nodes = self._home(scopes.current_scope(self)).nodes
            if prefix[:-1] not in nodes and op.name.startswith(prefix) and next(reversed(nodes)) == op.name:
                del nodes[op.name]
                op.name = prefix[:-1]
                nodes[op.name] = op

    def add_to_collection(self, name: str, value: Any) -> None:
        """Append `value` to the collection of that name. Raises FailedPreconditionError: the graph is finalised."""
        self._check_open(None)
        super().add_to_collection(name, value)

    def unique_name(self, name: str, mark_as_used: bool = True) -> str:
        """`name` under the current name scope, with `_1`, `_2`, … where it is taken (letter case does not count)."""
        check_text(name, "a name")
        scope = scopes.current_scope(self)
        full = scope.under(name)
        with self.lock:
            return self._home(scope).unique(full, mark_as_used)

    def get_operations(self) -> list[Operation]:
        """All nodes, in the order in which they were made."""
        with self.lock:
            return list(self._own.nodes.values())

    def get_operation_by_name(self, name: str) -> Operation:
        """The node of that name.

        Raises:
            UnknownNameError: there is none, which is a KeyError.
        """
        check_text(name, "the name of a node")
        found = self._own.nodes.get(name)
        if found is None:
            raise no_node(self._own.nodes, name)
        return found

    def get_tensor_by_name(self, name: str) -> Tensor:
        """Return the tensor `node:index`; for the name of a variable, the tensor of its value, as `Variable.value()`.

        Raises:
            UnknownNameError: there is no such node, or it has fewer outputs; a KeyError.
            InvalidArgumentError: the name has no index.
        """
        check_text(name, "the name of a tensor")
        node, colon, index = name.rpartition(":")
        if not colon or not (index.isascii() and index.isdigit()):
            raise not_a_tensor_name(self._own.nodes, name)
        op = self._own.nodes.get(node)
        if op is None:
            raise no_tensor(self._own.nodes, name)
        if int(index) >= len(op.outputs):
            raise no_output(op, int(index))
        tensor = op.outputs[int(index)]
        variable = self._variables.get(tensor)
        return tensor if variable is None else variable.snapshot

    def add_variable(self, variable: Any) -> None:
        """Have the name of the variable stand for its value."""
        self._variables[variable.handle] = self._variables[variable.snapshot] = variable

    def variable_of(self, tensor: Tensor) -> Any:
        """Return the variable whose value, or handle, the tensor is; None where there is none."""
        return self._variables.get(tensor)

    def as_graph_element(self, obj: Any, allow_tensor: bool = True, allow_operation: bool = True) -> Tensor | Operation:
        """The node or tensor of this graph that `obj` (a name, a node, a tensor or something that wraps one) stands
        for.

        Raises:
            UnknownNameError: a name that the graph does not have; a KeyError.
            DTypeError: it is none of these.
            InvalidArgumentError: it belongs to another graph.
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
                raise of_another_graph(self, element, f"node {element.name!r}")
            return element
        if isinstance(element, Operation):
            raise needs_tensor(element)
        wanted = " or ".join(w for w, ok in (("a Tensor", allow_tensor), ("an Operation", allow_operation)) if ok)
        raise not_an_element(obj, wanted)

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
        """Request a device for new nodes: a name, a function of the node, or None to close off the outer scopes."""
        return scopes.device(self, target)

    def control_dependencies(self, control_inputs: Iterable[NodeLike] | None) -> AbstractContextManager[None]:
        """Make new nodes wait for these nodes or tensors; None closes off the outer blocks."""
        if control_inputs is None:
            return scopes.control_dependencies(self, None)
        check_kind(control_inputs, Iterable, "control_inputs", "a list of nodes or tensors")
        elements = [self.as_graph_element(c) for c in control_inputs]
        return scopes.control_dependencies(self, [e.op if isinstance(e, Tensor) else e for e in elements])

    def colocate_with(self, op: NodeLike | None, ignore_existing: bool = False) -> AbstractContextManager[None]:
        """Put new nodes on the device of `op`."""
        element = None if op is None else self.as_graph_element(op)
        return scopes.colocate_with(self, element.op if isinstance(element, Tensor) else element, ignore_existing)

    def gradient_override_map(self, op_type_map: Mapping[str, str]) -> AbstractContextManager[None]:
        """Give new nodes of these ops the gradient that `RegisterGradient` registered under another name."""
        return scopes.gradient_override_map(self, op_type_map)

    def container(self, name: str) -> AbstractContextManager[str]:
        """Keep the resources of new stateful nodes in the container of that name."""
        return scopes.container(self, name)

    def default_session(self) -> aioflow.Session | None:
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
    """The innermost stack frame outside the engine and the event loop: the user's own line."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((_ENGINE, _LOOP)):
            return SourceLine(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return None
