"""Exponential moving averages of variables and tensors, kept in shadow variables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.default_graph import default_graph
from aioflow.graph.graph import GraphKeys, Operation, Tensor
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make
from aioflow.ops.core import group
from aioflow.ops.scoping import name_scope
from aioflow.ops.variables.getting import get_variable
from aioflow.ops.variables.initializers import zeros_initializer
from aioflow.ops.variables.scope import variable_scope
from aioflow.ops.variables.variable import Variable
from aioflow.train.optimizer import cast_to
from aioflow.train.slots import create_slot, filled_slot


def assign_moving_average(
    variable: Variable, value: TensorLike, decay: TensorLike, zero_debias: bool = True, name: str | None = None
) -> Operation:
    """Return a node that computes variable -= (1 - decay) · (variable - value).

    With `zero_debias`, correct for a start at zero, with the biased average and a counter in separate variables (Kingma
    and Ba 2015, section 3).
    """
    with name_scope(name, "AssignMovingAvg", [variable, value, decay]) as scope:
        given: Any = decay
        # 1 − decay is computed before the cast: in 16 bits a decay near 1 would round to 1.
        rest = cast_to(convert_to_tensor(1.0 - given, name="decay"), variable.dtype)
        new = cast_to(convert_to_tensor(value), variable.dtype)
        if not zero_debias:
            plain: Operation = variable.assign_sub((variable.value() - new) * rest, name=scope, read_value=False)
            return plain
        biased, count = _debiasing(variable)
        graph = variable.graph
        moved = biased.assign_sub((biased.value() - new) * rest, read_value=False)
        counted = count.assign_add(constant(1, count.dtype), read_value=False)
        with graph.control_dependencies([moved, counted]):
            # Bias after t updates: 1 − decayᵗ.
            correction = 1 - make("Pow", 1 - rest, count.read_value())
            debiased: Operation = variable.assign(biased.read_value() / correction, name=scope, read_value=False)
            return debiased


def _debiasing(variable: Variable) -> tuple[Variable, Variable]:
    """Return new variables for the biased average and the counter, in a variable scope named after `variable`."""
    with variable_scope(variable.op.name) as scope:
        # Without reuse, each call creates its own pair, whose names are numbered if taken.
        taken = [] if scope.reuse else [v.op.name for v in scope.global_variables()]
        made: list[Variable] = []
        for name, dims in (("biased", variable.dims), ("local_step", ())):
            own, count = name, 0
            while f"{scope.name}/{own}" in taken:
                count += 1
                own = f"{name}_{count}"
            made.append(get_variable(own, dims, variable.dtype, zeros_initializer(), trainable=False))
    return made[0], made[1]


class ExponentialMovingAverage:
    """Exponential moving averages: shadow -= (1 - decay) · (shadow - value), after each step.

    Args:
        decay: A number or a scalar tensor, near 1.
        num_updates: Number n of updates so far. The decay is then at most (1 + n) / (10 + n), so that the first
            averages move faster.
        zero_debias: Correct the averages of tensors for their start at zero; variables start at their own value.
        name: Suffix of the shadow variables' names.
    """

    def __init__(
        self,
        decay: TensorLike,
        num_updates: TensorLike | None = None,
        zero_debias: bool = False,
        name: str = "ExponentialMovingAverage",
    ) -> None:
        self._decay = decay
        self._num_updates = num_updates
        self._zero_debias = zero_debias
        self._name = name
        self._averages: dict[Tensor, Variable] = {}

    @property
    def name(self) -> str:
        """Suffix of the shadow variables' names."""
        return self._name

    def apply(self, var_list: Sequence[Variable | Tensor] | None = None) -> Operation:
        """Return a node that updates the averages of variables and tensors, by default of all trainable variables.

        The first call creates the shadow variables. Those of variables start at the initial value, others at 0.

        Raises:
            DTypeError: an item is not of a floating dtype.
        """
        items = default_graph().get_collection(GraphKeys.TRAINABLE_VARIABLES) if var_list is None else list(var_list)
        debiased = []
        for item in items:
            if not item.dtype.is_floating:
                raise DTypeError(
                    "only floating variables have averages",
                    expected="a floating dtype",
                    actual=f"{item.name}: {item.dtype}",
                )
            if _key(item) not in self._averages:
                self._averages[_key(item)] = self._shadow(item)
                if self._zero_debias and not isinstance(item, Variable):
                    debiased.append(_key(item))
        with name_scope(None, self._name, items) as scope:
            decay = self._decay_now()
            updates = [
                assign_moving_average(self._averages[_key(item)], item, decay, _key(item) in debiased) for item in items
            ]
            return group(*updates, name=scope)

    def _decay_now(self) -> Tensor:
        decay = convert_to_tensor(self._decay, name="decay")
        if self._num_updates is None:
            return decay
        count = cast_to(convert_to_tensor(self._num_updates), dtypes.float32)
        # decay(n) = min(decay, (1 + n) / (10 + n))
        return make("Minimum", decay, cast_to((1.0 + count) / (10.0 + count), decay.dtype))

    def _shadow(self, item: Variable | Tensor) -> Variable:
        if not isinstance(item, Variable):
            # The value of a tensor is not known before the first step.
            return filled_slot(item, 0.0, self._name)
        item.graph.add_to_collection(GraphKeys.MOVING_AVERAGE_VARIABLES, item)
        # From the initial value, even if the shadow is initialized before the variable.
        return create_slot(item, item.initialized_value, self._name, item.dtype, item.dims)

    def average(self, var: Variable | Tensor) -> Variable | None:
        """Return the shadow variable of `var`, or None."""
        return self._averages.get(_key(var))

    def average_name(self, var: Variable | Tensor) -> str:
        """Return the name of the shadow variable, for restoring it under another name.

        Without a shadow variable, return the name that one would get in a variable scope named after the open name
        scope.
        """
        found = self._averages.get(_key(var))
        if found is not None:
            return found.op.name
        name: str = default_graph().unique_name(f"{var.op.name}/{self._name}", mark_as_used=False)
        return name

    def variables_to_restore(self, moving_avg_variables: Iterable[Variable] | None = None) -> dict[str, Variable]:
        """Return a dictionary of names to variables with which `Saver` loads the averages into the variables.

        `moving_avg_variables` are the variables that have averages; by default the trainable ones and those of the
        moving-average collection. Other global variables are restored under their own names.
        """
        graph = default_graph()
        if moving_avg_variables is None:
            averaged = graph.get_collection(GraphKeys.TRAINABLE_VARIABLES)
            averaged += graph.get_collection(GraphKeys.MOVING_AVERAGE_VARIABLES)
        else:
            averaged = list(moving_avg_variables)
        names = {self.average_name(v): v for v in {_key(v): v for v in averaged}.values()}
        # Their averages are restored into them, so they are not restored under their own names.
        known = {_key(v) for v in averaged}
        for variable in graph.get_collection(GraphKeys.GLOBAL_VARIABLES):
            if _key(variable) not in known and variable.op.name not in names:
                names[variable.op.name] = variable
        return names


def _key(item: object) -> Any:
    """Return the dictionary key of a variable or tensor. Raise InvalidArgumentError for anything else."""
    handle = getattr(item, "handle", item)
    if not hasattr(handle, "op"):
        raise InvalidArgumentError("not a variable or tensor", expected="a Variable or Tensor", actual=repr(item))
    return handle
