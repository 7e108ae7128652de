"""A cache of responses of one version of a model, by the bytes of its inputs."""

from __future__ import annotations

import asyncio
import copy
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from sys import getsizeof
from typing import Final

import numpy as np

from aioflow.compiler.rows import unrepeatable
from aioflow.errors import CancelledError, DeadlineExceededError, InvalidArgumentError, OpError
from aioflow.graph.dtypes import as_dtype
from aioflow.interop.model import Model
from aioflow.memory.values import Array
from aioflow.serve.protocol.binary_data import to_bytes

_OVERHEAD: Final = 512  # bytes of an entry besides its elements
Compute = Callable[[float | None], Awaitable[Mapping[str, Array]]]  # with a time limit in seconds


class ResponseCache:
    """The most recently used responses.

    Args:
        limit: The number of bytes for responses; older ones are dropped.

    Attributes:
        bytes: The bytes in use.
        hits, misses: The numbers of lookups. A request that shares a concurrent computation is a hit.
        hit_seconds, miss_seconds: Their total times; for misses, with the time to store the response.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[bytes, tuple[Mapping[str, Array], int]] = OrderedDict()
        self._pending: dict[Hashable, asyncio.Future[Mapping[str, Array]]] = {}
        self.bytes = 0
        self.hits = self.misses = 0
        self.hit_seconds = self.miss_seconds = 0.0

    def get(self, key: bytes) -> Mapping[str, Array] | None:
        """Return a response, or None."""
        found = self._entries.get(key)
        if found is None:
            return None
        self._entries.move_to_end(key)
        return found[0]

    async def shared(self, key: Hashable, compute: Compute, timeout: float | None) -> tuple[Mapping[str, Array], bool]:
        """Return the response of a concurrent computation with the same key, or compute it.

        A computation that is cancelled or late ends for its own request; the next one of its waiters computes again.
        Its other errors are raised for all waiters, and are not kept.

        Args:
            key: The key of the request, with all that a computation must have in common with the request.
            compute: Computes the response.
            timeout: Time limit for the wait, in seconds; None for no limit.

        Returns:
            The outputs, and True if another request has computed them.

        Raises:
            DeadlineExceededError: the other computation has not ended in time.
            OpError: as for the computation.
        """
        loop = asyncio.get_running_loop()
        left, begun = timeout, loop.time()
        while (pending := self._pending.get(key)) is not None:
            # `wait`, unlike `await`, leaves the future as it is if this waiter is cancelled.
            done, _ = await asyncio.wait([pending], timeout=left)
            if timeout is not None:
                left = timeout - (loop.time() - begun)
            if not done or (left is not None and left <= 0 and pending.cancelled()):
                raise _late(timeout)
            if pending.cancelled():
                continue
            error = pending.exception()
            if error is not None:
                raise copy.copy(error)  # each waiter adds its own traceback
            return pending.result(), True
        outcome = self._pending[key] = loop.create_future()
        try:
            values = await compute(left)
            for array in values.values():
                array.flags.writeable = False  # several requests have it, as they have stored ones
            outcome.set_result(values)
            return values, False
        except OpError as error:
            if isinstance(error, DeadlineExceededError) and left != timeout:
                raise _late(timeout) from error  # the error names what was left of the limit
            if not isinstance(error, CancelledError | DeadlineExceededError):
                outcome.set_exception(error)
                outcome.exception()  # mark it as retrieved: there may be no waiter
            raise
        finally:
            del self._pending[key]
            outcome.cancel()  # no effect if it has an outcome

    def put(self, key: bytes, outputs: Mapping[str, Array]) -> None:
        """Store a copy of a response, unless it is larger than the cache."""
        size = _OVERHEAD + sum(map(_size, outputs.values()))
        if size > self._limit or key in self._entries:
            return
        self._entries[key] = {name: _copied(array) for name, array in outputs.items()}, size
        self.bytes += size
        while self.bytes > self._limit:
            self.bytes -= self._entries.popitem(last=False)[1][1]


def _late(timeout: float | None) -> DeadlineExceededError:
    return DeadlineExceededError(
        "the request was not answered in time", expected=f"at most {timeout} s", actual="still computed"
    )


def key_of(signature: str, arrays: Mapping[str, Array], wanted: Sequence[str]) -> bytes:
    """Return the key of a request: a cryptographic digest, so that clients cannot make two requests share one."""
    # Names and shapes are quoted by `repr`, so that no two requests have the same text.
    found = hashlib.blake2b(repr((signature, tuple(wanted))).encode(), digest_size=32)
    for name, array in arrays.items():
        data = to_bytes(array, as_dtype(array.dtype))
        found.update(repr((name, array.shape, len(data))).encode())
        found.update(data)
    return found.digest()


def check_repeatable(model: Model) -> None:
    """Raise InvalidArgumentError if a response may differ from an earlier one to the same request."""
    for name, signature in model.signatures.items():
        found = unrepeatable(list(signature.all_inputs.values()), list(signature.outputs.values()))
        if found is not None:
            raise InvalidArgumentError(
                f"responses of this model cannot be cached: {found.name!r} ({found.type}) in the signature {name!r}"
                " changes state, draws random numbers or reads files",
                expected="response_cache=None (in a configuration file: response-cache = 0)",
            )


def _size(array: Array) -> int:
    return int(array.nbytes) + (sum(map(getsizeof, array.reshape(-1).tolist())) if array.dtype == np.object_ else 0)


def _copied(array: Array) -> Array:
    """Return a read-only copy: an output may be a view of the results of a whole batch."""
    made = np.array(array)
    made.flags.writeable = False
    return made
