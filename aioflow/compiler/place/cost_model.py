"""What nodes and transfers cost: estimated from shapes and the calibration, then measured (whitepaper, 3.2.1).

A measured time wins over an estimate. For a device type on which the node has not run, the estimate is scaled by how
far it was off where the node has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final, Protocol

from aioflow.compiler.ir import Node, OutputSpec
from aioflow.compiler.place.calibration import Calibration, Link, link_kind
from aioflow.errors import InvalidArgumentError
from aioflow.graph.costs import Operand
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.dtypes import DType
from aioflow.graph.opdef import traits_of

__all__ = ["CostModel", "Measured", "Measurements", "observe_step", "worth_replacing"]

_LOCAL: Final = Link()
_STRING_BYTES: Final = 64  # of an element, where only the contents would tell
_THREADED: Final = frozenset({"product", "convolution"})  # rates of kernels that use all processors
_STRING_SECONDS: Final = 1e-7  # an element of a string tensor is a Python object
_HANDLES: Final = frozenset({"resource", "variant"})


@dataclass(slots=True)
class Measured:
    """Means of one node on one device type, over steps.

    Attributes:
        steps: In how many steps it was seen.
        seconds: Per step, all executions together.
        output_bytes: Per step.
        executions: Per step: more than one in a loop.
    """

    steps: int = 0
    seconds: float = 0.0
    output_bytes: float = 0.0
    executions: float = 0.0


class Measurements:
    """Exponentially weighted means of what nodes took, by node name and device type.

    The first steps are averaged plainly, until a step's share is that of the time constant. Nothing depends on a clock.

    Args:
        time_constant: In steps: how many it takes until an observation counts 1/e of a new one.
        floor: Seconds. No node is taken to be faster, as a shorter time is mostly the clock's (1 µs in TensorFlow).

    Raises:
        InvalidArgumentError: the time constant is not positive.
    """

    def __init__(self, time_constant: float = 20.0, floor: float = 1e-6) -> None:
        if not time_constant > 0:
            raise InvalidArgumentError("wrong time constant", expected="more than 0 steps", actual=time_constant)
        self._share = -math.expm1(-1.0 / time_constant)
        self._floor = floor
        self._means: dict[str, dict[str, Measured]] = {}

    def __len__(self) -> int:
        return len(self._means)

    def observe(
        self, node: str, seconds: float, output_bytes: float, executions: int = 1, device_type: str = "CPU"
    ) -> None:
        """Take in what a node did in one step."""
        mean = self._means.setdefault(node, {}).setdefault(device_type, Measured())
        mean.steps += 1
        share = max(self._share, 1.0 / mean.steps)
        mean.seconds += share * (seconds - mean.seconds)
        mean.output_bytes += share * (output_bytes - mean.output_bytes)
        mean.executions += share * (executions - mean.executions)

    def of(self, node: str) -> dict[str, Measured]:
        """The means of a node by device type; empty where it was never seen.

        A copy: a large graph is placed in a thread, while the event loop may be observing a step.
        """
        return dict(self._means.get(node, ()))

    def seconds(self, node: str, device_type: str) -> float | None:
        """Mean seconds per step, at least the floor; None where the node was never seen on such a device."""
        mean = self._means.get(node, {}).get(device_type)
        return None if mean is None else max(self._floor, mean.seconds)

    def executions(self, node: str) -> float | None:
        """Mean executions per step on whichever device; None where the node was never seen."""
        return next((mean.executions for mean in self.of(node).values()), None)

    def output_bytes(self, node: str) -> float | None:
        """Mean bytes of the outputs per execution; None where nothing is known of them."""
        mean = next(iter(self.of(node).values()), None)
        return None if mean is None or not mean.output_bytes else mean.output_bytes / max(1.0, mean.executions)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds and bytes of nodes, seconds of transfers.

    Attributes:
        calibration: How fast the machine is.
        measured: What nodes took so far; it goes on being fed while the model is in use.
        trip_count: How often a loop's body is assumed to run where that was not measured; nested loops multiply.
        cpu_share: The share of the processors that a CPU device has for kernels that use several.
        unknown_size: What an unknown dimension counts as. Of an unknown rank, a matrix of such sizes is assumed.
    """

    calibration: Calibration = field(default_factory=Calibration)
    measured: Measurements = field(default_factory=Measurements)
    trip_count: int = 10
    cpu_share: float = 1.0
    unknown_size: int = 32

    def operand(self, spec: OutputSpec) -> Operand:
        """The size of one output before it has been computed."""
        unknown = self.unknown_size
        dims = (unknown, unknown) if spec.dims is None else tuple([unknown if d is None else d for d in spec.dims])
        return Operand(spec.dtype.name, dims, math.prod(dims) * _element_bytes(spec.dtype))

    def operands(self, node: Node) -> list[Operand]:
        """The outputs of a node; sizes that depend on unknown dimensions or on contents follow the measured ones."""
        outputs = [self.operand(spec) for spec in node.outputs]
        seen = self.measured.output_bytes(node.name)
        if seen is None or all(_is_known(spec) for spec in node.outputs):
            return outputs
        estimate = sum([o.size for o in outputs])
        return [o._replace(size=round(seen * o.size / estimate)) for o in outputs] if estimate else outputs

    def estimate(self, node: Node, inputs: Sequence[Operand], outputs: Sequence[Operand], device_type: str) -> float:
        """Seconds of one execution from shapes alone; 0 for what only names a value or steers it."""
        cost = traits_of(node.op).cost
        if cost.is_free:
            return 0.0
        rate, work, factor = cost
        speeds = self.calibration.speeds_of(device_type)
        if rate == "product":
            dtype = outputs[0].dtype if outputs else "float32"
            per_second = speeds.products.get(dtype) or speeds.products["float32"]
        else:
            per_second = speeds.rates[rate]
        if device_type == "CPU" and rate in _THREADED:
            per_second *= self.cpu_share
        seconds = speeds.overhead + factor * work(node.attrs, inputs, outputs) / per_second
        strings = sum([o.elements for o in (*inputs, *outputs) if o.dtype == "string"])
        return seconds + strings * _STRING_SECONDS

    def seconds(
        self,
        node: Node,
        inputs: Sequence[Operand],
        outputs: Sequence[Operand],
        device_type: str,
        trips: float = 1.0,
    ) -> float:
        """Seconds that a node takes in one step on a type of device.

        Args:
            inputs, outputs: From `operands` of the nodes that it reads, and of itself.
            trips: How often it is assumed to run in a step.
        """
        if traits_of(node.op).cost.is_free:
            return 0.0
        seen = self.measured.seconds(node.name, device_type)
        if seen is not None:
            return seen
        estimate = trips * self.estimate(node, inputs, outputs, device_type)
        for other, mean in self.measured.of(node.name).items():
            expected = trips * self.estimate(node, inputs, outputs, other)
            return estimate * mean.seconds / expected
        return estimate

    def link(self, source: str, destination: str) -> Link:
        """The link between two devices, by their full names; from a device to itself it costs nothing."""
        if source == destination:
            return _LOCAL
        return self.calibration.link(link_kind(_spec(source), _spec(destination)))

    def transfer_seconds(self, size: float, source: str, destination: str) -> float:
        """How long `size` bytes are on their way from one device to another."""
        return self.link(source, destination).seconds(size)


@cache
def _spec(device: str) -> DeviceSpec:
    return DeviceSpec.from_string(device)


@cache
def _element_bytes(dtype: DType) -> int:
    if dtype.name == "string":
        return _STRING_BYTES
    return 0 if dtype.name in _HANDLES else dtype.size


def _is_known(spec: OutputSpec) -> bool:
    return spec.dims is not None and None not in spec.dims and spec.dtype.name != "string"


class NodeTime(Protocol):
    """What is needed of a `runtime.stats.NodeStats`."""

    @property
    def node(self) -> str: ...
    @property
    def duration(self) -> float: ...
    @property
    def output_bytes(self) -> int: ...


class DeviceTimes(Protocol):
    """What is needed of a `runtime.stats.StepStats`."""

    @property
    def device(self) -> str: ...
    @property
    def nodes(self) -> Sequence[NodeTime]: ...


def observe_step(costs: CostModel, step_stats: Iterable[DeviceTimes]) -> None:
    """Feed the times of a traced step back. A node that ran several times, in a loop, counts with their sum."""
    for device in step_stats:
        totals: dict[str, list[float]] = {}
        for node in device.nodes:
            total = totals.setdefault(node.node, [0.0, 0.0, 0.0])
            total[0] += node.duration
            total[1] += node.output_bytes
            total[2] += 1
        device_type = _spec(device.device).device_type or "CPU"
        for name, (seconds, size, executions) in totals.items():
            costs.measured.observe(name, seconds, size, round(executions), device_type)


def worth_replacing(current_predicted: float, new_predicted: float, margin: float = 0.1) -> bool:
    """Whether to place a running plan anew: the predicted step is shorter by more than the share `margin`.

    Both predictions must be by the same costs. The margin is the hysteresis: to go back, the other placement would have
    to be better by as much again, so noise in the measured times does not make a plan swing.
    """
    return new_predicted < current_predicted * (1.0 - margin)
