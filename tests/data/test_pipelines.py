"""Pipelines as a user sees them: async sources, back-pressure, errors, cancellation, checkpoints, files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import (
    DataLossError,
    DTypeError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    UnknownError,
)
from tests.support.waiting import eventually

Dataset = af.data.Dataset


class Source:
    """An async source that counts the items that were read, and whose items the test releases."""

    def __init__(self, count: int = 100, gated: bool = False) -> None:
        self.read = 0
        self.closed = False
        self.gate = asyncio.Semaphore(0 if gated else count)
        self._count = count

    async def items(self) -> AsyncIterator[int]:
        try:
            for number in range(self._count):
                self.read += 1
                await self.gate.acquire()
                yield number
        finally:
            self.closed = True

    def dataset(self) -> Any:
        return Dataset.from_generator(self.items, af.int64, [])


async def numbers(dataset: Any, most: int = 1000) -> list[Any]:
    """Return the first elements of a dataset as plain values."""
    found: list[Any] = []
    async with aiter(dataset) as elements:
        while len(found) < most:
            try:
                found.append(np.asarray(await anext(elements)).tolist())
            except StopAsyncIteration:
                break
    return found


# ── back-pressure ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_stages_read_only_what_is_needed() -> None:
    pipelines: list[tuple[Callable[[Any], Any], int]] = [
        (lambda d: d, 1),
        (lambda d: d.map(lambda x: x + 1).filter(lambda x: x > 0).batch(4), 4),
        (lambda d: d.shuffle(5), 5),
        (lambda d: d.batch(2).shuffle(3), 6),
    ]
    for build, most in pipelines:
        source = Source()
        async with aiter(build(source.dataset())) as elements:
            await anext(elements)
            # One more item is requested from the generator than it has yielded, if at all.
            assert source.read == most


async def test_prefetch_reads_as_many_as_its_buffer_holds() -> None:
    source = Source()
    async with aiter(source.dataset().prefetch(3)) as elements:
        assert await anext(elements) == 0
        await eventually(lambda: source.read >= 4)
        for _ in range(20):
            await asyncio.sleep(0)
        assert source.read == 4
        assert await anext(elements) == 1
        await eventually(lambda: source.read == 5)
    assert source.closed


async def test_coroutines_run_concurrently_in_order_and_within_the_limit() -> None:
    running, most, started = 0, 0, []
    release = asyncio.Event()

    async def call(x: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        started.append(int(x))
        await release.wait()
        running -= 1
        return x * 10

    dataset = Dataset.range(8).map(call, 3, output_types=af.int64)
    async with aiter(dataset) as elements, asyncio.TaskGroup() as group:
        first = group.create_task(anext(elements))
        await eventually(lambda: len(started) == 3)
        for _ in range(20):
            await asyncio.sleep(0)
        assert started == [0, 1, 2]
        release.set()
        assert await first == 0
        assert [int(x) async for x in elements] == [10, 20, 30, 40, 50, 60, 70]
    assert most <= 3


# ── cancellation and closing ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_cancelled_consumer_loses_no_element() -> None:
    source = Source(gated=True)
    async with aiter(source.dataset().map(lambda x: x + 1).batch(2)) as elements:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await anext(elements)
        for _ in range(6):
            source.gate.release()
        assert [(await anext(elements)).tolist() for _ in range(3)] == [[1, 2], [3, 4], [5, 6]]


async def test_a_step_that_fails_or_is_late_loses_no_element() -> None:
    with af.Graph().as_default():
        iterator = Dataset.range(5).make_initializable_iterator()
        number = iterator.get_next()
        never = af.FIFOQueue(1, af.int64, [()]).dequeue()
        async with af.Session() as session:
            await session.run(iterator.initializer)
            assert await session.run(number) == 0
            for _ in range(2):
                with pytest.raises(af.errors.DeadlineExceededError):
                    await session.run([number, never], timeout=0.01)
            assert [int(await session.run(number)) for _ in range(4)] == [1, 2, 3, 4]
            with pytest.raises(OutOfRangeError):
                await session.run(number)


async def test_closing_the_session_stops_sources_and_waiting_steps() -> None:
    source = Source(gated=True)
    with af.Graph().as_default():
        number = source.dataset().prefetch(2).make_one_shot_iterator().get_next()
        async with af.Session() as session, asyncio.TaskGroup() as group:
            waiting = group.create_task(_error_of(session.run(number)))
            await eventually(lambda: source.read == 1)
            await session.close()
        assert isinstance(waiting.result(), af.errors.CancelledError)
    assert source.closed


async def _error_of(awaitable: Any) -> BaseException | None:
    try:
        await awaitable
    except Exception as error:
        return error
    return None


async def test_a_new_initialization_stops_the_old_stages() -> None:
    source = Source()
    with af.Graph().as_default():
        iterator = source.dataset().prefetch(2).make_initializable_iterator()
        number = iterator.get_next()
        async with af.Session() as session:
            await session.run(iterator.initializer)
            assert await session.run(number) == 0
            source.closed = False
            await session.run(iterator.initializer)
            assert source.closed
            assert await session.run(number) == 0


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_errors_name_the_element_and_the_line_and_later_elements_follow() -> None:
    async def fail(x: Any) -> Any:
        if x == 1:
            raise KeyError("missing")
        return x

    async def broken() -> AsyncIterator[int]:
        yield 0
        raise OSError("disk")

    by_ops = Dataset.from_tensor_slices(["1", "x", "3"]).map(lambda text: af.string_to_number(text))
    for dataset, kind, after, note in (
        (by_ops, InvalidArgumentError, 3.0, "for element 1"),
        (Dataset.range(3).map(fail, output_types=af.int64), UnknownError, 2, "for element 1"),
        (Dataset.range(3).map(fail, 2, output_types=af.int64).prefetch(2), UnknownError, 2, "for element 1"),
        (Dataset.from_generator(broken, af.int64), UnknownError, None, "for element 1"),
    ):
        async with aiter(dataset) as elements:
            await anext(elements)
            with pytest.raises(kind) as raised:
                await anext(elements)
            assert any(note in each for each in raised.value.__notes__)
            assert await anext(elements, None) == after
    async with aiter(by_ops) as elements:
        await anext(elements)
        with pytest.raises(InvalidArgumentError, match=Path(__file__).name):
            await anext(elements)


async def test_wrong_arguments_are_refused() -> None:
    async def coroutine(x: Any) -> Any:
        return x

    numbers = Dataset.range(3)
    for build, kind, text in (
        (lambda: Dataset.from_tensor_slices(1), InvalidArgumentError, "a scalar has no slices"),
        (lambda: Dataset.from_tensor_slices(([1], [1, 2])), InvalidArgumentError, "first dimensions differ"),
        (lambda: numbers.map(coroutine), DTypeError, "output_types"),
        (lambda: numbers.map(lambda x: numbers), DTypeError, "returns a dataset"),
        (lambda: numbers.map(lambda x: None), DTypeError, "must return tensors"),
        (lambda: numbers.filter(lambda x: x), DTypeError, "scalar bool"),
        (lambda: numbers.flat_map(lambda x: x), DTypeError, "must return a dataset"),
        (lambda: numbers.concatenate(Dataset.from_tensors("x")), DTypeError, "different types"),
        (lambda: numbers.cache("file"), InvalidArgumentError, "memory only"),
        (lambda: Dataset.from_generator(list), DTypeError, "signature"),
        (lambda: list(numbers), DTypeError, "async for"),
    ):
        with pytest.raises(kind, match=text):
            build()
    refused: list[tuple[Any, type[Exception], str]] = [
        (numbers.batch(0), InvalidArgumentError, "at least 1"),
        (numbers.shard(2, 2), InvalidArgumentError, "out of range"),
        (numbers.shuffle(0), InvalidArgumentError, "at least 1"),
        (af.data.TFRecordDataset("no such file"), NotFoundError, "no such file"),
        (Dataset.from_generator(lambda: ["x"], af.int64), Exception, "element 0|item|int64"),
    ]
    for dataset, failure, text in refused:
        with pytest.raises(failure, match=text):
            await numbers_of(dataset)


async def numbers_of(dataset: Any) -> list[Any]:
    return await numbers(dataset)


# ── iterators in a graph ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_reinitializable_and_feedable_iterators() -> None:
    with af.Graph().as_default():
        one, other = Dataset.range(3), Dataset.range(10, 12)
        shared = af.data.Iterator.from_structure(one.output_types, one.output_shapes)
        begin_one, begin_other = shared.make_initializer(one), shared.make_initializer(other)
        single = other.make_one_shot_iterator()
        handle = af.placeholder(af.string, [])
        chosen = af.data.Iterator.from_string_handle(handle, one.output_types, one.output_shapes).get_next()
        with pytest.raises(DTypeError, match="other dtypes"):
            shared.make_initializer(Dataset.from_tensors(1.0))
        with pytest.raises(FailedPreconditionError, match="no initializer"):
            _ = shared.initializer
        number = shared.get_next()
        async with af.Session() as session:
            with pytest.raises(FailedPreconditionError, match="not initialized"):
                await session.run(number)
            await session.run(begin_one)
            assert await session.run(number) == 0
            await session.run(begin_other)
            assert await session.run(number) == 10
            a, b = await session.run([shared.string_handle(), single.string_handle()])
            found = [int(await session.run(chosen, {handle: each})) for each in (a, b, b)]
            assert found == [11, 10, 11]
            with pytest.raises(InvalidArgumentError, match="no handle of an iterator"):
                await session.run(chosen, {handle: "/nothing"})


async def test_functions_read_variables_tables_and_placeholders() -> None:
    with af.Graph().as_default():
        scale = af.get_variable("scale", initializer=np.int64(3))
        words = af.lookup.StaticHashTable(
            af.lookup.KeyValueTensorInitializer(["a", "b"], [7, 8], af.string, af.int64), -1
        )
        offset = af.placeholder(af.int64, [])

        def look_up(word: Any) -> Any:
            number: Any = words.lookup(word)
            return number * scale + offset

        dataset = Dataset.from_tensor_slices(["b", "c", "a"]).map(look_up)
        iterator = dataset.batch(2).make_initializable_iterator()
        found = iterator.get_next()
        async with af.Session() as session:
            await session.run([af.global_variables_initializer(), af.tables_initializer()])
            await session.run(iterator.initializer, {offset: 100})
            assert (await session.run(found)).tolist() == [124, 97]
            assert (await session.run(found)).tolist() == [121]


# ── checkpoints ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_training_restarted_from_a_checkpoint_sees_each_element_once(tmp_path: Path) -> None:
    def build() -> Any:
        dataset = Dataset.range(12).shuffle(5, seed=2).repeat(2).map(lambda x: x + 100).batch(3).prefetch(2)
        iterator = dataset.make_initializable_iterator()
        af.add_to_collection(af.GraphKeys.SAVEABLE_OBJECTS, af.data.experimental.make_saveable_from_iterator(iterator))
        return iterator, af.train.Saver()

    async def run(first: bool, steps: int, restore_first: bool = False) -> list[Any]:
        with af.Graph().as_default():
            iterator, saver = build()
            numbers = iterator.get_next()
            async with af.Session() as session:
                if restore_first:
                    await saver.restore(session, str(tmp_path / "model"))
                await session.run(iterator.initializer)
                if not first and not restore_first:
                    await saver.restore(session, str(tmp_path / "model"))
                found = [(await session.run(numbers)).tolist() for _ in range(steps)]
                await saver.save(session, str(tmp_path / "model"))
                return found

    whole = await run(True, 8)
    parts = await run(True, 2) + await run(False, 3) + await run(False, 3, restore_first=True)
    assert parts == whole


async def test_positions_without_a_seed_and_of_other_datasets() -> None:
    dataset = Dataset.range(10).shuffle(10).batch(2)
    async with aiter(dataset) as elements:
        await anext(elements)
        position = elements.state()
        rest = [batch.tolist() async for batch in elements]
    async with aiter(dataset) as elements:
        await elements.restore(position)
        assert [batch.tolist() async for batch in elements] == rest
    for wrong in (b"x", b"[2,3]", b'[1,5,"x"]', b"[1,5,[99,98]]"):
        async with aiter(Dataset.range(3)) as elements:
            await elements.restore(wrong)
            with pytest.raises(DataLossError, match="position"):
                await anext(elements)


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_files_of_records_lines_and_bytes(tmp_path: Path) -> None:
    for number in range(3):
        for kind in ("", "GZIP", "ZLIB"):
            with af.io.TFRecordWriter(tmp_path / f"{number}{kind}.records", kind) as writer:
                for record in range(4):
                    writer.write(b"%d-%d" % (number, record))
        (tmp_path / f"{number}.txt").write_bytes(b"line %d\r\nlast" % number)
    (tmp_path / "fixed").write_bytes(b"HHaabbccF")
    names = [str(tmp_path / f"{number}.records") for number in range(3)]
    expected = [b"%d-%d" % (number, record) for number in range(3) for record in range(4)]
    for kind in ("", "GZIP", "ZLIB"):
        of_kind = [name.replace(".records", f"{kind}.records") for name in names]
        assert await numbers(af.data.TFRecordDataset(of_kind, kind)) == expected
    listed = Dataset.list_files(str(tmp_path / "?.records"), shuffle=False)
    assert await numbers(listed) == [name.encode() for name in names]
    assert sorted(await numbers(Dataset.list_files(str(tmp_path / "?.records")))) == [name.encode() for name in names]
    assert await numbers(af.data.TFRecordDataset(listed)) == expected
    mixed = await numbers(listed.interleave(af.data.TFRecordDataset, 3, 2))
    assert mixed[:4] == [b"0-0", b"0-1", b"1-0", b"1-1"]
    assert sorted(mixed) == expected
    assert await numbers(af.data.TextLineDataset(str(tmp_path / "1.txt"))) == [b"line 1", b"last"]
    fixed = af.data.FixedLengthRecordDataset(str(tmp_path / "fixed"), 2, 2, 1)
    assert await numbers(fixed) == [b"aa", b"bb", b"cc"]
    dataset = af.data.TFRecordDataset(names)
    async with aiter(dataset) as elements:
        for _ in range(6):
            await anext(elements)
        position = elements.state()
    async with aiter(dataset) as elements:
        await elements.restore(position)
        assert [item async for item in elements] == expected[6:]
