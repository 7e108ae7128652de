"""Measurement of this machine's speed for the placement cost model, run only by `aioflow calibrate`.

The measurements time the kernels that steps run, one call at a time. The cost model's functions count the work, so a
rate is exact for the op by which it was measured. Kernels use the same threads as in a step. Where several CPU devices
share the cores, the measured rates are those of a device that has the machine to itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec
from aioflow.compiler.place.calibration import DEFAULT_LINKS, Calibration, DeviceLink, Speeds
from aioflow.compiler.place.cost_model import CostModel
from aioflow.errors import UnimplementedError
from aioflow.graph.boundary import ARG
from aioflow.graph.dtypes import DType, as_dtype
from aioflow.graph.opdef import OPS, traits_of
from aioflow.graph.signature.attributes import Attrs
from aioflow.kernels.registry import ArrayBackend
from aioflow.kernels.resources import ResourceManager
from aioflow.memory.values import Array, Value
from aioflow.runtime.backend_api import BackendDevice
from aioflow.runtime.bind import bind_graph, gather
from aioflow.runtime.executor import DeviceThreads, shared_threads
from aioflow.runtime.step import Step

ClockFunction: TypeAlias = Callable[[], float]
_LEAST_ROUNDS: Final = 3
_LEAST_SECONDS: Final = 1e-9  # a coarse clock may report that no time has passed
_SCALARS: Final = 1000  # calls per round where one call is too short for a clock
_GPU_CALLS: Final = 10  # calls per round on a GPU, which has to be woken up for a round

_PRODUCTS: Final = ("float32", "float64", "bfloat16", "float16", "complex64", "complex128", "int32")
_COPIED: Final = 1 << 26  # size in bytes of the array by which the bandwidth to a GPU is measured


@dataclass(frozen=True, slots=True)
class _Probe:
    """A node to time: its op, the shapes of its inputs and output, and attributes that have no default."""

    op: str
    inputs: Sequence[tuple[int, ...]]
    output: tuple[int, ...]
    attrs: Attrs = field(default_factory=dict)


# Larger than the caches, like the tensors for which placement matters; 4 bytes per element.
_LARGE: Final = (1024, 2048)
_RATES: Final[Mapping[str, _Probe]] = {
    "elementwise": _Probe("AddV2", (_LARGE, _LARGE), _LARGE),
    "transcendental": _Probe("Exp", (_LARGE,), _LARGE),
    "reduction": _Probe("BiasAddGrad", (_LARGE,), _LARGE[-1:]),
    "movement": _Probe("Pack", (_LARGE, _LARGE), (2, *_LARGE), {"N": 2}),
    "convolution": _Probe(
        "Conv2D",
        ((4, 56, 56, 64), (3, 3, 64, 64)),
        (4, 56, 56, 64),
        {"strides": (1, 1, 1, 1), "padding": "SAME"},
    ),
}
_SCALAR: Final = _Probe("AddV2", ((), ()), ())
_PRODUCT: Final = _Probe("MatMul", ((512, 512), (512, 512)), (512, 512))
# A product of a type that the processor cannot multiply natively takes hundreds of times longer.
_SMALL_PRODUCT: Final = _Probe("MatMul", ((128, 128), (128, 128)), (128, 128))
_FAST_PRODUCTS: Final = frozenset({"float32", "float64", "complex64", "complex128"})


def _nothing() -> None:
    return None


class _Target(NamedTuple):
    """A device whose kernels are timed.

    Attributes:
        put: Copies a host value to the device.
        perform: Runs a function on the device and returns when all work that it started has ended.
        calls: Number of kernel calls per round.
    """

    backend: ArrayBackend
    put: Callable[[Array], Awaitable[Value]]
    perform: Callable[[Callable[[], None]], Awaitable[None]]
    calls: int = 1


class _Timer(NamedTuple):
    """Repeats rounds for a given time.

    Attributes:
        begins: Called before the first round.
    """

    seconds: float
    clock: ClockFunction
    begins: Callable[[], None]

    async def rounds(self, perform: Callable[[], Awaitable[object]]) -> list[float]:
        """Return the duration of each round, in seconds."""
        taken: list[float] = []
        self.begins()
        started = self.clock()
        while len(taken) < _LEAST_ROUNDS or self.clock() - started < self.seconds:
            begun = self.clock()
            await perform()
            taken.append(self.clock() - begun)
            await asyncio.sleep(0)  # a round may be one long call; this is the only point where it can be interrupted
        return taken

    async def fastest(self, perform: Callable[[], Awaitable[object]]) -> float:
        """Return the duration of the fastest round, in seconds."""
        # Other load on the machine only makes rounds slower, so the minimum is the best estimate.
        return max(min(await self.rounds(perform)), _LEAST_SECONDS)


def calibrate(
    host: ArrayBackend,
    gpus: Sequence[BackendDevice] = (),
    *,
    seconds: float = 0.1,
    clock: ClockFunction = perf_counter,
    network: Callable[[], DeviceLink] | None = None,
    measures: Callable[[], None] = _nothing,
) -> Calibration:
    """Measure the CPU, one GPU of each type, the host-GPU link, and the link between CPU devices of a process.

    Uses the whole machine while it runs. Call it from a program that has nothing else to do.

    Args:
        host: Backend of the host's CPU.
        gpus: GPUs to measure, one of each type.
        seconds: Duration of each of about 13 measurements per device.
        clock: Returns seconds since an arbitrary start.
        network: Measures the link between processes; without it the shipped figures are kept.
        measures: Called when a measurement begins.
    """
    return asyncio.run(_calibrate(host, gpus, _Timer(seconds, clock, measures), network))


async def _calibrate(
    host: ArrayBackend, gpus: Sequence[BackendDevice], timer: _Timer, network: Callable[[], DeviceLink] | None
) -> Calibration:
    speeds = {host.device_type: await _speeds(_Target(host, _as_it_is, _here), timer)}
    hop = await _hop(shared_threads("-calibrate", 1), timer)
    links = {**DEFAULT_LINKS, "memory": replace(DEFAULT_LINKS["memory"], latency=hop)}
    for gpu in gpus:
        speeds[gpu.device_type] = await _speeds(_on_gpu(gpu), timer)
        links["host"] = await _way_to(gpu, timer)
    if network is not None:
        links["network"] = network()
    return Calibration(speeds, links)


async def _as_it_is(value: Array) -> Array:
    return value


async def _here(function: Callable[[], None]) -> None:
    function()


def _on_gpu(gpu: BackendDevice) -> _Target:
    async def perform(function: Callable[[], None]) -> None:
        await gpu.executor.run(Step(), function)

    return _Target(gpu, gpu.to_device, perform, _GPU_CALLS)


async def _speeds(target: _Target, timer: _Timer) -> Speeds:
    """Return the rates of one device.

    Without a kernel, a rate keeps its shipped value, and a product's data type is left out.
    """
    float32 = as_dtype("float32")
    overhead = await _time(_SCALAR, float32, target._replace(calls=_SCALARS), timer)

    async def rate(probe: _Probe, dtype: DType) -> float:
        taken = await _time(probe, dtype, target, timer)
        # The overhead is itself a measurement, so it may subtract at most half of the time.
        return _work(probe, dtype) / max(taken - overhead, taken / 2)

    products: dict[str, float] = {}
    for name in _PRODUCTS:
        with suppress(UnimplementedError):
            products[name] = await rate(_PRODUCT if name in _FAST_PRODUCTS else _SMALL_PRODUCT, as_dtype(name))
    rates = dict(Calibration().speeds_of(target.backend.device_type).rates)
    for name, probe in _RATES.items():
        with suppress(UnimplementedError):
            rates[name] = await rate(probe, float32)
    return Speeds(overhead, rates, products)


async def _hop(threads: DeviceThreads, timer: _Timer) -> float:
    """Return the seconds of a hop from one device's thread through the event loop to another's.

    `threads` stands for both devices.
    """
    step = Step()
    return median(await timer.rounds(lambda: threads.run(step, _nothing)))


async def _way_to(gpu: BackendDevice, timer: _Timer) -> DeviceLink:
    """Return the link between a GPU and the host, by the slower of the two directions."""
    latency, whole = 0.0, 0.0
    # The copy of one byte measures the latency, the large copy the bandwidth.
    for size in (1, _COPIED):
        on_host = np.ones(size, np.uint8)
        on_gpu = await gpu.to_device(on_host)
        there = await timer.fastest(lambda value=on_host: gpu.to_device(value))  # type: ignore[misc]  # a default binds it
        back = await timer.fastest(lambda value=on_gpu: gpu.to_host(value))  # type: ignore[misc]  # as above
        latency, whole = (max(there, back), whole) if size == 1 else (latency, max(there, back))
    # As in `_speeds`: what is subtracted is itself measured, so at most half of the time.
    return replace(DEFAULT_LINKS["host"], latency=latency, bandwidth=_COPIED / max(whole - latency, whole / 2))


async def _time(probe: _Probe, dtype: DType, target: _Target, timer: _Timer) -> float:
    """Return the seconds per call in the fastest round."""
    graph = _graph(probe, dtype)
    # Feeds have no kernel, so the probe is the only bound node.
    (bound,) = bind_graph(graph, target.backend, ResourceManager(), {})
    values = {edge: await target.put(_ones(graph.spec(edge))) for edge in bound.node.inputs}
    arguments = gather(bound, values, frozenset())
    call = bound.call

    def round_() -> None:
        for _ in range(target.calls):
            call(*arguments)

    return await timer.fastest(lambda: target.perform(round_)) / target.calls


def _graph(probe: _Probe, dtype: DType) -> ClientGraph:
    attrs = {
        attr.name: dtype if attr.kind == "type" else attr.default
        for attr in OPS.get(probe.op).attrs.values()
        if attr.kind == "type" or attr.has_default
    }
    nodes = {f"x{i}": Node(f"x{i}", ARG, outputs=(OutputSpec(dtype, shape),)) for i, shape in enumerate(probe.inputs)}
    inputs = tuple(Edge(name, 0) for name in nodes)
    output = OutputSpec(dtype, probe.output)
    nodes["probe"] = Node("probe", probe.op, inputs, attrs={**attrs, **probe.attrs}, outputs=(output,))
    return ClientGraph(nodes, len(inputs), 0)


def _ones(spec: OutputSpec) -> Array:
    """Return an array of ones, or for rank 0 a NumPy scalar, as in a step on a CPU."""
    ones: Array = np.ones([size or 0 for size in spec.dims or ()], spec.dtype.np_dtype)
    return ones if spec.dims else ones[()]


def _work(probe: _Probe, dtype: DType) -> float:
    graph = _graph(probe, dtype)
    costs = CostModel()
    node = graph.nodes["probe"]
    inputs = [costs.operand(graph.spec(edge)) for edge in node.inputs]
    family = traits_of(probe.op).cost
    return family.factor * family.work(node.attrs, inputs, costs.operands(node))
