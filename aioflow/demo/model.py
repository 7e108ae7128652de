"""The demo's graph: a small classifier of 8×8 digits, its training step, and its predictions for the service."""

from __future__ import annotations

from dataclasses import dataclass

import aioflow as af

__all__ = ["DigitsModel", "build"]

PIXELS = 64
_CLASSES = 10
_HIDDEN = (128, 64)


@dataclass(frozen=True, slots=True)
class DigitsModel:
    """Tensors of the graph.

    Attributes:
        graph: The graph.
        images: [n, 64] float32 in 0..1.
        labels: [n] int32.
        keep: Scalar, the share of units that dropout keeps.
        probabilities: [n, 10] float32.
        loss: Scalar.
        accuracy: Scalar.
        train: One step of Adam.
        global_step: Number of training steps.
        initialize: Initializer of the variables.
        saver: Saver that keeps the last two checkpoints.
    """

    graph: af.Graph
    images: af.Tensor
    labels: af.Tensor
    keep: af.Tensor
    probabilities: af.Tensor
    loss: af.Tensor
    accuracy: af.Tensor
    train: af.Operation
    global_step: af.Variable
    initialize: af.Operation
    saver: af.train.Saver


def build(learning_rate: float = 2e-3, seed: int = 1) -> DigitsModel:
    """Build the graph."""
    with af.Graph().as_default() as graph:
        af.set_random_seed(seed)
        images = af.placeholder(af.float32, [None, PIXELS], name="images")
        labels = af.placeholder(af.int32, [None], name="labels")
        # 1 by default, so that serving and evaluation run without dropout.
        keep = af.placeholder_with_default(af.constant(1.0), [], name="keep")
        y = images
        for layer, units in enumerate(_HIDDEN):
            y = af.nn.dropout(af.nn.relu(_dense(y, units, f"hidden_{layer}")), rate=1.0 - keep)
        logits = _dense(y, _CLASSES, "logits")
        probabilities = af.nn.softmax(logits, name="probabilities")
        loss = af.reduce_mean(af.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits), name="loss")
        right = af.equal(af.cast(af.argmax(logits, 1), af.int32), labels)
        accuracy = af.reduce_mean(af.cast(right, af.float32), name="accuracy")
        global_step = af.train.get_or_create_global_step()
        rate = af.train.exponential_decay(learning_rate, global_step, 1000, 0.7)
        train = af.train.AdamOptimizer(rate).minimize(loss, global_step=global_step)
        initialize = af.global_variables_initializer()
        saver = af.train.Saver(max_to_keep=2)
        # The service and the training share the graph; neither may add nodes by mistake.
        graph.finalize()
    return DigitsModel(
        graph, images, labels, keep, probabilities, loss, accuracy, train, global_step, initialize, saver
    )


def _dense(x: af.Tensor, units: int, name: str) -> af.Tensor:
    with af.variable_scope(name):
        inputs = x.shape.as_list()[1]
        weights = af.get_variable("weights", [inputs, units])
        bias = af.get_variable("bias", [units], initializer=af.zeros_initializer())
        return af.nn.bias_add(af.matmul(x, weights), bias)
