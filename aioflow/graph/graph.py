"""`Graph`, `Operation` and `Tensor`: building only appends nodes, and never computes.

A graph only grows. Existing nodes keep their inputs and attributes, so compiled plans stay valid when the graph is
extended; the few exceptions (a device set later, an added control input) increment `Graph.mutations`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from numpy.typing import NDArray

from aioflow.arguments import check_kind, check_text
from aioflow.concurrency.context_stack import ContextStack
from aioflow.errors import (
    AlreadyExistsError,
    DTypeError,
    FailedPreconditionError,
    InvalidArgumentError,
    SourceLine,
    UnknownNameError,
)
from aioflow.graph import scopes
from aioflow.graph.calls import EXPANDERS
from aioflow.graph.collections import GraphCollections, GraphKeys
from aioflow.graph.default_session import StepRunner, session_for
from aioflow.graph.definitions import NODE_NAME
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.dtypes import DType
from aioflow.graph.graphdef import GraphDef, graph_def_of
from aioflow.graph.lookup_errors import (
    misused,
    needs_tensor,
    no_node,
    no_output,
    no_tensor,
    not_a_tensor_name,
    not_an_element,
    of_another_graph,
)
from aioflow.graph.opdef import OPS, OpDef
from aioflow.graph.operators import Operators, SupportsTensorView
from aioflow.graph.shapes import Dims, ShapeLike, TensorShape, format_dims, merge_dims
from aioflow.graph.signature.attributes import public_value
from aioflow.graph.source_lines import user_line
from aioflow.graph.views import CompositeView

__all__ = ["Graph", "GraphKeys", "Operation", "Tensor"]

_NUMBERS: Final = itertools.count(1)  # of graphs, to distinguish them in messages


class Tensor(Operators):
    """One output of a node: a value that exists only while a step runs."""

    __slots__ = ("__weakref__", "_dims", "dtype", "op", "value_index")

    if TYPE_CHECKING:
        _fetched: NDArray[Any]  # see Fetchable

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
        """Return the static shape."""
        return TensorShape(self._dims)

    def set_shape(self, shape: ShapeLike | None) -> None:
        """Merge `shape` into the static shape.

        Raises:
            InvalidArgumentError: `shape` contradicts the known shape.
        """
        self._dims = merge_dims(self._dims, TensorShape(shape).raw)

    def widen_shape(self, dims: Dims) -> None:
        """Replace the static shape by a more general one. The caller must update the shapes of dependent tensors."""
        self._dims = dims

    def consumers(self) -> list[Operation]:
        """Return the nodes that read this tensor."""
        # `is` suffices: a tensor is equal to itself only.
        return [op for op in self.graph.get_operations() if any(t is self for t in op.inputs)]

    async def eval(self, feed_dict: Mapping[Any, Any] | None = None, session: StepRunner | None = None) -> NDArray[Any]:
        """Run the nodes that this tensor depends on in `session`, or in the default session, and return its value.

        Raises:
            NoSessionError: `session` is None and there is no default session.
        """
        value: NDArray[Any] = await session_for(session, self.graph).run(self, feed_dict)
        return value

    def __repr__(self) -> str:
        return f"<aioflow.Tensor {self.name!r} shape={format_dims(self._dims)} dtype={self.dtype.name}>"

    def __bool__(self) -> bool:
        raise misused(self, "used as a Python bool", "use `aioflow.cond`, or")

    def __iter__(self) -> Iterator[Tensor]:
        # A Python loop unrolls into one node per row, so the number of rows must be known now, not in the step.
        if not self._dims or self._dims[0] is None:
            raise misused(self, "iterated over, which needs a known first dimension", "use `aioflow.map_fn`, or")
        return (self[i] for i in range(self._dims[0]))

    def __len__(self) -> int:
        raise misused(self, "passed to len()", "use `.shape` or `aioflow.shape`, or")

    def __contains__(self, item: Any) -> bool:
        raise misused(self, "used with `in`", "use `aioflow.reduce_any(aioflow.equal(tensor, item))`, or")

    def __format__(self, spec: str) -> str:
        if spec:
            raise misused(self, f"formatted as {spec!r}")
        return repr(self)

    # Hidden from type checkers, which then report a tensor where an array or a number is expected.
    if not TYPE_CHECKING:

        def __array__(self, *args, **kwargs):
            raise misused(self, "converted to an array")

        def __float__(self):
            raise misused(self, "converted to a Python number")

        __int__ = __complex__ = __float__


class Operation:
    """A node of the graph.

    Attributes:
        name, type: The node's unique name and its op.
        inputs, waits_for, outputs: Tensors read, nodes waited for, tensors produced.
        attrs: Attribute values in canonical form.
        source: The user's line that created the node.
        device: The requested device, "" for any.
        gradient_function: The gradient of this node, if it differs from that of its op (`custom_gradient`).
        control_flow_context: The branch or loop that contains the outputs, None at the top level.
        expansion: For a function call, the tensors that its outputs stand for; None for every other node.
        finish: For a function call, the nodes that must have run before the call is complete.
        call: The call whose expansion contains this node, None for a node that the user created.
    """

    # Slots save a dictionary for each node of a large graph.
    __slots__ = (
        "__weakref__",
        "attrs",
        "call",
        "control_flow_context",
        "device",
        "expansion",
        "finish",
        "gradient_function",
        "graph",
        "id",
        "inputs",
        "name",
        "op_def",
        "outputs",
        "source",
        "type",
        "waits_for",
    )

    if TYPE_CHECKING:
        _fetched: None  # see Fetchable

    def __init__(
        self, graph: Graph, op_def: OpDef, name: str, inputs: tuple[Tensor, ...], attrs: dict[str, Any]
    ) -> None:
        self.graph = graph
        self.op_def = op_def
        self.type = op_def.name
        self.name = name
        self.inputs = inputs
        self.waits_for: tuple[Operation, ...] = ()
        self.attrs = attrs
        self.device = ""
        self.gradient_function: Callable[..., Any] | None = None
        self.control_flow_context: Any = None
        self.expansion: tuple[Tensor, ...] | None = None
        self.finish: tuple[Operation, ...] = ()
        self.call: Operation | None = None
        self.source: SourceLine | None = None
        self.outputs: list[Tensor] = []
        self.id = -1

    @property
    def control_inputs(self) -> list[Operation]:
        """The nodes that this node waits for without reading their outputs."""
        return list(self.waits_for)

    def values(self) -> tuple[Tensor, ...]:
        """Return the outputs."""
        return tuple(self.outputs)

    def get_attr(self, name: str) -> Any:
        """Return one attribute in TensorFlow's form: text as bytes, a list as a list, a shape as a `TensorShape`.

        Raises:
            UnknownNameError: the node has no such attribute.
        """
        if name not in self.attrs:
            raise UnknownNameError(f"no attribute {name!r}", expected=f"one of {sorted(self.attrs)}", actual=name).at(
                self.name, self.type, self.source
            )
        known = self.op_def.attrs.get(name)
        return public_value(self.attrs[name], "" if known is None else known.kind)

    @property
    def colocated_with(self) -> tuple[str, ...]:
        """Names of the nodes that share a device with this node; its own name if it has no constraint."""
        found: tuple[str, ...] = self.attrs.get("_class", ())
        return tuple(g.removeprefix("loc:@") for g in found if g.startswith("loc:@")) or (self.name,)

    def colocation_groups(self) -> list[bytes]:
        """Return the colocation groups of this node, each b"loc:@" followed by the name of a node."""
        return [f"loc:@{name}".encode() for name in self.colocated_with]

    def add_control_input(self, op: Operation) -> None:
        """Make this node wait for `op` as well.

        Raises:
            InvalidArgumentError: `op` belongs to another graph.
            FailedPreconditionError: the graph is finalized, or this node is a function call.
        """
        if op.graph is not self.graph:
            raise of_another_graph(self.graph, op, f"node {op.name!r}")
        # Adding it twice changes nothing, so that plans stay valid and `mutations` does not grow.
        if op not in self.waits_for:
            self._check_not_expanded()
            self.graph.note_mutation()
            # A new tuple: a reader without the lock sees either the old control inputs or the new ones.
            self.waits_for = (*self.waits_for, op)

    def update_input(self, index: int, tensor: Tensor) -> None:
        """Replace input `index` by `tensor`. A loop's Merge gets its back edge this way.

        Raises:
            InvalidArgumentError: there is no such input, or the tensor belongs to another graph.
            DTypeError: the tensor has a different dtype.
            FailedPreconditionError: the graph is finalized, or this node is a function call.
        """
        if not 0 <= index < len(self.inputs):
            wanted = f"an index below {len(self.inputs)}"
            raise InvalidArgumentError("no such input", expected=wanted, actual=index).at(
                self.name, self.type, self.source
            )
        if tensor.op.graph is not self.graph:
            raise of_another_graph(self.graph, tensor.op, f"tensor {tensor.name!r}")
        # Dtypes are singletons, so `is` compares them. The node's attributes, such as T, state the old dtype.
        if tensor.dtype is not self.inputs[index].dtype:
            raise DTypeError(
                f"input {index} has the wrong dtype", expected=self.inputs[index].dtype.name, actual=repr(tensor)
            ).at(self.name, self.type, self.source)
        self._check_not_expanded()
        self.graph.note_mutation()
        # The old tuple is replaced, not changed, so that iterations of other threads over it stay valid.
        self.inputs = (*self.inputs[:index], tensor, *self.inputs[index + 1 :])

    def _check_not_expanded(self) -> None:
        """Raise FailedPreconditionError if this node is a function call."""
        # The expansion was built from the inputs that the call had at that time.
        if self.expansion is not None:
            raise FailedPreconditionError(
                "a call of a function keeps its inputs: put it into control_dependencies when it is made"
            ).at(self.name, self.type, self.source)

    async def run(self, feed_dict: Mapping[Any, Any] | None = None, session: StepRunner | None = None) -> None:
        """Run this node and the nodes that it depends on in `session`, or in the default session.

        Raises:
            NoSessionError: `session` is None and there is no default session.
        """
        await session_for(session, self.graph).run(self, feed_dict)

    def __repr__(self) -> str:
        return f"<aioflow.Operation {self.name!r} type={self.type}>"


DeviceLike: TypeAlias = str | DeviceSpec | Callable[[Operation], Any] | None
# `tensor_like.NodeLike`, by the protocols of its members.
_Waited: TypeAlias = Tensor | Operation | SupportsTensorView | CompositeView | str


class Graph(GraphCollections, scopes.Scoped):
    """A set of nodes, append-only and safe to extend from several threads and tasks; changes hold `lock`.

    Attributes:
        source: The user's line that created the graph; None for the default graph of the process.
        mark: An object that identifies the graph without keeping it alive.
        held: Objects that live as long as the graph, such as the Python functions of its nodes.
        functions: The functions that calls refer to, by name.
        optimizations: Switches that apply unless a session sets its own.
        copied: The number of nodes that were copied from the bodies of functions.
        mutations: The number of changes to existing nodes.
        seed: The graph-level random seed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._number = next(_NUMBERS)
        self.source: SourceLine | None = user_line()
        self.mark = object()
        self._own: scopes.NamedNodes[Operation] = scopes.NamedNodes()
        # Sets of the exceptions: most nodes of a graph may be fed and fetched.
        self._unfeedable: set[Tensor] = set()
        self._unfetchable: set[Operation] = set()
        # Both tensors of a variable lead to it: the program may hold either one.
        self._variables: dict[Tensor, Any] = {}  # by handle and by value
        self._finalized = False
        self.held: list[Any] = []
        self.functions: dict[str, Any] = {}
        self.optimizations: dict[str, bool] = {}
        self.copied = 0
        self.mutations = 0
        self.seed: int | None = None

    def __repr__(self) -> str:
        origin = "a default graph" if self.source is None else f"made at {self.source}"
        nodes = f"{self.version} node{'s' * (self.version != 1)}"
        return f"<aioflow.Graph {self._number}, {origin}, with {nodes}>"

    # -- nodes ------------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The number of nodes created so far."""
        return len(self._own.nodes)

    @property
    def finalized(self) -> bool:
        """True after `finalize`."""
        return self._finalized

    def finalize(self) -> None:
        """Reject new nodes from now on."""
        self._finalized = True

    def unfinalize(self) -> None:
        """Accept new nodes again: a monitored session restores the graph's state."""
        self._finalized = False

    def note_mutation(self) -> None:
        """Record that an existing node changed, so that plans are compiled again."""
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
        """Append a node whose attributes and output specs are already complete (`ops.apply` prepares them).

        Args:
            op_type: The name of the op.
            inputs: The input tensors.
            attrs: The attributes.
            output_specs: Dtype and static shape of each output.
            name: The requested name; None for the name of the op. A name that ends in "/" is absolute.
            control_inputs: Nodes to wait for, in addition to those of the scopes.
            device: The requested device, "" for none.
            source: The user's line; None to find it on the stack.
            expand: Whether to expand a function call.

        Raises:
            FailedPreconditionError: the graph is finalized.
            InvalidArgumentError: an input belongs to another graph, the name is malformed, or the op is reserved for
                the compiler.
            AlreadyExistsError: an absolute name is taken.
            NotFoundError: there is no such op.
        """
        op_def = OPS.get(op_type)
        if op_def.made_by != "user":
            raise InvalidArgumentError(
                f"nodes of op {op_type} cannot be in a graph", expected="an op for users", actual=op_type
            )
        # The name, the position and the scope must belong together: another thread may add nodes at the same time.
        with self.lock:
            self._check_open(op_type)
            for tensor in inputs:
                self._check_owned(tensor, op_type)
            scope = scopes.current_scope(self)
            full_name = self._node_name(op_type if name is None else name, scope)
            wait = scopes.control_inputs_for(scope, [t.op for t in inputs])
            # A value from outside a loop or branch enters through a node of its own: not always the given input.
            read, waited = scopes.through_context(
                scope.context, full_name, op_type, tuple(inputs), tuple(dict.fromkeys((*control_inputs, *wait)))
            )
            op = Operation(self, op_def, full_name, read, dict(attrs))
            op.waits_for = waited
            op.source = source or user_line()
            # Registered before the node is complete: later nodes of the block that read it need no second control edge.
            for controller in scope.controllers:
                controller.add(op)
            # An imported node's own `_class` wins over the scope. Sorted, so that equal scopes give equal definitions.
            if scope.colocation and "_class" not in op.attrs:
                op.attrs["_class"] = tuple(f"loc:@{g}" for g in sorted(scope.colocation))
            if op_type in scope.gradients:
                op.attrs.setdefault("_gradient_op_type", scope.gradients[op_type])
            op.outputs = [Tensor(op, i, dtype, dims) for i, (dtype, dims) in enumerate(output_specs)]
            op.device = device
            # A device function gets the node, so the node has its attributes and outputs by now.
            scopes.request_device(op, scope)
            op.call = scope.call
            nodes = self._home(scope).nodes
            # Nodes are only appended, so the position identifies a node within its body.
            op.id = len(nodes)
            nodes[full_name] = op
            if scope.context is not None:
                self._put_inside(op, scope.context)
            if expand and op_type in EXPANDERS:
                self._expand(op)
            return op

    def _home(self, scope: scopes.Scope) -> scopes.NamedNodes[Operation]:
        """Return the body that owns a new node: the function that is being traced, or the graph."""
        return scopes.body_of(scope) or self._own

    def _expand(self, op: Operation) -> None:
        # `op.id` is the position of the call: if its expansion fails, the call is removed as well.
        with (
            self._home(scopes.current_scope(self)).undone_on_error(op.id),
            self.as_default(),
            # The nodes of the body got their gradient overrides when it was traced; those of the caller do not apply.
            scopes.enter_scope(self, lambda outer: outer._replace(name=op.name, call=op, gradients={})),
            self.control_dependencies(op.waits_for),
            self.device(op.device),
        ):
            EXPANDERS[op.type](op)

    def _put_inside(self, op: Operation, context: scopes.Context) -> None:
        # A value inside a branch may be dead, and one inside a loop exists once per iteration.
        op.control_flow_context = context
        self.prevent_fetching(op)
        for tensor in op.outputs:
            self.prevent_feeding(tensor)

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Remove all nodes that the block added if it raises. Other threads cannot add nodes in the meantime."""
        with self.lock:
            home = self._home(scopes.current_scope(self))
            # Names are restored too, so that a second attempt gives the nodes the same ones.
            # Copies, because `undone_on_error` restores only the nodes.
            names, functions = dict(home.names), dict(self.functions)
            try:
                with home.undone_on_error(len(home.nodes)):
                    yield
            except BaseException:
                # Cancellation and KeyboardInterrupt must not leave half of the nodes either.
                home.names, self.functions = names, functions
                raise

    def as_graph_def(self, from_version: int | None = None, add_shapes: bool = False) -> GraphDef:
        """Return the graph as plain data, to save, send or import.

        Args:
            from_version: Include only the nodes created after `version` had this value.
            add_shapes: Whether to add the static shapes, as attribute `_output_shapes`.

        Raises:
            InvalidArgumentError: an attribute has no plain form, such as a Python function; the error names the node.
        """
        return graph_def_of(self.get_operations(), from_version or 0, add_shapes, self.functions)

    def _node_name(self, name: str, scope: scopes.Scope) -> str:
        check_text(name, "the name of a node")
        home = self._home(scope)
        full = name[:-1] if name.endswith("/") else scope.under(name)
        # The whole is checked: inside a scope a name may begin with "_", at the root it may not.
        if not name or not NODE_NAME.fullmatch(full):
            raise InvalidArgumentError(
                f"{name!r} is not a valid node name", expected="letters, digits, _.-/", actual=name
            )
        if name.endswith("/"):  # an absolute name, as yielded by a name scope
            name = full
            if name in home.nodes:
                raise AlreadyExistsError(f"there is already a node {name!r}", node=name)
            # Later relative requests of this name get a suffix. An existing count must not be lowered.
            home.names.setdefault(name.lower(), 1)
            return name
        return home.unique(full)

    def _check_open(self, op_type: str | None) -> None:
        """Raise FailedPreconditionError if the graph is finalized.

        `op_type` is the op of the node to create, or None for a change of an existing node.
        """
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
        """Rename the last node to the name of its name scope `prefix`, as yielded by `name_scope`.

        No node refers to the last node yet. If `op` is another node, or not in that scope, its name stays.
        """
        with self.lock:
            nodes = self._home(scopes.current_scope(self)).nodes
            # The last entry can be renamed without changing the order of the dictionary.
            if prefix[:-1] not in nodes and op.name.startswith(prefix) and next(reversed(nodes)) == op.name:
                del nodes[op.name]
                op.name = prefix[:-1]
                nodes[op.name] = op

    def add_to_collection(self, name: str, value: Any) -> None:
        """Append `value` to the collection `name`. Raises FailedPreconditionError if the graph is finalized."""
        self._check_open(None)
        super().add_to_collection(name, value)

    def unique_name(self, name: str, mark_as_used: bool = True) -> str:
        """Return `name` under the current name scope, with `_1`, `_2`, … if it is taken (ignoring case)."""
        check_text(name, "a name")
        scope = scopes.current_scope(self)
        full = scope.under(name)
        with self.lock:
            return self._home(scope).unique(full, mark_as_used)

    def get_operations(self) -> list[Operation]:
        """Return all nodes, in the order of creation."""
        # The copy is made under the lock: another thread may insert during the iteration.
        with self.lock:
            return list(self._own.nodes.values())

    def get_operation_by_name(self, name: str) -> Operation:
        """Return the node with this name.

        Raises:
            UnknownNameError: no such node exists; a KeyError.
        """
        check_text(name, "the name of a node")
        # Without the lock: one lookup in a dictionary is atomic under the GIL.
        found = self._own.nodes.get(name)
        if found is None:
            raise no_node(self._own.nodes, name)
        return found

    def get_tensor_by_name(self, name: str) -> Tensor:
        """Return the tensor `node:index`; for the name of a variable, its value as returned by `Variable.value()`.

        Raises:
            UnknownNameError: no such node exists, or it has fewer outputs; a KeyError.
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
        # The handle of a variable has the name that TensorFlow 1 gives to the variable's buffer.
        variable = self._variables.get(tensor)
        return tensor if variable is None else variable.snapshot

    def add_variable(self, variable: Any) -> None:
        """Make the name of the variable refer to its value."""
        self._variables[variable.handle] = self._variables[variable.snapshot] = variable

    def variable_of(self, tensor: Tensor) -> Any:
        """Return the variable whose value or handle the tensor is, or None."""
        return self._variables.get(tensor)

    def as_graph_element(self, obj: Any, allow_tensor: bool = True, allow_operation: bool = True) -> Tensor | Operation:
        """Return the node or tensor of this graph that `obj` denotes: a name, a node, a tensor or a wrapper of one.

        Args:
            obj: The object to convert.
            allow_tensor: Whether a tensor is accepted.
            allow_operation: Whether a node is accepted.

        Raises:
            UnknownNameError: the graph does not have that name; a KeyError.
            DTypeError: `obj` is not of an accepted kind.
            InvalidArgumentError: the element belongs to another graph.
        """
        # Wrappers such as `Variable` name their graph element by this method, as in TensorFlow.
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
        # Where only tensors are accepted, a name without a port is an error that names the missing ":0".
        if ":" in name or not allow_operation:
            return self.get_tensor_by_name(name)
        return self.get_operation_by_name(name)

    # -- feeding and fetching ---------------------------------------------------------------------------------------

    def prevent_feeding(self, tensor: Tensor) -> None:
        """Reject `tensor` as a feed."""
        self._unfeedable.add(tensor)

    def is_feedable(self, tensor: Tensor) -> bool:
        """Return whether a value may be fed for `tensor`."""
        return tensor not in self._unfeedable

    def prevent_fetching(self, op: Operation) -> None:
        """Reject the outputs of `op` as fetches."""
        self._unfetchable.add(op)

    def is_fetchable(self, element: Tensor | Operation) -> bool:
        """Return whether `element` may be fetched."""
        return (element.op if isinstance(element, Tensor) else element) not in self._unfetchable

    # -- scopes -----------------------------------------------------------------------------------------------------

    def as_default(self) -> AbstractContextManager[Graph]:
        """Make this graph the default inside a `with` block, for this task or thread."""
        return GRAPHS.inside(self)

    def device(self, target: DeviceLike) -> AbstractContextManager[None]:
        """Request a device for new nodes: a name, a function of the node, or None to ignore the outer scopes."""
        return scopes.device(self, target)

    def control_dependencies(self, control_inputs: Iterable[_Waited] | None) -> AbstractContextManager[None]:
        """Make new nodes wait for these nodes or tensors; None ignores the outer blocks."""
        if control_inputs is None:
            return scopes.control_dependencies(self, None)
        check_kind(control_inputs, Iterable, "control_inputs", "a list of nodes or tensors")
        elements = [self.as_graph_element(c) for c in control_inputs]
        return scopes.control_dependencies(self, [e.op if isinstance(e, Tensor) else e for e in elements])

    def colocate_with(self, op: _Waited | None, ignore_existing: bool = False) -> AbstractContextManager[None]:
        """Place new nodes on the device of `op`."""
        element = None if op is None else self.as_graph_element(op)
        return scopes.colocate_with(self, element.op if isinstance(element, Tensor) else element, ignore_existing)


# Weak: a task that was started inside a block must not keep the graph alive after the block.
GRAPHS: Final[ContextStack[Graph]] = ContextStack("aioflow_default_graphs", weak=True)
