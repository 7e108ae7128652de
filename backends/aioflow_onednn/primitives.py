"""Primitives: computations that oneDNN has prepared for arguments of fixed layouts.

Memory safety: oneDNN receives raw addresses. The caller of a primitive keeps the arrays alive until `run` returns. The
memory objects that hold their addresses are updated before they are used again.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import Array as CArray
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.memory.values import Array
from aioflow_numpy.addresses import address
from aioflow_numpy.conv_scratch import room
from aioflow_onednn import library as found
from aioflow_onednn.codes import ArgumentRole, DataType, Query
from aioflow_onednn.library import Library

__all__ = [
    "Array",
    "ExecArguments",
    "Finish",
    "MemoryLayout",
    "Packing",
    "Placed",
    "Primitive",
    "address",
    "described",
    "dims_of",
    "plain",
]

Finish: TypeAlias = Callable[..., object]  # updates a part of a result in place, given the same part of other arrays

_ANY: Final = 1  # dnnl_format_tag_any


def plain(array: Array) -> Array:
    """Return the array, or a contiguous and aligned copy."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.require(array, requirements=("C", "A"))


class Placed:
    """An array and its address."""

    __slots__ = ("array", "at")

    def __init__(self, array: Array) -> None:
        self.array, self.at = array, address(array)


def dims_of(sizes: Sequence[int]) -> CArray[Any]:
    """Return sizes, strides or paddings as the library's array type."""
    return found.DimsArray(*sizes)


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    """The layout of elements in memory.

    Attributes:
        dims: Sizes in oneDNN's order: images [n, c, h, w], filters [co, c, h, w] or
            [groups, co / groups, c / groups, h, w].
        strides: Strides in elements, by dimension; None to leave the layout to the primitive.
        dtype: Dtype of the elements.
    """

    dims: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    dtype: DataType = DataType.F32

    def describe(self, library: Library) -> int:
        """Return a new memory descriptor."""
        dims = dims_of(self.dims)
        if self.strides is None:
            return library.made("memory_desc_create_with_tag", len(self.dims), dims, self.dtype, _ANY)
        strides = dims_of(self.strides)
        return library.made("memory_desc_create_with_strides", len(self.dims), dims, self.dtype, strides)


@contextmanager
def described(library: Library, layouts: Sequence[MemoryLayout]) -> Iterator[list[int]]:
    """Provide descriptors of the layouts for the duration of the block."""
    made: list[int] = []
    try:
        made.extend(layout.describe(library) for layout in layouts)  # `extend` keeps the earlier ones if one fails
        yield made
    finally:
        for handle in made:
            library.call("memory_desc_destroy", handle)


# In oneDNN 3.2, one shape in twelve with odd numbers of channels varies; "brgconv_1x1" was not seen to.
_VARYING: Final = "brgconv:"


class Primitive:
    """A prepared computation. It may run in any thread, and in several at once.

    Args:
        library: The library of this process.
        descriptor: A primitive descriptor, which this object owns from now on.
        arguments: The role of each address that `run` accepts, and the query for its layout.
        threads: Number of OpenMP threads that the descriptor was made with.

    Attributes:
        threads: As the argument.
        is_by_products: Whether it is computed by matrix products, whose partition depends on the number of threads.
        is_reference: Whether it is computed by oneDNN's slow reference implementation.
        may_vary: Whether the order of additions may depend on the number of threads.
        scratch: Bytes of scratch memory for a run.
        runs, usual, missed, most_missed: As for `team.Computation`.
    """

    most_missed: Final = 64

    def __init__(
        self, library: Library, descriptor: int, arguments: Mapping[ArgumentRole, Query], threads: int = 1
    ) -> None:
        self._library, self._codes, self.threads = library, list(arguments), threads
        self.runs, self.usual, self.missed = 0, math.inf, 0
        self._frames: list[ExecArguments] = []
        # The finalizer holds the list, not this object. Handles are added to the list as they are made, so a later
        # error loses none.
        owned: list[tuple[str, int]] = [("primitive_desc_destroy", descriptor)]
        weakref.finalize(self, _destroy, library, owned).atexit = False
        implementation = library.implementation(descriptor)
        self.is_reference = implementation.startswith("ref")
        self.is_by_products, self.may_vary = "gemm" in implementation, implementation.startswith(_VARYING)
        self._handle = library.made("primitive_create", descriptor, threads=threads)
        owned.insert(0, ("primitive_destroy", self._handle))
        self._descriptors = [library.described(descriptor, query) for query in arguments.values()]
        self.scratch = library.size(library.described(descriptor, Query.SCRATCHPAD))
        if self.scratch:
            self._codes.append(ArgumentRole.SCRATCHPAD)
            self._descriptors.append(library.described(descriptor, Query.SCRATCHPAD))
        self._set_address = library.function("memory_set_data_handle")

    def run(self, *addresses: int) -> None:
        """Compute, in this thread and the OpenMP threads that the primitive was made for.

        The arrays at these addresses must have the layouts that the primitive was made for.
        """
        # `pop` is atomic, so runs in several threads use different frames.
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = ExecArguments(self._library, self._descriptors, self._codes)
        if self.scratch:
            # This thread's own, and never of another primitive at the same time.
            memory = room("onednn", self.scratch)
            addresses = (*addresses, address(memory))
        try:
            if frame.addresses != addresses:
                self._point(frame, addresses)
            self._library.execute(self._handle, len(addresses), frame.record, self.threads)
        finally:
            self._frames.append(frame)

    def bound(self, *addresses: int) -> tuple[int, ExecArguments]:
        """Return the handle and a frame, for a caller that always runs the primitive with these addresses.

        The last address is that of scratch memory, if the primitive needs any. This object, the frame and the arrays
        must live as long as the handle is used.
        """
        frame = ExecArguments(self._library, self._descriptors, self._codes)
        self._point(frame, addresses)
        return self._handle, frame

    def _point(self, frame: ExecArguments, addresses: tuple[int, ...]) -> None:
        """Set the addresses of the memory objects."""
        known, frame.addresses = frame.addresses, ()  # unknown until all are set, even after an interruption
        for number, (memory, at) in enumerate(zip(frame.memories, addresses, strict=True)):
            # Skipping equal addresses pays off: a call of the library takes longer than all else here.
            if not known or known[number] != at:
                self._set_address(memory, at)
        frame.addresses = addresses

    def describes(self, argument: ArgumentRole) -> int:
        """Return the descriptor of an argument, which lives as long as this object."""
        return self._descriptors[self._codes.index(argument)]


class ExecArguments:
    """Memory objects, and the record that assigns them to arguments.

    Attributes:
        addresses: Address of each memory object; () if unknown.
    """

    __slots__ = ("__weakref__", "addresses", "memories", "record")

    def __init__(self, library: Library, descriptors: Sequence[int], codes: Sequence[int]) -> None:
        self.memories: list[int] = []
        self.addresses: tuple[int, ...] = ()
        owned: list[tuple[str, int]] = []
        weakref.finalize(self, _destroy, library, owned).atexit = False
        self.record = (found.ExecArgument * len(codes))()
        for entry, code, descriptor in zip(self.record, codes, descriptors, strict=True):
            memory = library.made("memory_create", descriptor, library.engine, None)
            owned.append(("memory_destroy", memory))
            self.memories.append(memory)
            entry.code, entry.memory = code, memory


def _destroy(library: Library, owned: list[tuple[str, int]]) -> None:
    for name, handle in owned:
        library.call(name, handle)


class Packing:
    """Copies between a plain layout and the one that a primitive has chosen for an argument.

    Attributes:
        size: Bytes in the primitive's layout.
        is_needed: Whether the two layouts differ.
        to, back: Functions that copy from the first address to the second: (plain, chosen), and (chosen, plain). They
            do nothing if the layouts are the same.
    """

    def __init__(self, library: Library, plain: MemoryLayout, user: Primitive, argument: ArgumentRole) -> None:
        chosen = user.describes(argument)
        self.size = library.size(chosen)
        self._library, self._user, self._chosen = library, user, chosen  # `user` keeps `chosen` alive
        with described(library, [plain]) as (ours,):
            self.is_needed = not library.equal(ours, chosen)
            self.to: Callable[..., None] = _reorder(library, ours, chosen).run if self.is_needed else _nothing
            self.back: Callable[..., None] = _reorder(library, chosen, ours).run if self.is_needed else _nothing

    def is_as(self, other: Packing) -> bool:
        """Return True if the two primitives have chosen the same layout."""
        return self._library.equal(self._chosen, other._chosen)


def _nothing(*addresses: int) -> None:
    pass


def _reorder(library: Library, source: int, target: int) -> Primitive:
    made = library.made(
        "reorder_primitive_desc_create", source, library.engine, target, library.engine, library.attributes
    )
    return Primitive(library, made, {ArgumentRole.SRC: Query.SRC, ArgumentRole.DST: Query.DST})


def image_layout(n: int, h: int, w: int, c: int) -> MemoryLayout:
    """Return the layout of images [n, h, w, c]."""
    # oneDNN names the axes n, c, h, w in any case; the strides say that channels are last.
    return MemoryLayout((n, c, h, w), (h * w * c, 1, w * c, c))
