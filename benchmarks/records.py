"""Throughput of an input pipeline that reads, parses, shuffles and batches records."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import aioflow as af
from benchmarks.tables import BASELINE, Quantity, Row, Target, beside

__all__ = ["RECORD_ROWS"]

_RECORDS = 20_000
_FILES = 8
_READERS = 3
_BATCH = 64
_PIXELS = 784
_ROUNDS = 7
_CALLS = 4
_TARGET = 3.0
_DATASET_TARGET = 1.0


def write_files(folder: Path) -> list[str]:
    """Write images as bytes, each with a label and a number, and return the names of the files."""
    images = np.random.default_rng(0).integers(0, 256, (_RECORDS, _PIXELS), np.uint8)
    names = [str(folder / f"{i}.tfrecord") for i in range(_FILES)]
    for first, name in enumerate(names):
        with af.io.TFRecordWriter(name) as writer:
            for number in range(first, _RECORDS, _FILES):
                feature = {
                    "image": af.train.Feature(bytes_list=af.train.BytesList([images[number].tobytes()])),
                    "label": af.train.Feature(int64_list=af.train.Int64List([number % 10])),
                    "id": af.train.Feature(int64_list=af.train.Int64List([number])),
                }
                writer.write(af.train.Example(af.train.Features(feature)).SerializeToString())
    return names


def batches(m: Any, names: list[str], together: int) -> Any:
    """Build shuffled batches of parsed records, each record once; each reader reads `together` records per step."""
    queue = m.train.string_input_producer(names, num_epochs=1)
    return m.train.shuffle_batch_join(
        [_parsed(m, queue, together) for _ in range(_READERS)],
        _BATCH,
        capacity=2000 + 3 * _BATCH,
        min_after_dequeue=1000,
        enqueue_many=together > 1,
        allow_smaller_final_batch=True,
    )


def _parsed(m: Any, queue: Any, together: int) -> list[Any]:
    reader, number = m.TFRecordReader(), m.FixedLenFeature([], m.int64)
    features = {"image": m.FixedLenFeature([], m.string), "label": number, "id": number}
    if together == 1:
        found, shape = m.parse_single_example(reader.read(queue)[1], features), [_PIXELS]
    else:
        found, shape = m.parse_example(reader.read_up_to(queue, together)[1], features), [-1, _PIXELS]
    pixels = m.reshape(m.decode_raw(found["image"], m.uint8), shape)
    return [m.cast(pixels, m.float32) / 255.0, found["label"], found["id"]]


async def ours(names: list[str], together: int) -> float:
    """Return the seconds in aioflow."""
    seen = 0
    with af.Graph().as_default():
        fetches = batches(af, names, together)
        async with af.Session() as session:
            await session.run([af.global_variables_initializer(), af.local_variables_initializer()])
            started = time.perf_counter()
            async with af.train.Coordinator() as coord:
                af.train.start_queue_runners(session, coord)
                while True:
                    seen += len((await session.run(fetches))[2])
            return _checked(seen, started)


def theirs(m: Any, names: list[str], together: int) -> float:
    """Return the seconds in TensorFlow."""
    seen = 0
    with m.Graph().as_default():
        fetches = batches(m, names, together)
        with m.Session() as session:
            session.run([m.global_variables_initializer(), m.local_variables_initializer()])
            started = time.perf_counter()
            coord = m.train.Coordinator()
            threads = m.train.start_queue_runners(session, coord)
            try:
                while True:
                    seen += len(session.run(fetches)[2])
            except m.errors.OutOfRangeError:
                coord.request_stop()
            coord.join(threads)
            return _checked(seen, started)


def dataset_of(m: Any, names: list[str]) -> Any:
    """Return a dataset of batches of parsed records, with four parallel calls."""
    number = m.FixedLenFeature([], m.int64)
    features = {"image": m.FixedLenFeature([], m.string), "label": number, "id": number}

    def parse(record: Any) -> Any:
        found = m.parse_single_example(record, features)
        pixels = m.reshape(m.decode_raw(found["image"], m.uint8), [_PIXELS])
        return m.cast(pixels, m.float32) / 255.0, found["label"], found["id"]

    return m.data.TFRecordDataset(names).map(parse, num_parallel_calls=_CALLS).batch(_BATCH)


async def our_dataset(names: list[str]) -> float:
    """Return the seconds of a dataset in aioflow."""
    seen = 0
    with af.Graph().as_default():
        fetches = af.data.make_one_shot_iterator(dataset_of(af, names)).get_next()
        async with af.Session() as session:
            started = time.perf_counter()
            async with session.stream(fetches) as batches:
                async for batch in batches:
                    seen += len(batch[2])
            return _checked(seen, started)


def their_dataset(m: Any, names: list[str]) -> float:
    """Return the seconds of a dataset in TensorFlow."""
    seen = 0
    with m.Graph().as_default():
        fetches = m.data.make_one_shot_iterator(dataset_of(m, names)).get_next()
        with m.Session() as session:
            started = time.perf_counter()
            try:
                while True:
                    seen += len(session.run(fetches)[2])
            except m.errors.OutOfRangeError:
                return _checked(seen, started)


def _checked(seen: int, started: float) -> float:
    seconds = time.perf_counter() - started
    if seen != _RECORDS:
        raise RuntimeError(f"{seen} records instead of {_RECORDS}")
    return seconds


def measure(together: int, what: str) -> Row:
    """Return a row of the table: queues, whose readers read `together` records per step."""
    name = f"TFRecords read, parsed, shuffled and batched by three readers, {what}"
    return _compared(name, partial(ours, together=together), partial(theirs, together=together), _TARGET)


def measure_dataset() -> Row:
    """Return a row of the table: a dataset."""
    name = "TFRecords read, parsed by four parallel calls and batched, a dataset"
    return _compared(name, our_dataset, their_dataset, _DATASET_TARGET)


def _compared(name: str, ours: Callable[..., Any], theirs: Callable[..., float], target: float) -> Row:
    """Return a row of the table: medians of alternating rounds, each with a new graph and session."""
    import tensorflow.compat.v1 as tf  # heavy, and only this function needs it

    tf.disable_eager_execution()
    tf.logging.set_verbosity(tf.logging.ERROR)  # silence the deprecation warnings of readers and queues
    our_times, their_times = [], []
    with tempfile.TemporaryDirectory() as folder:
        names = write_files(Path(folder))
        for _ in range(_ROUNDS):
            their_times.append(theirs(tf, names))
            our_times.append(asyncio.run(ours(names)))
    ratio = median(our_times) / median(their_times)
    theirs_rate, rate = (Quantity(_RECORDS / median(times), "records/s") for times in (their_times, our_times))
    return beside(name, rate, theirs_rate, Target(target), other=BASELINE, ratio=ratio)


RECORD_ROWS: tuple[Callable[[], Row], ...] = (
    partial(measure, 1, "one record per step"),
    partial(measure, 64, "64 records per step"),
    measure_dataset,
)
