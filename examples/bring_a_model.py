"""A model from a file: load it, run it, fine-tune it, save it, export it.

The file is an ONNX model that classifies handwritten digits, bright on dark. The data are dark on bright, which the
model has not learned. The example creates the file first, so that it needs no download; any other model works as well.

    python examples/bring_a_model.py
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import numpy as np

import aioflow as af
from aioflow.demo.digits import Digits, load_digits
from aioflow.interop import onnx

STEPS = 200
BATCH = 128


async def make_file(path: Path, digits: Digits) -> None:
    """Train a model and export it to a file, which takes the place of a downloaded model."""
    random = np.random.default_rng(0)
    with af.Graph().as_default():
        images = af.placeholder(af.float32, [None, 64], name="images")
        first = af.Variable((random.standard_normal((64, 96)) / 8).astype(np.float32), name="first")
        bias = af.Variable(np.zeros(96, np.float32), name="bias")
        second = af.Variable((random.standard_normal((96, 10)) / 10).astype(np.float32), name="second")
        scores = af.matmul(af.nn.relu(af.matmul(images, first) + bias), second, name="scores")
        loss = af.reduce_mean(af.nn.sparse_softmax_cross_entropy_with_logits(labels=digits.labels, logits=scores))
        train = af.train.AdamOptimizer(0.01).minimize(loss)
        async with af.Session() as session:
            await session.run(af.global_variables_initializer())
            for _ in range(60):
                await session.run(train, {images: digits.images})
            await onnx.export(session, {"scores": scores}, {"images": images}, path=path)


async def share_right(session: af.Session, model: af.interop.Model, digits: Digits) -> float:
    """Return the fraction of the digits that the model classifies correctly."""
    scores = await session.run(model.outputs["scores"], {model.inputs["images"]: digits.images})
    return float(np.mean(np.argmax(scores, 1) == digits.labels))


async def main(steps: int = STEPS) -> tuple[float, float, float]:
    """Return the accuracy on the test digits: as loaded, after fine-tuning, and after export and reload."""
    training, tests = load_digits().split()
    ours, test = (Digits(1 - each.images, each.labels) for each in (training, tests))
    batches = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        await make_file(Path(folder) / "model.onnx", training)

        # The weights are variables: without `trainable` they would be constants, which run faster.
        model = onnx.load(Path(folder) / "model.onnx", trainable=True)
        with model.graph.as_default():
            labels = af.placeholder(af.int64, [None])
            logits = model.outputs["scores"]
            loss = af.reduce_mean(af.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
            train = af.train.AdamOptimizer(0.01).minimize(loss)
            initial = (
                af.global_variables_initializer()
            )  # after the optimizer, so that it includes the optimizer's variables
            saver = af.train.Saver()
        async with af.Session(graph=model.graph) as session:
            await session.run(initial)
            await model.initialize(session)  # loads the values of the file, for every format
            before = await share_right(session, model, test)
            for _ in range(steps):
                some = batches.integers(0, len(ours), BATCH)
                await session.run(train, {model.inputs["images"]: ours.images[some], labels: ours.labels[some]})
            after = await share_right(session, model, test)
            await saver.save(session, f"{folder}/checkpoint/model", global_step=steps)
            await onnx.export(model, session=session, path=Path(folder) / "tuned.onnx")

        tuned = onnx.load(Path(folder) / "tuned.onnx")
        async with af.Session(graph=tuned.graph) as session:
            again = await share_right(session, tuned, test)
    print(f"dark digits told: {before:.1%} as loaded, {after:.1%} fine-tuned, {again:.1%} as exported")
    return before, after, again


if __name__ == "__main__":
    asyncio.run(main())
