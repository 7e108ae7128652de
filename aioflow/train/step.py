"""The global step: the variable that counts how many updates a model has had."""

from __future__ import annotations

import aioflow
from aioflow.errors import AlreadyExistsError, DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.argument_kinds import check_kind
from aioflow.graph.default_graph import default_graph
from aioflow.graph.graph import Graph, GraphKeys, Tensor
from aioflow.ops.variables.getting import get_variable
from aioflow.ops.variables.initializers import zeros_initializer
from aioflow.ops.variables.variable import Variable

__all__ = ["assert_global_step", "create_global_step", "get_global_step", "get_or_create_global_step", "global_step"]


async def global_step(sess: aioflow.Session, global_step_tensor: Variable | Tensor) -> int:
    """The value of the global step in `sess`."""
    return int(await sess.run(global_step_tensor))


def get_global_step(graph: Graph | None = None) -> Variable | None:
    """The graph's global step: the one in its collection, or the node "global_step:0"; None where there is none.

    Raises:
        InvalidArgumentError: the collection has several.
        DTypeError: it is not an integer, or not a scalar.
    """
    owner = default_graph() if graph is None else graph
    found = owner.get_collection(GraphKeys.GLOBAL_STEP)
    if len(found) > 1:
        raise InvalidArgumentError("there are several global steps", expected="one", actual=[v.name for v in found])
    if not found:
        found = [v for v in owner.get_collection(GraphKeys.GLOBAL_VARIABLES) if v.op.name == "global_step"]
    if not found:
        return None
    step: Variable = found[0]
    assert_global_step(step)
    return step


def create_global_step(graph: Graph | None = None) -> Variable:
    """A new global step: an int64 variable "global_step" (in the open variable scope) that starts at 0.

    Raises:
        AlreadyExistsError: the graph has one.
    """
    owner = default_graph() if graph is None else graph
    if get_global_step(owner) is not None:
        raise AlreadyExistsError("the graph already has a global step", expected="none", actual="global_step")
    keys = [GraphKeys.GLOBAL_VARIABLES, GraphKeys.GLOBAL_STEP]
    with owner.as_default():
        return get_variable("global_step", [], dtypes.int64, zeros_initializer(), trainable=False, collections=keys)


def get_or_create_global_step(graph: Graph | None = None) -> Variable:
    """The graph's global step, made where there is none."""
    found = get_global_step(graph)
    return create_global_step(graph) if found is None else found


def assert_global_step(global_step_tensor: Variable | Tensor) -> None:
    """Check that a variable or tensor can be a global step.

    Raises:
        DTypeError: it is not an integer, or not a scalar.
    """
    check_kind(global_step_tensor, (Variable, Tensor), "the global step", "a variable or a tensor")
    if not global_step_tensor.dtype.is_integer:
        raise DTypeError("the global step must be an integer", expected="int64", actual=global_step_tensor.dtype)
    dims = global_step_tensor.shape.raw
    if dims is not None and dims != ():
        raise DTypeError("the global step must be a scalar", expected=(), actual=dims)
