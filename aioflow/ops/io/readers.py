"""Readers: they get file names from a queue and return records. The classes are TensorFlow 1's."""

from __future__ import annotations

from typing import NamedTuple

from aioflow.errors import DTypeError
from aioflow.formats.tfrecord import TFRecordOptions
from aioflow.graph.default_graph import default_graph
from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.scopes import current_scope
from aioflow.graph.shapes import Dims
from aioflow.graph.traits import Effect, files, handle
from aioflow.ops.apply import TensorLike, make, make_op, make_tuple
from aioflow.ops.core import scalar
from aioflow.ops.queues.queues import QueueBase

__all__ = [
    "FixedLengthRecordReader",
    "IdentityReader",
    "ReaderBase",
    "TFRecordReader",
    "TextLineReader",
    "WholeFileReader",
]

_NAMED = ["container: string = ''", "shared_name: string = ''"]

define_op(
    "WholeFileReaderV2",
    "",
    "reader_handle: resource",
    _NAMED,
    shape=scalar,
    traits=handle(on_host="files", is_numeric=False),
)
define_op(
    "IdentityReaderV2",
    "",
    "reader_handle: resource",
    _NAMED,
    shape=scalar,
    traits=handle(on_host="files", is_numeric=False),
)
define_op(
    "TextLineReaderV2",
    "",
    "reader_handle: resource",
    ["skip_header_lines: int = 0", *_NAMED],
    shape=scalar,
    traits=handle(on_host="files", is_numeric=False),
)
define_op(
    "FixedLengthRecordReaderV2",
    "",
    "reader_handle: resource",
    [
        "header_bytes: int = 0",
        "record_bytes: int",
        "footer_bytes: int = 0",
        "hop_bytes: int = 0",
        *_NAMED,
        "encoding: string = ''",
    ],
    shape=scalar,
    traits=handle(on_host="files", is_numeric=False),
)
define_op(
    "TFRecordReaderV2",
    "",
    "reader_handle: resource",
    [*_NAMED, "compression_type: string = ''"],
    shape=scalar,
    traits=handle(on_host="files", is_numeric=False),
)


def _pair(ctx: ShapeContext) -> list[Dims]:
    ctx.require_rank("reader_handle", 0)
    ctx.require_rank("queue_handle", 0)
    return [(), ()]


def _pairs(ctx: ShapeContext) -> list[Dims]:
    _pair(ctx)
    ctx.require_rank("num_records", 0)
    return [(None,), (None,)]


def _restored(ctx: ShapeContext) -> list[Dims]:
    ctx.require_rank("reader_handle", 0)
    ctx.require_rank("state", 0)
    return []


define_op(
    "ReaderReadV2",
    "reader_handle: resource, queue_handle: resource",
    "key: string, value: string",
    shape=_pair,
    traits=files(effect=Effect.CHANGES, tells_step=True, takes_away=True),
)
define_op(
    "ReaderReadUpToV2",
    "reader_handle: resource, queue_handle: resource, num_records: int64",
    "keys: string, values: string",
    shape=_pairs,
    traits=files(effect=Effect.CHANGES, tells_step=True, takes_away=True),
)
define_op(
    "ReaderNumRecordsProducedV2",
    "reader_handle: resource",
    "records_produced: int64",
    shape=scalar,
    traits=files(effect=Effect.CHANGES),
)
define_op(
    "ReaderNumWorkUnitsCompletedV2",
    "reader_handle: resource",
    "units_completed: int64",
    shape=scalar,
    traits=files(effect=Effect.CHANGES),
)
define_op("ReaderResetV2", "reader_handle: resource", "", traits=files(effect=Effect.CHANGES))
define_op(
    "ReaderSerializeStateV2",
    "reader_handle: resource",
    "state: string",
    shape=scalar,
    traits=files(effect=Effect.CHANGES),
)
define_op(
    "ReaderRestoreStateV2",
    "reader_handle: resource, state: string",
    "",
    shape=_restored,
    traits=files(effect=Effect.CHANGES),
)

not_differentiable(
    "WholeFileReaderV2",
    "IdentityReaderV2",
    "TextLineReaderV2",
    "FixedLengthRecordReaderV2",
    "TFRecordReaderV2",
    "ReaderReadV2",
    "ReaderReadUpToV2",
    "ReaderNumRecordsProducedV2",
    "ReaderNumWorkUnitsCompletedV2",
    "ReaderResetV2",
    "ReaderSerializeStateV2",
    "ReaderRestoreStateV2",
)


class Record(NamedTuple):
    """The result of `ReaderBase.read`."""

    key: Tensor
    value: Tensor


class Records(NamedTuple):
    """The result of `ReaderBase.read_up_to`."""

    keys: Tensor
    values: Tensor


class ReaderBase:
    """The base of all readers: it returns the next record, and opens the next file from the queue when one has ended.

    Several nodes and concurrent steps may share a reader. Their reads run one after another.

    Args:
        reader_ref: The handle of a reader.
        supports_serialize: Whether the state can be saved: only an `IdentityReader`'s can.
    """

    def __init__(self, reader_ref: Tensor, supports_serialize: bool = False) -> None:
        self._handle = reader_ref
        self._supports_serialize = supports_serialize

    @property
    def reader_ref(self) -> Tensor:
        """The handle of the reader."""
        return self._handle

    @property
    def supports_serialize(self) -> bool:
        """True if the state can be saved: only an `IdentityReader`'s can."""
        return self._supports_serialize

    def read(self, queue: QueueBase | Tensor, name: str | None = None) -> Record:
        """Return the next record, as a named tuple of scalar strings `key` and `value`.

        Args:
            queue: The source of file names: a queue of scalar strings, or its handle.
            name: Name of the node.

        Raises:
            OutOfRangeError: no file is left: the queue is closed and empty.
            NotFoundError, DataLossError, …: the file cannot be read, or is damaged.
        """
        return make_tuple(Record, "ReaderReadV2", self._handle, _queue_handle(queue), name=name)

    def read_up_to(self, queue: QueueBase | Tensor, num_records: TensorLike, name: str | None = None) -> Records:
        """Return the next records of one file, at most `num_records`.

        The result is a named tuple of string vectors `keys`, `values`.

        Raises:
            OutOfRangeError: no file is left: the queue is closed and empty.
            NotFoundError, DataLossError, …: the file cannot be read, or is damaged.
        """
        return make_tuple(Records, "ReaderReadUpToV2", self._handle, _queue_handle(queue), num_records, name=name)

    def num_records_produced(self, name: str | None = None) -> Tensor:
        """Return the number of records that the reader has returned, a scalar int64."""
        return make("ReaderNumRecordsProducedV2", self._handle, name=name)

    def num_work_units_completed(self, name: str | None = None) -> Tensor:
        """Return the number of files that the reader has finished, a scalar int64."""
        return make("ReaderNumWorkUnitsCompletedV2", self._handle, name=name)

    def reset(self, name: str | None = None) -> Operation:
        """Return a node that resets the reader: it drops its file and counts from zero."""
        return make_op("ReaderResetV2", self._handle, name=name)

    def serialize_state(self, name: str | None = None) -> Tensor:
        """Return the state of the reader as a scalar string, for `restore_state`.

        Raises:
            UnimplementedError: in a run, if the reader does not support it: see `supports_serialize`.
        """
        return make("ReaderSerializeStateV2", self._handle, name=name)

    def restore_state(self, state: TensorLike, name: str | None = None) -> Operation:
        """Return a node that sets the reader to a state saved by a reader of its kind.

        Raises:
            InvalidArgumentError: in a run, if the string is not such a state.
            UnimplementedError: in a run, if the reader does not support it: see `supports_serialize`.
        """
        return make_op("ReaderRestoreStateV2", self._handle, state, name=name)


def _queue_handle(queue: object) -> Tensor:
    handle = getattr(queue, "queue_ref", queue)
    if not isinstance(handle, Tensor):
        raise DTypeError("a reader takes its files from a queue", expected="a queue", actual=repr(queue))
    return handle


def _reader(op_type: str, name: str | None, **attrs: object) -> Tensor:
    container = current_scope(default_graph()).container
    return make(op_type, container=container, name=name, **attrs)


class WholeFileReader(ReaderBase):
    """A reader of whole files: a record is the name and the contents of a file."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(_reader("WholeFileReaderV2", name))


class IdentityReader(ReaderBase):
    """A reader of the queue itself: each string is a record, as key and as value."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(_reader("IdentityReaderV2", name), supports_serialize=True)


class TextLineReader(ReaderBase):
    """A reader of lines of text files, without line ends. The key is "name:line", counted from one.

    Args:
        skip_header_lines: Number of lines to skip at the start of each file.
        name: Name of the node.
    """

    def __init__(self, skip_header_lines: int | None = None, name: str | None = None) -> None:
        super().__init__(_reader("TextLineReaderV2", name, skip_header_lines=skip_header_lines or 0))


class FixedLengthRecordReader(ReaderBase):
    """A reader of records of a fixed size. The key is "name:number", counted from zero.

    Args:
        record_bytes: Size of a record.
        header_bytes: Number of bytes to skip at the start of each file.
        footer_bytes: Number of bytes to skip at the end of each file.
        hop_bytes: Distance from the start of one record to the start of the next, if not `record_bytes`.
        name: Name of the node.
        encoding: "" or the files' compression, "ZLIB" or "GZIP".
    """

    def __init__(
        self,
        record_bytes: int,
        header_bytes: int | None = None,
        footer_bytes: int | None = None,
        hop_bytes: int | None = None,
        name: str | None = None,
        encoding: str | None = None,
    ) -> None:
        super().__init__(
            _reader(
                "FixedLengthRecordReaderV2",
                name,
                record_bytes=record_bytes,
                header_bytes=header_bytes or 0,
                footer_bytes=footer_bytes or 0,
                hop_bytes=hop_bytes or 0,
                encoding=encoding or "",
            )
        )


class TFRecordReader(ReaderBase):
    """A reader of TFRecord files, which verifies their checksums. The key is "name:byte".

    Args:
        name: Name of the node.
        options: A `TFRecordOptions`, or the name of a compression.
    """

    def __init__(self, name: str | None = None, options: TFRecordOptions | str | None = None) -> None:
        compression = getattr(options, "compression_type", options) or ""
        super().__init__(_reader("TFRecordReaderV2", name, compression_type=compression))
