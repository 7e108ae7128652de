"""`Variable`: a tensor that outlives the step.

A variable consists of a handle (which identifies the resource), an initializer, and one cached read. Their names are
TensorFlow's: `v`, `v/Initializer/…`, `v/IsInitialized/VarIsInitializedOp`, `v/Assign`, `v/Read/ReadVariableOp`. As a
tensor, a variable is its cached read; under open control dependencies, it is a new read that waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import NDArray

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import scopes
from aioflow.graph.default_graph import default_graph, graph_of
from aioflow.graph.default_session import StepRunner, session_for
from aioflow.graph.dtypes import DType, DTypeLike, as_dtype
from aioflow.graph.graph import DeviceLike, Graph, GraphKeys, Operation, Tensor
from aioflow.graph.references import Referable
from aioflow.graph.shapes import Dims, ShapeLike, TensorShape, dims_of, format_dims, is_compatible, merge_dims
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.tensor_like import IndexLike
from aioflow.ops.apply import TensorLike, convert_to_tensor, make, make_op, register_tensor_conversion_function
from aioflow.ops.core import identity
from aioflow.ops.variables import slices
from aioflow.ops.variables.initial_values import guarded
from aioflow.ops.variables.replicas import VariableAggregation, VariableSynchronization
from aioflow.ops.variables.sliced import VariableSlice
from aioflow.ops.variables.state import convert_indices
from aioflow.ops.variables.stored import StoredVariable, find_stored
from aioflow.ops.variables.stored import variable_def as definition_of
from aioflow.ops.variables.updates import WIDENED, Updates, widen_variable
from aioflow.protos import Message

__all__ = ["Variable"]


class Variable(Updates["Variable"], Referable):
    """A named tensor that keeps its value between steps.

    Args:
        initial_value: A value, a tensor, or a callable that returns one.
        trainable: Whether optimizers update it by default; if not given, True unless `synchronization` is ON_READ.
        collections: Graph collections to join; by default the global variables.
        validate_shape: Whether to require a known static shape; with False, the variable accepts values of any shape.
        caching_device: Device that keeps a copy of the value that is read.
        name: Name of the variable; "Variable" by default.
        dtype: Dtype to which the initial value is converted.
        expected_shape: Former name of `shape`.
        constraint: A function of the value that optimizers apply after an update.
        shape: Static shape, if it is wider than that of the initial value.
        variable_def: A `VariableDef` message that names an existing variable in the default graph, which this object
            then represents. It joins no collections, and all other arguments but `import_scope` are ignored.
        import_scope: Name scope of the names in `variable_def`.
        use_resource, synchronization, aggregation: Part of the published signature. Every variable is a resource, and
            there is one replica.

    Raises:
        InvalidArgumentError: there is no initial value, or its shape is unknown or does not fit.
        DTypeError: the initial value has a different dtype.
    """

    SaveSliceInfo: ClassVar = slices.SaveSliceInfo
    _save_slice_info: slices.SaveSliceInfo | None = None

    if TYPE_CHECKING:
        _fetched: NDArray[Any]  # see Fetchable

    def __init__(
        self,
        initial_value: TensorLike | Callable[[], TensorLike] | None = None,
        trainable: bool | None = None,
        collections: Iterable[str] | None = None,
        validate_shape: bool = True,
        caching_device: DeviceLike = None,
        name: str | None = None,
        variable_def: Message = None,
        dtype: DTypeLike | None = None,
        expected_shape: ShapeLike | None = None,
        import_scope: str | None = None,
        constraint: Callable[[Tensor], Tensor] | None = None,
        use_resource: bool | None = None,
        synchronization: VariableSynchronization = VariableSynchronization.AUTO,
        aggregation: VariableAggregation = VariableAggregation.NONE,
        shape: ShapeLike | None = None,
    ) -> None:
        if variable_def is not None:
            if initial_value is not None:
                raise InvalidArgumentError("variable_def and initial_value exclude each other", expected="one of them")
            self._take_up(find_stored(default_graph(), variable_def, import_scope))
            return
        if initial_value is None:
            raise InvalidArgumentError(
                "a variable needs an initial value", expected="a value or a callable", actual=None
            )
        if constraint is not None and not callable(constraint):
            raise InvalidArgumentError(
                "the constraint is not callable", expected="a function of a tensor", actual=repr(constraint)
            )
        self.synchronization = synchronization
        self.aggregation = aggregation
        self._trainable = synchronization is not VariableSynchronization.ON_READ if trainable is None else trainable
        self._constraint = constraint
        self._caching_device = caching_device
        wanted = None if dtype is None else as_dtype(dtype)
        static = expected_shape if shape is None else shape
        graph = graph_of([initial_value])
        # The initializer runs on its own, so it must not wait for nodes around the construction.
        with graph.as_default(), graph.control_dependencies(None):
            self._build(graph, initial_value, name, wanted, static, validate_shape)
        self._join(graph, collections)

    def _take_up(self, stored: StoredVariable) -> None:
        """Become the variable that a graph already has."""
        node = stored.handle.op
        self.synchronization = stored.synchronization
        self.aggregation = stored.aggregation
        self._trainable = stored.trainable
        self._constraint = None
        self._caching_device = None
        self._handle = stored.handle
        self._dims = dims_of(node.attrs["shape"])
        self._dtype = as_dtype(node.attrs["dtype"])
        self._cached = stored.snapshot
        self._initializer = stored.initializer
        self._initial_value = stored.initial_value
        self._save_slice_info = stored.save_slice_info
        node.graph.add_variable(self)

    def _build(
        self,
        graph: Graph,
        initial_value: TensorLike | Callable[[], TensorLike],
        name: str | None,
        dtype: DType | None,
        shape: ShapeLike | None,
        validate_shape: bool,
    ) -> None:
        with graph.name_scope(name or "Variable") as scope:
            node = scope.removesuffix("/")
            groups = scopes.current_scope(graph).colocation or (node,)  # own group unless colocated with other nodes
            with _colocated(graph, groups), graph.name_scope("Initializer"):
                made = initial_value() if callable(initial_value) else initial_value
                initial = convert_to_tensor(made, dtype, name="initial_value")
            dims = self._static_shape(node, initial, shape, validate_shape)
            container = scopes.current_scope(graph).container
            # Nodes with the same name in the same container share the value.
            attrs: Attrs = {"dtype": initial.dtype, "shape": dims, "container": container, "shared_name": node}
            self._handle = make(
                "VarHandleOp", **attrs, debug_name=node, _class=tuple(f"loc:@{g}" for g in sorted(groups)), name=scope
            )
            self._dims = dims
            self._dtype = initial.dtype
            self._initial_value = initial
            with graph.colocate_with(self._handle.op):
                with graph.name_scope("IsInitialized"):
                    make("VarIsInitializedOp", self._handle)
                self._initializer = make_op("AssignVariableOp", self._handle, guarded(initial), name="Assign")
                with graph.name_scope("Read"):
                    self._cached = self._read()
            if self._caching_device is not None:
                # Readers use the copy; updates use the handle, which stays on the variable's device.
                with graph.device(self._caching_device):
                    self._cached = identity(self._cached)
            graph.add_variable(self)

    def _static_shape(self, node: str, initial: Tensor, shape: ShapeLike | None, validate_shape: bool) -> Dims:
        if shape is not None:
            dims = dims_of(shape)
            if not is_compatible(dims, initial.dims):
                raise InvalidArgumentError(
                    f"the initial value of variable {node} does not fit",
                    expected=format_dims(dims),
                    actual=format_dims(initial.dims),
                )
            return dims
        if not validate_shape:
            return None
        if initial.dims is None or None in initial.dims:
            raise InvalidArgumentError(
                f"the initial value of variable {node} must have a known shape",
                expected="a known shape, or validate_shape=False, or shape=",
                actual=format_dims(initial.dims),
            )
        return initial.dims

    def _join(self, graph: Graph, collections: Iterable[str] | None) -> None:
        given: object = [GraphKeys.GLOBAL_VARIABLES] if collections is None else collections
        names: list[Any] = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [None]
        if not all(isinstance(n, str) for n in names):
            raise DTypeError("collections must be a list of names", expected="a list of str", actual=repr(collections))
        if self._trainable and GraphKeys.TRAINABLE_VARIABLES not in names:
            names.append(GraphKeys.TRAINABLE_VARIABLES)
        graph.add_to_collections(names, self)

    def to_proto(self, export_scope: str | None = None) -> Message:
        """Return the `VariableDef` message; None if the variable is not in that scope."""
        return definition_of(self, export_scope)

    @staticmethod
    def from_proto(variable_def: Message, import_scope: str | None = None) -> Variable:
        """Return the variable that a message names in the default graph, like `Variable(variable_def=)`."""
        return Variable(variable_def=variable_def, import_scope=import_scope)

    # -- properties -------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """`node:0`."""
        return self._handle.name

    @property
    def op(self) -> Operation:
        """The node of the handle."""
        return self._handle.op

    @property
    def handle(self) -> Tensor:
        """The handle, which is an input of updates."""
        return self._handle

    @property
    def graph(self) -> Graph:
        """The graph that the variable belongs to."""
        return self._handle.op.graph

    @property
    def device(self) -> str:
        """The requested device."""
        return self._handle.op.device

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self._dtype

    @property
    def dims(self) -> Dims:
        """The static shape as plain data."""
        attrs = self._handle.op.attrs
        # The handle is shared by all objects of the variable. `_dims` of each may be older than a widening.
        found: Dims = attrs["shape"] if WIDENED in attrs else self._dims
        return found

    @property
    def shape(self) -> TensorShape:
        """The static shape."""
        return TensorShape(self.dims)

    def get_shape(self) -> TensorShape:
        """Return the static shape."""
        return TensorShape(self.dims)

    def set_shape(self, shape: ShapeLike | None) -> None:
        """Merge a shape into the static shape. Raise InvalidArgumentError if they contradict each other."""
        self._dims = merge_dims(self.dims, dims_of(shape))
        self._cached.set_shape(self._dims)

    @property
    def trainable(self) -> bool:
        """True if optimizers update it by default."""
        return self._trainable

    @property
    def constraint(self) -> Callable[[Tensor], Tensor] | None:
        """The function that optimizers apply to the value after an update."""
        return self._constraint

    @property
    def initializer(self) -> Operation:
        """The node that assigns the initial value."""
        return self._initializer

    @property
    def initial_value(self) -> Tensor:
        """The tensor that the initializer assigns."""
        return self._initial_value

    @property
    def save_slice_info(self) -> slices.SaveSliceInfo | None:
        """The position of the value in a larger tensor, for checkpoints; None if it is a tensor of its own."""
        return self._save_slice_info

    @save_slice_info.setter
    def save_slice_info(self, info: slices.SaveSliceInfo | None) -> None:
        self._save_slice_info = info

    # Programs for TensorFlow call these two.

    def _set_save_slice_info(self, save_slice_info: slices.SaveSliceInfo | None) -> None:
        self._save_slice_info = save_slice_info

    def _get_save_slice_info(self) -> slices.SaveSliceInfo | None:
        return self._save_slice_info

    def __repr__(self) -> str:
        return f"<aioflow.Variable {self.name!r} shape={format_dims(self.dims)} dtype={self._dtype.name}>"

    # -- reading ----------------------------------------------------------------------------------------------------

    def value(self) -> Tensor:
        """Return the value as a tensor: a shared read, or under control dependencies a new one that waits for them.

        In the body of a loop, it is also a new read, which sees assignments of earlier iterations, unless the variable
        has a caching device.
        """
        scope = scopes.current_scope(self.graph)
        if scope.controllers or (self._caching_device is None and scopes.in_loop(scope)):
            return self.read_value()
        return self._cached

    def read_value(self) -> Tensor:
        """Return the value from a new read, which waits for the open control dependencies."""
        graph = self.graph
        with graph.as_default(), graph.colocate_with(self._handle.op), graph.name_scope("Read"):
            return self._read()

    def _read(self) -> Tensor:
        tensor = make("ReadVariableOp", self._handle, dtype=self._dtype)
        tensor.set_shape(self.dims)
        return tensor

    def sparse_read(self, indices: TensorLike, name: str | None = None) -> Tensor:
        """Return rows of the value by index, without reading the rest.

        Args:
            indices: int32 or int64 of any shape.
            name: Name of the node.

        Returns:
            A tensor of shape indices.shape + shape[1:].

        Raises:
            InvalidArgumentError: at run time, an index is out of bounds.
        """
        graph = self.graph
        with graph.as_default():
            wanted = convert_indices(indices)
            with graph.colocate_with(self._handle.op):
                rows = make("ResourceGather", self._handle, wanted, dtype=self._dtype, name=name or "Gather")
        return rows

    def gather_nd(self, indices: TensorLike, name: str | None = None) -> Tensor:
        """Return slices of the value, where each index is a vector for the first k axes.

        Indices of shape [..., k] give a result of shape [...] + shape[k:].
        """
        graph = self.graph
        with graph.as_default():
            wanted = convert_indices(indices)
            with graph.colocate_with(self._handle.op):
                found = make("ResourceGatherNd", self._handle, wanted, dtype=self._dtype, name=name or "GatherNd")
        return found

    def initialized_value(self) -> Tensor:
        """Return the value if there is one, else the initial value; for initial values of other variables."""
        graph = self.graph
        assigned = self._initializer.type == "AssignVariableOp"  # older graphs may have another initializer
        initial = self._initializer.inputs[1] if assigned else self._initial_value
        with graph.as_default(), graph.control_dependencies(None), graph.colocate_with(self._handle.op):
            result = make("_InitializedValue", self._handle, initial, name="initialized_value")
        return result

    def is_initialized(self, name: str | None = None) -> Tensor:
        """Return whether the variable has a value, a bool scalar."""
        graph = self.graph
        with graph.as_default(), graph.colocate_with(self._handle.op):
            result = make("VarIsInitializedOp", self._handle, name=name)
        return result

    async def eval(self, session: StepRunner | None = None) -> NDArray[Any]:
        """Return the value in `session`, or in the default session."""
        return await self._cached.eval(session=session)

    @property
    def snapshot(self) -> Tensor:
        """The shared read of the value."""
        return self._cached

    def _as_graph_element(self) -> Tensor:
        return self._cached

    # -- writing ----------------------------------------------------------------------------------------------------

    def after(self, update: Operation) -> Variable:
        """Return the variable in its state after `update`: its reads wait for that node."""
        return UpdatedVariable(self, update)

    def _fitting(self, value: TensorLike) -> Tensor:
        """Return the value as a tensor of the variable's dtype."""
        try:
            return convert_to_tensor(value, self._dtype)
        except DTypeError as error:
            error.message = f"cannot update variable {self.op.name!r} of {self._dtype.name}: {error.message}"
            raise

    def _update(self, op_type: str, value: TensorLike, name: str | None, read_value: bool, **attrs: object) -> object:
        graph = self.graph
        with graph.as_default():
            tensor = self._fitting(value)
            if not is_compatible(self.dims, tensor.dims):
                raise InvalidArgumentError(
                    f"cannot assign to variable {self.op.name}",
                    expected=format_dims(self.dims),
                    actual=format_dims(tensor.dims),
                ).at(self.op.name, self.op.type, self.op.source)
            with graph.colocate_with(self._handle.op):
                op = make_op(op_type, self._handle, tensor, name=name, **attrs)
            return self.after(op) if read_value else op

    def count_up_to(self, limit: int, name: str | None = None) -> Tensor:
        """Increment the scalar integer value. Return the previous one; raise OutOfRangeError at run time at `limit`."""
        graph = self.graph
        with graph.as_default(), graph.colocate_with(self._handle.op):
            before = make("ResourceCountUpTo", self._handle, limit=limit, T=self._dtype, name=name)
        return before

    def initialize_from(self, value: Tensor) -> None:
        """Replace the initial value by `value`, also in the initializer."""
        value.set_shape(self.dims)
        with self.graph.as_default(), self.graph.control_dependencies(None), self.graph.colocate_with(self._handle.op):
            self._initializer = make_op("AssignVariableOp", self._handle, value, name=f"{value.op.name}/Assign")
        self._initial_value = value

    async def load(self, value: TensorLike, session: StepRunner | None = None) -> None:
        """Set the variable to `value` in `session`, or in the default session, without a new node."""
        # The feed takes the place of the initial value.
        await session_for(session, self.graph).run(self._initializer, {self._initializer.inputs[1]: value})

    def take_shape(self, dims: Dims) -> None:
        """Accept values of that shape too from now on: see `assign(validate_shape=False)`."""
        if not is_compatible(self.dims, dims):
            widen_variable(self._handle.op, dims)

    def scatter_rows(self, op_type: str, indices: TensorLike, updates: TensorLike, name: str | None = None) -> Variable:
        """Update by an op of the ResourceScatter families."""
        graph = self.graph
        with graph.as_default():
            tensor, rows = self._fitting(updates), convert_indices(indices)
            with graph.colocate_with(self._handle.op):
                op = make_op(op_type, self._handle, rows, tensor, name=name)
            return self.after(op)

    def __getitem__(self, key: IndexLike) -> VariableSlice[Variable]:
        """Return a slice of the value, as of a tensor. It can be assigned to: `v[1:3].assign(rows)`."""
        return self.sliced(self._operate("getitem", key))

    def sliced(self, part: Tensor) -> VariableSlice[Variable]:
        """Return a slice of the value with a method that assigns to it."""
        return VariableSlice(part, self)

    def assign_slice(self, bounds: Sequence[Tensor], value: TensorLike, name: str | None, masks: Attrs) -> Variable:
        """Set the strided slice with these bounds and masks: see `VariableSlice.assign`."""
        graph = self.graph
        with graph.as_default():
            tensor = self._fitting(value)
            with graph.colocate_with(self._handle.op):
                op = make_op("ResourceStridedSliceAssign", self._handle, *bounds, tensor, name=name, **masks)
            return self.after(op)


class UpdatedVariable(Variable):
    """A variable in its state after an update: `op` is the update, and reads and further updates wait for it."""

    def __init__(self, variable: Variable, update: Operation) -> None:
        # Not through the constructor, which would make another variable.
        self.__dict__.update(variable.__dict__)
        self._variable = variable
        self._parent = update
        # Make the read now rather than when it is fetched: by then the graph may be finalized.
        self._cached = self.read_value()

    @property
    def op(self) -> Operation:
        """The update."""
        return self._parent

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        with self.graph.control_dependencies([self._parent]):
            yield

    def read_value(self) -> Tensor:
        """Return the value from a new read after the update."""
        with self._waiting():
            return super().read_value()

    def sparse_read(self, indices: TensorLike, name: str | None = None) -> Tensor:
        """Return rows of the value after the update."""
        with self._waiting():
            return super().sparse_read(indices, name)

    def gather_nd(self, indices: TensorLike, name: str | None = None) -> Tensor:
        """Return slices of the value after the update."""
        with self._waiting():
            return super().gather_nd(indices, name)

    def count_up_to(self, limit: int, name: str | None = None) -> Tensor:
        """Increment the value after the update, like `Variable.count_up_to`."""
        with self._waiting():
            return super().count_up_to(limit, name)

    def _update(self, op_type: str, value: TensorLike, name: str | None, read_value: bool, **attrs: object) -> object:
        with self._waiting():
            return super()._update(op_type, value, name, read_value, **attrs)

    def scatter_rows(self, op_type: str, indices: TensorLike, updates: TensorLike, name: str | None = None) -> Variable:
        """Update after the previous update, like `Variable.scatter_rows`."""
        with self._waiting():
            return super().scatter_rows(op_type, indices, updates, name)

    def assign_slice(self, bounds: Sequence[Tensor], value: TensorLike, name: str | None, masks: Attrs) -> Variable:
        """Update after the previous update, like `Variable.assign_slice`."""
        with self._waiting():
            return super().assign_slice(bounds, value, name, masks)

    def after(self, update: Operation) -> Variable:
        """Return the variable in its state after one more update."""
        return UpdatedVariable(self._variable, update)


@contextmanager
def _colocated(graph: Graph, groups: tuple[str, ...]) -> Iterator[None]:
    """Put new nodes on the device of the nodes with these names, one of which may not exist yet."""
    with scopes.enter_scope(graph, lambda outer: outer._replace(colocation=groups, devices=())):
        yield


def _to_tensor(value: Variable, dtype: DType | None = None, name: str | None = None, as_ref: bool = False) -> Tensor:
    return value.value()


register_tensor_conversion_function(Variable, _to_tensor)
