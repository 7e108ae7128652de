"""`TensorHandle`: a tensor that a session keeps on its device between steps."""

from __future__ import annotations

from typing import Protocol

from aioflow.errors import DTypeError
from aioflow.graph.dtypes import DType
from aioflow.memory.values import Value


class HandleOwner(Protocol):
    """A session's part that reads and deletes stored tensors."""

    async def made(self, handle: str, dtype: DType) -> TensorHandle:
        """Return the handle of a tensor that a step has stored."""

    async def read(self, handle: str, dtype: DType) -> Value:
        """Return the value of a stored tensor."""

    async def delete(self, handle: str) -> None:
        """Delete a stored tensor."""

    def discard(self, handle: str) -> None:
        """Delete a stored tensor later: its handle was collected as garbage. Callable in any thread."""


class TensorHandle:
    """A tensor that a session keeps, from a run that fetched `get_session_handle(tensor)`.

    The tensor is released by `delete`, with its handle, or when the session closes. A run that is fed a handle gets the
    tensor's value, also for a tensor on another device.
    """

    def __init__(self, handle: str, dtype: DType, owner: HandleOwner) -> None:
        self._handle = handle
        self._dtype = dtype
        self._owner = owner
        self._collected = True

    def __del__(self) -> None:
        if getattr(self, "_collected", False):
            self._owner.discard(self._handle)

    def __str__(self) -> str:
        return self._handle

    def __repr__(self) -> str:
        return f"<aioflow.TensorHandle {self._handle!r} dtype={self._dtype.name}>"

    @property
    def handle(self) -> str:
        """The text to feed for the placeholder of `get_session_tensor`."""
        return self._handle

    @property
    def dtype(self) -> DType:
        """The dtype of the tensor."""
        return self._dtype

    async def eval(self) -> Value:
        """Return the value of the tensor.

        Raises:
            DTypeError: `delete` or `get_raw_handle` has been called.
            ClosedSessionError: the session is closed.
        """
        self._check_owned()
        return await self._owner.read(self._handle, self._dtype)

    async def delete(self) -> None:
        """Delete the tensor. Raises as `eval`."""
        self._check_owned()
        self._collected = False
        await self._owner.delete(self._handle)

    def get_raw_handle(self) -> str:
        """Return the text of the handle. From now on, only `delete_session_tensor` deletes the tensor."""
        self._collected = False
        return self._handle

    def _check_owned(self) -> None:
        if not self._collected:
            raise DTypeError(
                f"the tensor {self._handle} may have been deleted already",
                expected="a handle without a call of delete or get_raw_handle",
                actual=self._handle,
            )
