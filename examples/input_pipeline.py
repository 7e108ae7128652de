"""Train from record files by a pipeline of queues: `python examples/input_pipeline.py [--data DIR] [--epochs N]`.

Digits are written to several TFRecord files as `Example` messages. Several readers then read them concurrently, in
groups that are parsed and decoded together. A queue shuffles and batches them, and a small network trains on the
batches. Reading, decoding and training overlap: each stage waits only when its queue is full or empty. After the last
epoch the readers find no more files, each queue is drained, and training ends. Ctrl-C ends it at once.

Without --data the digits that come with aioflow are used; with it, the folder's MNIST files: 97 % in a minute or two.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import aioflow as af
from aioflow.demo.digits import load_digits

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Report:
    """The result of training.

    Attributes:
        accuracy: Accuracy on the test digits.
        seen: Number of times that each record was read.
        rate: Records per second, including training.
    """

    accuracy: float
    seen: Array
    rate: float


def write_records(folder: Path, images: Array, labels: Array, shards: int) -> list[str]:
    """Write the digits to `shards` files and return their names. A record's id is the number of its digit."""
    names = [str(folder / f"digits-{i:02d}-of-{shards:02d}.tfrecord") for i in range(shards)]
    for shard, name in enumerate(names):
        with af.io.TFRecordWriter(name) as writer:
            for number in range(shard, len(labels), shards):
                feature = {
                    "image": af.train.Feature(bytes_list=af.train.BytesList(value=[images[number].tobytes()])),
                    "label": af.train.Feature(int64_list=af.train.Int64List(value=[int(labels[number])])),
                    "id": af.train.Feature(int64_list=af.train.Int64List(value=[number])),
                }
                writer.write(af.train.Example(features=af.train.Features(feature=feature)).SerializeToString())
    return names


def read_digits(names: af.FIFOQueue, pixels: int) -> list[af.Tensor]:
    """Build a reader, and return its next records, parsed and decoded to images, labels and ids."""
    _, records = af.TFRecordReader().read_up_to(names, 32)
    number = af.FixedLenFeature([], af.int64)
    parsed = af.parse_example(records, {"image": af.FixedLenFeature([], af.string), "label": number, "id": number})
    images = af.cast(af.reshape(af.decode_raw(parsed["image"], af.uint8), [-1, pixels]), af.float32) / 255.0
    return [images, parsed["label"], parsed["id"]]


def pipeline(names: list[str], pixels: int, readers: int, batch: int, epochs: int) -> list[af.Tensor]:
    """Build batches of digits in random order, each digit `epochs` times. The last batch may be smaller."""
    queue = af.train.string_input_producer(names, num_epochs=epochs)
    batches: list[af.Tensor] = af.train.shuffle_batch_join(
        [read_digits(queue, pixels) for _ in range(readers)],
        batch,
        capacity=2000 + 3 * batch,
        min_after_dequeue=1000,
        enqueue_many=True,
        allow_smaller_final_batch=True,
    )
    return batches


def network(images: af.Tensor, classes: int = 10, units: int = 128) -> af.Tensor:
    """Build the logits of a network with one hidden layer."""
    with af.variable_scope("network", reuse=af.AUTO_REUSE):
        w1 = af.get_variable("w1", [images.shape.as_list()[-1], units])
        b1 = af.get_variable("b1", [units], initializer=af.zeros_initializer())
        w2 = af.get_variable("w2", [units, classes])
        b2 = af.get_variable("b2", [classes], initializer=af.zeros_initializer())
    logits: af.Tensor = af.nn.relu(images @ w1 + b1) @ w2 + b2
    return logits


async def train(
    names: list[str], count: int, images: Array, labels: Array, *, epochs: int, readers: int, batch: int
) -> Report:
    """Train `epochs` times on the `count` digits in the files, and test on the given digits."""
    with af.Graph().as_default() as graph:
        af.set_random_seed(1)
        x, y, numbers = pipeline(names, images.shape[1], readers, batch, epochs)
        waiting = graph.get_collection(af.GraphKeys.QUEUE_RUNNERS)[-1].queue.size()
        loss = af.reduce_mean(af.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=network(x)))
        step = af.train.AdamOptimizer(0.002).minimize(loss)
        tests = af.placeholder(af.float32, [None, images.shape[1]])
        found = af.argmax(network(tests), 1)
        seen = np.zeros(count, int)
        started = time.perf_counter()
        async with af.Session() as session:
            await session.run([af.global_variables_initializer(), af.local_variables_initializer()])
            # The block ends without an error when the pipeline raises OutOfRangeError: there are no digits left.
            async with af.train.Coordinator() as coord:
                af.train.start_queue_runners(session, coord)
                for number in range(1, 1 << 62):
                    _, value, ids, left = await session.run([step, loss, numbers, waiting])
                    np.add.at(seen, ids, 1)
                    if number % 100 == 0:
                        rate = seen.sum() / (time.perf_counter() - started)
                        print(
                            f"step {number}: loss {value:.3f}, {rate:,.0f} records/s, {left} in the queue", flush=True
                        )
            rate = float(seen.sum() / (time.perf_counter() - started))
            right = await session.run(found, {tests: images.astype(np.float32) / 255}) == labels
            return Report(float(right.mean()), seen, rate)


def main(arguments: list[str] | None = None) -> Report:
    """Run the example."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="folder with the MNIST files")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--readers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args(arguments)
    training, test = digits_of(options.data)
    count = len(training[1])
    with tempfile.TemporaryDirectory() as folder:
        names = write_records(Path(folder), *training, options.shards)
        print(f"{count:,} records in {len(names)} files", flush=True)
        settings = {"epochs": options.epochs, "readers": options.readers, "batch": options.batch}
        try:
            report = asyncio.run(train(names, count, *test, **settings))
        except KeyboardInterrupt:
            raise SystemExit("interrupted") from None
    times = sorted(set(report.seen.tolist()))
    print(f"each record was read {times} times, {report.rate:,.0f} a second; test accuracy {report.accuracy:.4f}")
    return report


def digits_of(folder: Path | None) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return images [n, pixels] uint8 and labels, for training and for the test."""
    if folder is not None:
        found: list[tuple[Array, Array]] = []
        for name in ("train", "t10k"):
            labels = np.frombuffer(
                gzip.decompress((folder / f"{name}-labels-idx1-ubyte.gz").read_bytes())[8:], np.uint8
            )
            pixels = gzip.decompress((folder / f"{name}-images-idx3-ubyte.gz").read_bytes())[16:]
            found.append((np.frombuffer(pixels, np.uint8).reshape(len(labels), -1), labels))
    else:
        found = [((split.images * 255).astype(np.uint8), split.labels) for split in load_digits().split(seed=0)]
    (train_x, train_y), (test_x, test_y) = found
    return (train_x.reshape(len(train_x), -1), train_y), (test_x.reshape(len(test_x), -1), test_y)


if __name__ == "__main__":
    main()
