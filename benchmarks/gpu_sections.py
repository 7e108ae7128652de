"""Measurements of `benchmarks.gpu`. Each section is a generator of lines in Markdown.

Times are medians of alternating rounds, each of which ends with a synchronization of the device.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import platform
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from importlib import metadata
from statistics import median
from typing import Any, Final

import numpy as np

import aioflow as af
from aioflow.graph.dtypes import as_dtype
from aioflow.kernels.registry import KERNELS, Binding
from aioflow.kernels.resources import ResourceManager
from aioflow.runtime.step import Step
from aioflow_cupy.backend import CupyBackend
from aioflow_cupy.device import CupyDevice
from benchmarks.gpu_steps import STEPS, Recorded, gpu_backend, torch_steps, training_graph

__all__ = ["CASES", "lines"]

_ROUNDS: Final = 9
_ROUND: Final = 0.05  # seconds of a round, at least
_HEAD: Final = "| case | measured | | target | reached |\n|---|---|---|---|---|"
_SETTINGS: Final = ("CUPY_TF32", "CUPY_ACCELERATORS", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG")


class SkippedError(Exception):
    """Error: a section or a row cannot be measured here; the message tells why."""


def _torch() -> Any:
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        raise SkippedError(f"PyTorch is not installed ({error})") from error
    if not torch.cuda.is_available():
        raise SkippedError("PyTorch finds no GPU")
    # The default of CuPy: products of float32 in full precision.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return torch


def _row(case: str, measured: str, result: str, target: str = "", reached: bool | None = None) -> str:
    verdict = "" if reached is None else "yes" if reached else "**no**"
    return f"| {case} | {measured} | {result} | {target} | {verdict} |"


# ── timing ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def timed(device: CupyDevice, calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the seconds per call of functions that submit work to the current stream."""
    wait = device.streams.compute.synchronize  # type: ignore[attr-defined]  # of CuPy's streams
    times: dict[str, list[float]] = {name: [] for name in calls}
    with device.streams.computing():
        repeats = {}
        for name, call in calls.items():
            for _ in range(3):
                call()
            wait()
            started = time.perf_counter()
            call()
            wait()
            repeats[name] = max(1, int(_ROUND / (time.perf_counter() - started)))
        for _ in range(_ROUNDS):
            for name, call in calls.items():
                started = time.perf_counter()
                for _ in range(repeats[name]):
                    call()
                wait()
                times[name].append((time.perf_counter() - started) / repeats[name])
    return {name: median(measured) for name, measured in times.items()}


async def timed_awaiting(calls: dict[str, Callable[[], Awaitable[Any]]], seconds: float = _ROUND) -> dict[str, float]:
    """Return the seconds per call of functions whose result is awaited until the device is done."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    repeats = {}
    for name, call in calls.items():
        for _ in range(8):  # the plain calls before a capture, the capture, and replays
            await call()
        started = time.perf_counter()
        await call()
        repeats[name] = max(1, int(seconds / (time.perf_counter() - started)))
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            started = time.perf_counter()
            for _ in range(repeats[name]):
                await call()
            times[name].append((time.perf_counter() - started) / repeats[name])
    return {name: median(measured) for name, measured in times.items()}


def _awaitable(call: Callable[[], Any]) -> Callable[[], Awaitable[Any]]:
    async def run() -> Any:
        return call()

    return run


# ── the machine ───────────────────────────────────────────────────────────────────────────────────────────────────────


def machine() -> Iterator[str]:
    """Yield a list of the GPU, the driver and the versions of all that is measured."""
    backend = CupyBackend()
    import cupy  # only here and in other sections: the module must be importable without CuPy

    runtime = cupy.cuda.runtime
    memory, name = backend.describe(0)
    yield f"- GPU: {name}, {(memory or 0) / 2**30:.0f} GiB, compute capability {cupy.cuda.Device(0).compute_capability}"
    yield f"- Driver: {_driver()}, CUDA {_version(runtime.driverGetVersion())}"
    yield f"- CuPy {cupy.__version__}, CUDA runtime {_version(runtime.runtimeGetVersion())}, cuBLAS {_cublas(cupy)}"
    for package, version in (("cuDNN", _cudnn), ("PyTorch", _torch_version)):
        try:
            yield f"- {package}: {version()}"
        except SkippedError as reason:
            yield f"- {package}: skipped, {reason}"
    packages = ", ".join(f"{package} {metadata.version(package)}" for package in ("numpy", "ml_dtypes"))
    yield f"- Python {platform.python_version()}, {packages}, {platform.machine()}, {os.cpu_count()} processors"
    chosen = [f"{setting}={os.environ[setting]}" for setting in _SETTINGS if setting in os.environ]
    yield f"- Settings: {', '.join(chosen) or 'none'}; products of float32 without TF32 unless a row says otherwise"


def _torch_version() -> str:
    torch = _torch()
    return f"{torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _driver() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return "unknown version (no nvidia-smi)"
    asked = subprocess.run(
        [program, "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    return asked.stdout.strip().partition("\n")[0] or "unknown version"


def _cublas(cupy: Any) -> str:
    try:
        number = cupy.cuda.cublas.getVersion(cupy.cuda.device.get_cublas_handle())
    except Exception as error:  # only a line of the report
        return f"{type(error).__name__}: {error}"
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _cudnn() -> str:
    try:
        cudnn: Any = importlib.import_module("cudnn")
        return f"frontend {cudnn.__version__}, library {cudnn.backend_version()}"
    except Exception as error:  # loading the library may raise anything
        raise SkippedError(f"cuDNN's frontend is not installed ({error})") from error


# ── products ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_SIZE: Final = 8192


def products() -> Iterator[str]:
    """Yield rows of large matrix products: the kernel and a session's step, against cuBLAS called directly."""
    import ml_dtypes

    yield f"Products of {_SIZE}² matrices. Both sides call cublasGemmEx, sum in float32, and use no TF32.\n\n{_HEAD}"
    with gpu_backend() as gpu:
        for dtype in (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)):
            yield from _products(gpu.device, dtype)


def _products(device: CupyDevice, dtype: Any) -> Iterator[str]:
    kind = as_dtype(dtype)
    attrs = {"T": kind, "transpose_a": False, "transpose_b": False}
    dims = ((_SIZE, _SIZE),) * 2
    binding = Binding(
        "m", "MatMul", attrs, (kind,) * 2, dims, (kind,), dims[:1], (None,) * 2, device, ResourceManager(), {}
    )
    _, body = device.bind(KERNELS.get("MatMul", "GPU", attrs), binding)
    # Random values: a GPU is faster on zeros and ones, which cost less power.
    few = np.random.default_rng(0).normal(size=1 << 20).astype(np.float32)
    host = np.resize(few, (_SIZE, _SIZE)).astype(dtype)
    with device.streams.computing():
        a = device.xp.asarray(host)
        b = a.copy()
        direct = _gemm(device.xp, a, b)
        difference = float(abs(body(a, b).astype(np.float32) - direct().astype(np.float32)).max())
    calls: dict[str, Callable[[], Any]] = {"aioflow": lambda: body(a, b), "cuBLAS": direct}
    times = timed(device, calls)
    yield _product_row(f"kernel, {kind.name}", times, f" (largest difference {difference:.2g})")
    yield asyncio.run(_product_step(device, host, kind, direct))
    try:
        torch = _torch()
    except SkippedError as reason:
        yield f"| PyTorch, {kind.name} | skipped: {reason} | | | |"
        return
    x = torch.tensor(few, device="cuda").repeat(_SIZE * _SIZE // few.size).reshape(_SIZE, _SIZE)
    x = x.to(getattr(torch, kind.name))
    y = x.clone()

    def theirs() -> None:
        x @ y
        torch.cuda.synchronize()

    seconds = timed(device, {"PyTorch": theirs})["PyTorch"]
    yield _row(f"PyTorch, {kind.name}", f"{seconds * 1e3:.3f} ms, {_rate(seconds)}", "for comparison")


def _rate(seconds: float) -> str:
    return f"{2 * _SIZE**3 / seconds / 1e12:.0f} TFLOP/s"


def _product_row(case: str, times: dict[str, float], note: str = "") -> str:
    share = times["cuBLAS"] / times["aioflow"]
    measured = ", ".join(f"{name} {seconds * 1e3:.3f} ms" for name, seconds in times.items())
    return _row(case, f"{measured}, {_rate(times['aioflow'])}{note}", f"{share:.1%} of cuBLAS", "≥ 95 %", share >= 0.95)


def _gemm(xp: Any, a: Any, b: Any) -> Callable[[], Any]:
    """Return a function that calls cublasGemmEx for a @ b into the same array."""
    import cupy

    cublas, runtime = cupy.cuda.cublas, cupy.cuda.runtime
    kind = runtime.CUDA_R_32F if a.dtype == np.float32 else runtime.CUDA_R_16BF
    out, n = xp.empty(a.shape, a.dtype), a.shape[0]
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)

    def call() -> Any:
        # cuBLAS has columns first, so it computes the transposed product from the operands in reverse order.
        cublas.gemmEx(
            cupy.cuda.device.get_cublas_handle(),
            cublas.CUBLAS_OP_N,
            cublas.CUBLAS_OP_N,
            *(n, n, n),
            one.ctypes.data,
            *(b.data.ptr, kind, n),
            *(a.data.ptr, kind, n),
            zero.ctypes.data,
            *(out.data.ptr, kind, n),
            cublas.CUBLAS_COMPUTE_32F,
            cublas.CUBLAS_GEMM_DEFAULT,
        )
        return out

    return call


async def _product_step(device: CupyDevice, host: Any, kind: Any, direct: Callable[[], Any]) -> str:
    graph = af.Graph()
    with graph.as_default(), af.device("/gpu:0"):
        a, b = (af.placeholder(kind, host.shape) for _ in range(2))
        left, right = (af.Variable(x, trainable=False) for x in (a, b))
        made = af.matmul(left, right).op
        start = af.global_variables_initializer()
        async with af.Session(graph=graph, config=af.SessionConfig(allow_soft_placement=True)) as session:
            await session.run(start, {a: host, b: host})
            times = await timed_awaiting(
                {"aioflow": lambda: session.run(made), "cuBLAS": lambda: device.executor.run(Step(), direct)}
            )
    return _product_row(f"session's step, {kind.name}, beside cuBLAS in the same executor", times)


# ── training ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def mlp() -> Iterator[str]:
    """Yield rows of the training of a perceptron."""
    return _training("mlp")


def transformer() -> Iterator[str]:
    """Yield rows of the training of a transformer block."""
    return _training("transformer")


def _training(name: str) -> Iterator[str]:
    step = STEPS[name]
    yield f"`session.run(train)`, float32, data on the device; every step is awaited.\n\n{_HEAD}"
    times, notes = asyncio.run(_session_times(name))
    plain, captured = times["plain"], times["captured"]
    shown = ", ".join(f"{kind} {seconds * 1e6:.0f} µs" for kind, seconds in times.items())
    gain = plain / captured
    yield _row(step.name, shown, f"{gain:.1f} times faster captured", "≥ 3", gain >= 3)
    for note in notes:
        yield _row("", note, "")
    try:
        torch = _torch()
    except SkippedError as reason:
        yield f"| PyTorch | skipped: {reason} | | | |"
        return
    theirs = asyncio.run(timed_awaiting({k: _awaitable(v) for k, v in torch_steps(torch, step).items()}))
    for kind, seconds in theirs.items():
        against = captured if kind.endswith("graph") else plain
        yield _row(kind, f"{seconds * 1e6:.0f} µs", f"aioflow needs {against / seconds:.2f} times as long")


async def _session_times(name: str) -> tuple[dict[str, float], list[str]]:
    """Return the seconds of a step with and without capture, and notes on both."""
    calls: dict[str, Callable[[], Awaitable[Any]]] = {}
    recorded: dict[str, Recorded] = {}
    losses: dict[str, float] = {}
    async with AsyncExitStack() as stack:
        for kind in ("plain", "captured"):
            graph, start, loss, train = training_graph(STEPS[name])
            with gpu_backend(capture=kind == "captured") as recorded[kind]:
                session = af.Session(graph=graph, config=af.SessionConfig(allow_soft_placement=True))
                await stack.enter_async_context(session)
                await session.run(start)
            for _ in range(10):
                await session.run(train)
            losses[kind] = float(await session.run(loss))
            calls[kind] = _running(session, train)
        times = await timed_awaiting(calls)
    agree = abs(losses["plain"] - losses["captured"]) <= 1e-3 * abs(losses["plain"])
    verdict = "" if agree else " (**they differ**)"
    return times, [
        recorded["captured"].summary(),
        f"loss after 10 steps: {losses['plain']:.6f} plain, {losses['captured']:.6f} captured{verdict}",
    ]


def _running(session: Any, op: Any) -> Callable[[], Awaitable[Any]]:
    return lambda: session.run(op)


# ── copies, and the overhead of a hop ─────────────────────────────────────────────────────────────────────────────────


def copies() -> Iterator[str]:
    """Yield rows of copies between host and device, against page-locked memory copied by CUDA directly."""
    yield _HEAD
    with gpu_backend() as gpu:
        yield from _collected(_copies(gpu.device))


async def _copies(device: CupyDevice) -> AsyncIterator[str]:
    import cupy

    for size, seconds in ((4 << 10, 0.02), (1 << 20, 0.02), (256 << 20, 0.2)):
        value = np.random.default_rng(0).integers(0, 255, size, np.uint8).view(np.float32)
        array = await device.to_device(value)
        await device.synchronize()
        if not np.array_equal(await device.to_host(array), value, equal_nan=True):
            raise AssertionError(f"{size} bytes came back changed")
        # One buffer is enough for both directions.
        pinned = np.frombuffer(cupy.cuda.alloc_pinned_memory(size), np.float32, value.size)
        pinned[...] = value

        async def upload(given: Any = value) -> None:
            await device.to_device(given)
            await device.synchronize()

        def direct(given: Any = pinned, into: Any = array) -> None:
            into.set(given)
            device.streams.compute.synchronize()  # type: ignore[attr-defined]  # of CuPy's streams

        def back(into: Any = pinned, given: Any = array) -> None:
            given.get(out=into)

        with device.streams.computing():
            times = await timed_awaiting(
                {
                    "to the device": upload,
                    "to the host": lambda given=array: device.to_host(given),  # type: ignore[misc]  # bound here
                    "CuPy to the device": _awaitable(direct),
                    "CuPy to the host": _awaitable(back),
                },
                seconds,
            )
        for way in ("to the device", "to the host"):
            ours, theirs = times[way], times[f"CuPy {way}"]
            shown = f"{ours * 1e6:.0f} µs, {size / ours / 1e9:.2f} GB/s; page-locked {size / theirs / 1e9:.2f} GB/s"
            yield _row(f"{size >> 10} KiB {way}", shown, f"{theirs / ours:.0%} of page-locked")


def hop() -> Iterator[str]:
    """Yield rows of the time that a step costs beyond its kernels."""
    yield _HEAD
    with gpu_backend() as gpu:
        yield from _collected(_hops(gpu.device))


async def _hops(device: CupyDevice) -> AsyncIterator[str]:
    array = await device.to_device(np.ones(4, np.float32))
    graph = af.Graph()
    with graph.as_default(), af.device("/gpu:0"):
        variable = af.Variable(np.ones(4, np.float32))
        start, made = variable.initializer, (variable * 2.0).op
        fed = af.placeholder(af.float32, [4])
        fetched = fed * 2.0

    def plain() -> None:
        array * 2
        device.streams.compute.synchronize()  # type: ignore[attr-defined]  # of CuPy's streams

    value = np.ones(4, np.float32)
    async with af.Session(graph=graph, config=af.SessionConfig(allow_soft_placement=True)) as session:
        await session.run(start)
        with device.streams.computing():
            times = await timed_awaiting(
                {
                    "CuPy: one kernel and a synchronization": _awaitable(plain),
                    "executor: an empty function": lambda: device.executor.run(Step(), lambda: None),
                    "session: a step of one kernel": lambda: session.run(made),
                    "session: the same with a feed and a fetch": lambda: session.run(fetched, {fed: value}),
                }
            )
    for name, seconds in times.items():
        yield _row(name, f"{seconds * 1e6:.1f} µs", "")


def _collected(rows: AsyncIterator[str]) -> Iterator[str]:
    """Yield what an asynchronous generator yields, each as soon as it is there."""

    async def following() -> str | None:
        return await anext(rows, None)

    with asyncio.Runner() as runner:
        while (row := runner.run(following())) is not None:
            yield row


# ── convolutions ──────────────────────────────────────────────────────────────────────────────────────────────────────


def convolutions() -> Iterator[str]:
    """Yield rows of a convolution and its gradients in a session, by cuDNN and by products."""
    _cudnn()
    yield f"32 images of 56 × 56 × 64, 3 × 3 × 64 × 64, with both gradients.\n\n{_HEAD}"
    for dtype in (af.float32, af.bfloat16):
        times = asyncio.run(_convolution_times(dtype))
        shown = ", ".join(f"{kind} {seconds * 1e6:.0f} µs" for kind, seconds in times.items())
        gain = times["products"] / times["cuDNN"]
        yield _row(f"convolution, {dtype.name}", shown, f"{gain:.1f} times faster by cuDNN")


async def _convolution_times(dtype: Any) -> dict[str, float]:
    calls: dict[str, Callable[[], Awaitable[Any]]] = {}
    async with AsyncExitStack() as stack:
        for kind in ("cuDNN", "products"):
            graph = af.Graph()
            with graph.as_default(), af.device("/gpu:0"):
                random = np.random.default_rng(0)
                image, kernel = (
                    af.Variable(random.normal(0, 0.1, shape).astype(dtype.np_dtype), trainable=False)
                    for shape in ((32, 56, 56, 64), (3, 3, 64, 64))
                )
                made = af.nn.conv2d(image, kernel, [1, 1, 1, 1], "SAME")
                slopes: Any = af.gradients(af.reduce_sum(made * made), [image, kernel])
                work = af.group(*(slope.op for slope in slopes))
                start = af.global_variables_initializer()
            with gpu_backend(cudnn=kind == "cuDNN"):
                session = af.Session(graph=graph, config=af.SessionConfig(allow_soft_placement=True))
                await stack.enter_async_context(session)
                await session.run(start)
            calls[kind] = _running(session, work)
        return await timed_awaiting(calls)


CASES: Final[dict[str, Callable[[], Iterator[str]]]] = {
    "machine": machine,
    "products": products,
    "mlp": mlp,
    "transformer": transformer,
    "copies": copies,
    "hop": hop,
    "convolutions": convolutions,
}


def lines(name: str) -> Iterator[str]:
    """Yield the lines of a section; one line with the reason if it cannot be measured here."""
    try:
        yield from CASES[name]()
    except SkippedError as reason:
        yield f"Skipped: {reason}."
