"""`Graph`, `Operation` and `Tensor`: building never computes, it appends nodes.

A graph only grows. Existing nodes keep their inputs and attributes, so whatever was compiled from them stays valid when
the graph is extended; the few exceptions (a device set later, an added control input) count up `Graph.mutations`.
"""

from __future__ import annotations

import difflib
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from aioflow.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    OutOfRangeError,
    SourceLine,
)
from aioflow.graph import scopes
from aioflow.graph.default_session import current_session
from aioflow.graph.dtypes import DType
from aioflow.graph.opdef import OPS, OpDef
from aioflow.graph.shapes import Dims, TensorShape, format_dims, merge_dims

__all__ = ["OPERATORS", "Graph", "GraphKeys", "Operation", "Tensor"]

# Python operators on tensors, filled in by the op families: the graph itself knows no op by name.
OPERATORS: Final[dict[str, Callable[..., Any]]] = {}

_ENGINE: Final = str(Path(__file__).resolve().parents[1])
_NODE_NAME: Final = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")


class GraphKeys:
    """Names of the standard collections."""

    GLOBAL_VARIABLES = "variables"
    TRAINABLE_VARIABLES = "trainable_variables"
    LOCAL_VARIABLES = "local_variables"
    MODEL_VARIABLES = "model_variables"
    METRIC_VARIABLES = "metric_variables"
    MOVING_AVERAGE_VARIABLES = "moving_average_variables"
    LOSSES = "losses"
    REGULARIZATION_LOSSES = "regularization_losses"
    UPDATE_OPS = "update_ops"
    SUMMARIES = "summaries"
    QUEUE_RUNNERS = "queue_runners"
    TABLE_INITIALIZERS = "table_initializer"
    GLOBAL_STEP = "global_step"
    TRAIN_OP = "train_op"
    SAVERS = "savers"
    INIT_OP = "init_op"
    WEIGHTS = "weights"
    BIASES = "biases"
    ACTIVATIONS = "activations"


class Tensor:
    """One output of a node: a value that exists only while a step runs."""

    __slots__ = ("__weakref__", "_dims", "dtype", "op", "value_index")
    __array_priority__ = 100  # so that `ndarray + tensor` asks the tensor

    def __init__(self, op: Operation, value_index: int, dtype: DType, dims: Dims) -> None:
        self.op = op
        self.value_index = value_index
        self.dtype = dtype
        self._dims = dims

    @property
    def name(self) -> str:
        """`node:index`."""
        return f"{self.op.name}:{self.value_index}"

    @property
    def graph(self) -> Graph:
        """The graph that the tensor belongs to."""
        return self.op.graph

    @property
    def device(self) -> str:
        """The requested device of the node."""
        return self.op.device

    @property
    def dims(self) -> Dims:
        """The static shape as plain data."""
        return self._dims

    @property
    def shape(self) -> TensorShape:
        """The static shape."""
        return TensorShape(self._dims)

    def get_shape(self) -> TensorShape:
        """The static shape."""
        return TensorShape(self._dims)

    def set_shape(self, shape: Any) -> None:
        """Add what the caller knows about the static shape.

        Raises:
            InvalidArgumentError: it contradicts what is known.
        """
        self._dims = merge_dims(self._dims, TensorShape(shape).raw)

    def consumers(self) -> list[Operation]:
        """The nodes that read this tensor."""
        return [op for op in self.graph.get_operations() if any(t is self for t in op.inputs)]

    async def eval(self, feed_dict: Mapping[Any, Any] | None = None, session: Any = None) -> Any:
        """Run what this tensor needs in `session`, or in the default session, and return its value."""
        return await _session_for(session, self.graph).run(self, feed_dict)

    def __repr__(self) -> str:
        return f"<aioflow.Tensor {self.name!r} shape={format_dims(self._dims)} dtype={self.dtype.name}>"

    def __bool__(self) -> bool:
        raise SymbolicUseError(self, "used as a Python bool; use `aioflow.cond`, or `await session.run` it first")

    def __iter__(self) -> Iterator[Tensor]:
        if not self._dims or self._dims[0] is None:
            raise SymbolicUseError(self, "iterated over, which needs a known first dimension")
        return (self[i] for i in range(self._dims[0]))

    def __len__(self) -> int:
        raise SymbolicUseError(self, "asked for len(); use `aioflow.shape` or `.shape`")

    def __add__(self, other: Any) -> Tensor:
        return _operator("add", self, other)

    def __radd__(self, other: Any) -> Tensor:
        return _operator("add", other, self)

    def __sub__(self, other: Any) -> Tensor:
        return _operator("sub", self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return _operator("sub", other, self)

    def __mul__(self, other: Any) -> Tensor:
        return _operator("mul", self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return _operator("mul", other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return _operator("truediv", self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return _operator("truediv", other, self)

    def __floordiv__(self, other: Any) -> Tensor:
        return _operator("floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return _operator("floordiv", other, self)

    def __mod__(self, other: Any) -> Tensor:
        return _operator("mod", self, other)

    def __rmod__(self, other: Any) -> Tensor:
        return _operator("mod", other, self)

    def __pow__(self, other: Any) -> Tensor:
        return _operator("pow", self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return _operator("pow", other, self)

    def __matmul__(self, other: Any) -> Tensor:
        return _operator("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return _operator("matmul", other, self)

    def __lt__(self, other: Any) -> Tensor:
        return _operator("lt", self, other)

    def __le__(self, other: Any) -> Tensor:
        return _operator("le", self, other)

    def __gt__(self, other: Any) -> Tensor:
        return _operator("gt", self, other)

    def __ge__(self, other: Any) -> Tensor:
        return _operator("ge", self, other)

    def __and__(self, other: Any) -> Tensor:
        return _operator("and", self, other)

    def __rand__(self, other: Any) -> Tensor:
        return _operator("and", other, self)

    def __or__(self, other: Any) -> Tensor:
        return _operator("or", self, other)

    def __ror__(self, other: Any) -> Tensor:
        return _operator("or", other, self)

    def __xor__(self, other: Any) -> Tensor:
        return _operator("xor", self, other)

    def __rxor__(self, other: Any) -> Tensor:
        return _operator("xor", other, self)

    def __neg__(self) -> Tensor:
        return _operator("neg", self)

    def __abs__(self) -> Tensor:
        return _operator("abs", self)

    def __invert__(self) -> Tensor:
        return _operator("invert", self)

    def __getitem__(self, key: Any) -> Tensor:
        return _operator("getitem", self, key)


class SymbolicUseError(InvalidArgumentError, TypeError):
    """A symbolic tensor was used where Python needs a value now."""

    def __init__(self, tensor: Tensor, what: str) -> None:
        super().__init__(f"a symbolic tensor was {what}", expected="a value", actual=repr(tensor))
        self.at(tensor.op.name, tensor.op.type, tensor.op.source)


def _operator(name: str, *operands: Any) -> Tensor:
    result: Tensor = OPERATORS[name](*operands)
    return result


def _session_for(session: Any, graph: Graph) -> Any:
    if session is not None:
        return session
    found = graph.default_session()
    if found is None:
        raise FailedPreconditionError(
            "there is no default session",
            expected="`async with Session()` around the call, or session=",
            actual="none open",
        )
    return found


class Operation:
    """A node of the graph.

    Attributes:
        name, type: The node's unique name and its op.
        inputs, control_inputs, outputs: Tensors read, nodes waited for, tensors produced.
        attrs: Attribute values in canonical form.
        source: The user's line that created the node.
        device: The requested device, "" for any.
        gradient_function: The gradient of this very node, where it is not that of its op (`custom_gradient`).
    """

    __slots__ = (
        "__weakref__",
        "attrs",
        "control_inputs",
        "device",
        "gradient_function",
        "graph",
        "id",
        "inputs",
        "name",
        "op_def",
        "outputs",
        "source",
        "type",
    )

    def __init__(
        self, graph: Graph, op_def: OpDef, name: str, inputs: tuple[Tensor, ...], attrs: dict[str, Any]
    ) -> None:
        self.graph = graph
        self.op_def = op_def
        self.type = op_def.name
        self.name = name
        self.inputs = inputs
        self.control_inputs: tuple[Operation, ...] = ()
        self.attrs = attrs
        self.device = ""
        self.gradient_function: Callable[..., Any] | None = None
        self.source: SourceLine | None = None
        self.outputs: list[Tensor] = []
        self.id = -1

    def get_attr(self, name: str) -> Any:
        """One attribute. Raises NotFoundError."""
        if name not in self.attrs:
            raise NotFoundError(f"no attribute {name!r}", expected=f"one of {sorted(self.attrs)}", actual=name).at(
                self.name, self.type, self.source
            )
        return self.attrs[name]

    def colocation_groups(self) -> tuple[str, ...]:
        """Names of the nodes that this one shares its device with; itself when it has no constraint."""
        found: tuple[str, ...] = self.attrs.get("_class", ())
        return tuple(g.removeprefix("loc:@") for g in found if g.startswith("loc:@")) or (self.name,)

    def add_control_input(self, op: Operation) -> None:
        """Make this node wait for `op` as well."""
        if op not in self.control_inputs:
            self.control_inputs = (*self.control_inputs, op)
            self.graph.note_mutation()

    async def run(self, feed_dict: Mapping[Any, Any] | None = None, session: Any = None) -> None:
        """Run this node and what it needs in `session`, or in the default session."""
        await _session_for(session, self.graph).run(self, feed_dict)

    def __repr__(self) -> str:
        return f"<aioflow.Operation {self.name!r} type={self.type}>"


class Graph:
    """A set of nodes, append-only and safe to extend from several threads and tasks."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._nodes: dict[str, Operation] = {}
        self._names_in_use: dict[str, int] = {}
        self._collections: dict[str, list[Any]] = {}
        self._unfeedable: set[Tensor] = set()
        self._unfetchable: set[Operation] = set()
        self._finalized = False
        self.mutations = 0
        self.seed: int | None = None

    # -- nodes ------------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """How many nodes have been made."""
        return len(self._nodes)

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
    ) -> Operation:
        """Append a node whose attributes and output specs are already worked out (`ops.apply` does that).

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
            op = Operation(self, op_def, full_name, tuple(inputs), dict(attrs))
            op.source = source or user_line()
            scope = scopes.current_scope(self)
            producers = [t.op for t in inputs]
            op.control_inputs = tuple(dict.fromkeys((*control_inputs, *scopes.control_inputs_for(scope, producers))))
            for controller in scope.controllers:
                controller.members.add(op)
            if scope.colocation and "_class" not in op.attrs:
                op.attrs["_class"] = tuple(f"loc:@{g}" for g in scope.colocation)
            if op_type in scope.gradients:
                op.attrs.setdefault("_gradient_op_type", scope.gradients[op_type])
            op.device = device
            if scope.devices:
                op.device = scopes.device_for(op, scope)
            op.outputs = [Tensor(op, i, dtype, dims) for i, (dtype, dims) in enumerate(output_specs)]
            op.id = len(self._nodes)
            self._nodes[full_name] = op
            return op

    def _node_name(self, name: str) -> str:
        if name.endswith("/"):  # an absolute name, as given by a name scope
            name = name[:-1]
            if name in self._nodes:
                raise AlreadyExistsError(f"a node {name!r} exists already", node=name)
            self._names_in_use.setdefault(name.lower(), 1)
            return name
        if not _NODE_NAME.fullmatch(name):
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
            key = full.lower()
            count = self._names_in_use.get(key, 0)
            if mark_as_used:
                self._names_in_use[key] = count + 1
            if count == 0:
                return full
            while True:
                candidate = f"{full}_{count}"
                if candidate.lower() not in self._names_in_use:
                    break
                count += 1
            if mark_as_used:
                self._names_in_use[key] = count + 1
                self._names_in_use[candidate.lower()] = 1
            return candidate

    def get_operations(self) -> list[Operation]:
        """All nodes, in the order of their making."""
        with self._lock:
            return list(self._nodes.values())

    def get_operation_by_name(self, name: str) -> Operation:
        """The node of that name. Raises NotFoundError."""
        found = self._nodes.get(name)
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
        if not colon or not index.isdigit():
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
        near = difflib.get_close_matches(name, self._nodes, n=3)
        return f"one of {len(self._nodes)} nodes" + (f", such as {', '.join(near)}" if near else "")

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
        return [item for item in items if pattern.match(getattr(item, "name", ""))]

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


def user_line() -> SourceLine | None:
    """The innermost stack frame outside the engine: the user's own line."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_ENGINE):
            return SourceLine(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return None


def blame(error: OpError, op: Operation) -> OpError:
    """Attach the node to an error, unless a node is attached already."""
    return error.at(op.name, op.type, op.source)
