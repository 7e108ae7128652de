"""Train from record files by a pipeline of queues: `python examples/input_pipeline.py [--data DIR] [--steps N]`.

Digits are written to several TFRecord files as `Example` messages. Then several readers read them at once, each example
is parsed and decoded, a queue shuffles and batches them, and a small network trains on the batches. Reading, decoding
and training go on side by side: each stage waits only when its queue is full or empty. Without --data the digits that
come with aioflow are used and a temporary folder; with it, the folder's MNIST files.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import aioflow as af
from aioflow.data import load_digits

Array = np.ndarray[Any, Any]


def write_records(folder: Path, images: Array, labels: Array, shards: int) -> list[str]:
    """Write the digits to `shards` files and return their names."""
    names = [str(folder / f"digits-{i:02d}-of-{shards:02d}.tfrecord") for i in range(shards)]
    for shard, name in enumerate(names):
        with af.io.TFRecordWriter(name) as writer:
            for image, label in zip(images[shard::shards], labels[shard::shards], strict=True):
                feature = {
                    "image": af.train.Feature(bytes_list=af.train.BytesList(value=[image.tobytes()])),
                    "label": af.train.Feature(int64_list=af.train.Int64List(value=[int(label)])),
                }
                writer.write(af.train.Example(features=af.train.Features(feature=feature)).SerializeToString())
    return names


def read_digit(names: af.FIFOQueue, pixels: int) -> list[af.Tensor]:
    """One digit: the next record of a reader of its own, parsed and decoded."""
    _, record = af.TFRecordReader().read(names)
    parsed = af.parse_single_example(
        record, {"image": af.FixedLenFeature([], af.string), "label": af.FixedLenFeature([], af.int64)}
    )
    image = af.cast(af.reshape(af.decode_raw(parsed["image"], af.uint8), [pixels]), af.float32) / 255.0
    return [image, parsed["label"]]


def network(images: af.Tensor, classes: int = 10, units: int = 64) -> af.Tensor:
    """The logits of a network with one hidden layer."""
    with af.variable_scope("network", reuse=af.AUTO_REUSE):
        w1 = af.get_variable("w1", [images.shape.as_list()[-1], units])
        b1 = af.get_variable("b1", [units], initializer=af.zeros_initializer())
        w2 = af.get_variable("w2", [units, classes])
        b2 = af.get_variable("b2", [classes], initializer=af.zeros_initializer())
    logits: af.Tensor = af.nn.relu(images @ w1 + b1) @ w2 + b2
    return logits


async def train(names: list[str], images: Array, labels: Array, steps: int, readers: int, batch: int) -> float:
    """Train for `steps` batches from the files, and return the accuracy on the test digits."""
    with af.Graph().as_default():
        af.set_random_seed(1)
        pixels = images.shape[1]
        queue = af.train.string_input_producer(names)
        digits = [read_digit(queue, pixels) for _ in range(readers)]
        x, y = af.train.shuffle_batch_join(digits, batch, capacity=2000 + 3 * batch, min_after_dequeue=1000)
        loss = af.reduce_mean(af.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=network(x)))
        step = af.train.AdamOptimizer(0.005).minimize(loss)
        hits = af.equal(af.argmax(network(af.constant(images.astype(np.float32) / 255)), 1), labels.astype(np.int64))
        accuracy = af.reduce_mean(af.cast(hits, af.float32))
        async with af.Session() as session:
            await session.run([af.global_variables_initializer(), af.local_variables_initializer()])
            async with af.train.Coordinator() as coord:
                af.train.start_queue_runners(session, coord)
                for number in range(1, steps + 1):
                    _, value = await session.run([step, loss])
                    if number % 100 == 0:
                        print(f"step {number}: loss {value:.3f}")
            return float(await session.run(accuracy))


def main(arguments: list[str] | None = None) -> float:
    """Run the example; returns the accuracy on the test digits."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="folder with the MNIST files")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--readers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args(arguments)
    training, test = digits_of(options.data)
    with tempfile.TemporaryDirectory() as folder:
        names = write_records(Path(folder), *training, options.shards)
        accuracy = asyncio.run(train(names, *test, options.steps, options.readers, options.batch))
    print(f"test accuracy {accuracy:.4f}")
    return accuracy


def digits_of(folder: Path | None) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Images [n, pixels] uint8 and labels, for training and for the test."""
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
