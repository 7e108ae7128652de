"""`FileWriter`: content of event files, times of writing, and failures of the disk."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import aioflow as af
from aioflow import errors
from aioflow.observe import event_log
from aioflow.train import summary_iterator

FileWriter = af.summary.FileWriter


def scalar(value: float, tag: str = "loss") -> Any:
    return af.Summary(value=[{"tag": tag, "simple_value": value}])


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def events(folder: Path) -> list[Any]:
    """Return all events except the version event at the start of each file."""
    found = []
    for file in files(folder):
        first, *rest = summary_iterator(file)
        assert first.file_version == "brain.Event:2"
        found += rest
    return found


def numbers(folder: Path) -> list[tuple[int, float]]:
    return [(event.step, event.summary.value[0].simple_value) for event in events(folder)]


async def test_summaries_are_written_when_the_block_ends(tmp_path: Path) -> None:
    logdir = tmp_path / "deep/run"
    async with FileWriter(logdir, clock=lambda: 17.25, filename_suffix=".mine") as writer:
        assert writer.get_logdir() == str(logdir)
        for step in range(5):
            writer.add_summary(scalar(step / 2), step)
        writer.add_summary(scalar(9).SerializeToString(), np.int64(2**40))
        writer.add_summary(scalar(-1))
    (file,) = files(logdir)
    assert file.name.startswith("events.out.tfevents.0000000017.")
    assert file.name.endswith(".mine")
    assert numbers(logdir) == [(0, 0), (1, 0.5), (2, 1), (3, 1.5), (4, 2), (2**40, 9), (0, -1)]
    assert {event.wall_time for event in events(logdir)} == {17.25}


async def test_metadata_is_written_once_for_a_tag(tmp_path: Path) -> None:
    summary = af.Summary()
    summary.value.add(tag="text", metadata={"display_name": "shown"})
    async with FileWriter(tmp_path) as writer:
        for _ in range(2):
            writer.add_summary(summary)
    found = [event.summary.value[0].metadata.display_name for event in events(tmp_path)]
    assert found == ["shown", ""]
    assert summary.value[0].HasField("metadata")  # the caller's summary is unchanged


async def test_all_kinds_of_events(tmp_path: Path) -> None:
    x = af.placeholder(af.float32, [None, 3], name="x")
    y = af.reduce_sum(x, name="y")
    metadata = af.RunMetadata()
    async with af.Session() as session:
        options = af.RunOptions(af.RunOptions.FULL_TRACE)
        await session.run(y, {x: np.ones((2, 3))}, options=options, run_metadata=metadata)
    graph = af.get_default_graph()
    async with FileWriter(tmp_path, graph) as writer:
        writer.add_graph(graph.as_graph_def(), 1)
        writer.add_meta_graph(af.train.export_meta_graph(), 2)
        writer.add_run_metadata(metadata, "a run", 3)
        writer.add_session_log(af.SessionLog(status=af.SessionLog.START), 4)
        writer.add_event(af.Event(wall_time=1.0, step=5, log_message={"message": "text"}))
    first, second, meta, run, log, event = events(tmp_path)
    shaped = af.GraphDef.FromString(first.graph_def)
    assert [node.name for node in shaped.node] == [op.name for op in graph.get_operations()]
    assert shaped.node[0].attrs["_output_shapes"] == ((None, 3),)
    assert "_output_shapes" not in af.GraphDef.FromString(second.graph_def).node[0].attrs
    assert af.MetaGraphDef.FromString(meta.meta_graph_def).graph_def.node[0].name == "x"
    assert (run.tagged_run_metadata.tag, run.step) == ("a run", 3)
    assert (log.session_log.status, log.step) == (af.SessionLog.START, 4)
    assert (event.wall_time, event.step, event.log_message.message) == (1.0, 5, "text")


async def test_run_metadata_has_the_times_of_the_trace(tmp_path: Path) -> None:
    from aioflow.protos import message
    from aioflow.runtime.stats import NodeStats, StepStats

    nodes = (NodeStats("a", "Add", "one", 0.5e-3, 2.5e-6, 64), NodeStats("b", "Mul", "two", 1.0, 0.25, 8))
    async with FileWriter(tmp_path) as writer:
        writer.add_run_metadata(af.RunMetadata([StepStats("/device:CPU:0", nodes)]), "t")
    stored = message("RunMetadata").FromString(events(tmp_path)[0].tagged_run_metadata.run_metadata)
    (device,) = stored.step_stats.dev_stats
    first, second = device.node_stats
    assert (device.device, dict(device.thread_names)) == ("/device:CPU:0", {0: "one", 1: "two"})
    assert (first.node_name, first.timeline_label, first.thread_id) == ("a", "a = Add", 0)
    assert (first.all_start_micros, first.all_end_rel_nanos, first.op_end_rel_micros) == (500, 2500, 2)
    assert first.output[0].tensor_description.allocation_description.requested_bytes == 64
    assert (second.all_start_micros, second.all_end_rel_micros, second.thread_id) == (1_000_000, 250_000, 1)


async def test_summaries_are_written_without_a_flush(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path)
    writer.add_summary(scalar(1))
    for _ in range(1000):
        if any(file.stat().st_size for file in files(tmp_path)):  # the file exists before its first record
            break
        await asyncio.sleep(0.01)
    assert numbers(tmp_path) == [(0, 1)]
    await writer.close()


async def test_awaiting_an_add_waits_while_the_queue_is_full(tmp_path: Path, disk: Disk) -> None:
    writer = FileWriter(tmp_path, max_queue=2)
    disk.held = True
    for step in range(3):  # the writer's thread holds one event or none yet
        writer.add_summary(scalar(step), step)
    late = writer.add_summary(scalar(3), 3)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(_wait(late))
        await asyncio.sleep(0)
        assert not waiting.done()
        disk.held = False
    assert len(numbers(tmp_path)) == 4
    await writer.close()


async def _wait(added: Any) -> None:
    await added


def fill(writer: af.summary.FileWriter) -> None:
    for step in range(1000):
        writer.add_summary(scalar(step), step)


async def test_more_than_max_bytes_is_refused(tmp_path: Path, disk: Disk) -> None:
    disk.held = True
    writer = FileWriter(tmp_path, max_bytes=1000)
    with pytest.raises(errors.ResourceExhaustedError, match="too many events"):
        fill(writer)
    disk.held = False
    await writer.close()
    assert 10 <= len(numbers(tmp_path)) < 30


# ── disk failures ────────────────────────────────────────────────────────────────────────────────────────────────────


class Disk:
    """Event files of a disk that can be full or blocked."""

    def __init__(self) -> None:
        self.full = False
        self.room = threading.Event()
        self.room.set()

    @property
    def held(self) -> bool:
        return not self.room.is_set()

    @held.setter
    def held(self, value: bool) -> None:
        self.room.clear() if value else self.room.set()

    def new_event_file(self, *args: Any) -> Any:
        from aioflow.formats.event_files import new_event_file

        file: Any = new_event_file(*args)
        append = file.append

        def guarded(data: bytes) -> None:
            assert self.room.wait(60)
            if self.full:
                raise errors.ResourceExhaustedError(f"{os.strerror(errno.ENOSPC)}: {file.path}")
            append(data)

        file.append = guarded
        return file


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(event_log, "new_event_file", made.new_event_file)
    return made


async def test_flush_reports_a_full_disk_and_loses_nothing(tmp_path: Path, disk: Disk) -> None:
    async with FileWriter(tmp_path) as writer:
        writer.add_summary(scalar(1), 1)
        await writer.flush()
        disk.full = True
        writer.add_summary(scalar(2), 2)
        for _ in range(2):
            with pytest.raises(errors.ResourceExhaustedError, match="No space"):
                await writer.flush()
        writer.add_summary(scalar(3), 3)
        disk.full = False
        await writer.flush()
        assert numbers(tmp_path) == [(1, 1), (2, 2), (3, 3)]
        writer.add_summary(scalar(4), 4)
    assert numbers(tmp_path) == [(1, 1), (2, 2), (3, 3), (4, 4)]


async def test_leaving_the_block_reports_a_full_disk(tmp_path: Path, disk: Disk) -> None:
    async def block(folder: Path, error: Exception | None = None) -> None:
        disk.full = False
        async with FileWriter(folder) as writer:
            disk.full = True
            for number in range(2):
                writer.add_summary(scalar(number))
            if error is not None:
                raise error

    with pytest.raises(errors.ResourceExhaustedError) as caught:
        await block(tmp_path / "first")
    assert caught.value.__notes__ == ["2 events were not written"]
    with pytest.raises(ZeroDivisionError) as other:
        await block(tmp_path / "second", ZeroDivisionError())
    assert "No space" in other.value.__notes__[0]


async def test_errors_of_the_system_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.FailedPreconditionError, match="file"):
        async with FileWriter(tmp_path / "file/run"):
            pass


async def test_partial_record_is_removed_from_the_file(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="the system has limits for files")
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = FileWriter(tmp_path)
    try:
        writer.add_summary(scalar(1), 1)
        await writer.flush()
        (file,) = files(tmp_path)
        size = file.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
        writer.add_summary(scalar(2), 2)
        # Either the writer's thread or this flush meets the limit; the next attempt goes into a new file.
        with suppress(errors.ResourceExhaustedError):
            await writer.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert file.stat().st_size == size
    await writer.close()
    assert numbers(tmp_path) == [(1, 1), (2, 2)]
    assert len(files(tmp_path)) == 2


async def test_deleted_file_is_an_error_once(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path)
    writer.add_summary(scalar(1), 1)
    await writer.flush()
    files(tmp_path)[0].unlink()
    writer.add_summary(scalar(2), 2)
    try:
        # Raises nothing if the writer's thread has already met the error: this is then the second attempt.
        await writer.flush()
    except errors.NotFoundError:
        await writer.flush()
    assert numbers(tmp_path) == [(2, 2)]
    await writer.close()


# ── lifetime of a writer ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_closed_writer_can_be_reopened(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path)
    writer.add_summary(scalar(1))
    await writer.close()
    await writer.close()
    await writer.flush()
    with pytest.raises(errors.FailedPreconditionError, match="reopen"):
        writer.add_summary(scalar(2))
    writer.reopen()
    writer.add_summary(scalar(3))
    await writer.close()
    assert [value for _, value in numbers(tmp_path)] == [1, 3]
    assert len(files(tmp_path)) == 2


async def test_writer_without_events_makes_no_file(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path / "run")
    await writer.flush()
    await writer.close()
    assert files(tmp_path) == []


async def test_two_writers_of_a_folder_use_separate_files(tmp_path: Path) -> None:
    async with FileWriter(tmp_path) as first, FileWriter(tmp_path) as second:
        first.add_summary(scalar(1))
        second.add_summary(scalar(2))
    assert [value for _, value in numbers(tmp_path)] == [1, 2]
    assert len(files(tmp_path)) == 2


async def test_threads_and_tasks_may_add_concurrently(tmp_path: Path) -> None:
    async with FileWriter(tmp_path) as writer:

        def add(first: int) -> None:
            for number in range(first, first + 200):
                writer.add_summary(scalar(number), number)

        async with asyncio.TaskGroup() as group:
            for first in (0, 200, 400):
                group.create_task(asyncio.to_thread(add, first))
            for number in range(600, 700):
                await writer.add_summary(scalar(number), number)
    assert sorted(step for step, _ in numbers(tmp_path)) == list(range(700))


async def test_dropped_writer_is_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "_IDLE", 0.01)
    writer = FileWriter(tmp_path)
    log: Any = writer._log
    writer.add_summary(scalar(1))
    await writer.flush()
    for _ in range(1000):
        if log._thread is None:
            break
        await asyncio.sleep(0.01)
    assert log._thread is None
    del writer, log
    gc.collect()
    assert not [log for log in event_log._LOGS if log.logdir == str(tmp_path)]
    assert numbers(tmp_path) == [(0, 1)]


async def test_file_writer_cache_has_one_writer_per_folder(tmp_path: Path) -> None:
    af.constant(1.0, name="here")
    try:
        writer = af.summary.FileWriterCache.get(tmp_path)
        assert af.summary.FileWriterCache.get(str(tmp_path)) is writer
        assert af.summary.FileWriterCache.get(tmp_path / "other") is not writer
    finally:
        await af.summary.FileWriterCache.clear()
    (tmp_path / "other").rename(tmp_path.with_suffix(".other"))
    (event,) = events(tmp_path)
    assert [node.name for node in af.GraphDef.FromString(event.graph_def).node] == ["here"]
    with pytest.raises(errors.FailedPreconditionError):
        writer.add_summary(scalar(1))
    assert af.summary.FileWriterCache.get(tmp_path) is not writer
    await af.summary.FileWriterCache.clear()


# ── stores ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def store() -> Iterator[str]:
    folder = f"/{uuid.uuid4().hex}/run"
    yield folder
    memory = fsspec.filesystem("memory")
    if memory.exists(folder):
        memory.rm(folder, recursive=True)


async def test_each_flush_writes_one_object_of_a_store(tmp_path: Path, store: str) -> None:
    memory = fsspec.filesystem("memory")
    async with FileWriter(f"memory:/{store}") as writer:
        assert not memory.exists(store)
        for step in range(4):
            writer.add_summary(scalar(step), step)
            if step % 2:
                await writer.flush()
        await writer.flush()
    names = sorted(memory.ls(store, detail=False))
    assert len(names) == 2
    for name in names:
        (tmp_path / name.rpartition("/")[2]).write_bytes(memory.cat_file(name))
    assert numbers(tmp_path) == [(0, 0), (1, 1), (2, 2), (3, 3)]


async def test_store_gets_events_after_flush_secs(store: str) -> None:
    memory = fsspec.filesystem("memory")
    writer = FileWriter(f"memory:/{store}", flush_secs=0.02)
    writer.add_summary(scalar(1))
    for _ in range(1000):
        if memory.exists(store):
            break
        await asyncio.sleep(0.01)
    assert len(memory.ls(store)) == 1
    await writer.close()
    assert len(memory.ls(store)) == 1


# ── wrong arguments ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path)
    with pytest.raises(errors.InvalidArgumentError, match="not a Summary"):
        writer.add_summary(b"\xff\xff")
    for add, wrong in [
        (writer.add_summary, "text"),
        (writer.add_graph, b"graph"),
        (writer.add_meta_graph, af.GraphDef()),
        (writer.add_session_log, scalar(1)),
        (writer.add_event, scalar(1)),
        (lambda given: writer.add_run_metadata(given, "tag"), {}),
        (lambda given: writer.add_summary(scalar(1), given), "soon"),
    ]:
        with pytest.raises(errors.DTypeError):
            add(wrong)  # type: ignore[operator]
    with pytest.raises(errors.InvalidArgumentError, match="step"):
        writer.add_summary(scalar(1), 2**63)
    writer.add_run_metadata(af.RunMetadata(), "tag")
    with pytest.raises(errors.InvalidArgumentError, match="tag"):
        writer.add_run_metadata(af.RunMetadata(), "tag")
    with pytest.raises(errors.UnimplementedError):
        FileWriter(tmp_path, session=object())  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidArgumentError):
        FileWriter(tmp_path, max_queue=-1)
    with pytest.raises(errors.DTypeError):
        FileWriter(tmp_path, af.constant(1.0))  # type: ignore[arg-type]
    await writer.close()
    assert len(events(tmp_path)) == 1


async def test_added_graph_has_only_ops_that_readers_can_import(tmp_path: Path) -> None:
    async def twice(value: Any) -> Any:
        return 2 * value

    with af.Graph().as_default() as graph:
        v = af.get_variable("v", [3])
        y = af.py_coroutine(twice, [v.initialized_value()], af.float32, shapes=[3], name="ours")
        af.train.Saver()
        af.identity(y, name="after")
    async with FileWriter(tmp_path) as writer:
        writer.add_graph(graph)
    [event] = events(tmp_path)
    nodes = {node.name: node for node in af.GraphDef.FromString(event.graph_def).node}
    assert {node.op for node in nodes.values() if node.op.startswith(("_", "Aioflow"))} == set()
    ours = nodes["ours"]
    assert (ours.op, ours.attrs["token"], ours.attrs["Tin"], ours.attrs["Tout"]) == (
        "PyFunc", "AioflowPyCoroutine", (af.float32,), (af.float32,),
    )  # fmt: skip
    assert nodes["after"].inputs == ("ours",)
    with af.Graph().as_default() as again:
        af.import_graph_def(af.GraphDef.FromString(event.graph_def), name="")
    assert again.get_tensor_by_name("after:0").shape == [3]
