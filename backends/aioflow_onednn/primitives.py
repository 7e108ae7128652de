"""Primitives: computations that oneDNN has prepared for arguments of fixed layouts.

Memory safety: oneDNN is given bare addresses. Whoever runs a primitive holds the arrays until `run` returns, and the
memory objects that carried their addresses are given new ones before they are used again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import Array as CArray
from ctypes import addressof, c_char
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import numpy as np

from aioflow_numpy.conv_scratch import scratch
from aioflow_onednn import library as found
from aioflow_onednn.codes import Argument, DataType, Query
from aioflow_onednn.library import Library

if TYPE_CHECKING:
    from typing_extensions import Buffer  # part of `collections.abc` from Python 3.12 on

__all__ = ["Array", "Finish", "Layout", "Packing", "Primitive", "address", "described", "dims_of", "plain"]

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Finish: TypeAlias = Callable[[Array], object]  # changes a part of a result in its place

_ANY: Final = 1  # dnnl_format_tag_any
_BYTE: Final = np.dtype(np.uint8)


def address(array: Array) -> int:
    """Where the array begins."""
    try:
        # In a sixth of the time that NumPy takes to say it. NumPy before 2.1 does not say that an array is a buffer.
        return addressof(c_char.from_buffer(cast("Buffer", array)))
    except (TypeError, ValueError):  # one that is not to be written to, or with gaps, or empty
        begin: int = array.__array_interface__["data"][0]
        return begin


def plain(array: Array) -> Array:
    """The array, or a copy of it in one piece."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.require(array, requirements=("C", "A"))


def dims_of(sizes: Sequence[int]) -> CArray[Any]:
    """As the library takes sizes, strides and paddings."""
    return found.Dims(*sizes)


@dataclass(frozen=True, slots=True)
class Layout:
    """How elements of float32 lie in memory.

    Attributes:
        dims: In oneDNN's order: images [n, c, h, w], filters [co, c, h, w] or [groups, co / groups, c / groups, h, w].
        strides: Elements from one to the next, by dimension; None for what suits the primitive best.
    """

    dims: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    def describe(self, library: Library) -> int:
        """A new descriptor."""
        dims = dims_of(self.dims)
        if self.strides is None:
            return library.made("memory_desc_create_with_tag", len(self.dims), dims, DataType.F32, _ANY)
        strides = dims_of(self.strides)
        return library.made("memory_desc_create_with_strides", len(self.dims), dims, DataType.F32, strides)


@contextmanager
def described(library: Library, layouts: Sequence[Layout]) -> Iterator[list[int]]:
    """Descriptors of the layouts, for as long as the block runs."""
    made: list[int] = []
    try:
        made.extend(layout.describe(library) for layout in layouts)  # those that were made are kept if one cannot be
        yield made
    finally:
        for handle in made:
            library.call("memory_desc_destroy", handle)


class Primitive:
    """A prepared computation. May run in any thread, and in several at once.

    Args:
        library: Of this process.
        descriptor: A primitive descriptor, which is this object's from now on.
        arguments: What each address that `run` takes is to the primitive, and by which query its layout is known.
    """

    def __init__(self, library: Library, descriptor: int, arguments: Mapping[Argument, Query]) -> None:
        self._library, self._codes = library, list(arguments)
        self._frames: list[tuple[list[int], Any]] = []
        owned: list[tuple[str, int]] = [("primitive_desc_destroy", descriptor)]
        weakref.finalize(self, _destroy, library, owned, self._frames).atexit = False
        self._handle = library.made("primitive_create", descriptor)
        owned.insert(0, ("primitive_destroy", self._handle))
        self._descriptors = [library.described(descriptor, query) for query in arguments.values()]
        self._scratch = library.size(library.described(descriptor, Query.SCRATCHPAD))
        if self._scratch:
            self._codes.append(Argument.SCRATCHPAD)
            self._descriptors.append(library.described(descriptor, Query.SCRATCHPAD))
        self._point = library.function("memory_set_data_handle")

    def run(self, *addresses: int) -> None:
        """Compute, in this thread. The arrays at these addresses are of the layouts that the primitive was made for."""
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = self._frame()
        memories, arguments = frame
        workspace = scratch("onednn", (self._scratch,), _BYTE) if self._scratch else None
        if workspace is not None:
            addresses = (*addresses, address(workspace))
        for memory, at in zip(memories, addresses, strict=True):
            self._point(memory, at)
        try:
            self._library.execute(self._handle, len(memories), arguments)
        finally:
            self._frames.append(frame)

    def describes(self, argument: Argument) -> int:
        """The descriptor of an argument, which lives as long as this object."""
        return self._descriptors[self._codes.index(argument)]

    def _frame(self) -> tuple[list[int], Any]:
        """Memory objects, without memory yet, and the record that tells the library which is which."""
        library = self._library
        memories: list[int] = []
        try:
            memories.extend(library.made("memory_create", each, library.engine, None) for each in self._descriptors)
        except BaseException:
            _destroy(library, [("memory_destroy", memory) for memory in memories], [])
            raise
        record = (found.Argument * len(memories))()
        for entry, code, memory in zip(record, self._codes, memories, strict=True):
            entry.code, entry.memory = code, memory
        return memories, record


def _destroy(library: Library, owned: list[tuple[str, int]], frames: list[tuple[list[int], Any]]) -> None:
    for memories, _ in frames:
        for memory in memories:
            library.call("memory_destroy", memory)
    for name, handle in owned:
        library.call(name, handle)


class Packing:
    """Copies between a plain layout and the one that a primitive has chosen for an argument.

    Attributes:
        size: Bytes in the primitive's layout.
        to, back: Copy from (plain, chosen), and from (chosen, plain).
    """

    def __init__(self, library: Library, plain: Layout, user: Primitive, argument: Argument) -> None:
        chosen = user.describes(argument)
        self.size = library.size(chosen)
        self._library, self._user, self._chosen = library, user, chosen  # the user, so that its descriptor lives
        with described(library, [plain]) as (ours,):
            self.is_needed = not library.equal(ours, chosen)
            self.to: Callable[..., None] = _reorder(library, ours, chosen).run if self.is_needed else _nothing
            self.back: Callable[..., None] = _reorder(library, chosen, ours).run if self.is_needed else _nothing

    def is_as(self, other: Packing) -> bool:
        """Whether the two primitives have chosen one layout."""
        return self._library.equal(self._chosen, other._chosen)


def _nothing(*addresses: int) -> None:
    pass


def _reorder(library: Library, source: int, target: int) -> Primitive:
    made = library.made(
        "reorder_primitive_desc_create", source, library.engine, target, library.engine, library.attributes
    )
    return Primitive(library, made, {Argument.SRC: Query.SRC, Argument.DST: Query.DST})
