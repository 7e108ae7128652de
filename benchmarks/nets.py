"""`python -m benchmarks.nets [net …]`: eight image nets with random weights, for one picture each, against TensorFlow.

Both systems build a net by the same function, with its weights as constants and normalization in inference mode, so
each may fold and fuse freely. Run it with `AIOFLOW_ONEDNN=off`, too, and with `--delegate onnxruntime`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any, Final

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

import aioflow
from benchmarks.harness import Case, measure
from benchmarks.kernels import have_onednn
from benchmarks.roofline import measured_peak
from benchmarks.tables import Cell, Printer, Quantity, Row, Target

__all__ = ["NETS", "print_nets"]

_SEED: Final = 0
_CLASSES: Final = 1000
_FOLDED: Final = {"fold_batch_norm": True}  # as TensorFlow does by default
_MEAN_TARGETS: Final = {True: 0.8, False: 1.3}  # with oneDNN, and without
_DELEGATED_TARGET: Final = 0.52


class _Layers:
    """Builders of layers in the module `m`. Images are NHWC."""

    def __init__(self, m: Any) -> None:
        self.m = m
        self._rng = np.random.default_rng(_SEED)

    def weights(self, *shape: int, fan: int) -> Any:
        return self.m.constant((self._rng.standard_normal(shape) * (2.0 / fan) ** 0.5).astype(np.float32))

    def conv(
        self, x: Any, outputs: int, kernel: int | tuple[int, int] = 1, stride: int = 1, padding: str = "SAME"
    ) -> Any:
        rows, columns = (kernel, kernel) if isinstance(kernel, int) else kernel
        inputs = int(x.shape[-1])
        filters = self.weights(rows, columns, inputs, outputs, fan=rows * columns * inputs)
        return self.m.nn.conv2d(x, filters, strides=[1, stride, stride, 1], padding=padding)

    def depthwise(self, x: Any, kernel: int, stride: int) -> Any:
        filters = self.weights(kernel, kernel, int(x.shape[-1]), 1, fan=kernel * kernel)
        return self.m.nn.depthwise_conv2d_native(x, filters, strides=[1, stride, stride, 1], padding="SAME")

    def norm(self, x: Any) -> Any:
        channels = int(x.shape[-1])
        scale, mean = (self._rng.standard_normal(channels).astype(np.float32) * 0.1 for _ in range(2))
        shift, variance = np.zeros(channels, np.float32), np.ones(channels, np.float32)
        return self.m.nn.fused_batch_norm(x, 1.0 + scale, shift, mean=mean, variance=variance, is_training=False)[0]

    def layer(self, x: Any, outputs: int, kernel: int | tuple[int, int] = 1, stride: int = 1, **options: Any) -> Any:
        """Add a convolution, a normalization and a ReLU."""
        return self.m.nn.relu(self.norm(self.conv(x, outputs, kernel, stride, **options)))

    def pool(self, x: Any, kernel: int = 3, stride: int = 2, padding: str = "SAME", kind: str = "max") -> Any:
        pool = self.m.nn.max_pool if kind == "max" else self.m.nn.avg_pool
        return pool(x, ksize=[1, kernel, kernel, 1], strides=[1, stride, stride, 1], padding=padding)

    def dense(self, x: Any, outputs: int) -> Any:
        inputs = int(x.shape[-1])
        return self.m.matmul(x, self.weights(inputs, outputs, fan=inputs))

    def classes(self, x: Any) -> Any:
        return self.m.nn.softmax(self.dense(self.m.reduce_mean(x, axis=[1, 2]), _CLASSES))

    def squeezed(self, x: Any, part: int) -> Any:
        """Apply squeeze and excite (Hu et al., 2018)."""
        weight = self.m.nn.relu(self.dense(self.m.reduce_mean(x, axis=[1, 2]), part))
        weight = self.m.sigmoid(self.dense(weight, int(x.shape[-1])))
        return x * self.m.reshape(weight, [-1, 1, 1, int(x.shape[-1])])

    def swish(self, x: Any) -> Any:
        return x * self.m.sigmoid(x)


def vgg(net: _Layers, x: Any) -> Any:
    """Plain: VGG-11 (Simonyan and Zisserman, 2015)."""
    for count, channels in ((1, 64), (1, 128), (2, 256), (2, 512), (2, 512)):
        for _ in range(count):
            x = net.m.nn.relu(net.conv(x, channels, 3))
        x = net.pool(x, 2)
    return net.classes(x)


def resnet(net: _Layers, x: Any, excite: bool = False) -> Any:
    """Residual: ResNet-50 (He et al., 2016)."""
    x = net.pool(net.layer(x, 64, 7, 2))
    for stage, count in enumerate((3, 4, 6, 3)):
        channels = 64 << stage
        for number in range(count):
            stride = 2 if stage and not number else 1
            straight = x if number else net.norm(net.conv(x, 4 * channels, 1, stride))
            y = net.norm(net.conv(net.layer(net.layer(x, channels), channels, 3, stride), 4 * channels))
            x = net.m.nn.relu(straight + (net.squeezed(y, channels // 4) if excite else y))
    return net.classes(x)


def se_resnet(net: _Layers, x: Any) -> Any:
    """Squeeze and excite: SE-ResNet-50."""
    return resnet(net, x, excite=True)


def inception(net: _Layers, x: Any) -> Any:
    """Inception-V3 (Szegedy et al., 2016)."""
    concat = net.m.concat
    x = net.layer(net.layer(net.layer(x, 32, 3, 2, padding="VALID"), 32, 3, padding="VALID"), 64, 3)
    x = net.layer(net.layer(net.pool(x, padding="VALID"), 80), 192, 3, padding="VALID")
    x = net.pool(x, padding="VALID")
    for pooled in (32, 64, 64):
        double = net.layer(net.layer(net.layer(x, 64), 96, 3), 96, 3)
        five, average = net.layer(net.layer(x, 48), 64, 5), net.layer(net.pool(x, 3, 1, kind="average"), pooled)
        x = concat([net.layer(x, 64), five, double, average], 3)
    double = net.layer(net.layer(net.layer(x, 64), 96, 3), 96, 3, 2, padding="VALID")
    x = concat([net.layer(x, 384, 3, 2, padding="VALID"), double, net.pool(x, padding="VALID")], 3)
    for c in (128, 160, 160, 192):
        once = _lines(net, x, (c, c, 192), ((1, 1), (1, 7), (7, 1)))
        twice = _lines(net, x, (c, c, c, c, 192), ((1, 1), (7, 1), (1, 7), (7, 1), (1, 7)))
        x = concat([net.layer(x, 192), once, twice, net.layer(net.pool(x, 3, 1, kind="average"), 192)], 3)
    three = net.layer(net.layer(x, 192), 320, 3, 2, padding="VALID")
    seven = net.layer(_lines(net, x, (192, 192, 192), ((1, 1), (1, 7), (7, 1))), 192, 3, 2, padding="VALID")
    x = concat([three, seven, net.pool(x, padding="VALID")], 3)
    for _ in range(2):
        one, two = net.layer(x, 384), net.layer(net.layer(x, 448), 384, 3)
        split = [net.layer(part, 384, kernel) for part in (one, two) for kernel in ((1, 3), (3, 1))]
        x = concat([net.layer(x, 320), *split, net.layer(net.pool(x, 3, 1, kind="average"), 192)], 3)
    return net.classes(x)


def _lines(net: _Layers, x: Any, outputs: Sequence[int], kernels: Sequence[tuple[int, int]]) -> Any:
    for channels, kernel in zip(outputs, kernels, strict=True):
        x = net.layer(x, channels, kernel)
    return x


def densenet(net: _Layers, x: Any) -> Any:
    """Dense: DenseNet-121 (Huang et al., 2017)."""
    x = net.pool(net.layer(x, 64, 7, 2))
    for stage, count in enumerate((6, 12, 24, 16)):
        for _ in range(count):
            y = net.conv(net.m.nn.relu(net.norm(x)), 128)
            x = net.m.concat([x, net.conv(net.m.nn.relu(net.norm(y)), 32, 3)], 3)
        if stage < 3:
            x = net.conv(net.m.nn.relu(net.norm(x)), int(x.shape[-1]) // 2)
            x = net.pool(x, 2, kind="average")
    return net.classes(net.m.nn.relu(net.norm(x)))


def mobilenet(net: _Layers, x: Any) -> Any:
    """Depthwise: MobileNet-V2 (Sandler et al., 2018)."""
    six = net.m.nn.relu6
    x = six(net.norm(net.conv(x, 32, 3, 2)))
    for wider, channels, count, first in (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    ):
        for number in range(count):
            y = x if wider == 1 else six(net.norm(net.conv(x, wider * int(x.shape[-1]))))
            y = six(net.norm(net.depthwise(y, 3, 1 if number else first)))
            y = net.norm(net.conv(y, channels))
            x = x + y if number else y
    return net.classes(six(net.norm(net.conv(x, 1280))))


def squeezenet(net: _Layers, x: Any) -> Any:
    """Small: SqueezeNet 1.1 (Iandola et al., 2016)."""
    relu = net.m.nn.relu
    x = relu(net.conv(x, 64, 3, 2))
    for small, large, pooled in (
        *((16, 64, True), (16, 64, False), (32, 128, True), (32, 128, False)),
        *((48, 192, True), (48, 192, False), (64, 256, False), (64, 256, False)),
    ):
        x = net.pool(x) if pooled else x
        y = relu(net.conv(x, small))
        x = net.m.concat([relu(net.conv(y, large)), relu(net.conv(y, large, 3))], 3)
    return net.m.nn.softmax(net.m.reduce_mean(relu(net.conv(x, _CLASSES)), axis=[1, 2]))


def efficientnet(net: _Layers, x: Any) -> Any:
    """Depthwise, squeeze and excite: EfficientNet-B0 (Tan and Le, 2019)."""
    x = net.swish(net.norm(net.conv(x, 32, 3, 2)))
    for wider, channels, count, first, kernel in (
        *((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3)),
        *((6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)),
    ):
        for number in range(count):
            part = max(1, int(x.shape[-1]) // 4)
            y = x if wider == 1 else net.swish(net.norm(net.conv(x, wider * int(x.shape[-1]))))
            y = net.squeezed(net.swish(net.norm(net.depthwise(y, kernel, 1 if number else first))), part)
            y = net.norm(net.conv(y, channels))
            x = x + y if number else y
    return net.classes(net.swish(net.norm(net.conv(x, 1280))))


@dataclass(frozen=True)
class Net:
    """A net and the edge length of its square pictures."""

    body: Callable[[_Layers, Any], Any]
    edge: int

    def build(self, m: Any) -> tuple[Any, dict[Any, Any]]:
        """Build the probabilities of one picture, like `Case.build`."""
        picture = m.placeholder(m.float32, [1, self.edge, self.edge, 3])
        pixels = np.random.default_rng(1).random((1, self.edge, self.edge, 3)).astype(np.float32)
        return self.body(_Layers(m), picture), {picture: pixels}


NETS: Final = {
    "vgg": Net(vgg, 64),
    "resnet": Net(resnet, 96),
    "se_resnet": Net(se_resnet, 64),
    "inception": Net(inception, 96),
    "densenet": Net(densenet, 64),
    "mobilenet": Net(mobilenet, 96),
    "squeezenet": Net(squeezenet, 96),
    "efficientnet": Net(efficientnet, 64),
}


async def print_nets(printer: Printer, names: Sequence[str], rounds: int, delegate: str | None = None) -> None:
    """Print a row for each net, and the geometric mean of the ratios, after checking that both systems agree.

    Args:
        printer: Where to print them.
        names: Names of the nets.
        rounds: Number of alternating rounds.
        delegate: The setting of `SessionConfig`.
    """
    import tensorflow.compat.v1 as tf  # heavy, and only this function needs it

    tf.disable_eager_execution()
    printer.note(f"{measured_peak()}")
    ratios = []
    for name in names:
        net = NETS[name]
        await _check(net, tf, delegate)
        # The docstrings of the nets are the names of their rows, by which stored results are compared.
        title = f"{(net.body.__doc__ or name).rstrip('.')}, {net.edge}×{net.edge}"
        case = Case(title, net.build, 0.95, optimizations=_FOLDED, alone=1.6, delegate=delegate)
        measured = await measure(case, tf, aioflow, rounds)
        ratios.append(measured.ratio)
        printer.row(measured.row(measured_peak()))
    cells: dict[str, Cell] = {
        "TensorFlow": "",
        "aioflow": "",
        "ratio": Quantity(geometric_mean(ratios)),
        "of the peak": "",
    }
    target = Target(_DELEGATED_TARGET if delegate else _MEAN_TARGETS[have_onednn()])
    printer.row(Row(f"geometric mean of {len(ratios)} nets", cells, (target,)))


async def _check(net: Net, tf: Any, delegate: str | None) -> None:
    with tf.Graph().as_default():
        fetches, feeds = net.build(tf)
        with tf.Session() as session:
            expected = session.run(fetches, feeds)
    with aioflow.Graph().as_default():
        fetches, feeds = net.build(aioflow)
        async with aioflow.Session(config=aioflow.SessionConfig(optimizations=_FOLDED, delegate=delegate)) as session:
            for _ in range(2):
                np.testing.assert_allclose(await session.run(fetches, feeds), expected, rtol=1e-2, atol=1e-5)
                await session.prepared()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nets", description=__doc__)
    parser.add_argument("nets", nargs="*", choices=[*NETS, []], help="nets to time; all without any")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--delegate", help="the engine for parts of steps, such as onnxruntime")
    Printer.add_options(parser)
    options = parser.parse_args()
    asyncio.run(print_nets(Printer(options), options.nets or list(NETS), options.rounds, options.delegate))
