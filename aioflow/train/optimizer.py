"""The base classes of optimizers: of those with a formula of their own, and of those that wrap another one.

An optimizer only makes nodes. `minimize` differentiates the loss and adds one update per variable. The update runs
under the variable's lock, so that concurrent steps apply whole updates one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

from aioflow.arguments import check_kind, wrong_kind
from aioflow.autodiff.gradients import gradients
from aioflow.errors import DTypeError, InvalidArgumentError, UnimplementedError
from aioflow.graph import dtypes
from aioflow.graph.default_graph import default_graph, graph_of
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Graph, GraphKeys, Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make, make_list
from aioflow.ops.control.branches_and_loops import cond
from aioflow.ops.core import group, no_op, tuple_
from aioflow.ops.scoping import name_scope
from aioflow.ops.sparse.indexed_slices import Gradient, convert_to_tensor_or_indexed_slices
from aioflow.ops.variables import optimizer_updates as _updates  # noqa: F401  # defines the ops that optimizers make
from aioflow.ops.variables.partitioned import PartitionedVariable
from aioflow.ops.variables.variable import Variable
from aioflow.train.slots import create_slot, filled_slot

# A setting of an optimizer: see `setting`.
Setting: TypeAlias = TensorLike | Callable[[], TensorLike]
GradientsAndVariables: TypeAlias = Sequence[tuple[TensorLike | None, Variable]]

_DTYPES: Final = (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)


class Optimizer:
    """Base class of optimizers.

    A subclass makes its slots in `_create_slots`, converts its settings in `_prepare`, and adds the update of one
    variable in `_resource_apply_dense` and `_resource_apply_sparse`. `_finish` adds what follows all updates.

    Attributes:
        GATE_NONE, GATE_OP, GATE_GRAPH: When a gradient may be used: as soon as it is computed, together with the other
            gradients of its node, or only when all gradients are computed.
        may_skip: Whether a step may leave all variables and the global step unchanged.
    """

    GATE_NONE = 0
    GATE_OP = 1
    GATE_GRAPH = 2

    may_skip = False

    def __init__(self, use_locking: bool, name: str) -> None:
        if not name:
            raise InvalidArgumentError("an optimizer needs a name", expected="a name", actual=repr(name))
        self._use_locking = use_locking
        self._name = name
        self._slots: dict[str, dict[Tensor, Variable]] = {}
        self._non_slots: dict[tuple[str, Graph | None], Variable] = {}

    def get_name(self) -> str:
        """Return the optimizer's name, which its nodes and slots carry."""
        return self._name

    # -- the three calls --------------------------------------------------------------------------------------------

    def minimize(
        self,
        loss: TensorLike | Callable[[], TensorLike],
        global_step: Variable | None = None,
        var_list: Iterable[Any] | None = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: int | None = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: TensorLike | None = None,
    ) -> Operation:
        """Return a node that takes one step down the gradient of `loss`.

        This is `compute_gradients`, then `apply_gradients`.

        Raises:
            InvalidArgumentError: there are no variables, or the loss depends on none of them.
            DTypeError: the loss or a variable is not of a floating dtype.
        """
        pairs = self.compute_gradients(
            loss, var_list, gate_gradients, aggregation_method, colocate_gradients_with_ops, grad_loss
        )
        if all(gradient is None for gradient, _ in pairs):
            raise InvalidArgumentError(
                "the loss does not depend on any of the variables",
                expected="a variable with a gradient",
                actual=[v.name for _, v in pairs],
            )
        return self.apply_gradients(pairs, global_step, name)

    def compute_gradients(
        self,
        loss: TensorLike | Callable[[], TensorLike],
        var_list: Iterable[Any] | None = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: int | None = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: TensorLike | None = None,
    ) -> list[tuple[Gradient | None, Variable]]:
        """Return the gradients of `loss` as (gradient, variable) pairs; a gradient may be None.

        Args:
            loss: A tensor, or a callable that makes one.
            var_list: Variables; by default all trainable ones.
            gate_gradients: GATE_NONE, GATE_OP or GATE_GRAPH.
            aggregation_method: As in `gradients`.
            colocate_gradients_with_ops: As in `gradients`.
            grad_loss: The gradient that flows into the loss; ones by default.

        Raises:
            InvalidArgumentError: there are no variables, or `gate_gradients` is unknown.
            DTypeError: the loss, or a variable with a gradient, is not of a floating dtype.
        """
        # Checked before any node is made.
        if gate_gradients not in (self.GATE_NONE, self.GATE_OP, self.GATE_GRAPH):
            raise InvalidArgumentError(
                "unknown gate_gradients", expected="GATE_NONE, GATE_OP or GATE_GRAPH", actual=gate_gradients
            )
        target = loss() if callable(loss) else loss
        _check_dtypes([t for t in _listed(target) if hasattr(t, "dtype")], "a loss")
        variables = _flat_variables(var_list) if var_list is not None else _trainable(target)
        if not variables:
            raise InvalidArgumentError(
                "there are no variables to optimize", expected="trainable variables", actual="none"
            )
        found = gradients(
            target,
            variables,
            grad_ys=grad_loss,
            gate_gradients=gate_gradients == self.GATE_OP,
            aggregation_method=aggregation_method,
            colocate_gradients_with_ops=colocate_gradients_with_ops,
        )
        if gate_gradients == self.GATE_GRAPH:
            # Each gradient waits for all of them.
            found = tuple_(found)
        # Only variables with a gradient: others, such as counters, may be of any dtype.
        _check_dtypes([v for g, v in zip(found, variables, strict=True) if g is not None], "a variable")
        return list(zip(found, variables, strict=True))

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[TensorLike | None, Variable]],
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Operation:
        """Return a node that updates the variables with these gradients and then adds 1 to `global_step`.

        `grads_and_vars` are pairs as returned by `compute_gradients`; pairs whose gradient is None are skipped.

        Raises:
            InvalidArgumentError: there are no pairs, or all gradients are None.
            DTypeError: an item is not a variable, or its dtype differs from the gradient's.
            UnimplementedError: the gradient of a variable with a constraint is sparse.
        """
        pairs = [(as_gradient(g, v), v) for g, v in grads_and_vars]
        if not pairs:
            raise InvalidArgumentError("no variables are given", expected="(gradient, variable) pairs", actual="none")
        updated = [v for g, v in pairs if g is not None]
        if not updated:
            raise InvalidArgumentError(
                "no gradients are given for any variable", expected="a gradient", actual=[v.name for _, v in pairs]
            )
        graph = updated[0].graph
        with graph.as_default():
            # Slots are initialized before the first step, so they must not wait for nodes around this call.
            with graph.control_dependencies(None):
                self._create_slots(updated)
            with name_scope(name, self._name) as scope:
                self._prepare()
                updates = [self._update(g, v) for g, v in pairs if g is not None]
                step = self._finish(updates, scope) if global_step is None else self._count(updates, global_step, scope)
        # Once, although wrappers add the same node again.
        collected = graph.get_collection_ref(GraphKeys.TRAIN_OP)
        if step not in collected:
            collected.append(step)
        return step

    def _update(self, gradient: Gradient, variable: Any) -> Operation:
        graph = variable.graph
        # On the device of the variable, so that the gradient travels, not the variable.
        with graph.name_scope(f"update_{variable.op.name}"), graph.colocate_with(variable.handle.op):
            if isinstance(gradient, IndexedSlices):
                if variable.constraint is not None:
                    raise UnimplementedError(
                        "constraints do not support sparse updates", expected="no constraint", actual=variable.name
                    )
                return self._resource_apply_sparse_duplicate_indices(gradient.values, variable, gradient.indices)
            update = self._resource_apply_dense(gradient, variable)
            if variable.constraint is None:
                return update
            # The constraint sees the updated value.
            with graph.control_dependencies([update]):
                constrained: Operation = variable.assign(variable.constraint(variable), read_value=False)
            return constrained

    def _count(self, updates: Sequence[Operation], global_step: Variable, scope: str) -> Operation:
        graph = global_step.graph
        # The step is counted after all updates: its new value means that they are in the variables.
        with graph.control_dependencies([self._finish(updates, "update")]), graph.colocate_with(global_step.handle.op):
            step: Operation = global_step.assign_add(constant(1, global_step.dtype), name=scope, read_value=False)
            return step

    # -- slots ------------------------------------------------------------------------------------------------------

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        """Return the variable that the optimizer keeps under `name` for `var`, or None."""
        return self._slots.get(name, {}).get(var.handle)

    def get_slot_names(self) -> list[str]:
        """Return the names of the slots."""
        return sorted(self._slots)

    def variables(self) -> list[Variable]:
        """Return all variables that the optimizer has created in the default graph, sorted by name."""
        graph = default_graph()
        made = [v for held in self._slots.values() for v in held.values()] + list(self._non_slots.values())
        return sorted((v for v in made if v.graph is graph), key=lambda v: v.name)

    def _zeros_slot(self, var: Variable, slot_name: str, op_name: str) -> Variable:
        return self._filled_slot(var, 0.0, slot_name, op_name)

    def _filled_slot(self, var: Variable, value: float, slot_name: str, op_name: str) -> Variable:
        held = self._slots.setdefault(slot_name, {})
        if var.handle not in held:
            held[var.handle] = filled_slot(var, value, op_name)
        return held[var.handle]

    def _get_or_make_slot(
        self, var: Variable, val: TensorLike | Callable[[], TensorLike], slot_name: str, op_name: str
    ) -> Variable:
        held = self._slots.setdefault(slot_name, {})
        if var.handle not in held:
            held[var.handle] = create_slot(var, val, op_name)
        return held[var.handle]

    def _create_non_slot_variable(
        self, initial_value: TensorLike | Callable[[], TensorLike], name: str, colocate_with: Variable
    ) -> Variable:
        graph = colocate_with.graph
        # Per graph: an optimizer may be used in several graphs.
        key = (name, graph)
        if key not in self._non_slots:
            with graph.colocate_with(colocate_with.handle.op):
                self._non_slots[key] = Variable(initial_value, name=name, trainable=False)
        return self._non_slots[key]

    def _get_non_slot_variable(self, name: str, graph: Graph | None = None) -> Variable | None:
        return self._non_slots.get((name, graph))

    # -- methods that subclasses define -----------------------------------------------------------------------------

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        """Make the slots of these variables."""

    def _prepare(self) -> None:
        """Convert the settings to tensors."""

    def _resource_apply_dense(self, grad: Tensor, handle: Variable) -> Operation:
        """Return the node that updates the variable `handle` with a dense gradient."""
        raise UnimplementedError(f"{type(self).__name__} has no dense update", expected="_resource_apply_dense")

    def _resource_apply_sparse(self, grad: Tensor, handle: Variable, indices: Tensor) -> Operation:
        """Return the node that updates rows of the variable `handle`; indices are unique."""
        raise UnimplementedError(f"{type(self).__name__} has no sparse update", expected="_resource_apply_sparse")

    def _resource_apply_sparse_duplicate_indices(self, grad: Tensor, handle: Variable, indices: Tensor) -> Operation:
        """Return the node that updates rows, for indices that may repeat. By default equal indices are summed first."""
        # Updates such as Adagrad's are not linear in the gradient, so equal indices are summed first.
        summed = sum_equal_rows(IndexedSlices(grad, indices))
        return self._resource_apply_sparse(summed.values, handle, summed.indices)

    def _finish(self, update_ops: Sequence[Operation], name_scope: str) -> Operation:
        """Return the node that is done when all updates are done."""
        return group(*update_ops, name=name_scope)

    @staticmethod
    def _call_if_callable(param: object) -> Any:
        return param() if callable(param) else param


def setting(param: Setting, name: str) -> Tensor:
    """Convert a setting (a number, a tensor, a variable, or a callable that makes one) to a tensor.

    Raises:
        DTypeError: the setting is not a number.
    """
    value = param() if callable(param) else param
    tensor = convert_to_tensor(value, name=name)
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer):
        raise wrong_kind(value, f"the setting {name!r} of an optimizer", "a number, a tensor of one, or a callable")
    return tensor


def cast_to(tensor: Tensor, dtype: DType) -> Tensor:
    """Return the tensor cast to `dtype`, or the tensor itself if it already has that dtype."""
    if tensor.dtype is dtype:
        return tensor
    return make("Cast", tensor, DstT=dtype)


def require(condition: bool, name: str, expected: str, actual: object) -> None:
    """Raise InvalidArgumentError unless `condition` holds, that is, unless a setting is in range."""
    if not condition:
        raise InvalidArgumentError(f"{name} is out of range", expected=expected, actual=actual)


def _listed(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _flat_variables(var_list: Any) -> list[Any]:
    flat = []
    # A single variable stands for itself.
    for item in _listed(var_list) if not isinstance(var_list, Iterable) or hasattr(var_list, "handle") else var_list:
        flat.extend(_flat_variables(item) if isinstance(item, list | tuple | PartitionedVariable) else [item])
    for item in flat:
        if not (hasattr(item, "handle") or isinstance(item, Tensor)):
            raise DTypeError("not a variable", expected="a Variable", actual=repr(item))
    return flat


def _trainable(target: object) -> list[Variable]:
    graph = graph_of(_listed(target))
    return graph.get_collection(GraphKeys.TRAINABLE_VARIABLES)


def _check_dtypes(items: Iterable[Any], what: str) -> None:
    for item in items:
        if item.dtype not in _DTYPES:
            raise DTypeError(
                f"{what} has a dtype that cannot be optimized",
                expected=[t.name for t in _DTYPES],
                actual=f"{item.name}: {item.dtype}",
            )


def as_gradient(gradient: TensorLike | None, variable: Any) -> Gradient | None:
    """Convert a user's gradient to a tensor or IndexedSlices of the variable's dtype; None stays None.

    Raises:
        DTypeError: `variable` is not a variable, or the gradient has another dtype.
    """
    if not hasattr(variable, "handle"):
        raise DTypeError("only variables can be updated", expected="a Variable", actual=repr(variable))
    if gradient is None:
        return None
    if isinstance(gradient, Tensor | IndexedSlices):
        return convert_to_tensor_or_indexed_slices(gradient, variable.dtype)
    with variable.graph.as_default():
        return convert_to_tensor(gradient, variable.dtype, name="gradient")


# ── optimizers that wrap another one ──────────────────────────────────────────────────────────────────────────────────


class WrappingOptimizer(Optimizer):
    """Base class of optimizers that delegate to another one, `opt`, to compute and apply the gradients.

    Args:
        opt: The inner optimizer.
        use_locking: As in `Optimizer`.
        name: Name of the nodes; by default that of `opt`.

    Raises:
        DTypeError: `opt` is not an optimizer.
    """

    def __init__(self, opt: Optimizer, use_locking: bool = False, name: str | None = None) -> None:
        check_kind(opt, Optimizer, "the optimizer that applies the gradients", "an Optimizer")
        super().__init__(use_locking, opt.get_name() if name is None else name)
        self._opt = opt
        self.may_skip = opt.may_skip

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Gradient | None, Variable]]:
        """Return the gradients that the inner optimizer computes."""
        return self._opt.compute_gradients(*args, **kwargs)

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        """Return the variable that the inner optimizer keeps under `name` for `var`, or None."""
        return self._opt.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """Return the slot names of the inner optimizer."""
        return self._opt.get_slot_names()

    def variables(self) -> list[Variable]:
        """Return the inner optimizer's variables in the default graph, sorted by name."""
        return self._opt.variables()

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        self._opt._create_slots(var_list)

    def _own(self, name: str | None) -> str:
        """Return the name of the node that applies gradients."""
        return self.get_name() if name is None else name

    def _apply_inside(self, grads_and_vars: GradientsAndVariables, global_step: Variable | None, own: str) -> Operation:
        """Apply gradients with the inner optimizer, under a name derived from `own`."""
        return self._opt.apply_gradients(grads_and_vars, global_step, f"{own}-wrapped")

    def _prepare_branch(self, grads_and_vars: GradientsAndVariables) -> None:
        """Create the slots outside of the branch, so that they get the same names as without a branch."""
        updated = [v for gradient, v in grads_and_vars if gradient is not None and hasattr(v, "handle")]
        if updated:
            graph: Graph = updated[0].graph
            with graph.as_default(), graph.control_dependencies(None):
                self._create_slots(updated)


def with_values(gradient: Gradient, change: Callable[[Tensor], Tensor]) -> Gradient:
    """Return the gradient with changed values; a sparse gradient keeps its rows."""
    return gradient.with_values(change(gradient.values)) if isinstance(gradient, IndexedSlices) else change(gradient)


def sum_equal_rows(gradient: IndexedSlices) -> IndexedSlices:
    """Return the gradient with one row for each index: the sum of the rows that have it."""
    unique = make_list("Unique", gradient.indices)
    count = make("Shape", unique[0])[0]
    return IndexedSlices(make("UnsortedSegmentSum", gradient.values, unique[1], count), unique[0])


def only_if(condition: Tensor, apply: Callable[[], Operation]) -> Operation:
    """Return a node that runs the result of `apply` if `condition` holds.

    The node inside the branch cannot be run on its own, so it is removed from the collection of training steps.
    """
    collected = condition.graph.get_collection_ref(GraphKeys.TRAIN_OP)
    before = list(collected)
    applied: Tensor = cond(condition, apply, no_op)
    collected[:] = before
    return applied.op


def collect_step(*parts: Operation, own: str) -> Operation:
    """Group the nodes into one named `own`, and add it to the collection of training steps."""
    step = group(*parts, name=own)
    step.graph.add_to_collection(GraphKeys.TRAIN_OP, step)
    return step
