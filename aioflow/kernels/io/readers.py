"""Readers: resources that take file names from a queue and return records.

A reader's files are read in threads, a few hundred records ahead, so that most reads need no thread switch. Reads of
one reader take turns. Records that a cancelled read has fetched stay in the reader for the next read.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.concurrency.stopping import Stopped
from aioflow.concurrency.threads import AbandonedError, ThreadCall, in_thread
from aioflow.errors import DataLossError, InvalidArgumentError, OpError, UnimplementedError
from aioflow.formats.protobuf import PIECE, VARINT, read_fields, write_number, write_piece
from aioflow.formats.record_sources import (
    FixedLengthRecords,
    IdentityRecord,
    KeyedRecord,
    RecordSource,
    TextLines,
    TFRecords,
    WholeFile,
)
from aioflow.graph import dtypes
from aioflow.kernels.convert import as_bytes, as_int
from aioflow.kernels.queues.queues import Queue
from aioflow.kernels.registry import Binding, KernelBody, binder, kernel
from aioflow.kernels.text import as_strings, string_values
from aioflow.memory.values import Array
from aioflow.sync.fair_lock import FairLock
from aioflow.sync.queue import Dequeue
from aioflow.sync.waiting import StepAccount, wake_all

# The keys and the values of records; of a single record as scalars.
Columns: TypeAlias = tuple[Array, Array]

_AHEAD_RECORDS: Final = 256
_AHEAD_BYTES: Final = 1 << 20


class Reader:
    """A reader of records from a queue of files.

    Args:
        name: The name for messages.
        kind: The op that creates the reader.
        source: Opens the file of a name from the queue.
        single: Whether each file is one record, so that the file ends with its first record.

    Attributes:
        name: The name for messages.
        kind: The op that creates the reader.
        produced: Number of records returned.
        completed: Number of files read to the end.
    """

    def __init__(self, name: str, kind: str, source: Callable[[bytes], RecordSource], single: bool) -> None:
        self.name = name
        self.kind = kind
        self.produced = 0
        self.completed = 0
        self._source = source
        self._single = single
        self._turns = FairLock(f"reader {name!r}")
        self._ready: deque[KeyedRecord] = deque()
        self._begun = 0  # number of resets and restores
        self._returned: deque[KeyedRecord] = deque()  # records that steps put back; their files may be closed
        self._work: bytes | None = None
        self._last = b""
        self._records: RecordSource | None = None
        self._behind: ThreadCall | None = None  # the abandoned thread of a cancelled step, which may still read
        self._ended = False
        self._failure: OpError | None = None

    def try_take(self, count: int) -> list[KeyedRecord] | None:
        """Return `count` records that are available without waiting, or None if `take` is needed."""
        # Records that were put back come first, and a read never mixes both.
        there = self._returned or self._ready
        # A file of a single record ends with it, and `take` does the rest.
        if (self._single and there is self._ready) or len(there) < count or not self._turns.try_enter():
            return None
        try:
            # Another read may have taken records before this one had its turn.
            if len(there) < count:
                return None
            self.produced += count
            return [there.popleft() for _ in range(count)]
        finally:
            wake_all(self._turns.leave())

    async def take(self, queue: Queue, count: int) -> list[KeyedRecord]:
        """Return the next records, at least one and at most `count`, all from one file.

        Args:
            queue: The queue of file names.
            count: The most records to return.

        Raises:
            OutOfRangeError: the queue is closed and empty.
            NotFoundError, …: the file cannot be read; the next read continues with the next file.
            DataLossError: the file is damaged; further reads raise the same until the reader is reset.
        """
        async with self._turns.taking():
            if self._returned:
                returned = [self._returned.popleft() for _ in range(min(count, len(self._returned)))]
                self.produced += len(returned)
                return returned
            while True:
                if self._work is None:
                    self._start(await _next_work(queue))
                # A cancellation here leaves the records in `_ready`, for the next read.
                while len(self._ready) < count and not self._ended:
                    await self._in_thread(self._read_ahead)
                taken = [self._ready.popleft() for _ in range(min(count, len(self._ready)))]
                self.produced += len(taken)
                # Records before the damage are returned first; the next read raises the error.
                if not taken and self._failure is not None:
                    raise self._fail(self._failure)
                # A read that is full does not complete its file. The next one does, when it finds no more records.
                if self._ended and self._failure is None and not self._ready and (len(taken) < count or self._single):
                    self.completed += 1
                    self._forget()
                if taken:
                    return taken

    def returning(self, records: list[KeyedRecord]) -> Callable[[], None]:
        """Return a function that puts the records of a read back for the next read, unless the state was replaced.

        A reset or a restore replaces the state.
        """
        begun = self._begun

        def give_back() -> None:
            if begun == self._begun:
                # `extendleft` reverses its argument, so the records keep their order.
                self._returned.extendleft(reversed(records))
                self.produced -= len(records)

        return give_back

    def _start(self, work: bytes) -> None:
        self._work, self._records = work, self._source(work)
        self._last = work

    def _forget(self) -> None:
        records = self._records
        self._work = self._records = self._failure = None
        self._ended = False
        self._ready.clear()
        if records is not None:
            records.close()

    def _fail(self, failure: OpError) -> OpError:
        if not isinstance(failure, DataLossError):
            self._forget()
        return copy.copy(failure)  # each node that raises it adds its own name to its copy

    async def _in_thread(self, function: Callable[[], None]) -> None:
        """Call a function that reads or closes the file, while the caller holds this reader's turn.

        A file may block the call forever. A cancelled step then abandons the thread, and the next read joins it first.
        """
        if self._behind is not None:
            # An abandoned thread ends with Stopped at its next checkpoint.
            with suppress(Stopped):
                await self._behind.rejoin()
            self._behind = None
        try:
            await in_thread(function, effects=False)
        except asyncio.CancelledError as error:
            left = AbandonedError.within(error)
            self._behind = None if left is None else left.call
            raise

    def _read_ahead(self) -> None:
        """Read a block of records. Runs in a thread, while the caller holds this reader's turn."""
        size = 0
        try:
            for _ in range(_AHEAD_RECORDS):
                record = None if self._records is None else self._records.next()
                if record is None:
                    self._ended = True
                    return
                self._ready.append(record)
                size += len(record[1])
                if size > _AHEAD_BYTES:
                    break
            # A file of a single record ends with it, without another read.
            self._ended = self._single
        except OpError as error:
            # Not raised here, because the records read before the error are delivered first.
            self._failure, self._ended = error, True

    async def save(self) -> bytes:
        """Return the state between two reads, in serialized form.

        Raises:
            UnimplementedError: readers of this kind cannot save their state, or a step has given back records.
        """
        self._check_state()
        async with self._turns.taking():
            if self._returned:
                raise UnimplementedError(
                    f"reader {self.name!r} has records that a step has given back, which its state does not have",
                    expected="another read first",
                    actual=f"{len(self._returned)} records",
                )
            # TensorFlow's ReaderBaseState: work started (1), work finished (2), records produced (3), current work (4).
            counts = {1: self.completed, 2: self.completed, 3: self.produced}
            fields = (write_number(field << 3) + write_number(count) for field, count in counts.items() if count)
            return b"".join(fields) + (write_piece(4, self._last) if self._last else b"")

    async def restore(self, state: bytes) -> None:
        """Replace the state by a saved one.

        Raises:
            InvalidArgumentError: `state` is not a saved state.
            UnimplementedError: readers of this kind cannot restore a state.
        """
        self._check_state()
        counts, work = dict.fromkeys((1, 2, 3), 0), b""
        try:
            for field, wire, begin, end in read_fields(state, 0, len(state)):
                if wire == VARINT and field in counts:
                    # For a varint, `begin` is its value.
                    counts[field] = begin
                elif wire == PIECE and field == 4:
                    work = state[begin:end]
        except DataLossError as error:
            raise InvalidArgumentError("not the state of a reader", expected="its bytes", actual=state[:60]) from error
        if counts[1] != counts[2] or max(counts.values()) >= 2**63:
            raise InvalidArgumentError(
                "not the state of a reader between two records", expected="one file begun for each done", actual=counts
            )
        async with self._turns.taking():
            # Not in a thread: readers that can restore a state have no file to close.
            self._forget()
            self._begun += 1
            self._returned.clear()
            self.produced, self.completed, self._last = counts[3], counts[2], work

    def _check_state(self) -> None:
        if self.kind != "IdentityReaderV2":
            raise UnimplementedError(
                f"a reader of this kind cannot save its state: {self.name!r}",
                expected="IdentityReaderV2",
                actual=self.kind,
            )

    async def reset(self) -> None:
        """Close the file, drop all records and set the counts to 0."""
        async with self._turns.taking():
            await self._in_thread(self._forget)
            self._begun += 1
            self._returned.clear()
            self.produced = self.completed = 0
            self._last = b""


async def _next_work(queue: Queue) -> bytes:
    if tuple(queue.dtypes) != (dtypes.string,):
        raise InvalidArgumentError(
            f"a reader needs a queue of file names, which {queue.name!r} is not",
            expected="one component, string",
            actual=", ".join(t.name for t in queue.dtypes),
        )
    elements = await queue.waiting(partial(Dequeue, 1, False))
    work = string_values(elements[0][0])
    if work.size != 1:
        raise InvalidArgumentError("a reader takes one file name at a time", expected="one string", actual=work.shape)
    found: bytes = work.item()
    return found


# ── handles ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _identity(binding: Binding) -> Callable[[bytes], RecordSource]:
    return IdentityRecord


def _whole(binding: Binding) -> Callable[[bytes], RecordSource]:
    return partial(WholeFile, folders=binding.folders)


def _lines(binding: Binding) -> Callable[[bytes], RecordSource]:
    return partial(TextLines, skip=binding.attrs["skip_header_lines"], folders=binding.folders)


def _tf_records(binding: Binding) -> Callable[[bytes], RecordSource]:
    return partial(TFRecords, compression=binding.attrs["compression_type"], folders=binding.folders)


def _fixed(binding: Binding) -> Callable[[bytes], RecordSource]:
    attrs = binding.attrs
    sizes = {name: attrs[f"{name}_bytes"] for name in ("header", "record", "footer", "hop")}
    if sizes["record"] <= 0 or min(sizes.values()) < 0:
        raise InvalidArgumentError(
            "the sizes of fixed-length records are out of range", expected="record > 0, others >= 0", actual=sizes
        )
    if attrs["encoding"] not in ("", "ZLIB", "GZIP"):
        raise InvalidArgumentError("unknown encoding", expected="'', 'ZLIB' or 'GZIP'", actual=attrs["encoding"])
    return partial(FixedLengthRecords, compression=attrs["encoding"], folders=binding.folders, **sizes)


def _handle(
    make_source: Callable[[Binding], Callable[[bytes], RecordSource]], single: bool, binding: Binding
) -> Callable[[], Reader]:
    resources, kind = binding.resources, binding.op_type
    name: str = binding.attrs["shared_name"] or binding.name
    source = make_source(binding)

    def handle() -> Reader:
        found: Any = resources.get_or_create(
            binding.attrs["container"], name, lambda: Reader(name, kind, source, single)
        )
        actual = found.kind if isinstance(found, Reader) else type(found).__name__
        if actual != kind:
            raise InvalidArgumentError(f"resource {name!r} is of a different kind", expected=kind, actual=actual)
        reader: Reader = found
        return reader

    return handle


binder("IdentityReaderV2", device="CPU", makes=Reader)(partial(_handle, _identity, True))
binder("WholeFileReaderV2", device="CPU", makes=Reader, opens_files=True)(partial(_handle, _whole, True))
binder("TextLineReaderV2", device="CPU", makes=Reader, opens_files=True)(partial(_handle, _lines, False))
binder("FixedLengthRecordReaderV2", device="CPU", makes=Reader, opens_files=True)(partial(_handle, _fixed, False))
binder("TFRecordReaderV2", device="CPU", makes=Reader, opens_files=True)(partial(_handle, _tf_records, False))


# ── what is done with them ────────────────────────────────────────────────────────────────────────────────────────────


@binder(
    "ReaderReadV2",
    device="CPU",
    is_async=True,
    fresh=True,
    takes={"reader_handle": Reader, "queue_handle": Queue},
    takes_step=True,
)
def read(binding: Binding) -> KernelBody:
    gives_back = binding.gives_back

    def take(reader: Reader, queue: Queue, *, step: StepAccount) -> Columns | Awaitable[Columns]:
        return _taken(reader, queue, 1, _one, step, gives_back)

    return take


@binder(
    "ReaderReadUpToV2",
    device="CPU",
    is_async=True,
    fresh=True,
    host={"num_records": as_int},
    takes={"reader_handle": Reader, "queue_handle": Queue},
    takes_step=True,
)
def read_up_to(binding: Binding) -> KernelBody:
    gives_back = binding.gives_back

    def take(reader: Reader, queue: Queue, num_records: int, *, step: StepAccount) -> Columns | Awaitable[Columns]:
        if num_records < 1:
            raise InvalidArgumentError("num_records must be positive", expected=">= 1", actual=num_records)
        return _taken(reader, queue, num_records, _many, step, gives_back)

    return take


def _taken(
    reader: Reader,
    queue: Queue,
    count: int,
    finish: Callable[[list[KeyedRecord]], Columns],
    step: StepAccount,
    gives_back: bool,
) -> Columns | Awaitable[Columns]:
    """Return the outputs of a read, or a coroutine that returns them if the read has to wait."""

    def finished(records: list[KeyedRecord]) -> Columns:
        if gives_back:
            step.took(reader.returning(records))
        else:
            step.changed = True
        return finish(records)

    async def wait() -> Columns:
        return finished(await reader.take(queue, count))

    ready = reader.try_take(count)
    return wait() if ready is None else finished(ready)


def _one(records: list[KeyedRecord]) -> Columns:
    ((key, value),) = records
    return as_strings([key], ()), as_strings([value], ())


def _many(records: list[KeyedRecord]) -> Columns:
    return as_strings([key for key, _ in records]), as_strings([value for _, value in records])


@kernel("ReaderNumRecordsProducedV2", device="CPU", fresh=True, takes=Reader)
def produced(reader: Reader) -> np.int64:
    return np.int64(reader.produced)


@kernel("ReaderNumWorkUnitsCompletedV2", device="CPU", fresh=True, takes=Reader)
def completed(reader: Reader) -> np.int64:
    return np.int64(reader.completed)


@kernel("ReaderResetV2", device="CPU", takes=Reader)
async def reset(reader: Reader) -> None:
    await reader.reset()


@kernel("ReaderSerializeStateV2", device="CPU", fresh=True, takes=Reader)
async def serialize_state(reader: Reader) -> Array:
    return as_strings([await reader.save()], ())


@kernel("ReaderRestoreStateV2", device="CPU", takes=Reader, host={"state": as_bytes})
async def restore_state(reader: Reader, state: bytes) -> None:
    await reader.restore(state)
