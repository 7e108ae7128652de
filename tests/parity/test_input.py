"""Input pipelines against TensorFlow: readers of the same files, producers, epochs, dense and sparse batches."""

from __future__ import annotations

import asyncio
import gzip
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af

Build = Callable[[Any], Any]


def drained(tf: Any, build: Build, limit: int = 60) -> tuple[list[Any], list[Any]]:
    """Return all results of the pipeline in aioflow and in TensorFlow."""
    return asyncio.run(ours(build, limit)), theirs(tf, build, limit)


async def ours(build: Build, limit: int) -> list[Any]:
    found: list[Any] = []
    with af.Graph().as_default():
        fetches = build(af)
        async with af.Session() as session:
            await session.run([af.local_variables_initializer(), af.global_variables_initializer()])
            async with af.train.Coordinator() as coord:
                af.train.start_queue_runners(session, coord)
                for _ in range(limit):
                    found.append(await session.run(fetches))  # noqa: PERF401 (keeps the results read before the end)
    return found


def theirs(tf: Any, build: Build, limit: int) -> list[Any]:
    found: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with tf.Graph().as_default(), tf.Session() as session:
            fetches = build(tf)
            session.run([tf.local_variables_initializer(), tf.global_variables_initializer()])
            coord = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(session, coord)
            try:
                for _ in range(limit):
                    found.append(session.run(fetches))  # noqa: PERF401
            except tf.errors.OutOfRangeError:
                pass
            finally:
                coord.request_stop()
                coord.join(threads)
    return found


def plain(value: Any) -> Any:
    """Convert a result to nested lists."""
    if isinstance(value, dict):
        return {key: plain(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def same(tf: Any, build: Build, limit: int = 60) -> list[Any]:
    mine, others = drained(tf, build, limit)
    assert plain(mine) == plain(others)
    return mine


# ── readers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

CONTENTS = b"".join(b"line %d %s\n" % (i, b"x" * i) for i in range(9)) + b"\r\n\nlast"


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Write three files, one of them empty, and return their paths."""
    made = []
    for name, data in (("a", CONTENTS), ("empty", b""), ("b", b"one\ntwo\r\nthree")):
        (tmp_path / name).write_bytes(data)
        made.append(str(tmp_path / name))
    return made


def reading(reader: Callable[[Any], Any], names: list[str], count: int | None = None) -> Build:
    """Return a builder of a read: keys and values, and the reader's counts after it."""

    def build(m: Any) -> Any:
        queue = m.train.string_input_producer(names, 1, shuffle=False)
        made = reader(m)
        record = made.read(queue) if count is None else made.read_up_to(queue, count)
        with m.control_dependencies(list(record)):
            return [*record, made.num_records_produced(), made.num_work_units_completed()]

    return build


READERS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda m: m.WholeFileReader(),
    "identity": lambda m: m.IdentityReader(),
    "lines": lambda m: m.TextLineReader(),
    "lines after a header": lambda m: m.TextLineReader(skip_header_lines=2),
    "fixed": lambda m: m.FixedLengthRecordReader(4),
    "fixed with edges": lambda m: m.FixedLengthRecordReader(3, header_bytes=2, footer_bytes=1),
    "fixed with hops": lambda m: m.FixedLengthRecordReader(4, hop_bytes=6),
    "fixed, overlapping": lambda m: m.FixedLengthRecordReader(4, hop_bytes=2, header_bytes=1, footer_bytes=2),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("count", [None, 1, 4])
def test_readers(tf: Any, files: list[str], name: str, count: int | None) -> None:
    if name.startswith("fixed"):
        files = [
            file for file in files if not file.endswith("empty")
        ]  # TensorFlow rejects files shorter than the header
    assert len(same(tf, reading(READERS[name], files, count))) >= 2


@pytest.mark.parametrize("compression", ["ZLIB", "GZIP"])
def test_compressed_records_of_fixed_length(tf: Any, tmp_path: Path, compression: str) -> None:
    packed = zlib.compress(CONTENTS) if compression == "ZLIB" else gzip.compress(CONTENTS)
    (tmp_path / "packed").write_bytes(packed)
    names = [str(tmp_path / "packed")]
    found = same(tf, reading(lambda m: m.FixedLengthRecordReader(5, encoding=compression), names))
    assert len(found) == len(CONTENTS) // 5


@pytest.mark.parametrize("compression", ["", "ZLIB", "GZIP"])
@pytest.mark.parametrize("writer", ["theirs", "ours"])
def test_record_files(tf: Any, tmp_path: Path, compression: str, writer: str) -> None:
    module = tf if writer == "theirs" else af
    records = [b"", b"a", b"long" * 5000, b"\0\xff"]
    names = [str(tmp_path / name) for name in ("one", "two")]
    for name in names:
        with module.io.TFRecordWriter(name, module.io.TFRecordOptions(compression_type=compression)) as out:
            for record in records:
                out.write(record)

    def reader(m: Any) -> Any:
        kinds = m.io.TFRecordCompressionType
        kind = {"": kinds.NONE, "ZLIB": kinds.ZLIB, "GZIP": kinds.GZIP}[compression]
        return m.TFRecordReader(options=m.io.TFRecordOptions(kind))

    assert len(same(tf, reading(reader, names))) == 2 * len(records)


def test_reset_reader_starts_over(tf: Any, files: list[str]) -> None:
    def build(m: Any, steps: int = 0) -> tuple[Any, Any, Any]:
        queue = m.FIFOQueue(9, [m.string], [[]])
        reader = m.TextLineReader()
        return queue.enqueue_many([[files[0], files[2]]]), reader.read(queue), (
            reader.reset(), [reader.num_records_produced(), reader.num_work_units_completed()]
        )  # fmt: skip

    with tf.Graph().as_default(), tf.Session() as session:
        start, record, (reset, counts) = build(tf)
        session.run(start)
        expected = [session.run(record), session.run(record), session.run(counts)]
        session.run(reset)
        expected += [session.run(counts), session.run(record), session.run(counts)]

    async def mine() -> list[Any]:
        with af.Graph().as_default():
            start, record, (reset, counts) = build(af)
            async with af.Session() as session:
                await session.run(start)
                found = [await session.run(record), await session.run(record), await session.run(counts)]
                await session.run(reset)
                return [*found, await session.run(counts), await session.run(record), await session.run(counts)]

    assert plain(asyncio.run(mine())) == plain(expected)


def test_identity_reader_serializes_its_state(tf: Any, files: list[str]) -> None:
    """Compare the serialized states. In both systems only an identity reader can save its state."""

    def build(m: Any) -> tuple[Any, ...]:
        queue = m.FIFOQueue(9, [m.string], [[]])
        reader, other = m.IdentityReader(), m.IdentityReader()
        state = m.placeholder(m.string, [])
        assert reader.supports_serialize
        return (queue.enqueue_many([["a", "b", "c"]]), reader.read(queue), reader.serialize_state(), state,
                other.restore_state(state), [other.num_records_produced(), other.num_work_units_completed()],
                other.read(queue))  # fmt: skip

    with tf.Graph().as_default(), tf.Session() as session:
        start, read, save, state, restore, counts, again = build(tf)
        session.run(start)
        before = [session.run(save), session.run(read), session.run(save)]
        session.run(restore, {state: before[2]})
        expected = [*before, session.run(counts), session.run(again), session.run(counts)]
        for wrong in (b"nonsense", b"\x08\x05"):
            with pytest.raises(tf.errors.InvalidArgumentError):
                session.run(restore, {state: wrong})
        with pytest.raises(tf.errors.UnimplementedError):
            session.run(tf.TextLineReader().serialize_state())

    async def mine() -> list[Any]:
        with af.Graph().as_default():
            start, read, save, state, restore, counts, again = build(af)
            async with af.Session() as session:
                await session.run(start)
                before = [await session.run(save), await session.run(read), await session.run(save)]
                await session.run(restore, {state: before[2]})
                found = [*before, await session.run(counts), await session.run(again), await session.run(counts)]
                for wrong in (b"nonsense", b"\x08\x05"):
                    with pytest.raises(af.errors.InvalidArgumentError):
                        await session.run(restore, {state: wrong})
                with pytest.raises(af.errors.UnimplementedError):
                    await session.run(af.TextLineReader().serialize_state())
                return found

    assert plain(asyncio.run(mine())) == plain(expected)


# ── producers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def counted(tf: Any, build: Build) -> None:
    """Check that both systems yield the same elements equally often, in any order."""
    mine, others = (sorted(map(str, plain(found))) for found in drained(tf, build))
    assert mine == others
    assert mine


@pytest.mark.parametrize("shuffle", [False, True])
def test_producers(tf: Any, shuffle: bool) -> None:
    check = counted if shuffle else same
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    check(tf, lambda m: m.train.input_producer(rows, num_epochs=3, shuffle=shuffle).dequeue())
    check(tf, lambda m: m.train.string_input_producer(["a", "b"], 3, shuffle).dequeue())
    check(tf, lambda m: m.train.range_input_producer(5, 3, shuffle).dequeue())
    check(tf, lambda m: m.train.slice_input_producer([rows, ["a", "b", "c", "d"]], 2, shuffle))


def test_each_epoch_has_every_row(tf: Any) -> None:
    for found in drained(tf, lambda m: m.train.range_input_producer(7, 4, True, seed=3).dequeue()):
        epochs = np.reshape(plain(found), (4, 7))
        np.testing.assert_array_equal(np.sort(epochs, axis=1), np.tile(np.arange(7), (4, 1)))
        assert len({tuple(epoch) for epoch in epochs.tolist()}) > 1


def test_input_producer_uses_element_shape(tf: Any) -> None:
    def build(m: Any) -> Any:
        rows = m.placeholder_with_default(np.ones((2, 3), np.float32), [None, None])
        return m.train.input_producer(rows, element_shape=[3], num_epochs=1).dequeue()

    same(tf, build)


def test_limit_epochs(tf: Any) -> None:
    same(tf, lambda m: m.train.limit_epochs(m.constant([1, 2]), 3))
    for m in (tf, af):
        with m.Graph().as_default():
            tensor = m.constant(1)
            assert m.train.limit_epochs(tensor) is tensor
            m.train.limit_epochs(tensor, 3)
            names = [v.name for v in m.get_collection(m.GraphKeys.LOCAL_VARIABLES)]
            assert names == ["limit_epochs/epochs:0"]
            with pytest.raises(ValueError):
                m.train.limit_epochs(tensor, 0)


def test_match_filenames_once(tf: Any, tmp_path: Path) -> None:
    for name in ("a1", "a2", "b1"):
        (tmp_path / name).write_bytes(b"")

    def build(m: Any) -> Any:
        names = m.train.match_filenames_once(str(tmp_path / "a*"))
        assert [v.name for v in m.get_collection(m.GraphKeys.LOCAL_VARIABLES)] == ["matching_filenames:0"]
        return m.train.string_input_producer(m.identity(names), 2, shuffle=False).dequeue()

    assert len(same(tf, build)) == 4


# ── batches ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def numbers(m: Any, count: int = 10) -> Any:
    return m.train.range_input_producer(count, 1, shuffle=False).dequeue()


def sparse_of(m: Any, number: Any) -> Any:
    """Return a sparse vector n, n + 1, … of 0 to 2 values."""
    length = m.cast(number % 3, m.int64)
    values = m.range(length) + m.cast(number, m.int64)
    return m.SparseTensor(m.expand_dims(m.range(length), 1), values, m.expand_dims(length + 1, 0))


def sparse_rows(m: Any, number: Any) -> Any:
    """Return two sparse rows: the vector of `sparse_of`, and an empty row."""
    one = sparse_of(m, number)
    zeros = m.zeros_like(one.indices)
    return m.SparseTensor(m.concat([zeros, one.indices], 1), one.values, [2, 5])


BATCHES: dict[str, Build] = {
    "one": lambda m: m.train.batch([numbers(m)], 3),
    "the rest too": lambda m: m.train.batch([numbers(m), m.constant("x")], 3, allow_smaller_final_batch=True),
    "a dictionary": lambda m: m.train.batch({"b": numbers(m), "a": m.constant([1.5, 2.5])}, 4),
    "rows": lambda m: m.train.batch([m.stack([(n := numbers(m)), n + 1])], 3, enqueue_many=True),
    "padded": lambda m: m.train.batch([m.range((n := numbers(m)) % 3), n], 3, dynamic_pad=True, shapes=[[None], []]),
    "shape alone": lambda m: m.train.batch([m.placeholder_with_default(numbers(m), None)], 3, shapes=()),
    "sparse": lambda m: m.train.batch([sparse_of(m, n := numbers(m)), n], 3),
    "sparse alone": lambda m: m.train.batch([sparse_of(m, numbers(m))], 5),
    "sparse in a dictionary": lambda m: m.train.batch({"s": sparse_of(m, n := numbers(m)), "n": n}, 2),
    "sparse rows": lambda m: m.train.batch(
        [sparse_rows(m, n := numbers(m)), m.stack([n, n])], 3, enqueue_many=True, allow_smaller_final_batch=True
    ),
    "sparse, the rest too": lambda m: m.train.batch([sparse_of(m, numbers(m))], 4, allow_smaller_final_batch=True),
    "maybe": lambda m: m.train.maybe_batch([n := numbers(m)], n % 3 > 0, 2),
    "maybe rows": lambda m: m.train.maybe_batch(
        [m.stack([(n := numbers(m)), n * 10])], m.stack([n % 2 > 0, n % 3 > 0]), 3, enqueue_many=True
    ),
    "maybe all rows": lambda m: m.train.maybe_batch([m.stack([(n := numbers(m)), n])], n % 2 > 0, 4, enqueue_many=True),
    "maybe join": lambda m: m.train.maybe_batch_join([[n := numbers(m)]], n % 2 > 0, 2),
}


@pytest.mark.parametrize("name", BATCHES)
def test_batches(tf: Any, name: str) -> None:
    assert same(tf, BATCHES[name])


def flat_sorted(found: list[Any]) -> list[Any]:
    return sorted(np.concatenate([np.reshape(batch, -1) for batch in found]).tolist())


SHUFFLED: dict[str, Build] = {
    "shuffle": lambda m: m.train.shuffle_batch([numbers(m)], 3, 8, 4, allow_smaller_final_batch=True),
    "maybe": lambda m: m.train.maybe_shuffle_batch(
        [n := numbers(m)], 2, 8, 4, n % 2 > 0, allow_smaller_final_batch=True
    ),
    "join": lambda m: m.train.shuffle_batch_join(
        [[numbers(m)], [numbers(m, 5) + 100]], 3, 8, 4, allow_smaller_final_batch=True
    ),
    "maybe join": lambda m: m.train.maybe_shuffle_batch_join(
        [[n := numbers(m)], [n + 100]], 3, 8, 4, n % 2 > 0, allow_smaller_final_batch=True
    ),
    "ordered join": lambda m: m.train.batch_join(
        [[numbers(m)], [numbers(m, 5) + 100]], 3, allow_smaller_final_batch=True
    ),
}


@pytest.mark.parametrize("name", SHUFFLED)
def test_shuffled_batches_have_the_same_elements(tf: Any, name: str) -> None:
    """Compare the elements. For "maybe join" only their number is equal: both sources take numbers from one queue."""
    mine, others = (flat_sorted(found) for found in drained(tf, SHUFFLED[name]))
    if name == "maybe join":
        assert len(mine) == len(others) == 5
    else:
        assert mine == others


def test_shapes_of_batches(tf: Any) -> None:
    found: list[Any] = []
    for m in (tf, af):
        with m.Graph().as_default():
            n = numbers(m)
            dense, sparse = m.train.batch([m.stack([n, n]), sparse_of(m, n)], 3)
            rows = m.train.batch([sparse_rows(m, n)], 3, enqueue_many=True)
            tensors = [dense, sparse.indices, sparse.values, sparse.dense_shape, rows.indices, rows.dense_shape]
            found.append([t.shape.as_list() for t in tensors])
    assert found[1] == found[0]


@pytest.mark.parametrize("wrong", [
    lambda m: m.train.maybe_batch([m.constant(1)], [True], 2),
    lambda m: m.train.maybe_batch([m.constant([1])], [[True]], 2, enqueue_many=True),
    lambda m: m.train.maybe_batch([m.constant(1)], m.placeholder(m.bool), 2),
    lambda m: m.train.batch([], 2),
])  # fmt: skip
def test_both_reject_wrong_arguments(tf: Any, wrong: Build) -> None:
    for m in (tf, af):
        with m.Graph().as_default(), pytest.raises(ValueError):
            wrong(m)


def test_sharded_names(parity: Any) -> None:
    parity(lambda m: m.raw_ops.ShardedFilename(basename="x/y", shard=3, num_shards=1000), grad=False)
    parity(lambda m: m.raw_ops.ShardedFilespec(basename="x/y", num_shards=7), grad=False)
