"""`FileWriter`: write summaries, graphs and run metadata into event files, without waiting for the disk."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, ClassVar, Final, SupportsInt

from aioflow.arguments import brief, check_number, check_text, check_whole
from aioflow.concurrency.forking import Locked
from aioflow.concurrency.threads import in_thread
from aioflow.errors import DataLossError, DTypeError, InvalidArgumentError, OpError, UnimplementedError
from aioflow.formats.graphs.lowering import importable
from aioflow.graph.default_graph import default_graph
from aioflow.graph.graph import Graph
from aioflow.graph.graphdef import GraphDef
from aioflow.observe.event_log import EventLog
from aioflow.protos import Message, is_message, message, parse
from aioflow.runtime.run_metadata_messages import run_metadata_message
from aioflow.runtime.stats import RunMetadata

# ── the writer ────────────────────────────────────────────────────────────────────────────────────────────────────────


_MAX_BYTES: Final = 1 << 28


class Written:
    """The result of `FileWriter.add_…`. Awaiting it waits until at most `max_queue` events are unwritten.

    A program that adds events faster than the disk writes them awaits it; other programs need not.
    """

    def __init__(self, log: EventLog, max_queue: int) -> None:
        self._log = log
        self._max_queue = max_queue

    def __await__(self) -> Generator[object, None, None]:
        """Wait until few enough events are unwritten. Raises the errors of `FileWriter.flush`."""
        return self._wait().__await__()

    async def _wait(self) -> None:
        if self._log.waiting > self._max_queue:
            await in_thread(self._log.flush)


class FileWriter:
    """A writer of event files in a folder: `async with FileWriter(logdir, graph) as writer:`.

    The methods that add events return at once, and may be called from any thread. A thread of the writer writes the
    events, so that the event loop never waits for the disk. The block begins a file, and ends when all events are
    written.

    Args:
        logdir: The folder, or its URL in a store, as for checkpoints.
        graph: Added as by `add_graph`.
        max_queue: Number of events that may wait before awaiting the result of an `add_…` waits, too.
        flush_secs: Seconds after which events are uploaded to a store. Those in a folder are written at once.
        graph_def: An older name for `graph`, for a definition.
        filename_suffix: End of the files' names.
        session: Not supported: events are written by the process that has the writer.
        max_bytes: Maximum size of all waiting events: an `add_…` beyond it raises ResourceExhaustedError.
        clock: Function that returns the time of an event, in seconds since 1970.

    Raises:
        UnimplementedError: a session is given.
        InvalidArgumentError: `graph` and `graph_def` are both given, or a setting is out of range.
    """

    def __init__(
        self,
        logdir: str | os.PathLike[str],
        graph: Graph | GraphDef | None = None,
        max_queue: int = 10,
        flush_secs: float = 120,
        graph_def: GraphDef | None = None,
        filename_suffix: str | None = None,
        session: None = None,
        *,
        max_bytes: int = _MAX_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if session is not None:
            raise UnimplementedError("events are written by this process", expected="session=None", actual=session)
        folder = os.fspath(logdir)
        check_text(folder, "logdir")
        check_whole(max_queue, "max_queue", 0)
        check_whole(max_bytes, "max_bytes", 0)
        check_number(flush_secs, "flush_secs", "a number of seconds")
        if filename_suffix is not None:
            check_text(filename_suffix, "filename_suffix")
        self._log = EventLog(folder, max_bytes, flush_secs, filename_suffix or "", clock)
        self._max_queue = max_queue
        self._described: set[str] = set()  # tags whose metadata is in a file
        self._runs: set[str] = set()
        if graph is not None or graph_def is not None:
            # The graph is encoded later, by the log's thread.
            self.add_graph(graph, graph_def=graph_def)

    def get_logdir(self) -> str:
        """Return the folder."""
        return self._log.logdir

    # -- adding -------------------------------------------------------------------------------------------------------

    def add_summary(self, summary: bytes | Message, global_step: SupportsInt | None = None) -> Written:
        """Add the result of a summary op, or a `Summary`.

        Raises:
            InvalidArgumentError: it is neither.
            FailedPreconditionError: the writer is closed. All methods that add events raise this.
            ResourceExhaustedError: too many bytes are waiting. All methods that add events raise this.
        """
        data = _bytes_of(summary, "Summary")
        event = message("Event")()
        # Checked now: a malformed summary must fail at the caller, not in the thread.
        event.summary.CopyFrom(_parsed("Summary", data))
        for value in event.summary.value:
            if value.tag in self._described:  # readers use the first occurrence
                value.ClearField("metadata")
        added = self._add(event, global_step, len(data))
        # After the event was accepted: a refused event has described nothing.
        self._described.update(value.tag for value in event.summary.value)
        return added

    def add_graph(
        self, graph: Graph | GraphDef | None = None, global_step: SupportsInt | None = None, graph_def: object = None
    ) -> Written:
        """Add a graph with static shapes, in its state when it is written, a moment later; or a definition.

        Readers such as TensorFlow's can import it: an op that TensorFlow lacks becomes a `PyFunc` whose token is the
        name of the op.

        Raises:
            DTypeError: it is neither.
            InvalidArgumentError: `graph` and `graph_def` are both given.
        """
        if graph is not None and graph_def is not None:
            raise InvalidArgumentError("two graphs are given", expected="graph or graph_def", actual="both")
        chosen: Any = graph_def if graph is None else graph
        if not isinstance(chosen, Graph | GraphDef) and not is_message(chosen, "GraphDef"):
            raise DTypeError("not a graph", expected="Graph or GraphDef", actual=type(chosen).__name__)
        event = message("Event")()

        def made() -> bytes:
            # In the thread: the graph may have grown until then, and is written as it is by that time.
            definition = chosen.as_graph_def(add_shapes=True) if isinstance(chosen, Graph) else chosen
            if isinstance(definition, GraphDef):
                definition = importable(definition)
            event.graph_def = definition.SerializeToString()
            data: bytes = event.SerializeToString()
            return data

        return self._add(event, global_step, 0, made)

    def add_meta_graph(self, meta_graph_def: Message, global_step: SupportsInt | None = None) -> Written:
        """Add a `MetaGraphDef`, as `train.export_meta_graph` makes it. Raises DTypeError for another type."""
        data = _bytes_of(meta_graph_def, "MetaGraphDef")
        return self._add(message("Event")(meta_graph_def=data), global_step, len(data))

    def add_run_metadata(
        self, run_metadata: RunMetadata | Message, tag: str, global_step: SupportsInt | None = None
    ) -> Written:
        """Add the record of a traced run under a tag. TensorBoard shows it with the graph.

        Raises:
            InvalidArgumentError: the tag was used before.
            DTypeError: it is not a `RunMetadata`.
        """
        check_text(tag, "the tag of run metadata")
        if tag in self._runs:
            raise InvalidArgumentError("the tag was used before", expected="another tag", actual=repr(tag))
        mine = isinstance(run_metadata, RunMetadata)
        made = run_metadata_message(run_metadata) if mine else run_metadata
        data = _bytes_of(made, "RunMetadata")
        event = message("Event")()
        event.tagged_run_metadata.tag, event.tagged_run_metadata.run_metadata = tag, data
        added = self._add(event, global_step, len(data))
        # After the event was accepted, so that a refused one may be added again.
        self._runs.add(tag)
        return added

    def add_session_log(self, session_log: Message, global_step: SupportsInt | None = None) -> Written:
        """Add a `SessionLog`. At a START, TensorBoard discards the later steps of earlier sessions."""
        data = _bytes_of(session_log, "SessionLog")
        event = message("Event")()
        event.session_log.MergeFromString(data)
        return self._add(event, global_step, len(data))

    def add_event(self, event: Message) -> Written:
        """Add an `Event` unchanged, including its time. Raises DTypeError for another type."""
        data = _bytes_of(event, "Event")
        # Bytes, copied now: the caller may change the message afterwards.
        self._log.put(lambda: data, len(data))
        return Written(self._log, self._max_queue)

    def _add(
        self, event: Message, step: SupportsInt | None, size: int, made: Callable[[], bytes] | None = None
    ) -> Written:
        # The time of the event, not of its writing.
        event.wall_time = self._log.clock()
        if step is not None:
            event.step = _number(step)
        self._log.put(made or event.SerializeToString, size)
        return Written(self._log, self._max_queue)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Wait until all added events are written.

        Raises:
            PermissionDeniedError, ResourceExhaustedError, …: the system refuses to write; the error names the file. The
                events are kept, and the next flush tries again.
            OpError: a graph has no published form. It is left out.
        """
        if not self._log.closed:
            await in_thread(self._log.flush)

    async def close(self) -> None:
        """Flush, and accept no more events until `reopen`. Idempotent.

        Raises as `flush`. Events that could not be written are lost; the error states their number.
        """
        if not self._log.closed:
            await in_thread(self._log.close)

    def reopen(self) -> None:
        """Accept events again after `close`, in a new file."""
        self._log.reopen()

    async def __aenter__(self) -> FileWriter:
        """Begin a file in the folder. Raises PermissionDeniedError, … if that is not possible."""
        await in_thread(self._log.begin)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except OpError as failure:
            if error is None:
                raise
            error.add_note(f"nor could all events be written: {failure}")


def _bytes_of(given: Any, name: str) -> bytes:
    """Return the bytes of a message, which may come from another library or be serialized already."""
    if isinstance(given, bytes) and name == "Summary":
        return given
    if not is_message(given, name):
        raise DTypeError(f"not a {name}", expected=name, actual=type(given).__name__)
    data: bytes = given.SerializeToString()
    return data


def _parsed(name: str, data: bytes) -> Message:
    try:
        return parse(name, data)
    except DataLossError as error:
        raise InvalidArgumentError(f"not a {name}", expected="a serialized message", actual=data[:60]) from error


def _number(step: Any) -> int:
    try:
        number = int(step)
    except (TypeError, ValueError, OverflowError) as error:
        raise DTypeError("not a step", expected="a whole number", actual=repr(step)) from error
    if not -(2**63) <= number < 2**63:
        raise InvalidArgumentError("not a step", expected="a whole number of 64 bits", actual=brief(step))
    return number


# ── a cache of writers by folder, which all hooks of a program share ──────────────────────────────────────────────────


class FileWriterCache:
    """The writers of a program, by folder."""

    _writers: ClassVar[dict[str, FileWriter]] = {}
    _guard: ClassVar[Locked] = Locked()

    @classmethod
    def get(cls, logdir: str | os.PathLike[str]) -> FileWriter:
        """Return the writer of a folder. If it has none, create one with the default graph."""
        folder = os.fspath(logdir)
        with cls._guard.lock:
            if folder not in cls._writers:
                cls._writers[folder] = FileWriter(folder, default_graph())
            return cls._writers[folder]

    @classmethod
    async def clear(cls) -> None:
        """Close all writers and remove them. Raises the first error after all have been tried."""
        # Closed outside of the lock: closing waits for the disk.
        with cls._guard.lock:
            writers = list(cls._writers.values())
            cls._writers.clear()
        errors = []
        for writer in writers:
            try:
                await writer.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
