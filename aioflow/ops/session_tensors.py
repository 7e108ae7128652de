"""Tensors that stay in a session, on their device, between steps: each has a handle that later steps refer to."""

from __future__ import annotations

from typing import Any

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.default_graph import default_graph
from aioflow.graph.dtypes import DType, DTypeLike, as_dtype
from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import define_op
from aioflow.graph.traits import Effect, Memory, bookkeeping
from aioflow.ops.apply import make, make_op
from aioflow.ops.core import placeholder, scalar

__all__ = ["delete_session_tensor", "get_session_handle", "get_session_tensor"]

_STORES = "GetSessionHandle"

define_op(_STORES, "value: T", "handle: string", ["T: type"], shape=scalar, traits=bookkeeping(effect=Effect.CHANGES))
define_op(
    "GetSessionTensor",
    "handle: string",
    "value: dtype",
    ["dtype: type"],
    traits=bookkeeping(effect=Effect.READS, memory=Memory.RESIDENT),
)
define_op("DeleteSessionTensor", "handle: string", "", traits=bookkeeping(effect=Effect.CHANGES))
not_differentiable(_STORES, "GetSessionTensor", "DeleteSessionTensor")


def get_session_handle(data: Tensor, name: str | None = None) -> Any:
    """Return a tensor for which `Session.run` stores `data` in the session, and returns a `TensorHandle`.

    Args:
        data: The tensor to store. It stays on its device.
        name: Name of the node.

    Returns:
        A scalar string tensor, typed Any: a type checker would take the result of a run for an array.

    Raises:
        DTypeError: `data` is not a tensor.
    """
    if not isinstance(data, Tensor):
        raise DTypeError("only a tensor can be kept in a session", expected="a Tensor", actual=repr(data))
    with data.graph.as_default(), data.graph.colocate_with(data.op):
        return make(_STORES, data, name=name)


def stored_dtype(tensor: Tensor) -> DType | None:
    """Return the dtype of the tensor that a fetch of `tensor` stores; None if it stores nothing."""
    return tensor.op.inputs[0].dtype if tensor.op.type == _STORES else None


def get_session_tensor(handle: str | bytes, dtype: DTypeLike, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Return a placeholder for a handle, and the tensor that the session stores under it.

    Args:
        handle: The text of a handle (`TensorHandle.handle`). The tensor is on the device that it names.
        dtype: The dtype of the stored tensor.
        name: Name of the node that returns the tensor.

    Raises:
        InvalidArgumentError: the text is not that of a handle.
    """
    with default_graph().device(device_of(handle)):
        holder = placeholder(dtypes.string)
        return holder, make("GetSessionTensor", holder, dtype=as_dtype(dtype), name=name)


def delete_session_tensor(handle: str | bytes, name: str | None = None) -> tuple[Tensor, Operation]:
    """Return a placeholder for a handle, and an operation that deletes the tensor that the session stores under it.

    The arguments are those of `get_session_tensor`. Raises as it does.
    """
    with default_graph().device(device_of(handle)):
        holder = placeholder(dtypes.string)
        return holder, make_op("DeleteSessionTensor", holder, name=name)


def device_of(handle: str | bytes) -> str:
    """Return the device in the text of a handle, "name;number;device". Raises InvalidArgumentError."""
    text = handle.decode(errors="replace") if isinstance(handle, bytes) else str(handle)
    parts = text.split(";")
    if len(parts) != 3 or "device:" not in parts[2]:
        raise InvalidArgumentError(
            "not the handle of a stored tensor", expected="the handle that a run returned", actual=repr(handle)
        )
    return parts[2]
