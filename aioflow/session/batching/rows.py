"""Row handling of batches: joining the rows of callers into feeds, and splitting the fetches."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from aioflow.arguments import check_whole
from aioflow.errors import DTypeError, InvalidArgumentError, OpError
from aioflow.graph import dtypes
from aioflow.graph.arrays import blank, to_array
from aioflow.graph.graph import Graph, Tensor
from aioflow.graph.shapes import format_dims
from aioflow.memory.values import Array, Value
from aioflow.session.fetches import Feeds, FetchMapper, ResultPicker, fed_tensors, feed_converter
from aioflow.sync.batches import Piece

_KNOWN: Final = 256  # shapes cached per feed

RowValues: TypeAlias = tuple[Array, ...]  # one array per feed


@dataclass(frozen=True, slots=True)
class Padding:
    """The padding of rows that differ in length, so that they fit into one batch.

    Pads the axes behind the first whose static size is unknown to the longest row of the batch.

    Attributes:
        value: The fill value.
        mask: A bool or numeric placeholder [rows, length]. It is fed 1 for each position along axis 1 that a caller
            supplied, and 0 for each padded position.
        multiple_of: Lengths are rounded up to a multiple of this, so that fewer different ones are compiled and run.
        cuts: Fetches whose axis 1 has the length of the feed's: each caller gets only as much as it fed.
    """

    value: object = 0
    mask: object = None
    multiple_of: int = 1
    cuts: Sequence[object] = ()

    def __post_init__(self) -> None:
        check_whole(self.multiple_of, "multiple_of of a padding", 1)


class _Feed:
    """One feed: its tensor, its converter, and the axes that are padded."""

    __slots__ = ("axes", "convert", "fill", "known", "np_dtype", "padding", "tensor")

    def __init__(self, tensor: Tensor, padding: Padding | None) -> None:
        dims = tensor.dims
        if tensor.dtype is dtypes.variant or (dims is not None and (not dims or dims[0] is not None)):
            raise InvalidArgumentError(
                f"{tensor.name!r} cannot be fed in batches",
                expected="a shape with an unknown first size: [None, ...]",
                actual=format_dims(dims),
            )
        if padding is not None and (dims is None or len(dims) < 2):
            raise InvalidArgumentError(
                f"{tensor.name!r} cannot be padded",
                expected="rows of known rank, with at least one axis",
                actual=format_dims(dims),
            )
        self.tensor = tensor
        self.fill = None if padding is None else _fill_of(tensor, padding.value)
        self.convert = feed_converter(tensor)
        self.padding = padding
        self.axes = [] if padding is None else [axis for axis in range(1, len(dims or ())) if dims[axis] is None]  # type: ignore[index]  # known, if there is a padding
        self.np_dtype = None if tensor.dtype is dtypes.string else tensor.dtype.np_dtype
        self.known: dict[tuple[int, ...], Hashable] = {}  # from shapes already checked to their kind

    def admit(self, value: object) -> tuple[Array, Hashable]:
        """Return the converted array and the kind of its rows. Raises as `RowsIn.admit`."""
        # Fast path for repeated shapes. NumPy has one object per built-in dtype, so identity suffices.
        if type(value) is np.ndarray and value.dtype is self.np_dtype:
            kind = self.known.get(value.shape)
            if kind is not None:
                return value, kind
        array: Array = self.convert(value)
        shape = array.shape
        if not shape or not shape[0]:
            raise InvalidArgumentError(
                f"the value fed for {self.tensor.name!r} has no rows",
                expected="shape [rows, ...], rows >= 1",
                actual=shape,
            )
        kind = self.kind(shape)
        # Bounded, because callers choose the shapes.
        if len(self.known) < _KNOWN:
            self.known[shape] = kind
        return array, kind

    def kind(self, shape: tuple[int, ...]) -> Hashable:
        """Return a key that is equal for shapes that may share a batch."""
        if not self.axes:
            return shape[1:]
        # Padded axes may differ within a batch, so they are no part of the key.
        return tuple(size for axis, size in enumerate(shape) if axis and axis not in self.axes)

    def lengths(self, values: Sequence[Array]) -> tuple[int, ...]:
        """Return the row shape that all of these values fit into."""
        sizes = list(values[0].shape[1:])
        step = self.padding.multiple_of if self.padding is not None else 1
        for axis in self.axes:
            longest = max(value.shape[axis] for value in values)
            sizes[axis - 1] = -(-longest // step) * step  # rounded up
        return tuple(sizes)


def _fill_of(tensor: Tensor, value: object) -> Value:
    """Return the fill value in the dtype of the feed; 0 means the empty string.

    Raises InvalidArgumentError or DTypeError if the value does not fit.
    """
    if tensor.dtype is dtypes.string and type(value) is int and not value:
        value = b""
    try:
        found = to_array(value, tensor.dtype)
    except OpError as error:
        error.message = f"{tensor.name!r} has an invalid padding value: {error.message}"
        raise
    if found.ndim:
        raise InvalidArgumentError(
            f"{tensor.name!r} has an invalid padding value", expected="one value", actual=f"shape {found.shape}"
        )
    return found[()]


class RowsIn:
    """Checks and joins the rows that callers feed.

    Args:
        graph: The graph of the feeds.
        keys: The feeds: tensors whose axis 0 has unknown size, or their names.
        pad: Padding by feed, for feeds whose rows differ in length.

    Raises:
        InvalidArgumentError, DTypeError: a feed has no rows, or a padded tensor is not a feed.

    Attributes:
        tensors: Tensors that a step is fed: the feeds, followed by the masks.
    """

    def __init__(self, graph: Graph, keys: Sequence[object], pad: Feeds | None) -> None:
        tensors = fed_tensors(graph, keys)
        if not tensors:
            raise InvalidArgumentError("a batch needs at least one feed", expected="feeds", actual="none")
        paddings = _paddings(graph, pad or {}, tensors)
        self._feeds = [_Feed(tensor, paddings.get(tensor)) for tensor in tensors]
        masked = [feed for feed in self._feeds if feed.padding is not None and feed.padding.mask is not None]
        masks = fed_tensors(graph, [feed.padding.mask for feed in masked if feed.padding is not None])
        # Pairs of a mask and the position of the feed that it describes.
        self._masks = list(zip(masks, (self._feeds.index(feed) for feed in masked), strict=True))
        self.tensors = [*tensors, *masks]
        self.pads = bool(paddings)

    def __len__(self) -> int:
        return len(self._feeds)

    @property
    def paddings(self) -> list[Padding | None]:
        """The padding of each feed, in order."""
        return [feed.padding for feed in self._feeds]

    def admit(self, values: Sequence[object]) -> tuple[RowValues, int, Hashable]:
        """Return the converted arrays of one caller, their number of rows, and their kind.

        Raises:
            DTypeError, InvalidArgumentError: a value does not fit its feed, or the numbers of rows differ.
            OffloadToThread: the conversion takes too long for an event loop.
        """
        if len(values) != len(self._feeds):
            raise DTypeError("wrong number of feeds", expected=len(self._feeds), actual=len(values))
        # A single feed has no other to agree with, and its kind alone is the key.
        if len(values) == 1:
            array, kind = self._feeds[0].admit(values[0])
            return (array,), len(array), kind
        admitted = [feed.admit(value) for feed, value in zip(self._feeds, values, strict=True)]
        arrays = tuple(array for array, _ in admitted)
        rows = len(arrays[0])
        for feed, array in zip(self._feeds, arrays, strict=True):
            if len(array) != rows:
                raise InvalidArgumentError(
                    "the feeds of one call have different numbers of rows",
                    expected=f"{rows}, as for {self._feeds[0].tensor.name!r}",
                    actual=f"{len(array)} for {feed.tensor.name!r}",
                )
        return arrays, rows, tuple(kind for _, kind in admitted)

    def zeros(self, rows: int) -> list[Array]:
        """Return zeros for `tensors` with this number of rows; unknown dimensions of a row are 1."""
        made = []
        for tensor in self.tensors:
            sizes = [1 if size is None else size for size in (tensor.dims or (None,))[1:]]
            made.append(blank((rows, *sizes), tensor.dtype.np_dtype))
        return made

    def size(self, pieces: Sequence[Piece], rows: int) -> int:
        """Return about how many bytes `join` copies, extrapolated from the first piece."""
        first = pieces[0].request
        if self._is_joined(pieces, rows):
            return 0
        return int(sum(array.nbytes for array in first.payload)) * rows // first.rows

    def _is_joined(self, pieces: Sequence[Piece], rows: int) -> bool:
        """Return True if the arrays of a single caller already are the batch."""
        # With padding, even a single caller's rows may have to be lengthened (`multiple_of`) or given a mask.
        return len(pieces) == 1 and pieces[0].request.rows == rows and not self.pads

    def join(self, pieces: Sequence[Piece], rows: int) -> list[Array]:
        """Return the values of `tensors` for a batch of `rows` rows. Rows beyond the pieces repeat the last one."""
        if self._is_joined(pieces, rows):
            return list(pieces[0].request.payload)
        parts = [_parts(pieces, index, rows) for index in range(len(self._feeds))]
        joined = [
            _filled(feed, each, rows) if feed.axes else np.concatenate(each)
            for feed, each in zip(self._feeds, parts, strict=True)
        ]
        masks = [_mask(tensor, parts[index], joined[index].shape[1]) for tensor, index in self._masks]
        return joined + masks


def _parts(pieces: Sequence[Piece], feed: int, rows: int) -> list[Array]:
    """Return the rows of each piece for a feed, and the padding rows that complete the batch."""
    parts = []
    for request, begin, end in pieces:
        array = request.payload[feed]
        rows -= end - begin
        parts.append(array if end - begin == request.rows else array[begin:end])
    if rows:
        last = parts[-1][-1:]
        # A view: the padding rows are materialized only by the concatenation.
        parts.append(np.broadcast_to(last, (rows, *last.shape[1:])))
    return parts


def _filled(feed: _Feed, parts: Sequence[Array], rows: int) -> Array:
    """Concatenate the parts, with each row padded to the longest."""
    made = np.full((rows, *feed.lengths(parts)), feed.fill, parts[0].dtype)
    at = 0
    for part in parts:
        made[(slice(at, at + len(part)), *(slice(size) for size in part.shape[1:]))] = part
        at += len(part)
    return made


def _mask(tensor: Tensor, parts: Sequence[Array], length: int) -> Array:
    """Return a mask with 1 for supplied positions and 0 for padding."""
    lengths = np.repeat([part.shape[1] for part in parts], [len(part) for part in parts])
    # [length] against [rows, 1] gives [rows, length].
    return (np.arange(length) < lengths[:, None]).astype(tensor.dtype.np_dtype)


def _paddings(graph: Graph, pad: Feeds, tensors: Sequence[Tensor]) -> dict[Tensor, Padding]:
    found: dict[Tensor, Padding] = {}
    for tensor, given in zip(fed_tensors(graph, pad), pad.values(), strict=True):
        if tensor not in tensors:
            raise InvalidArgumentError(
                f"{tensor.name!r} has a padding but is not fed",
                expected=[t.name for t in tensors],
                actual=tensor.name,
            )
        found[tensor] = given if isinstance(given, Padding) else Padding(given)
    return found


class RowsOut:
    """Splits the fetches of a step into the rows of each caller.

    Args:
        graph: The graph of the fetches.
        fetches: Any structure of tensors; axis 0 of each holds the rows of the feeds.
        paddings: The padding of each feed, in order. A fetch in its `cuts` has the lengths of that feed along axis 1.

    Raises:
        InvalidArgumentError: a fetch has no rows or is an operation, or a tensor in `cuts` is not fetched.

    Attributes:
        tensors: Tensors that a step fetches.
    """

    def __init__(self, graph: Graph, fetches: object, paddings: Sequence[Padding | None]) -> None:
        self._mapper = FetchMapper(graph, fetches)
        if self._mapper.targets:
            raise InvalidArgumentError(
                "only tensors can be fetched from a batch; operations cannot be split into rows",
                expected="tensors",
                actual=[op.name for op in self._mapper.targets],
            )
        self.tensors = self._mapper.tensors
        for tensor in self.tensors:
            dims = tensor.dims
            if tensor.dtype is dtypes.variant or (dims is not None and (not dims or dims[0] is not None)):
                raise InvalidArgumentError(
                    f"{tensor.name!r} cannot be split into rows for the callers",
                    expected="a shape with an unknown first size: [None, ...]",
                    actual=format_dims(dims),
                ).at(tensor.op.name, tensor.op.type, tensor.op.source)
        self._cuts = self._planned_cuts(graph, paddings)
        self._take: ResultPicker = self._mapper.take

    def _planned_cuts(self, graph: Graph, paddings: Sequence[Padding | None]) -> dict[int, int]:
        cuts = {}
        for index, padding in enumerate(paddings):
            for fetch in () if padding is None else padding.cuts:
                tensor = graph.as_graph_element(fetch, allow_operation=False)
                if tensor not in self.tensors:
                    raise InvalidArgumentError(
                        f"{tensor.name!r} is in `cuts` of a padding but is not fetched",
                        expected=[t.name for t in self.tensors],
                    )
                cuts[self.tensors.index(tensor)] = index
        return cuts

    def check(self, values: Sequence[Array], rows: int) -> None:
        """Raise InvalidArgumentError if a value does not have this number of rows."""
        for tensor, value in zip(self.tensors, values, strict=True):
            shape = value.shape
            if not shape or shape[0] != rows:
                raise InvalidArgumentError(
                    f"{tensor.name!r} does not have the rows of the batch",
                    expected=f"{rows} along axis 0",
                    actual=f"shape {shape}",
                ).at(tensor.op.name, tensor.op.type, tensor.op.source)

    def shares(self, values: Sequence[Array], pieces: Sequence[Piece]) -> Iterator[list[Array]]:
        """Yield the slices of each piece, in order."""
        at = 0
        if len(values) == 1 and not self._cuts:
            # Fast path for a single fetch, the usual case in serving.
            only = values[0]
            for _, begin, end in pieces:
                until = at + end - begin
                yield [only[at:until]]
                at = until
            return
        for piece in pieces:
            until = at + piece.end - piece.begin
            yield [self._share(index, value[at:until], piece) for index, value in enumerate(values)]
            at = until

    def joined(self, shares: Sequence[list[Array]]) -> list[Array]:
        """Concatenate the slices of a call that was split. Raises InvalidArgumentError if their row shapes differ."""
        joined = []
        for tensor, parts in zip(self.tensors, zip(*shares, strict=True), strict=True):
            sizes = {part.shape[1:] for part in parts}
            # Each batch is padded to its own longest row, so the pieces of a call may differ.
            if len(sizes) > 1:
                raise InvalidArgumentError(
                    f"the rows of {tensor.name!r} differ in size between the batches of one call",
                    expected="rows of one size; list the fetch in `cuts` of a padding",
                    actual=sorted(sizes),
                ).at(tensor.op.name, tensor.op.type, tensor.op.source)
            joined.append(np.concatenate(parts))
        return joined

    def _share(self, index: int, rows: Array, piece: Piece) -> Array:
        # The payload still has the length that the caller fed, without padding.
        feed = self._cuts.get(index)
        return rows if feed is None else rows[:, : piece.request.payload[feed].shape[1]]

    def give(self, slices: list[Array]) -> Value:
        """Return the slices in the structure of the fetches.

        A tensor that occurs more than once is copied, so that no two places share an array.
        """
        copies = self._mapper.copies
        return self._take(slices + [slices[position].copy() for position in copies] if copies else slices)
