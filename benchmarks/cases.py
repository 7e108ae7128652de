"""The timed programs, each built by one function for both TensorFlow and aioflow."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from benchmarks.harness import Case

__all__ = ["CASES"]


def scalar_add(m: Any) -> tuple[Any, dict[Any, Any]]:
    """Build one addition, fed and fetched."""
    x = m.placeholder(m.float32, [])
    return m.add(x, 1.0), {x: 2.0}


def chain(m: Any) -> tuple[Any, dict[Any, Any]]:
    """Build 2,000 dependent scalar operations, alternating additions and multiplications."""
    x = y = m.placeholder(m.float32, [])
    for _ in range(1000):
        y = m.multiply(m.add(y, 1.0), 0.5)
    return y, {x: 2.0}


def dag(m: Any) -> tuple[Any, dict[Any, Any]]:
    """Build a random graph of 4,000 additions on 32-vectors, all of which the result needs."""
    rng = random.Random(0)
    x = m.placeholder(m.float32, [32])
    nodes = [x, x * 0.5]
    for i in range(4000):
        nodes.append(m.add(nodes[-1 - (i % 2)], nodes[rng.randrange(max(0, len(nodes) - 40), len(nodes))]))
    return m.add(nodes[-1], nodes[-2]), {x: np.full(32, 1e-30, np.float32)}


def _dense(m: Any, x: Any, inputs: int, outputs: int, rng: np.random.Generator, activation: bool) -> Any:
    weight = m.Variable((rng.standard_normal((inputs, outputs)) / np.sqrt(inputs)).astype(np.float32))
    bias = m.Variable(np.zeros(outputs, np.float32))
    y = m.nn.bias_add(m.matmul(x, weight), bias)
    return m.nn.relu(y) if activation else y


def _mlp(m: Any, hidden: int, batch: int) -> tuple[Any, Any, dict[Any, Any]]:
    rng = np.random.default_rng(0)
    x = m.placeholder(m.float32, [None, 784])
    labels = m.placeholder(m.int32, [None])
    y = _dense(m, _dense(m, x, 784, hidden, rng, True), hidden, hidden, rng, True)
    logits = _dense(m, y, hidden, 10, rng, False)
    loss = m.reduce_mean(m.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    feeds = {x: rng.random((batch, 784)).astype(np.float32), labels: rng.integers(0, 10, batch).astype(np.int32)}
    return logits, loss, feeds | {}


def mlp_training(hidden: int, batch: int) -> Any:
    """Return a builder of one gradient-descent step on a 784-hidden-hidden-10 network."""

    def build(m: Any) -> tuple[Any, dict[Any, Any]]:
        _, loss, feeds = _mlp(m, hidden, batch)
        return [m.train.GradientDescentOptimizer(0.01).minimize(loss), loss], feeds

    return build


def mlp_inference(hidden: int, batch: int) -> Any:
    """Return a builder of the logits of a 784-hidden-hidden-10 network."""

    def build(m: Any) -> tuple[Any, dict[Any, Any]]:
        logits, _, feeds = _mlp(m, hidden, batch)
        return logits, {k: v for k, v in feeds.items() if v.ndim == 2}

    return build


def _lenet(m: Any, batch: int) -> tuple[Any, Any, dict[Any, Any]]:
    rng = np.random.default_rng(0)
    x = m.placeholder(m.float32, [None, 28, 28, 1])
    labels = m.placeholder(m.int32, [None])
    y = x
    for inputs, outputs in ((1, 32), (32, 64)):
        kernel = m.Variable((rng.standard_normal((5, 5, inputs, outputs)) / np.sqrt(25 * inputs)).astype(np.float32))
        bias = m.Variable(np.zeros(outputs, np.float32))
        y = m.nn.relu(m.nn.bias_add(m.nn.conv2d(y, kernel, strides=[1, 1, 1, 1], padding="SAME"), bias))
        y = m.nn.max_pool(y, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")
    y = _dense(m, m.reshape(y, [-1, 7 * 7 * 64]), 7 * 7 * 64, 512, rng, True)
    logits = _dense(m, y, 512, 10, rng, False)
    loss = m.reduce_mean(m.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    feeds = {x: rng.random((batch, 28, 28, 1)).astype(np.float32), labels: rng.integers(0, 10, batch).astype(np.int32)}
    return logits, loss, feeds


def lenet_training(m: Any) -> tuple[Any, dict[Any, Any]]:
    """Build one gradient-descent step on LeNet, batch 64."""
    _, loss, feeds = _lenet(m, 64)
    return [m.train.GradientDescentOptimizer(0.01).minimize(loss), loss], feeds


def lenet_inference(m: Any) -> tuple[Any, dict[Any, Any]]:
    """Build the logits of LeNet, batch 64."""
    logits, _, feeds = _lenet(m, 64)
    return logits, {k: v for k, v in feeds.items() if v.ndim == 4}


def while_loop(m: Any) -> tuple[Any, dict[Any, Any]]:
    """Build 1,000 iterations of a counter and an accumulator."""
    limit = m.placeholder(m.int32, [])
    start = [m.constant(0), m.constant(0)]
    return m.while_loop(lambda i, total: i < limit, lambda i, total: (i + 1, total + i), start), {limit: 1000}


def lstm_training(m: Any) -> tuple[Any, dict[Any, Any]]:
    """Build one gradient-descent step on an LSTM in a `while_loop`: 128 units, 50 steps, batch 32."""
    steps, batch, units = 50, 32, 128
    rng = np.random.default_rng(0)
    inputs = m.placeholder(m.float32, [steps, batch, units])
    target = m.placeholder(m.float32, [batch, units])
    weights = m.Variable((rng.standard_normal((2 * units, 4 * units)) / np.sqrt(2 * units)).astype(np.float32))
    bias = m.Variable(np.zeros(4 * units, np.float32))
    rows = m.TensorArray(m.float32, size=steps, clear_after_read=False).unstack(inputs)

    def step(t: Any, h: Any, c: Any, outputs: Any) -> Any:
        gates = m.nn.bias_add(m.matmul(m.concat([rows.read(t), h], 1), weights), bias)
        keep, write, show, new = m.split(gates, 4, axis=1)
        c = m.sigmoid(keep + 1.0) * c + m.sigmoid(write) * m.tanh(new)
        h = m.sigmoid(show) * m.tanh(c)
        return t + 1, h, c, outputs.write(t, h)

    zeros = m.zeros([batch, units])
    start = (0, zeros, zeros, m.TensorArray(m.float32, size=steps))
    outputs = m.while_loop(lambda t, *_: t < steps, step, start)[3].stack()
    loss = m.reduce_mean(m.square(outputs - target))
    feeds = {
        inputs: rng.standard_normal((steps, batch, units)).astype(np.float32),
        target: rng.standard_normal((batch, units)).astype(np.float32),
    }
    return [m.train.GradientDescentOptimizer(0.1).minimize(loss), loss], feeds


def queue_pair(m: Any) -> tuple[Any, dict[Any, Any]]:
    """Build a step that enqueues an element and dequeues it."""
    value = m.placeholder(m.float32, [])
    queue = m.FIFOQueue(10, [m.float32], shapes=[[]])
    with m.control_dependencies([queue.enqueue(value)]):
        return queue.dequeue(), {value: 1.0}


CASES: dict[str, Case] = {
    "add": Case("`run` of one scalar add, fed and fetched", scalar_add, 0.15),
    "chain": Case("chain of 2,000 scalar operations", chain, 2.5, per=2000, rewrite=False),
    # Default settings in both systems: aioflow makes one call of these nodes, and TensorFlow may rewrite them, too.
    "dag": Case("random DAG of 4,000 adds on 32-vectors", dag, 0.1, per=4000),
    "mlp": Case("MLP 784-512-512-10, training step, batch 128", mlp_training(512, 128), 0.85, alone=0.95),
    "mlp_inference": Case("MLP 784-512-512-10, inference, batch 128", mlp_inference(512, 128), 0.75, alone=0.95),
    "mlp_large": Case("MLP 784-1024-1024-10, training step, batch 1024", mlp_training(1024, 1024), 1.0, alone=1.05),
    "lenet": Case("LeNet, training step, batch 64", lenet_training, 1.0, alone=1.5),
    "while": Case("`while_loop` of 1,000 iterations, counter and accumulator", while_loop, 0.5, per=1000),
    "while_primitive": Case(
        "the same `while_loop` in primitive form, not lifted", while_loop, 8, per=1000, raised=False
    ),
    "lstm": Case("LSTM of 128 units in a `while_loop`, 50 steps, batch 32, training step", lstm_training, 1.5),
    "queue": Case("enqueue and dequeue of a scalar in one step", queue_pair, 0.5),
    "lenet_inference": Case("LeNet, inference, batch 64", lenet_inference, 0.9, alone=1.4),
}
