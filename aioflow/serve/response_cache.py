"""A cache of responses of one version of a model, by the bytes of its inputs."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from sys import getsizeof
from typing import Final

import numpy as np

from aioflow.compiler.rows import unrepeatable
from aioflow.errors import InvalidArgumentError
from aioflow.graph.dtypes import as_dtype
from aioflow.interop.model import Model
from aioflow.memory.values import Array
from aioflow.serve.protocol.binary_data import to_bytes

_OVERHEAD: Final = 512  # bytes of an entry besides its elements


class ResponseCache:
    """The most recently used responses.

    Args:
        limit: The number of bytes for responses; older ones are dropped.

    Attributes:
        bytes: The bytes in use.
        hits, misses: The numbers of lookups.
        hit_seconds, miss_seconds: Their total times; for misses, with the time to store the response.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[bytes, tuple[Mapping[str, Array], int]] = OrderedDict()
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

    def put(self, key: bytes, outputs: Mapping[str, Array]) -> None:
        """Store a copy of a response, unless it is larger than the cache."""
        size = _OVERHEAD + sum(map(_size, outputs.values()))
        if size > self._limit or key in self._entries:
            return
        self._entries[key] = {name: _copied(array) for name, array in outputs.items()}, size
        self.bytes += size
        while self.bytes > self._limit:
            self.bytes -= self._entries.popitem(last=False)[1][1]


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
