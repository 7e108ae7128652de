"""The graph's variables by collection, and nodes that initialize them or report on them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.default_graph import default_graph
from aioflow.graph.graph import GraphKeys, Operation, Tensor
from aioflow.ops.apply import constant, make
from aioflow.ops.core import group, no_op
from aioflow.ops.variables.variable import Variable

__all__ = [
    "all_variables",
    "assert_variables_initialized",
    "global_variables",
    "global_variables_initializer",
    "initialize_all_variables",
    "initialize_local_variables",
    "initialize_variables",
    "local_variables",
    "local_variables_initializer",
    "model_variables",
    "moving_average_variables",
    "report_uninitialized_variables",
    "trainable_variables",
    "variables_initializer",
]


def global_variables(scope: str | None = None) -> list[Variable]:
    """Return the variables shared by all steps; with `scope`, a regular expression, only those with matching names."""
    return default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES, scope)


def all_variables() -> list[Variable]:
    """Return `global_variables()`; an older name."""
    return global_variables()


def local_variables(scope: str | None = None) -> list[Variable]:
    """Return the variables that are not part of a checkpoint, such as counters of an input pipeline."""
    return default_graph().get_collection(GraphKeys.LOCAL_VARIABLES, scope)


def model_variables(scope: str | None = None) -> list[Variable]:
    """Return the variables in the collection of those used for inference."""
    return default_graph().get_collection(GraphKeys.MODEL_VARIABLES, scope)


def trainable_variables(scope: str | None = None) -> list[Variable]:
    """Return the variables that optimizers update by default."""
    return default_graph().get_collection(GraphKeys.TRAINABLE_VARIABLES, scope)


def moving_average_variables(scope: str | None = None) -> list[Variable]:
    """Return the variables that have moving averages."""
    return default_graph().get_collection(GraphKeys.MOVING_AVERAGE_VARIABLES, scope)


def variables_initializer(var_list: Sequence[Variable], name: str = "init") -> Operation:
    """Return an operation that assigns the initial values of these variables."""
    return group(*[v.initializer for v in var_list], name=name) if var_list else no_op(name=name)


def global_variables_initializer() -> Operation:
    """Return an operation that assigns the initial values of all global variables made so far."""
    return variables_initializer(global_variables())


def local_variables_initializer() -> Operation:
    """Return an operation that assigns the initial values of all local variables made so far."""
    return variables_initializer(local_variables())


def initialize_variables(var_list: Sequence[Variable], name: str = "init") -> Operation:
    """Return `variables_initializer(var_list, name)`; an older name."""
    return variables_initializer(var_list, name)


def initialize_all_variables() -> Operation:
    """Return `global_variables_initializer()`; an older name."""
    return global_variables_initializer()


def initialize_local_variables() -> Operation:
    """Return `local_variables_initializer()`; an older name."""
    return local_variables_initializer()


def _all_listed(var_list: Sequence[Variable] | None) -> list[Variable]:
    return list(var_list) if var_list is not None else global_variables() + local_variables()


def report_uninitialized_variables(
    var_list: Sequence[Variable] | None = None, name: str = "report_uninitialized_variables"
) -> Tensor:
    """Return a string vector with the names of the variables that have no value.

    `var_list` defaults to the global and local variables.
    """
    variables = _all_listed(var_list)
    graph = default_graph()
    with graph.name_scope(name):
        if not variables:
            return constant(np.empty(0, dtype=object), dtype=dtypes.string)
        flags = make("Pack", [v.is_initialized() for v in variables])
        names = constant([v.op.name for v in variables], dtype=dtypes.string)
        missing = make("Where", make("LogicalNot", flags))
        positions = make("Reshape", missing, [-1])
        return make("GatherV2", names, positions, 0)


def assert_variables_initialized(var_list: Sequence[Variable] | None = None) -> Operation | None:
    """Return an operation that fails with FailedPreconditionError if a variable has no value.

    Return None if there are no variables.
    """
    variables = _all_listed(var_list)
    if not variables:
        return None
    # A read of a variable without a value fails.
    return group(*[v.read_value() for v in variables], name="assert_variables_initialized")
