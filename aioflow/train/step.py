"""The global step: the variable that counts the updates of a model."""

from __future__ import annotations

from aioflow.arguments import check_kind
from aioflow.errors import AlreadyExistsError, DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.default_graph import default_graph
from aioflow.graph.graph import Graph, GraphKeys, Tensor
from aioflow.ops.variables.getting import get_variable
from aioflow.ops.variables.initializers import zeros_initializer
from aioflow.ops.variables.variable import Variable
from aioflow.session.session import Session


async def global_step(sess: Session, global_step_tensor: Variable | Tensor) -> int:
    """Return the value of the global step in `sess`."""
    return int(await sess.run(global_step_tensor))


def get_global_step(graph: Graph | None = None) -> Variable | None:
    """Return the graph's global step, or None if it has none.

    The global step is the entry of the graph's collection, or else the global variable named "global_step".

    Raises:
        InvalidArgumentError: the collection has several entries.
        DTypeError: the global step is not an integer, or not a scalar.
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
    """Create the global step: an int64 variable "global_step" (in the open variable scope) that starts at 0.

    Raises:
        AlreadyExistsError: the graph already has a global step.
    """
    owner = default_graph() if graph is None else graph
    if get_global_step(owner) is not None:
        raise AlreadyExistsError("the graph already has a global step", expected="none", actual="global_step")
    keys = [GraphKeys.GLOBAL_VARIABLES, GraphKeys.GLOBAL_STEP]
    with owner.as_default():
        return get_variable("global_step", [], dtypes.int64, zeros_initializer(), trainable=False, collections=keys)


def get_or_create_global_step(graph: Graph | None = None) -> Variable:
    """Return the graph's global step; create it if it is missing."""
    found = get_global_step(graph)
    return create_global_step(graph) if found is None else found


def assert_global_step(global_step_tensor: Variable | Tensor) -> None:
    """Check that a variable or tensor can be a global step.

    Raises:
        DTypeError: the argument is not a variable or tensor, not an integer, or not a scalar.
    """
    check_kind(global_step_tensor, (Variable, Tensor), "the global step", "a variable or a tensor")
    if not global_step_tensor.dtype.is_integer:
        raise DTypeError("the global step must be an integer", expected="int64", actual=global_step_tensor.dtype)
    dims = global_step_tensor.shape.raw
    if dims is not None and dims != ():
        raise DTypeError("the global step must be a scalar", expected=(), actual=dims)
