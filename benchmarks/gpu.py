"""`python -m benchmarks.gpu`: the CuPy backend on a GPU, against plain CuPy and, if installed, PyTorch.

Times are medians of alternating rounds, each of which ends with a device synchronization. Without a GPU it prints a
message and exits.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from aioflow.runtime.step import Step
from aioflow_cupy.backend import CupyBackend
from aioflow_cupy.device import CupyDevice

__all__ = ["main"]

SIZE, ROUNDS = 8192, 11


def timed(device: CupyDevice, calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return the seconds per call of each, measured in alternating rounds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    with device.streams.computing():
        for call in calls.values():
            for _ in range(4):
                call()
        for _ in range(ROUNDS):
            for name, call in calls.items():
                device.streams.compute.synchronize()
                started = time.perf_counter()
                for _ in range(repeats):
                    call()
                device.streams.compute.synchronize()
                times[name].append((time.perf_counter() - started) / repeats)
    return {name: median(measured) for name, measured in times.items()}


def products(device: CupyDevice) -> list[str]:
    """Measure large products with the kernel and with CuPy alone."""
    import ml_dtypes

    from aioflow.graph.dtypes import as_dtype
    from aioflow.kernels.registry import KERNELS, Binding
    from aioflow.kernels.resources import ResourceManager

    rows = []
    for dtype in (np.float32, ml_dtypes.bfloat16):
        kind = as_dtype(dtype)
        attrs = {"T": kind, "transpose_a": False, "transpose_b": False}
        dims = ((SIZE, SIZE),) * 2
        binding = Binding(
            "m", "MatMul", attrs, (kind,) * 2, dims, (kind,), dims[:1], (None,) * 2, device, ResourceManager(), {}
        )
        _, body = device.bind(KERNELS.get("MatMul", "GPU", attrs), binding)
        with device.streams.computing():
            a = device.xp.ones((SIZE, SIZE), dtype)
        times = timed(device, {"aioflow": lambda: body(a, a), "CuPy": lambda: device.xp.matmul(a, a)}, 5)  # noqa: B023
        flops = 2 * SIZE**3 / times["aioflow"] / 1e12
        share = times["CuPy"] / times["aioflow"]
        rows.append(f"| matmul {SIZE}² {kind.name} | {flops:.0f} TFLOP/s | {share:.1%} of CuPy | ≥ 95 % |")
    return rows


def perceptron(xp: Any, x: Any, weights: list[Any]) -> tuple[Any, ...]:
    """Compute a training step of a small network, which consists of many short kernels."""
    hidden = [x]
    for w in weights:
        hidden.append(xp.maximum(hidden[-1] @ w, 0))
    flowing = hidden[-1] - 1
    made = []
    for w, before, after in zip(reversed(weights), reversed(hidden[:-1]), reversed(hidden[1:]), strict=True):
        flowing = flowing * (after > 0)
        made.append(w - (before.T @ flowing) * xp.float32(1e-4))
        flowing = flowing @ w.T
    return tuple(reversed(made))


def transformer(xp: Any, x: Any, weights: list[Any]) -> tuple[Any, ...]:
    """Compute the forward pass of one block: single-head attention and a feed-forward layer, with residuals, norms."""

    def norm(v: Any) -> Any:
        centred = v - v.mean(axis=-1, keepdims=True)
        return centred / xp.sqrt((centred * centred).mean(axis=-1, keepdims=True) + xp.float32(1e-5))

    query, key, value, out, up, down = weights
    n = norm(x)
    scores = (n @ query) @ (n @ key).T * xp.float32(query.shape[1] ** -0.5)
    scores = xp.exp(scores - scores.max(axis=-1, keepdims=True))
    attended = (scores / scores.sum(axis=-1, keepdims=True)) @ (n @ value) @ out + x
    return (xp.maximum(norm(attended) @ up, 0) @ down + attended,)


def steps(device: CupyDevice) -> list[str]:
    """Measure steps with and without capture, and in PyTorch if it is installed."""
    rows = []
    random = np.random.default_rng(0)
    for name, function, width, count in (("MLP step", perceptron, 256, 6), ("transformer block", transformer, 256, 6)):
        arrays = [random.normal(size=(128, width)), *random.normal(size=(count, width, width)) / width]
        with device.streams.computing():
            own = [device.xp.asarray(a.astype(np.float32)) for a in arrays]

        def run(*given: Any, function: Any = function) -> tuple[Any, ...]:
            made: tuple[Any, ...] = function(device.xp, given[0], list(given[1:]))
            return made

        captured = device.capture(run)
        calls = {"plain": lambda: run(*own), "captured": lambda: captured(*own)}  # noqa: B023  # called in this iteration
        times = timed(device, {**calls, **_torch(name, arrays)}, 20)
        gain = times["plain"] / times["captured"]
        shown = ", ".join(f"{k} {v * 1e6:.0f} µs" for k, v in times.items())
        rows.append(f"| {name} | {shown} | {gain:.1f} times faster captured | ≥ 3 |")
    return rows


def _torch(name: str, arrays: list[Any]) -> dict[str, Callable[[], Any]]:
    """Return PyTorch's eager step and its CUDA graph of the same computation; empty without PyTorch or CUDA."""
    try:
        import torch
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    own = [torch.tensor(a, dtype=torch.float32, device="cuda") for a in arrays]
    function = perceptron if name == "MLP step" else transformer
    namespace = _TorchNames(torch)

    def eager() -> Any:
        made = function(namespace, own[0], own[1:])
        torch.cuda.synchronize()
        return made

    for _ in range(3):
        eager()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function(namespace, own[0], own[1:])

    def replayed() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return {"torch eager": eager, "torch graph": replayed}


class _TorchNames:
    """The few names of the array namespace that the steps use, implemented with PyTorch."""

    def __init__(self, torch: Any) -> None:
        self.exp, self.sqrt, self.float32 = torch.exp, torch.sqrt, float
        self.maximum = lambda a, b: torch.clamp_min(a, b)


async def copies(device: CupyDevice) -> list[str]:
    """Measure copies of 100 MB to the device and back."""
    value = np.ones(25_000_000, np.float32)
    array = await device.to_device(value)
    there, back = [], []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        array = await device.to_device(value)
        await device.synchronize()
        there.append(time.perf_counter() - started)
        started = time.perf_counter()
        await device.to_host(array)
        back.append(time.perf_counter() - started)
    run = []
    for _ in range(200):
        started = time.perf_counter()
        await device.executor.run(Step(), lambda: None)
        run.append(time.perf_counter() - started)
    rates = ", ".join(f"{value.nbytes / median(t) / 1e9:.1f} GB/s {way}" for way, t in (("in", there), ("out", back)))
    return [f"| 100 MB between host and device | {rates} | hop {median(run) * 1e6:.0f} µs | |"]


def main() -> int:
    """Print the table, or why it was skipped. Return 0."""
    try:
        backend = CupyBackend()
    except ImportError as error:
        print(f"skipped: {error}")
        return 0
    if not backend.count():
        print("skipped: CuPy finds no GPU")
        return 0
    device = backend.device(0)
    print(f"{backend.describe(0)[1]}\n\n| case | measured | | target |\n|---|---|---|---|")
    print("\n".join([*products(device), *steps(device), *asyncio.run(copies(device))]), flush=True)
    device.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
