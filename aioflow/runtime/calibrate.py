"""Measure how fast this machine is, for the cost model of placement: only when asked, by `aioflow calibrate`.

What is timed are the kernels that steps run, one call at a time. Work is counted by the functions of the cost model, so
a rate is right by construction for the op by which it was measured. Kernels use the threads that they use in a step:
where several CPU devices share the cores, their rates are those of a device that has the machine to itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec
from aioflow.compiler.place.calibration import DEFAULT_LINKS, Calibration, Link, Speeds
from aioflow.compiler.place.cost_model import CostModel
from aioflow.compiler.place.op_costs import family_of
from aioflow.graph.dtypes import DType, as_dtype
from aioflow.graph.opdef import OPS
from aioflow.kernels.registry import ArrayBackend
from aioflow.kernels.resources import ResourceManager
from aioflow.runtime.bind import bind_graph, gather
from aioflow.runtime.executor import DeviceThreads, shared_threads
from aioflow.runtime.step import Step

__all__ = ["Clock", "calibrate", "measure_hop", "measure_speeds"]

Clock: TypeAlias = Callable[[], float]
_LEAST_ROUNDS: Final = 3
_LEAST_SECONDS: Final = 1e-9  # a coarse clock may say that no time has passed
_SCALARS: Final = 1000  # calls of a round where one call is too short for a clock

_PRODUCTS: Final = ("float32", "float64", "bfloat16", "float16", "complex64", "complex128", "int32")


@dataclass(frozen=True, slots=True)
class _Probe:
    """A node to time: its op, the shapes of its inputs and output, and attributes that have no default."""

    op: str
    inputs: Sequence[tuple[int, ...]]
    output: tuple[int, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)


# Large enough to leave the caches, as tensors do for which placement matters; 4 bytes an element.
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
# Types without a product of the processor's own take hundreds of times longer.
_SMALL_PRODUCT: Final = _Probe("MatMul", ((128, 128), (128, 128)), (128, 128))
_FAST_PRODUCTS: Final = frozenset({"float32", "float64", "complex64", "complex128"})


def calibrate(
    backends: Mapping[str, ArrayBackend],
    *,
    seconds: float = 0.1,
    clock: Clock = perf_counter,
    network: Callable[[], Link] | None = None,
) -> Calibration:
    """Measure every device type that has a backend, and the link between CPU devices of one process.

    Args:
        backends: By device type.
        seconds: How long each of some 13 measurements of a device may repeat.
        clock: Seconds from whenever.
        network: Measures the link between processes; without it the shipped one is kept, as it is for GPUs.
    """
    speeds = {kind: measure_speeds(backend, seconds, clock) for kind, backend in backends.items()}
    hop = asyncio.run(measure_hop(shared_threads("-calibrate", 1), seconds, clock))
    links = {**DEFAULT_LINKS, "memory": replace(DEFAULT_LINKS["memory"], latency=hop)}
    if network is not None:
        links["network"] = network()
    return Calibration(speeds, links)


def measure_speeds(
    backend: ArrayBackend, seconds: float, clock: Clock = perf_counter, synchronize: Callable[[], object] | None = None
) -> Speeds:
    """The rates of one device.

    Args:
        seconds: How long each measurement may repeat.
        synchronize: Waits until the device has done what it was given; for devices that run behind.
    """
    float32 = as_dtype("float32")
    overhead = _time(_SCALAR, float32, backend, seconds, clock, synchronize, _SCALARS)

    def rate(probe: _Probe, dtype: DType) -> float:
        taken = _time(probe, dtype, backend, seconds, clock, synchronize)
        return _work(probe, dtype) / max(taken - overhead, taken / 2, _LEAST_SECONDS)

    products = {}
    for name in _PRODUCTS:
        products[name] = rate(_PRODUCT if name in _FAST_PRODUCTS else _SMALL_PRODUCT, as_dtype(name))
    return Speeds(overhead, {name: rate(probe, float32) for name, probe in _RATES.items()}, products)


async def measure_hop(threads: DeviceThreads, seconds: float, clock: Clock = perf_counter) -> float:
    """Seconds from one device's thread through the event loop into another's; `threads` stand for both."""
    taken: list[float] = []
    step = Step()
    started = clock()
    while len(taken) < _LEAST_ROUNDS or clock() - started < seconds:
        begun = clock()
        await threads.run(step, _nothing)
        taken.append(clock() - begun)
    return median(taken)


def _nothing() -> None:
    return None


def _time(
    probe: _Probe,
    dtype: DType,
    backend: ArrayBackend,
    seconds: float,
    clock: Clock,
    synchronize: Callable[[], object] | None,
    calls: int = 1,
) -> float:
    """Seconds of a call in the fastest round: whatever else runs on the machine only makes a round slower."""
    graph = _graph(probe, dtype)
    (bound,) = bind_graph(graph, backend, ResourceManager(), {})
    arguments = gather(bound, {edge: _ones(graph.spec(edge), backend) for edge in bound.node.inputs}, frozenset())
    call = bound.call
    taken: list[float] = []
    started = clock()
    while len(taken) < _LEAST_ROUNDS or clock() - started < seconds:
        begun = clock()
        for _ in range(calls):
            call(*arguments)
        if synchronize is not None:
            synchronize()
        taken.append((clock() - begun) / calls)
    return min(taken)


def _graph(probe: _Probe, dtype: DType) -> ClientGraph:
    attrs = {
        attr.name: dtype if attr.kind == "type" else attr.default
        for attr in OPS.get(probe.op).attrs.values()
        if attr.kind == "type" or attr.has_default
    }
    nodes = {
        f"x{i}": Node(f"x{i}", "_Arg", outputs=(OutputSpec(dtype, shape),)) for i, shape in enumerate(probe.inputs)
    }
    inputs = tuple(Edge(name, 0) for name in nodes)
    output = OutputSpec(dtype, probe.output)
    nodes["probe"] = Node("probe", probe.op, inputs, attrs={**attrs, **probe.attrs}, outputs=(output,))
    return ClientGraph(nodes, len(inputs), 0)


def _ones(spec: OutputSpec, backend: ArrayBackend) -> Any:
    """An array, or for rank 0 a NumPy scalar, as in a step on a CPU."""
    ones: Any = np.ones([size or 0 for size in spec.dims or ()], spec.dtype.np_dtype)
    return backend.xp.asarray(ones) if spec.dims else ones[()]


def _work(probe: _Probe, dtype: DType) -> float:
    graph = _graph(probe, dtype)
    costs = CostModel()
    node = graph.nodes["probe"]
    inputs = [costs.operand(graph.spec(edge)) for edge in node.inputs]
    family = family_of(probe.op)
    return family.factor * family.work(node.attrs, inputs, costs.operands(node))
