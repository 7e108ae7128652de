"""Files and readers in a session: values, counts, errors and cancellation."""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path
from typing import Any

import pytest

import aioflow as af
from aioflow import errors
from aioflow.sync.fair_lock import FairLock
from aioflow.sync.waiting import Ticket
from tests.support.waiting import until_waiting


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a new folder, which is the working directory of the test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ── whole files ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_write_file_and_read_file_round_trip(folder: Path) -> None:
    async with af.Session() as session:
        await session.run(af.write_file("deep/down/f.bin", b"a\0b\0"))
        assert (folder / "deep/down/f.bin").read_bytes() == b"a\0b\0"
        assert await session.run(af.read_file("deep/down/f.bin")) == b"a\0b\0"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("missing", errors.NotFoundError),
        (".", errors.FailedPreconditionError),
        ("a\0b", errors.InvalidArgumentError),
        ("x" * 300, errors.InvalidArgumentError),
    ],
)
async def test_read_file_errors(name: str, error: type[errors.OpError]) -> None:
    async with af.Session() as session:
        with pytest.raises(error) as caught:
            await session.run(af.read_file(name, name="reading"))
    assert caught.value.node == "reading"


async def test_write_file_errors(folder: Path) -> None:
    (folder / "plain").write_text("")
    async with af.Session() as session:
        for name in (".", "plain/below"):
            with pytest.raises((errors.FailedPreconditionError, errors.AlreadyExistsError)):
                await session.run(af.write_file(name, b""))


async def test_matching_files_patterns(folder: Path) -> None:
    for name in ("a1", "a2", "b1", ".a3"):
        (folder / name).write_text("")
    async with af.Session() as session:
        for pattern, expected in (("a*", [b"a1", b"a2"]), ("?1", [b"a1", b"b1"]), ("[b-z]1", [b"b1"]), ("x*", [])):
            assert (await session.run(af.matching_files(pattern))).tolist() == expected
        assert (await session.run(af.matching_files(["b*", "a*"]))).tolist() == [b"a1", b"a2", b"b1"]


def test_file_ops_reject_names_of_wrong_rank() -> None:
    for wrong in (lambda: af.read_file(["a"]), lambda: af.write_file("a", ["b"]), lambda: af.matching_files([["a"]])):
        with pytest.raises(errors.InvalidArgumentError):
            wrong()
    assert af.matching_files("a").shape.as_list() == [None]


# ── readers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Reading:
    """A reader over files that is read to the end, with its counts after every read."""

    def __init__(self, reader: af.ReaderBase, files: list[str], count: int | None = None) -> None:
        queue = af.FIFOQueue(20, [af.string], [[]])
        self.start = [queue.enqueue_many([files])] if files else []
        self.close = queue.close()
        self.record = list(reader.read(queue) if count is None else reader.read_up_to(queue, count))
        self.counts = [reader.num_records_produced(), reader.num_work_units_completed()]
        self.reset = reader.reset()

    async def begin(self, session: af.Session) -> None:
        for op in [*self.start, self.close]:
            await session.run(op)

    async def all(self) -> list[Any]:
        found: list[Any] = []
        async with af.Session() as session:
            await self.begin(session)
            while True:
                try:
                    record: list[Any] = await session.run(self.record)
                    values = [v if isinstance(v, bytes) else v.tolist() for v in record]
                except errors.OutOfRangeError:
                    return [*found, tuple(int(v) for v in await session.run(self.counts))]
                except errors.OpError as error:
                    values = [type(error).__name__]
                found.append((*values, *(int(v) for v in await session.run(self.counts))))


async def test_lines(folder: Path) -> None:
    (folder / "a").write_bytes(b"head\r\nl\r2\r\n\nlast")
    (folder / "b").write_bytes(b"x\ny\n")
    assert await Reading(af.TextLineReader(skip_header_lines=1), ["a", "missing", "b"]).all() == [
        (b"a:2", b"l\r2", 1, 0),
        (b"a:3", b"", 2, 0),
        (b"a:4", b"last", 3, 0),
        ("NotFoundError", 3, 1),
        (b"b:2", b"y", 4, 1),
        (4, 2),
    ]


async def test_read_up_to_returns_lines_of_one_file(folder: Path) -> None:
    (folder / "a").write_bytes(b"1\n2\n3\n4")
    (folder / "b").write_bytes(b"x\ny\n")
    assert await Reading(af.TextLineReader(), ["a", "b"], 3).all() == [
        ([b"a:1", b"a:2", b"a:3"], [b"1", b"2", b"3"], 3, 0),
        ([b"a:4"], [b"4"], 4, 1),
        ([b"b:1", b"b:2"], [b"x", b"y"], 6, 2),
        (6, 2),
    ]


@pytest.mark.parametrize("count", [None, 3])
async def test_whole_files_and_identities(folder: Path, count: int | None) -> None:
    (folder / "a").write_bytes(b"contents\0")
    found = await Reading(af.WholeFileReader(), ["a"], count).all()
    assert found[0] == ((b"a", b"contents\0", 1, 1) if count is None else ([b"a"], [b"contents\0"], 1, 1))
    assert (await Reading(af.IdentityReader(), ["p", "q"]).all())[:2] == [(b"p", b"p", 1, 1), (b"q", b"q", 2, 2)]


FIXED: list[tuple[dict[str, int], bytes, list[bytes]]] = [
    ({}, b"aaaabbbbcc", [b"aaaa", b"bbbb"]),
    ({"header_bytes": 2, "footer_bytes": 2}, b"HHaaaabbbbFF", [b"aaaa", b"bbbb"]),
    ({"header_bytes": 2, "footer_bytes": 2}, b"HHaaaabbbFF", [b"aaaa"]),
    ({"header_bytes": 2, "footer_bytes": 1, "hop_bytes": 2}, b"HHaabbccF", [b"aabb", b"bbcc"]),
    ({"hop_bytes": 6}, b"aaaa--bbbb--ccc", [b"aaaa", b"bbbb"]),
    ({"header_bytes": 20}, b"short", []),
]


@pytest.mark.parametrize(("sizes", "data", "expected"), FIXED)
@pytest.mark.parametrize("encoding", ["", "ZLIB"])
async def test_fixed_length_records(
    folder: Path, sizes: dict[str, int], data: bytes, expected: list[bytes], encoding: str
) -> None:
    (folder / "f").write_bytes(zlib.compress(data) if encoding else data)
    arguments: dict[str, Any] = dict(sizes)
    found = await Reading(af.FixedLengthRecordReader(4, encoding=encoding, **arguments), ["f"]).all()
    assert found == [(b"f:%d" % i, r, i + 1, 0) for i, r in enumerate(expected)] + [(len(expected), 1)]


async def test_tf_record_reader_reports_damaged_records(folder: Path) -> None:
    with af.io.TFRecordWriter("r") as writer:
        for record in (b"one", b"two"):
            writer.write(record)
    assert await Reading(af.TFRecordReader(), ["r", "r"]).all() == [
        (b"r:0", b"one", 1, 0), (b"r:19", b"two", 2, 0), (b"r:0", b"one", 3, 1), (b"r:19", b"two", 4, 1), (4, 2)
    ]  # fmt: skip
    (folder / "r").write_bytes((folder / "r").read_bytes()[:-1])
    reading = Reading(af.TFRecordReader(), ["r"])
    async with af.Session() as session:
        await reading.begin(session)
        assert (await session.run(reading.record))[1] == b"one"
        for _ in range(2):
            with pytest.raises(errors.DataLossError) as caught:
                await session.run(reading.record)
            assert caught.value.op_type == "ReaderReadV2"
        await session.run(reading.reset)
        assert [int(v) for v in await session.run(reading.counts)] == [0, 0]
        with pytest.raises(errors.OutOfRangeError):
            await session.run(reading.record)


async def test_compressed_records() -> None:
    for compression in ("GZIP", "ZLIB"):
        with af.io.TFRecordWriter("r", compression) as writer:
            writer.write(b"one")
        reader = af.TFRecordReader(options=af.io.TFRecordOptions(compression))
        assert (await Reading(reader, ["r"]).all())[0] == (b"r:0", b"one", 1, 0)


async def test_read_up_to_rejects_a_fed_count_of_zero() -> None:
    names, count = af.FIFOQueue(3, [af.string], [[]]), af.placeholder(af.int64, [])
    records = list(af.IdentityReader().read_up_to(names, count))
    async with af.Session() as session:
        with pytest.raises(errors.InvalidArgumentError) as caught:
            await session.run(records, {count: 0}, timeout=5)
    assert caught.value.actual == 0


async def test_readers_reject_wrong_queues_and_settings() -> None:
    reader = af.IdentityReader()
    with pytest.raises(errors.InvalidArgumentError):
        reader.read("a.txt")  # type: ignore[arg-type]  # wrong on purpose
    queue = af.FIFOQueue(3, [af.int32], [[]])
    async with af.Session() as session:
        with pytest.raises(errors.InvalidArgumentError, match="file names"):
            await session.run(reader.read(queue))
        names = af.FIFOQueue(3, [af.string], [[]])
        with pytest.raises(errors.InvalidArgumentError, match="positive"):
            await session.run(reader.read_up_to(names, 0))
    assert af.ReaderBase(reader.reader_ref, supports_serialize=True).supports_serialize
    for wrong in ({"record_bytes": 0}, {"record_bytes": 1, "hop_bytes": -1}, {"record_bytes": 1, "encoding": "LZ4"}):
        async with af.Session() as session:
            with pytest.raises(errors.InvalidArgumentError):
                await session.run(af.FixedLengthRecordReader(**wrong).num_records_produced())


async def test_readers_with_one_shared_name_share_state() -> None:
    first = af.raw_ops.IdentityReaderV2(shared_name="r")
    second = af.raw_ops.IdentityReaderV2(shared_name="r")
    lines = af.raw_ops.TextLineReaderV2(shared_name="r")
    queue = af.FIFOQueue(3, [af.string], [[]])
    record, enqueue = af.ReaderBase(first).read(queue), queue.enqueue(["a"])
    async with af.Session() as session:
        await session.run(enqueue)
        await session.run(list(record))
        assert await session.run(af.ReaderBase(second).num_records_produced()) == 1
        with pytest.raises(errors.InvalidArgumentError, match="different kind"):
            await session.run(af.ReaderBase(lines).num_records_produced())


@pytest.mark.parametrize("count", [None, 7])
async def test_concurrent_reads_return_each_line_once(folder: Path, count: int | None) -> None:
    (folder / "a").write_bytes(b"".join(b"%d\n" % i for i in range(700)))
    reading = Reading(af.TextLineReader(), ["a"], count)
    async with af.Session() as session:
        await reading.begin(session)
        async with asyncio.TaskGroup() as tg:
            tasks = [tg.create_task(session.run(reading.record)) for _ in range(700 // (count or 1))]
        assert sorted(int(line) for t in tasks for line in lines_of(t.result())) == list(range(700))


def lines_of(record: Any) -> list[bytes]:
    """Return the lines of a `read` or `read_up_to` result."""
    return [record[1]] if isinstance(record[1], bytes) else list(record[1])


@pytest.mark.parametrize("count", [None, 3])
async def test_cancelled_reads_keep_the_order_of_lines(folder: Path, count: int | None) -> None:
    (folder / "a").write_bytes(b"".join(b"%d\n" % i for i in range(100)))
    reading = Reading(af.TextLineReader(), ["a"], count)
    found: list[int] = []
    async with af.Session() as session:
        await reading.begin(session)
        for round in range(20):
            async with asyncio.TaskGroup() as tg:
                task = tg.create_task(session.run(reading.record))
                for _ in range(round):
                    await asyncio.sleep(0)
                task.cancel()
            if not task.cancelled():
                found.extend(map(int, lines_of(task.result())))
        while True:
            try:
                found.extend(map(int, lines_of(await session.run(reading.record))))
            except errors.OutOfRangeError:
                break
    # Lines of a cancelled read may be lost with its step, but are never out of order or repeated.
    assert found == sorted(set(found))
    assert found[-1] == 99


async def test_a_cancelled_wait_for_a_file_leaves_the_reader_usable() -> None:
    queue = af.FIFOQueue(3, [af.string], [[]])
    record, enqueue = list(af.IdentityReader().read(queue)), queue.enqueue(["a"])
    async with af.Session() as session:
        async with asyncio.TaskGroup() as tg:
            tasks = [tg.create_task(session.run(record)) for _ in range(3)]
            await until_waiting(session, 3)
            for task in tasks:
                task.cancel()
        assert all(task.cancelled() for task in tasks)
        await session.run(enqueue)
        assert await session.run(record) == [b"a", b"a"]


# ── turns ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_turns_are_granted_in_order() -> None:
    turns, (a, b, c) = FairLock("t"), (Ticket(), Ticket(), Ticket())
    assert turns.ask(a) == [a]
    assert turns.ask(b) == turns.ask(c) == []
    assert "waiting: 2" in turns.describe()
    assert turns.withdraw(b) == []
    assert turns.leave() == [c]
    assert turns.withdraw(c) == []
    assert turns.ask(Ticket())[0].resolved


def test_withdrawn_turn_passes_to_the_next() -> None:
    turns, (a, b, c) = FairLock("t"), (Ticket(), Ticket(), Ticket())
    for ticket in (a, b, c):
        turns.ask(ticket)
    assert turns.leave() == [b]
    assert turns.withdraw(b) == [c]


async def test_identity_reader_state_round_trips() -> None:
    queue = af.FIFOQueue(9, [af.string], [[]])
    reader, other = af.IdentityReader(), af.IdentityReader()
    state = af.placeholder(af.string, [])
    counts = [other.num_records_produced(), other.num_work_units_completed()]
    save, restore = reader.serialize_state(), other.restore_state(state)
    read, again = reader.read(queue), other.serialize_state()
    async with af.Session() as session:
        await session.run(queue.enqueue_many([["a", "b", "c"]]))
        empty = await session.run(save)
        for _ in range(2):
            await session.run(read)
        await session.run(restore, {state: await session.run(save)})
        assert await session.run(counts) == [2, 2]
        assert await session.run(again) == await session.run(save)
        await session.run(restore, {state: empty})
        assert await session.run(counts) == [0, 0]
        for wrong in (b"\x08", b"\x08\x02", b"\xff" * 20):
            with pytest.raises(errors.InvalidArgumentError):
                await session.run(restore, {state: wrong})
        lines = af.TextLineReader()
        assert not lines.supports_serialize
        for node in (lines.serialize_state(), lines.restore_state(b"")):
            with pytest.raises(errors.UnimplementedError):
                await session.run(node)
