"""Random nets of the layers that oneDNN plans consist of."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

import aioflow as af

__all__ = ["random_net"]


class _Net:
    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def weights(self, *shape: int) -> Any:
        scale = 1 / np.sqrt(np.prod(shape[:-1]) if len(shape) > 1 else 1)
        return (self._rng.standard_normal(shape) * scale).astype(np.float32)

    def conv(self, x: Any) -> Any:
        n, outputs = int(self._rng.integers(1, 4)), int(self._rng.integers(1, 20))
        step = int(self._rng.integers(1, 3))
        padding: Literal["SAME", "VALID"] = "SAME" if self._rng.integers(2) else "VALID"
        edge = x.shape.as_list()[1:3]
        if padding == "VALID" and min(edge) < n:
            padding = "SAME"
        depth = x.shape.as_list()[-1]
        if self._rng.integers(3):
            x = af.nn.conv2d(x, self.weights(n, n, depth, outputs), [1, step, step, 1], padding)
        else:
            x = af.nn.depthwise_conv2d(x, self.weights(n, n, depth, 1), [1, step, step, 1], padding)
        return af.nn.bias_add(x, self.weights(x.shape.as_list()[-1])) if self._rng.integers(4) else x

    def activated(self, x: Any) -> Any:
        match self._rng.integers(6):
            case 0:
                return af.nn.relu6(x)
            case 1:
                return x * af.sigmoid(x)
            case 2:
                return af.tanh(x)
            case 3:
                return x
        return af.nn.relu(x)

    def branches(self, x: Any) -> Any:
        depth, outputs = x.shape.as_list()[-1], self._rng.integers(1, 9, 2)
        made = [af.nn.conv2d(x, self.weights(1, 1, depth, int(each)), padding="SAME") for each in outputs]
        return af.concat([*map(self.activated, made), x], 3)

    def residual(self, x: Any) -> Any:
        depth = x.shape.as_list()[-1]
        y = af.nn.conv2d(self.activated(x), self.weights(3, 3, depth, depth), padding="SAME")
        return self.activated(af.nn.bias_add(y, self.weights(depth)) + x)

    def pool(self, x: Any) -> Any:
        pool = af.nn.max_pool if self._rng.integers(2) else af.nn.avg_pool
        return pool(x, [1, 2, 3, 1], [1, 2, 1, 1], "SAME")

    def excited(self, x: Any) -> Any:
        depth = x.shape.as_list()[-1]
        mean = af.reduce_mean(x, [1, 2])
        scale = af.sigmoid(af.matmul(af.nn.relu(af.matmul(mean, self.weights(depth, 4))), self.weights(4, depth)))
        return x * af.reshape(scale, [-1, 1, 1, depth])


def random_net(rng: np.random.Generator) -> tuple[Any, Any]:
    """Return the placeholder of an image, and the output of a net of five to twenty layers."""
    net = _Net(rng)
    size = [int(rng.integers(low, high)) for low, high in ((1, 4), (6, 16), (6, 16), (1, 6))]
    image = af.placeholder(af.float32, size)
    x = net.activated(net.conv(image))
    for _ in range(rng.integers(3, 9)):
        kind = (net.conv, net.branches, net.residual, net.pool, net.excited)[rng.integers(5)]
        x = net.activated(kind(x)) if kind == net.conv else kind(x)
    last = af.nn.relu(af.nn.conv2d(x, net.weights(1, 1, x.shape.as_list()[-1], 7), padding="SAME"))
    return image, af.nn.relu(af.nn.conv2d(last, net.weights(1, 1, 7, 5), padding="SAME"))
