"""The costs of nodes and transfers: estimated from shapes and calibration, then measured (whitepaper, 3.2.1).

A measured time takes precedence over an estimate. For a device type on which the node has not run, the estimate is
scaled by its error on a type on which the node has run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final, Protocol

from aioflow.compiler.ir import Node, OutputSpec
from aioflow.compiler.place.calibration import Calibration, DeviceLink, link_kind
from aioflow.errors import InvalidArgumentError
from aioflow.graph.costs import Operand
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.dtypes import DType
from aioflow.graph.opdef import traits_of

_LOCAL: Final = DeviceLink()
_STRING_BYTES: Final = 64  # assumed size of an element: the real one depends on the contents
_THREADED: Final = frozenset({"product", "convolution"})  # rates of kernels that use all cores
_STRING_SECONDS: Final = 1e-7  # an element of a string tensor is a Python object
_HANDLES: Final = frozenset({"resource", "variant"})


@dataclass(slots=True)
class Measured:
    """Means of one node on one device type, over steps.

    Attributes:
        steps: The number of steps in which it ran.
        seconds: Per step, all executions together.
        output_bytes: Per step.
        executions: Per step: more than one in a loop.
    """

    steps: int = 0
    seconds: float = 0.0
    output_bytes: float = 0.0
    executions: float = 0.0


class Measurements:
    """Exponentially weighted means of node times, by node name and device type.

    The first steps are averaged plainly, until a step's weight is that of the time constant. Nothing depends on a
    clock.

    Args:
        time_constant: The number of steps after which the weight of an observation falls to 1/e of a new one's.
        floor: The shortest time of a node, in seconds; shorter measurements are mostly clock noise (1 µs in
            TensorFlow).

    Raises:
        InvalidArgumentError: the time constant is not positive.
    """

    def __init__(self, time_constant: float = 20.0, floor: float = 1e-6) -> None:
        if not time_constant > 0:
            raise InvalidArgumentError("wrong time constant", expected="more than 0 steps", actual=time_constant)
        # 1 - exp(-1 / T), accurate also for a large T.
        self._share = -math.expm1(-1.0 / time_constant)
        self._floor = floor
        self._means: dict[str, dict[str, Measured]] = {}

    def __len__(self) -> int:
        return len(self._means)

    def observe(
        self, node: str, seconds: float, output_bytes: float, executions: int = 1, device_type: str = "CPU"
    ) -> None:
        """Record the execution of a node in one step."""
        mean = self._means.setdefault(node, {}).setdefault(device_type, Measured())
        mean.steps += 1
        # 1 / steps yields the plain average of the first steps.
        # The maximum ends the plain average once its weight falls below that of the time constant.
        share = max(self._share, 1.0 / mean.steps)
        mean.seconds += share * (seconds - mean.seconds)
        mean.output_bytes += share * (output_bytes - mean.output_bytes)
        mean.executions += share * (executions - mean.executions)

    def of(self, node: str) -> dict[str, Measured]:
        """Return the means of a node by device type; empty if it was never observed.

        The result is a copy: a large graph is placed in a thread while the event loop may record a step.
        """
        return dict(self._means.get(node, ()))

    def seconds(self, node: str, device_type: str) -> float | None:
        """Return the mean seconds per step, at least the floor, or None if the node never ran on such a device."""
        mean = self._means.get(node, {}).get(device_type)
        return None if mean is None else max(self._floor, mean.seconds)

    def executions(self, node: str) -> float | None:
        """Return the mean executions per step on any device type, or None if the node was never observed."""
        return next((mean.executions for mean in self.of(node).values()), None)

    def output_bytes(self, node: str) -> float | None:
        """Return the mean bytes of the outputs per execution, or None if unknown."""
        mean = next(iter(self.of(node).values()), None)
        return None if mean is None or not mean.output_bytes else mean.output_bytes / max(1.0, mean.executions)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds and bytes of nodes, seconds of transfers.

    Attributes:
        calibration: The speed of the machine.
        measured: Measured node times; they are updated while the model is in use.
        trip_count: Assumed number of iterations of a loop that was not measured; nested loops multiply.
        cpu_share: The share of the cores that a CPU device has for multithreaded kernels.
        unknown_size: Assumed size of an unknown dimension. An unknown rank is assumed to be a matrix of such sizes.
    """

    calibration: Calibration = field(default_factory=Calibration)
    measured: Measurements = field(default_factory=Measurements)
    trip_count: int = 10
    cpu_share: float = 1.0
    unknown_size: int = 32

    def operand(self, spec: OutputSpec) -> Operand:
        """Return the estimated size of one output."""
        unknown = self.unknown_size
        dims = (unknown, unknown) if spec.dims is None else tuple([unknown if d is None else d for d in spec.dims])
        return Operand(spec.dtype.name, dims, math.prod(dims) * _element_bytes(spec.dtype))

    def operands(self, node: Node) -> list[Operand]:
        """Return the outputs of a node, with sizes scaled to measured ones if static shapes do not determine them."""
        outputs = [self.operand(spec) for spec in node.outputs]
        seen = self.measured.output_bytes(node.name)
        # Sizes that follow from static shapes need no measurement.
        if seen is None or all(_is_known(spec) for spec in node.outputs):
            return outputs
        estimate = sum([o.size for o in outputs])
        return [o._replace(size=round(seen * o.size / estimate)) for o in outputs] if estimate else outputs

    def estimate(self, node: Node, inputs: Sequence[Operand], outputs: Sequence[Operand], device_type: str) -> float:
        """Return the seconds of one execution from shapes alone; 0 for nodes that name values or are control flow."""
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
        """Return the seconds that a node takes in one step on a device type.

        Args:
            node: The node.
            inputs: The operands that it reads, from `operands` of their nodes.
            outputs: Its own `operands`.
            device_type: The device type, such as "CPU".
            trips: Assumed number of executions per step.
        """
        if traits_of(node.op).cost.is_free:
            return 0.0
        seen = self.measured.seconds(node.name, device_type)
        if seen is not None:
            return seen
        estimate = trips * self.estimate(node, inputs, outputs, device_type)
        # The first type with measurements decides: scale the estimate by the error of the estimate there. An estimate
        # of 0 (a calibrated overhead of 0, and no work) has no such factor.
        for other, mean in self.measured.of(node.name).items():
            expected = trips * self.estimate(node, inputs, outputs, other)
            if expected:
                return estimate * mean.seconds / expected
        return estimate

    def link(self, source: str, destination: str) -> DeviceLink:
        """Return the link between two devices given by full names. A link from a device to itself costs nothing."""
        if source == destination:
            return _LOCAL
        return self.calibration.link(link_kind(_spec(source), _spec(destination)))

    def transfer_seconds(self, size: float, source: str, destination: str) -> float:
        """Return the transfer time of `size` bytes from one device to another, in seconds."""
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
    """The attributes that are needed of `runtime.stats.NodeStats`."""

    @property
    def node(self) -> str: ...
    @property
    def duration(self) -> float: ...
    @property
    def output_bytes(self) -> int: ...


class DeviceTimes(Protocol):
    """The attributes that are needed of `runtime.stats.StepStats`."""

    @property
    def device(self) -> str: ...
    @property
    def nodes(self) -> Sequence[NodeTime]: ...


def observe_step(costs: CostModel, step_stats: Iterable[DeviceTimes]) -> None:
    """Record the times of a traced step. For a node that ran several times, in a loop, the sum counts."""
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
    """Return whether to replace a running plan: the predicted step is shorter by more than the share `margin`.

    Both predictions must use the same costs. The margin is a hysteresis: switching back requires an advantage of the
    same size, so noise in measured times does not make the plan oscillate.
    """
    return new_predicted < current_predicted * (1.0 - margin)
