"""Training steps for `benchmarks.gpu`: the same computation as a graph of aioflow and as a function of PyTorch.

The data are on the device and no result is fetched, so a step is the launch of its kernels and the wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np

import aioflow as af
from aioflow.runtime import device as devices
from aioflow_cupy.backend import CupyBackend
from aioflow_cupy.device import CupyDevice, CupySettings
from aioflow_cupy.graphs import CapturedFunction

__all__ = ["STEPS", "TrainingStep", "gpu_backend", "torch_steps"]

_RATE: Final = 1e-3


@dataclass(frozen=True)
class TrainingStep:
    """A network with its data.

    Attributes:
        name: Name of the row.
        build: Returns the loss of aioflow's graph.
        torch: Returns PyTorch's parameters, and a function that computes the loss.
    """

    name: str
    build: Callable[[], Any]
    torch: Callable[[Any], tuple[list[Any], Callable[[], Any]]]


# ── a multilayer perceptron: 128 rows, six layers of 256, ten classes ─────────────────────────────────────────────────

_ROWS, _WIDTH, _LAYERS, _CLASSES = 128, 256, 6, 10


def _perceptron_values() -> tuple[Any, Any, list[Any]]:
    random = np.random.default_rng(0)
    widths = [_WIDTH] * _LAYERS + [_CLASSES]
    weights = [random.normal(0, 0.08, pair).astype(np.float32) for pair in pairwise(widths)]
    images = random.normal(size=(_ROWS, _WIDTH)).astype(np.float32)
    return images, random.integers(0, _CLASSES, _ROWS), weights


def _perceptron() -> Any:
    images, labels, weights = _perceptron_values()
    value: Any = af.Variable(images, trainable=False)
    classes = af.Variable(labels, trainable=False)
    for number, weight in enumerate(weights):
        value = af.matmul(value, af.Variable(weight)) + af.Variable(np.zeros(weight.shape[1], np.float32))
        if number < len(weights) - 1:
            value = af.nn.relu(value)
    return af.reduce_mean(af.nn.sparse_softmax_cross_entropy_with_logits(labels=classes, logits=value))


def _perceptron_in_torch(torch: Any) -> tuple[list[Any], Callable[[], Any]]:
    images, labels, weights = _perceptron_values()
    given, classes = _on_card(torch, images), torch.tensor(labels, device="cuda")
    parameters = [_on_card(torch, weight).requires_grad_() for weight in weights]
    biases = [torch.zeros(weight.shape[1], device="cuda", requires_grad=True) for weight in weights]

    def loss() -> Any:
        value = given
        for number, (weight, bias) in enumerate(zip(parameters, biases, strict=True)):
            value = value @ weight + bias
            if number < len(parameters) - 1:
                value = torch.relu(value)
        return torch.nn.functional.cross_entropy(value, classes)

    return [*parameters, *biases], loss


# ── a transformer block: 8 sequences of 64, four heads of 64, a feed-forward layer of 1,024 ───────────────────────────

_BATCH, _TOKENS, _HEADS, _HEAD = 8, 64, 4, 64
_MODEL: Final = _HEADS * _HEAD


def _block_values() -> tuple[Any, Any, list[Any]]:
    random = np.random.default_rng(1)
    shapes = [(_MODEL, _MODEL)] * 4 + [(_MODEL, 4 * _MODEL), (4 * _MODEL, _MODEL)]
    weights = [random.normal(0, 0.05, shape).astype(np.float32) for shape in shapes]
    given, target = (random.normal(size=(_BATCH * _TOKENS, _MODEL)).astype(np.float32) for _ in range(2))
    return given, target, weights


def _block() -> Any:
    given, target, weights = _block_values()
    x, wanted = af.Variable(given, trainable=False), af.Variable(target, trainable=False)
    query, key, value, out, up, down = (af.Variable(weight) for weight in weights)
    scales = [af.Variable(np.ones(_MODEL, np.float32)) for _ in range(2)]

    def norm(v: Any, scale: Any) -> Any:
        centred = v - af.reduce_mean(v, axis=-1, keepdims=True)
        return centred * af.rsqrt(af.reduce_mean(af.square(centred), axis=-1, keepdims=True) + 1e-5) * scale

    def heads(v: Any) -> Any:
        return af.transpose(af.reshape(v, [_BATCH, _TOKENS, _HEADS, _HEAD]), [0, 2, 1, 3])

    normed = norm(x, scales[0])
    q, k, v = (heads(af.matmul(normed, w)) for w in (query, key, value))
    attention = af.nn.softmax(af.matmul(q, k, transpose_b=True) * _HEAD**-0.5)
    mixed = af.reshape(af.transpose(af.matmul(attention, v), [0, 2, 1, 3]), [_BATCH * _TOKENS, _MODEL])
    attended = x + af.matmul(mixed, out)
    made = attended + af.matmul(af.nn.relu(af.matmul(norm(attended, scales[1]), up)), down)
    return af.reduce_mean(af.square(made - wanted))


def _block_in_torch(torch: Any) -> tuple[list[Any], Callable[[], Any]]:
    given, target, weights = _block_values()
    x, wanted = _on_card(torch, given), _on_card(torch, target)
    parameters = [_on_card(torch, weight).requires_grad_() for weight in weights]
    scales = [torch.ones(_MODEL, device="cuda", requires_grad=True) for _ in range(2)]
    query, key, value, out, up, down = parameters

    def norm(v: Any, scale: Any) -> Any:
        return torch.nn.functional.layer_norm(v, (_MODEL,), scale)

    def heads(v: Any) -> Any:
        return v.reshape(_BATCH, _TOKENS, _HEADS, _HEAD).transpose(1, 2)

    def loss() -> Any:
        normed = norm(x, scales[0])
        q, k, v = (heads(normed @ w) for w in (query, key, value))
        attention = torch.softmax(q @ k.transpose(-1, -2) * _HEAD**-0.5, -1)
        mixed = (attention @ v).transpose(1, 2).reshape(_BATCH * _TOKENS, _MODEL)
        attended = x + mixed @ out
        made = attended + torch.relu(norm(attended, scales[1]) @ up) @ down
        return ((made - wanted) ** 2).mean()

    return [*parameters, *scales], loss


STEPS: Final = {
    "mlp": TrainingStep("MLP training step, Adam", _perceptron, _perceptron_in_torch),
    "transformer": TrainingStep("transformer block training step, Adam", _block, _block_in_torch),
}


# ── running ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _on_card(torch: Any, value: Any) -> Any:
    return torch.tensor(value, device="cuda")


@dataclass(frozen=True)
class Recorded:
    """A GPU for the sessions of this process, and the functions that it was asked to capture."""

    device: CupyDevice
    functions: list[CapturedFunction] = field(default_factory=list)

    def summary(self) -> str:
        """Describe what became of the captured strands."""
        stats = [function.stats for function in self.functions]
        refused = {each.refused for each in stats if each.refused is not None}
        replayed = sum(each.replayed for each in stats)
        text = f"{sum(bool(each.captured) for each in stats)} of {len(stats)} strands captured, {replayed} replays"
        return text + (f"; refused: {'; '.join(sorted(refused))}" if refused else "")


@contextmanager
def gpu_backend(capture: bool = True, cudnn: bool = True, backend: CupyBackend | None = None) -> Iterator[Recorded]:
    """Give sessions that are created in this context a GPU with these settings, also if no backend is installed."""
    own = CupyBackend(settings=CupySettings(capture=capture, cudnn=cudnn)) if backend is None else backend
    recorded = Recorded(own.device(0))
    real, make = devices.backends, recorded.device.capture

    def recording(*args: Any) -> Any:
        made = make(*args)
        if isinstance(made, CapturedFunction):
            recorded.functions.append(made)
        return made

    host = real()[0]
    devices.backends = lambda: (host, own)
    recorded.device.capture = recording  # type: ignore[assignment, method-assign]  # counts what becomes of each strand
    try:
        yield recorded
    finally:
        devices.backends = real


def training_graph(step: TrainingStep) -> tuple[Any, Any, Any, Any]:
    """Return the graph, the initializer, the loss and the training op, all on the GPU."""
    graph = af.Graph()
    with graph.as_default(), af.device("/gpu:0"):
        loss = step.build()
        train = af.train.AdamOptimizer(_RATE).minimize(loss)
        return graph, af.global_variables_initializer(), loss, train


def torch_steps(torch: Any, step: TrainingStep) -> dict[str, Callable[[], Any]]:
    """Return PyTorch's eager step and its replay of a CUDA graph, each with a synchronization at its end."""

    def made(capturable: bool) -> Callable[[], None]:
        parameters, loss = step.torch(torch)
        optimizer = torch.optim.Adam(parameters, lr=_RATE, capturable=capturable)

        def run() -> None:
            optimizer.zero_grad(set_to_none=True)
            loss().backward()
            optimizer.step()

        return run

    plain, compute = made(False), made(True)

    def eager() -> None:
        plain()
        torch.cuda.synchronize()

    # As PyTorch's documentation asks for: the first steps in a side stream.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            compute()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        compute()

    def replayed() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return {"PyTorch eager": eager, "PyTorch CUDA graph": replayed}
