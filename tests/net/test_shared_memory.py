"""Tensors in shared memory: received values never change, memory is returned, and peers are not trusted."""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import DataLossError, OpError, ResourceExhaustedError, UnavailableError
from aioflow.memory.segments import NAME, SHARED, TRAILER, Segment, has_segments
from aioflow.net.comm import Comm, CommOptions
from aioflow.net.credentials import Credentials
from aioflow.net.framing import FrameKind, WireMessage
from aioflow.net.limits import Limits
from aioflow.net.shared_memory import sharing
from aioflow.net.shared_memory.rings import Process, Ring
from aioflow.net.shared_memory.sharing import Sharing
from aioflow.net.shared_memory.tensors import Importer
from aioflow.testing.check_comm import connected
from tests.net.clusters import cluster
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(not has_segments(), reason="no sealed files in memory here, or /proc is not there")

SHARES: Final = CommOptions(shared_memory=True)
ALONE: Final = CommOptions(shared_memory=False)
SIZE: Final = 1_000_000
SECONDS: Final = 30.0


@pytest.fixture(autouse=True)
def all_comes_back() -> Iterator[None]:
    """Check that all exported memory is returned once a test's connections have ended and its arrays are dropped."""
    yield
    if SHARED.exported:
        gc.collect()
    assert SHARED.exported == 0
    assert SHARED.importers == 0


def filled(value: int, size: int = SIZE) -> np.ndarray[Any, Any]:
    return np.full(size, value, np.uint8)


def push(number: int, *tensors: Any) -> WireMessage:
    return WireMessage(FrameKind.PUSH, number, {"number": number}, tensors)


async def received(comm: Comm) -> WireMessage:
    async with asyncio.timeout(SECONDS):
        message = await comm.receive()
    assert message is not None
    return message


@asynccontextmanager
async def pair(first: CommOptions = SHARES, second: CommOptions = SHARES) -> AsyncIterator[tuple[Comm, Comm]]:
    """Yield two ends that have completed the exchange before the first tensor."""
    async with connected("tcp://127.0.0.1:0")(first, second) as (left, right):
        for one, other in ((left, right), (right, left), (left, right)):
            await one.send(push(0))
            await received(other)
        yield left, right


async def sent(first: Comm, second: Comm, *tensors: Any, number: int = 1) -> tuple[Any, ...]:
    await first.send(push(number, *tensors))
    message = await received(second)
    assert (message.kind, message.request, message.header) == (FrameKind.PUSH, number, {"number": number})
    return tuple(message.tensors)


# ── received values ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_large_tensors_are_exported_and_small_ones_sent_inline() -> None:
    small, large, text = np.arange(3), np.arange(500_000.0), np.array([b"x" * 1_000_000], object)
    bools = np.ones(SIZE, np.bool_)
    async with pair() as (first, second):
        found = await sent(first, second, small, large, text, filled(7), bools)
        for array, wanted in zip(found, (small, large, text, filled(7), bools), strict=True):
            np.testing.assert_array_equal(array, wanted)
            assert array.dtype == wanted.dtype
        assert SHARED.exported >= large.nbytes + SIZE
        assert not found[1].flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            found[1].flags.writeable = True


@pytest.mark.parametrize("options", [(ALONE, SHARES), (SHARES, ALONE), (ALONE, ALONE)])
async def test_end_without_shared_memory_receives_tensors_by_tcp(options: tuple[CommOptions, CommOptions]) -> None:
    async with pair(*options) as (first, second):
        for one, other in ((first, second), (second, first)):
            (array,) = await sent(one, other, filled(3))
            np.testing.assert_array_equal(array, filled(3))
        assert SHARED.exported == 0


@pytest.mark.parametrize("seals", [False, True])
async def test_authenticated_ends_share_memory(seals: bool) -> None:
    options = replace(SHARES, credentials=Credentials(b"a secret of some length", seals_loopback=seals))
    async with pair(options, options) as (first, second):
        (array,) = await sent(first, second, filled(3))
        np.testing.assert_array_equal(array, filled(3))
        assert SHARED.exported > 0


@pytest.mark.parametrize(
    "array",
    [
        np.arange(400_000, dtype=">f4"),
        np.arange(800_000.0)[::2],
        np.arange(400_000.0).reshape(400, 1000).T,
        np.arange(400_000).reshape(400, 1000)[:, 1:],
        np.zeros((1,) * 31 + (SIZE,), np.int8),
    ],
    ids=["other byte order", "steps", "transposed", "rows", "rank 32"],
)
async def test_any_layout_arrives(array: np.ndarray[Any, Any]) -> None:
    async with pair() as (first, second):
        (found,) = await sent(first, second, array)
        np.testing.assert_array_equal(found, array)
        assert found.dtype == array.dtype.newbyteorder("=")
        assert SHARED.exported > 0


async def test_held_arrays_are_not_changed_by_later_messages() -> None:
    async with pair() as (first, second):
        held = [(await sent(first, second, filled(n)))[0] for n in range(8)]
        part = held[3][10:20]
        held[3] = part
        for n in range(8, 40):
            await sent(first, second, filled(n))
        for n, array in enumerate(held):
            assert set(array.tolist()) == {n}


async def test_released_memory_is_reused() -> None:
    SHARED.trim(-1.0)  # drop what other tests of this process have left
    async with pair() as (first, second):
        for n in range(50):
            await sent(first, second, filled(n))
        await eventually(lambda: first.closed or SHARED.exported <= 2 * SIZE)
        assert SHARED.exported + SHARED.waiting <= 4 * SIZE


async def test_refused_message_exports_no_memory() -> None:
    """Refuse messages at the sender, and check that nothing stays exported."""
    async with pair() as (first, second):
        for _ in range(3):
            with pytest.raises(OpError):
                await first.send(WireMessage(FrameKind.PUSH, 1, {"x": object()}, (filled(1),)))
            with pytest.raises(OpError):
                await first.send(push(1, filled(1), np.array([object()])))
        assert SHARED.exported == 0
        await sent(first, second, filled(1))


async def test_tensors_beyond_the_limit_are_sent_by_the_connection() -> None:
    options = replace(SHARES, limits=Limits(shared_bytes=4 * SIZE))
    for ends in ((options, SHARES), (SHARES, options)):
        async with pair(*ends) as (first, second):
            held = [(await sent(first, second, filled(n)))[0] for n in range(12)]
            assert SHARED.exported <= 4 * SIZE
            assert [int(array[0]) for array in held] == list(range(12))
            assert sum(not array.flags.writeable for array in held) >= 2
            del held


async def test_unread_exports_are_bounded() -> None:
    options = replace(SHARES, limits=Limits(unread_bytes=2 * SIZE))
    async with pair(options, options) as (first, second):
        count = 0
        while first.post(push(count, filled(count % 251))):
            count += 1
            assert SHARED.exported <= 4 * SIZE
            assert count < 1000
        for number in range(count):
            message = await received(second)
            assert (message.request, set(message.tensors[0].tolist())) == (number, {number % 251})
        assert count > 2


# ── end of the connection ────────────────────────────────────────────────────────────────────────────────────────────


async def test_held_array_outlives_its_connection() -> None:
    async with pair() as (first, second):
        (held,) = await sent(first, second, filled(5))
        await asyncio.gather(first.close(), second.receive())
    async with pair() as (first, second):
        for n in range(20):
            await sent(first, second, filled(n))
    assert set(held.tolist()) == {5}


async def test_peer_receives_exported_tensors_after_a_close() -> None:
    async with pair() as (first, second), asyncio.TaskGroup() as tg:
        for n in range(5):
            await first.send(push(n, filled(n)))
        tg.create_task(first.close())
        for n in range(5):
            assert set((await received(second)).tensors[0].tolist()) == {n}
        assert await second.receive() is None


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def segment() -> Segment:
    return Segment(SIZE)


def described(segment: Segment, **changes: Any) -> list[Any]:
    """Return the description in a LENT message of bytes at the beginning of a segment, with these changes."""
    spec = {"index": 0, "dtype": "uint8", "shape": [SIZE], "nbytes": SIZE}
    place = {"number": segment.number, "fd": segment.fd, "file_bytes": segment.file_bytes, "offset": 0, "slot": 0}
    said = {**spec, **place, "turn": 1, **changes}
    return [*(said[key] for key in spec), [said[key] for key in (*place, "turn")]]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"offset": 8192}, DataLossError),
        ({"offset": -1}, DataLossError),
        ({"offset": 2**62}, DataLossError),
        ({"offset": 1.5}, DataLossError),
        ({"offset": 1, "dtype": "int64", "shape": [10], "nbytes": 80}, DataLossError),
        ({"file_bytes": 2 * SIZE}, DataLossError),
        ({"file_bytes": SIZE}, DataLossError),
        ({"file_bytes": 0}, DataLossError),
        ({"file_bytes": 2**62}, ResourceExhaustedError),
        ({"shape": [2**40], "nbytes": 2**40}, DataLossError),
        ({"shape": [SIZE], "nbytes": SIZE - 1}, DataLossError),
        ({"shape": [0], "nbytes": 0}, DataLossError),
        ({"shape": [1] * 33 + [SIZE]}, ResourceExhaustedError),
        ({"shape": [-1, -SIZE]}, DataLossError),
        ({"dtype": "string"}, DataLossError),
        ({"dtype": "bool"}, DataLossError),
        ({"dtype": "object"}, DataLossError),
        ({"slot": 256}, DataLossError),
        ({"slot": "0"}, DataLossError),
        ({"turn": 0}, DataLossError),
        ({"turn": 128}, DataLossError),
        ({"turn": True}, DataLossError),
        ({"index": -1}, DataLossError),
        ({"index": None}, DataLossError),
        ({"fd": 2**40}, UnavailableError),
        ({"fd": 2**31 - 1}, UnavailableError),
    ],
    ids=str,
)
def test_invalid_description_is_refused(segment: Segment, changes: dict[str, Any], error: type) -> None:
    importer = Importer(Process(os.getpid()), Ring(bytes(32)), Limits())
    with pytest.raises(error):
        importer.import_array(described(segment, **changes))
    assert importer.bytes == 0
    _, array = importer.import_array(described(segment))  # unchanged, the description is valid
    assert array.nbytes == importer.mapped - TRAILER - segment.size + SIZE


def test_reused_slot_or_resized_segment_is_refused(segment: Segment) -> None:
    importer = Importer(Process(os.getpid()), Ring(bytes(32)), Limits())
    _, held = importer.import_array(described(segment))
    with pytest.raises(DataLossError, match="used twice"):
        importer.import_array(described(segment, turn=2))
    with pytest.raises(DataLossError, match="changed its size"):
        importer.import_array(described(segment, slot=1, file_bytes=segment.size + 2 * TRAILER, shape=[8], nbytes=8))
    del held
    importer.import_array(described(segment, turn=2))


def test_held_and_mapped_memory_is_bounded() -> None:
    segments = [Segment(SIZE) for _ in range(6)]
    limits = Limits(shared_bytes=3 * segments[0].size)
    importer = Importer(Process(os.getpid()), Ring(bytes(32)), limits)
    for slot, segment in enumerate(segments):
        importer.import_array(described(segment, slot=slot))
        assert importer.mapped <= limits.shared_bytes + 3 * TRAILER
    held = [importer.import_array(described(segment, slot=slot))[1] for slot, segment in enumerate(segments[:3])]
    with pytest.raises(ResourceExhaustedError):
        importer.import_array(described(segments[3], slot=3))
    held.pop()
    importer.import_array(described(segments[3], slot=3))


@pytest.mark.parametrize("size", [SIZE, 64 * SIZE])
def test_two_segments_of_one_number_are_refused(size: int) -> None:
    """Protect the count of imported bytes, which is by segment number; a fetch is mapped anew each time."""
    first, second = Segment(SIZE), Segment(size)
    importer = Importer(Process(os.getpid()), Ring(bytes(32)), Limits(shared_bytes=2 * SIZE))
    _, held = importer.import_array(described(first), own=True)
    _, again = importer.import_array(described(first, slot=1), own=True)
    with pytest.raises(DataLossError, match="the same number"):
        importer.import_array(described(second, slot=2, number=first.number), own=True)
    assert importer.bytes == first.size
    del held, again
    assert importer.bytes == 0


def test_segments_retired_by_their_owner_are_unmapped(segment: Segment) -> None:
    importer = Importer(Process(os.getpid()), Ring(bytes(32)), Limits())
    importer.import_array(described(segment))
    importer.trim()
    assert importer.mapped > 0
    segment.retire()
    importer.trim()
    assert importer.mapped == 0


def made_by(name: str, folder: Path) -> int:
    """Return the descriptor of a file that is not a valid segment."""
    if name == "a pipe":
        read, write = os.pipe()
        os.close(write)
        return read
    if name == "a socket":
        return socket.socket().detach()
    if name == "a folder":
        return os.open(folder, os.O_RDONLY)
    if name == "a device":
        return os.open("/dev/zero", os.O_RDWR)
    if name == "a file":
        (folder / "memfd:aioflow").write_bytes(bytes(2 * TRAILER))
        return os.open(folder / "memfd:aioflow", os.O_RDWR)
    flags = os.MFD_CLOEXEC if name == "one that may shrink" else os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    fd = os.memfd_create("other" if name == "one of another program" else NAME, flags)
    os.ftruncate(fd, TRAILER if name == "a short one" else 2 * TRAILER)
    if name in ("a short one", "one of another program"):
        import fcntl

        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd


@pytest.mark.parametrize(
    "name",
    [
        *("a pipe", "a socket", "a folder", "a device", "a file"),
        *("one of another program", "one that may shrink", "one without seals", "a short one"),
    ],
)
def test_files_other_than_sealed_memory_files_are_not_mapped(name: str, tmp_path: Path) -> None:
    fd = made_by(name, tmp_path)
    try:
        with closing(Process(os.getpid())) as process, pytest.raises(DataLossError):
            process.open(fd, 2 * TRAILER)
    finally:
        os.close(fd)


def test_segment_can_be_written_and_resized_only_by_its_maker(segment: Segment) -> None:
    fd = os.open(f"/proc/self/fd/{segment.fd}", os.O_RDWR)
    try:
        with pytest.raises(PermissionError):
            mmap.mmap(fd, segment.size)
        with pytest.raises(PermissionError):
            os.write(fd, b"x")
        for size in (0, 2 * segment.size):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("kind", "header"),
    [
        (FrameKind.LENT, {}),
        (FrameKind.LENT, {"kind": 19, "header": {}, "lent": {}}),
        (FrameKind.LENT, {"kind": 19, "header": [], "lent": []}),
        (FrameKind.LENT, {"kind": 2, "header": {}, "lent": []}),
        (FrameKind.LENT, {"kind": 25, "header": {}, "lent": []}),
        (FrameKind.LENT, {"kind": 19, "header": {}, "lent": [[0, "uint8", [1], 1, [1, 0, 8192, 0, 0, 1]]]}),
        (FrameKind.LENT, {"kind": 19, "header": {}, "lent": [None]}),
        (FrameKind.LENT, {"kind": 19, "header": {}, "lent": [[0]] * 2000}),
        (FrameKind.MEMORY, {}),
        (FrameKind.MEMORY, {"process": 1, "board": 0, "nonce": "00" * 32, "bytes": 1, "unread": 1}),
        (FrameKind.MEMORY, {"process": -1, "board": 0, "nonce": "00" * 32, "bytes": 1, "unread": 1}),
        (FrameKind.MEMORY, {"process": 1, "board": 0, "nonce": 5, "bytes": 1, "unread": 1}),
    ],
)
@pytest.mark.parametrize("options", [SHARES, ALONE], ids=["shares", "alone"])
async def test_malformed_message_ends_the_connection(
    options: CommOptions, kind: FrameKind, header: dict[str, Any]
) -> None:
    async with pair(options, options) as (first, second):
        await first.send(WireMessage(kind, 0, header))
        with pytest.raises((DataLossError, ResourceExhaustedError, UnavailableError)):
            await received(second)
        assert second.closed
        with pytest.raises(OpError):
            await received(first)


@pytest.mark.parametrize(
    "change",
    [
        {"process": 2**31 - 1},
        {"process": 2**40},
        {"process": os.getppid()},
        {"board": 0},
        {"board": 10_000},
        {"nonce": "ff" * 32},
        {"nonce": ""},
    ],
    ids=str,
)
async def test_peer_with_unreachable_memory_falls_back_to_tcp(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Announce memory that is missing or different here, like a forwarded peer of another host or container."""
    begin = Sharing.begin
    told: list[Sharing] = []

    def lies(sharing: Sharing) -> WireMessage | None:
        message = begin(sharing)
        told.append(sharing)
        if message is None or len(told) > 1:
            return message
        return message._replace(header={**message.header, **change})

    monkeypatch.setattr(Sharing, "begin", lies)
    async with pair() as (first, second):
        for one, other in ((first, second), (second, first)):
            (array,) = await sent(one, other, filled(3))
            np.testing.assert_array_equal(array, filled(3))
        assert SHARED.exported == 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_memory_of_another_user_is_not_opened() -> None:
    if os.geteuid() == 0:
        segment = Segment(1)
        os.fchown(segment.fd, 12345, -1)  # as if that user had made the segment
        with closing(Process(os.getpid())) as process, pytest.raises(DataLossError, match="user"):
            process.open(segment.fd, segment.file_bytes)
    else:
        with pytest.raises(OSError, match="denied"):
            Process(1)


# ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────────

ROWS: Final = 300_000  # of float32: above the smallest size that is exported


def bring(value: af.Tensor) -> af.Tensor:
    """Return a small result that the worker computes from a value."""
    with af.device("/job:worker/task:0"):
        return af.stack([value[0], af.reduce_sum(value) / ROWS, value[-1]])


async def test_received_values_belong_to_their_own_step() -> None:
    """Change a variable while values sent of it may still be exported."""
    with af.device("/job:ps/task:0"):
        v = af.Variable(np.zeros(ROWS, np.float32), use_resource=True)
        add = v.assign_add(np.ones(ROWS, np.float32))
        doubled = v.read_value() * 2.0
    with af.device("/job:worker/task:0"):
        kept = af.Variable(np.zeros(ROWS, np.float32), use_resource=True)
        keep, more = kept.assign(doubled), kept.assign_add(np.ones(ROWS, np.float32))
    brought, result = bring(v.read_value()), bring(doubled)
    async with cluster("ps", "worker", tcp=True) as servers, af.Session(servers[1].target) as session:
        await session.run([v.initializer, kept.initializer])
        for n in range(1, 12):
            await session.run(add)
            np.testing.assert_array_equal(await session.run(brought), [n, n, n])
            np.testing.assert_array_equal(await session.run(result), [2 * n] * 3)
            await session.run(keep)
            await session.run(add)
            await session.run(v.assign_sub(np.ones(ROWS, np.float32)))
            np.testing.assert_array_equal((await session.run(more))[:3], [2 * n + 1] * 3)
        assert SHARED.exported + SHARED.waiting > 0


async def test_sent_result_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    with af.device("/job:ps/task:0"):
        x = af.placeholder("float32", [ROWS])
        result = af.sqrt(x + 1.0)
    brought = bring(result)
    copies: list[Any] = []
    new = sharing._new

    def counted(array: Any, reserve: bool) -> Any:
        copies.append(array.shape)
        return new(array, reserve)

    monkeypatch.setattr(sharing, "_new", counted)
    async with cluster("ps", "worker", tcp=True) as servers, af.Session(servers[0].target) as session:
        for n in range(5):
            if n == 2:  # by then the workers have exchanged their memory
                copies.clear()
            found = await session.run(brought, {x: np.full(ROWS, (n + 1.0) ** 2 - 1.0, np.float32)})
            np.testing.assert_allclose(found, [n + 1] * 3, rtol=1e-6)
        assert copies == []


async def test_fetch_is_writable_and_never_changes_later() -> None:
    with af.device("/job:ps/task:0"):
        x = af.placeholder("float32", [ROWS])
        doubled = x * 2.0
    async with cluster("ps", "worker", tcp=True) as servers, af.Session(servers[1].target) as session:
        found = [await session.run(doubled, {x: np.full(ROWS, n, np.float32)}) for n in range(6)]
        for n, array in enumerate(found):
            assert set(array.tolist()) == {2.0 * n}
            array[:10] = -1.0
        await session.run(doubled, {x: np.full(ROWS, 50.0, np.float32)})
        for n, array in enumerate(found):
            assert (array[9], array[10]) == (-1.0, 2.0 * n)
