"""Filters of convolutions, and their copies in the layouts that primitives have chosen.

A filter is [kh, kw, c / groups, co] as in TensorFlow, a depthwise one [kh, kw, c, multiplier]. oneDNN chooses a layout
of its own, into which the filter is copied.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeAlias

import numpy as np

from aioflow.memory.values import Array
from aioflow_numpy.conv_scratch import scratch
from aioflow_numpy.conv_shapes import Windows
from aioflow_onednn.primitives import MemoryLayout, Packing, Placed, plain

_USERS: Final = 64  # maximum cached copies of a filter; most primitives choose the same layout
_BYTE: Final = np.dtype(np.uint8)


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of a convolution: [kh, kw, c / groups, outputs], or the same memory as [kh, kw, c, multiplier].

    Attributes:
        groups: Number of groups.
        inputs: Number of input channels of a group.
        outputs: Number of output channels.
        stored: Number of outputs in memory, if these filters are a part of one group; else 0.
    """

    groups: int
    inputs: int
    outputs: int
    stored: int = 0

    def part(self, outputs: int) -> Filters:
        """Return a part of the filters of one group, without moving it in memory."""
        return Filters(self.groups, self.inputs, outputs, self.stored or self.outputs)

    def layout(self, g: Windows) -> MemoryLayout:
        """Return the layout of the filters in memory."""
        last = self.stored or self.outputs
        if self.groups == 1:
            return MemoryLayout(
                (self.outputs, self.inputs, g.kh, g.kw), (1, last, g.kw * self.inputs * last, self.inputs * last)
            )
        # The filter [kh, kw, c / groups, co] has the outputs of all groups side by side in its last axis.
        each, line = last // self.groups, self.inputs * last
        dims = (self.groups, each, self.inputs, g.kh, g.kw)
        return MemoryLayout(dims, (each, 1, last, g.kw * line, line))

    def free(self, g: Windows) -> MemoryLayout:
        """Return a layout that leaves the order in memory to the primitive."""
        return MemoryLayout(self.layout(g).dims)

    def size(self, g: Windows) -> int:
        """Return the number of weights, all of which are multiplied with each window."""
        return g.kh * g.kw * self.inputs * self.outputs


class _Prepared(Protocol):
    @property
    def packing(self) -> Packing:
        """Packing of the filter."""


# A primitive with its packing, and the first of the outputs that it computes.
User: TypeAlias = "tuple[_Prepared, int]"


class PackedFilter:
    """A filter in the layouts that primitives have chosen for it. Each copy is made on first use."""

    def __init__(self, kernel: Array) -> None:
        self._kernel = kernel
        self._packed: OrderedDict[User, Placed] = OrderedDict()

    def norm(self) -> float:
        """Return an upper bound of the L2 norm of the weights of any one output. Reads the whole filter."""
        return math.sqrt(np.square(self._kernel, dtype=np.float64).sum())

    def of(self, user: User) -> Placed:
        """Return the filter for a primitive."""
        found = self._packed.get(user)
        if found is None:
            # A copy of the dictionary, since another thread may change it while it is searched.
            found = _packed(user, Placed(plain(self._kernel)), _fresh, dict(self._packed))
            self._packed[user] = found
            # The oldest copy is dropped. A run that uses it holds it.
            if len(self._packed) > _USERS:
                self._packed.popitem(last=False)
        return found


def packing(kernel: Array | PackedFilter, user: User) -> Placed:
    """Return the filter for one primitive, like `packings`."""
    return kernel.of(user) if isinstance(kernel, PackedFilter) else packings(kernel, (user,))[user]


def packings(kernel: Array | PackedFilter, users: Iterable[User]) -> dict[User, Placed]:
    """Return the filter for each primitive: cached copies, or copies in this thread's scratch memory."""
    packed: dict[User, Placed] = {}
    if isinstance(kernel, PackedFilter):
        for user in users:
            packed[user] = kernel.of(user)
        return packed
    unpacked = Placed(plain(kernel))
    for user in users:
        if user not in packed:
            packed[user] = _packed(user, unpacked, partial(_reserved, len(packed)), packed)
    return packed


def _packed(user: User, kernel: Placed, memory: Callable[[int], Array], packed: Mapping[User, Placed]) -> Placed:
    """Return the contiguous filter, or a part of its outputs, in the layout that the primitive has chosen.

    The result is one of those in `packed`, or in new memory.
    """
    prepared, first = user
    if not prepared.packing.is_needed:
        return kernel
    for (other, begin), found in packed.items():
        # Primitives for several shapes of images often choose the same layout.
        if begin == first and prepared.packing.is_as(other.packing):
            return found
    made = Placed(memory(prepared.packing.size))
    prepared.packing.to(Placed(kernel.array[..., first:]).at, made.at)
    return made


def _fresh(size: int) -> Array:
    return np.empty(size, np.uint8)


def _reserved(number: int, size: int) -> Array:
    return scratch(f"packed{number}", (size,), _BYTE)
