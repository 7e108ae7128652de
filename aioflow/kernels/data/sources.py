"""Sources outside of the graph: generators, async iterables and files of records."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, Final

import numpy as np

from aioflow.concurrency.stopping import checkpoint
from aioflow.concurrency.threads import in_thread
from aioflow.errors import CancelledError, OpError
from aioflow.formats.record_sources import FixedLengthRecords, RecordSource, TextLines, TFRecords
from aioflow.graph import dtypes
from aioflow.kernels.data.functions import CallOutcome, located, opened, own_task
from aioflow.kernels.data.stages import Components, DatasetValue, Path, Pipeline, Stage, StagePosition, whole
from aioflow.kernels.function.py_func import ResultCheck, call_error, is_cancelled
from aioflow.memory.values import Value

_CHUNK: Final = 64  # elements of a generator per hop to a thread
_AHEAD: Final = 256  # records that are read at once
_AHEAD_BYTES: Final = 1 << 18


def fitted(value: Value, dtype: dtypes.DType) -> Value:
    """Return a value of a generator, cast if it is an array of the same kind as the dtype."""
    wanted = dtype.np_dtype
    if isinstance(value, np.ndarray | np.generic) and not wanted.hasobject and value.dtype != wanted:
        return value.astype(wanted) if np.can_cast(value.dtype, wanted, "same_kind") else value
    return value


class IterableStage(Stage):
    """The items of an iterable of the user, each checked against the element's dtypes and shapes.

    Its position is a number: a restart iterates again and drops items.
    """

    def __init__(self, dataset: DatasetValue, pipeline: Pipeline, path: Path) -> None:
        self._pipeline = pipeline
        self._name = dataset.name
        self._function = dataset.function
        self._args = dataset.args
        self._dtypes = dataset.dtypes
        self._check = ResultCheck(dataset.dtypes, dataset.shapes)
        self._next = 0

    def checked(self, item: Any) -> Components:
        """Return the components of an item, which is a list of them."""
        return self._check([fitted(value, dtype) for value, dtype in zip(item, self._dtypes, strict=True)])

    def state(self) -> StagePosition:
        """Return the number of the next item."""
        return self._next

    async def restore(self, state: StagePosition) -> None:
        """Continue at a position."""
        await self.skip(whole(state))


class GeneratorStage(IterableStage):
    """The items of a plain iterable, which may block: they are made in a thread."""

    _iterator: Iterator[Any] | None = None
    _error: OpError | None = None

    async def fetch(self, want: int) -> list[Components]:
        """Return the next items."""
        if self._error is None:
            await own_task()
            found, self._error = await in_thread(self._take, min(want, _CHUNK))
            self._next += len(found)
            if found:
                return found
        if self._error is not None:
            error, self._error = self._error, None
            self._next += 1
            raise located(error, self._name, self._next - 1)
        return []

    def _take(self, count: int) -> tuple[list[Components], OpError | None]:
        found: list[Components] = []
        try:
            if self._iterator is None:
                self._iterator = iter(opened(self._function, self._args, (Iterable,), "an iterator"))
            for item in islice(self._iterator, count):
                found.append(self.checked(item))  # those before an error are kept
                checkpoint()
        except OpError as error:
            return found, error
        except Exception as error:
            return found, call_error(error)
        return found, None

    async def close(self) -> None:
        """Close the generator."""
        close = getattr(self._iterator, "close", None)
        if close is not None:
            with suppress(Exception):  # no consumer is left to receive the error
                await in_thread(close)


class AsyncIterableStage(IterableStage):
    """The items of an async iterable. A task reads them, and only as many as are needed."""

    def __init__(self, dataset: DatasetValue, pipeline: Pipeline, path: Path) -> None:
        super().__init__(dataset, pipeline, path)
        self._found: deque[CallOutcome] = deque()
        self._wanted = 0
        self._asked, self._filled = asyncio.Event(), asyncio.Event()
        self._has_ended = False
        self._reader: asyncio.Task[None] | None = None

    async def fetch(self, want: int) -> list[Components]:
        """Return the next items."""
        if self._reader is None:
            self._reader = await self._pipeline.background.start(self._read())
        while not self._found and not self._has_ended:
            self._wanted = want
            self._asked.set()
            self._filled.clear()
            await self._filled.wait()
        found: list[Components] = []
        while self._found and len(found) < want:
            outcome = self._found[0]
            if isinstance(outcome, OpError):
                if found:
                    break
                self._found.popleft()
                self._next += 1
                raise located(outcome, self._name, self._next - 1)
            found.append(outcome)
            self._found.popleft()
        self._next += len(found)
        return found

    async def _read(self) -> None:
        iterator: Any = None
        try:
            iterator = aiter(opened(self._function, self._args, (AsyncIterable,), "an async iterator"))
            while True:
                while len(self._found) >= self._wanted:
                    self._asked.clear()
                    await self._asked.wait()
                self._found.append(await self._item(iterator))
                self._filled.set()
        except StopAsyncIteration:
            pass
        except OpError as error:  # of opening it
            self._found.append(error)
        finally:
            self._has_ended = True
            self._filled.set()
            if hasattr(iterator, "aclose"):
                with suppress(Exception):  # no consumer is left to receive the error
                    await iterator.aclose()

    async def _item(self, iterator: Any) -> CallOutcome:
        try:
            return self.checked(await anext(iterator))
        except StopAsyncIteration:
            raise
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            failed = CancelledError("an operation that the async iterator awaited was cancelled")
            failed.__cause__ = error
            return failed
        except Exception as error:
            return call_error(error)

    async def close(self) -> None:
        """Stop the reader, which closes the iterator."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait([self._reader])


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class RecordStage(Stage):
    """The records of files, one file after the other. Its position is the file and the number of the record."""

    def __init__(self, dataset: DatasetValue, pipeline: Pipeline, path: Path) -> None:
        self._dataset = dataset
        self._files: list[bytes] = np.asarray(dataset.args[0], object).reshape(-1).tolist()
        self._file = 0
        self._read = 0  # records of the file that were delivered
        self._source: RecordSource | None = None
        self._ready: deque[Value] = deque()
        self._ends = False  # the file has no more records than those in `_ready`
        self._error: OpError | None = None

    def source(self, name: bytes) -> RecordSource:
        """Return the records of a file."""
        raise NotImplementedError

    async def fetch(self, want: int) -> list[Components]:
        """Return the next records, all from one file."""
        while True:
            if self._ready:
                found = [(self._ready.popleft(),) for _ in range(min(want, len(self._ready)))]
                self._read += len(found)
                return found
            if self._error is not None:
                error, self._error = self._error, None
                self._next_file()
                raise error
            if self._ends:
                self._next_file()
            if self._file == len(self._files):
                return []
            await own_task()
            await in_thread(self._read_ahead, self._files[self._file], effects=True)

    def _next_file(self) -> None:
        if self._source is not None:
            self._source.close()
        self._source, self._ends = None, False
        self._file += 1
        self._read = 0

    def _read_ahead(self, name: bytes) -> None:
        size = 0
        try:
            if self._source is None:
                self._source = self.source(name)
            following = self._source.next
            for _ in range(_AHEAD):
                record = following()
                if record is None:
                    self._ends = True
                    break
                self._ready.append(np.array(record[1], dtype=object))
                size += len(record[1])
                if size > _AHEAD_BYTES:
                    break
        except OpError as error:
            self._error = error

    async def skip(self, count: int) -> int:
        """Skip records."""
        left = count
        while left and (found := await self.fetch(min(left, _AHEAD))):
            left -= len(found)
        return count - left

    def state(self) -> StagePosition:
        """Return the numbers of the file and of its next record."""
        return [self._file, self._read]

    async def restore(self, state: StagePosition) -> None:
        """Continue at a position: open the file and read up to the record."""
        self._file, read = whole(state[0], len(self._files)), whole(state[1])
        await self.skip(read)

    async def close(self) -> None:
        """Close the open file."""
        if self._source is not None:
            self._source.close()


class TFRecordStage(RecordStage):
    """The records of TFRecord files."""

    def source(self, name: bytes) -> RecordSource:
        """Return the records of a file."""
        return TFRecords(name, text_of(self._dataset, 1), self._dataset.folders)


class TextLineStage(RecordStage):
    """The lines of text files."""

    def source(self, name: bytes) -> RecordSource:
        """Return the lines of a file."""
        return TextLines(name, 0, self._dataset.folders, text_of(self._dataset, 1))


class FixedLengthStage(RecordStage):
    """The records of files of fixed-length records."""

    def source(self, name: bytes) -> RecordSource:
        """Return the records of a file."""
        header, record, footer = (self._dataset.number(i) for i in (2, 3, 4))
        return FixedLengthRecords(name, header, record, footer, 0, text_of(self._dataset, 1), self._dataset.folders)


def text_of(dataset: DatasetValue, index: int) -> str:
    """Return a setting: a string."""
    found: Any = dataset.args[index]
    return bytes(found.item() if isinstance(found, np.ndarray) else found).decode()
