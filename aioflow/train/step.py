"""The global step: the variable that counts how many updates a model has had."""

from __future__ import annotations

from typing import Any

from aioflow.errors import AlreadyExistsError, DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.default_graph import default_graph
from aioflow.graph.graph import Graph, GraphKeys
from aioflow.ops.apply import constant
from aioflow.ops.variables import Variable

__all__ = ["assert_global_step", "create_global_step", "get_global_step", "get_or_create_global_step", "global_step"]


async def global_step(sess: Any, global_step_tensor: Any) -> int:
    """The value of the global step in `sess`."""
    return int(await sess.run(global_step_tensor))


def get_global_step(graph: Graph | None = None) -> Any:
    """The graph's global step: the one in its collection, or the node "global_step:0"; None where there is none.

    Raises:
        InvalidArgumentError: the collection has several, or it is not a scalar.
        DTypeError: it is not an integer.
    """
    owner = default_graph() if graph is None else graph
    found = owner.get_collection(GraphKeys.GLOBAL_STEP)
    if len(found) > 1:
        raise InvalidArgumentError("there are several global steps", expected="one", actual=[v.name for v in found])
    if not found:
        found = [v for v in owner.get_collection(GraphKeys.GLOBAL_VARIABLES) if v.op.name == "global_step"]
    if not found:
        return None
    assert_global_step(found[0])
    return found[0]


def create_global_step(graph: Graph | None = None) -> Variable:
    """A new global step: an int64 variable "global_step" that starts at 0 and is not trained.

    Raises:
        AlreadyExistsError: the graph has one.
    """
    owner = default_graph() if graph is None else graph
    if get_global_step(owner) is not None:
        raise AlreadyExistsError("the graph has a global step already", expected="none", actual="global_step")
    keys = [GraphKeys.GLOBAL_VARIABLES, GraphKeys.GLOBAL_STEP]
    with owner.as_default(), owner.name_scope(None):
        return Variable(
            lambda: constant(0, dtypes.int64),
            trainable=False,
            collections=keys,
            name="global_step",
            dtype=dtypes.int64,
        )


def get_or_create_global_step(graph: Graph | None = None) -> Any:
    """The graph's global step, made where there is none."""
    found = get_global_step(graph)
    return create_global_step(graph) if found is None else found


def assert_global_step(global_step_tensor: Any) -> None:
    """Check that a variable or tensor can be a global step.

    Raises:
        DTypeError: it is not an integer.
        InvalidArgumentError: it is not a scalar.
    """
    if not global_step_tensor.dtype.is_integer:
        raise DTypeError("the global step must be an integer", expected="int64", actual=global_step_tensor.dtype)
    dims = global_step_tensor.shape.raw
    if dims is not None and dims != ():
        raise InvalidArgumentError("the global step must be a scalar", expected=(), actual=dims)
