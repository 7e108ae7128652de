"""From a request to a plan, for one session: the compiler with what it needs to know of the cluster and its costs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeAlias

from aioflow.compiler.delegate import Delegation, Staying, delegated, regions
from aioflow.compiler.ir import ClientGraph, Node, OutputSpec, Plan
from aioflow.compiler.optimize.passes import chosen_passes
from aioflow.compiler.pipeline import CompileOptions, compile_step
from aioflow.compiler.place.calibration import Calibration, find_calibration
from aioflow.compiler.place.cluster import ClusterView
from aioflow.compiler.place.constraints import Group
from aioflow.compiler.place.cost_model import CostModel, observe_step, worth_replacing
from aioflow.compiler.place.simulate import simulate_placement
from aioflow.compiler.place.strategies import Placement, check_strategy, choose
from aioflow.compiler.prune import StepRequest
from aioflow.compiler.timeline import NodeSeconds, TransferSeconds
from aioflow.config import SessionConfig
from aioflow.errors import NotFoundError
from aioflow.graph.boundary import ARG, PARTIAL_FEED, PARTIAL_FETCH, RECV, RETVAL, SEND
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.graph import Graph
from aioflow.graph.opdef import traits_of
from aioflow.kernels.registry import HOST
from aioflow.ops.delegated import DELEGATED
from aioflow.ops.transfer import check_compression
from aioflow.runtime.cluster import Cluster, Home
from aioflow.runtime.delegates import find_delegate
from aioflow.runtime.folding import fold
from aioflow.runtime.stats import StepStats
from aioflow.work.forking import Locked
from aioflow.work.stopping import acting

__all__ = ["Meeting", "Planner", "cost_model"]

_BOUNDARY: Final = (ARG, RETVAL, SEND, RECV, PARTIAL_FEED, PARTIAL_FETCH)
_USUAL: Final = frozenset({"CPU", "GPU"})  # devices of other types have to be asked for
Meeting: TypeAlias = Callable[[ClientGraph], ClientGraph]
_PINNING: Final = Locked()  # plans are made in threads, and sessions share workers


class Planner:
    """Plans the steps of one session."""

    def __init__(self, cluster: Cluster, config: SessionConfig) -> None:
        self._cluster = cluster
        self._config = config
        check_strategy(config.placement)
        chosen_passes(config.optimizations)  # which refuses names that no pass has
        compression = "" if config.compression is None else check_compression(config.compression)
        self._delegate = None if config.reproducible else find_delegate(config.delegate)
        self._options = CompileOptions(
            optimizations=config.optimizations,
            evaluate=fold,
            compression=compression,
            delegate=None if self._delegate is None else self._delegated,
        )
        self._costs: CostModel | None = None
        self._pins: dict[str, str] = {}  # as those of the cluster, of nodes that keep something for this session alone

    @property
    def engine(self) -> str | None:
        """The name of the engine that computes parts of the steps; None for none."""
        return None if self._delegate is None else self._delegate.name

    @property
    def costs(self) -> CostModel:
        """What nodes and transfers cost: by the calibration of this machine, and by the steps that were traced."""
        if self._costs is None:
            self._costs = cost_model(self._config, find_calibration())
        return self._costs

    @property
    def chooses(self) -> bool:
        """Whether there is more than one device."""
        return len(self._cluster.devices) > 1

    def plan(self, request: StepRequest, asks: bool = True, meeting: Meeting | None = None) -> Plan:
        """Compile a step. What keeps state stays on the device on which it was first placed.

        Args:
            asks: Whether large values may be sent late, when they are asked for: then a node may wait for others
                that it does not need, which is no good where some feeds come later.
            meeting: As of `CompileOptions`.

        Raises:
            InvalidArgumentError, UnimplementedError: as `compile_step`.
        """
        while True:
            pins = self._known_pins()
            plan = self._plan(request, replace(self._options_for(request), meeting=meeting), asks, pins)
            if not self.chooses or self._pin(plan, pins):
                return plan

    def _options_for(self, request: StepRequest) -> CompileOptions:
        """The session's options, and where its switches do not say otherwise those of the graph."""
        own, graph = self._options.optimizations, _graph_of(request)
        asked = None if graph is None else graph.optimizations
        if own is False or not asked:
            return self._options
        return replace(self._options, optimizations=asked if own is True else {**asked, **own})

    def _view(self, pins: Mapping[str, str]) -> ClusterView:
        cluster = self._cluster
        devices = (*cluster.devices, cluster.own) if cluster.own else tuple(cluster.devices)
        usual = _USUAL | {kind for kind, count in self._config.device_count.items() if count}
        on_request = frozenset(name for name in devices if DeviceSpec.from_string(name).device_type not in usual)
        soft = self._config.allow_soft_placement
        return ClusterView(devices, soft, pins, cluster.home, cluster.own, cluster.files, on_request)

    def _plan(self, request: StepRequest, options: CompileOptions, asks: bool, pins: Mapping[str, str]) -> Plan:
        view = self._view(pins)
        if not self.chooses:
            return compile_step(request, view, options)
        found: list[Placement] = []

        def by_costs(graph: ClientGraph, groups: Sequence[Group], cluster: ClusterView) -> Mapping[str, str]:
            found.append(choose(graph, groups, cluster, self.costs, self._config.placement))
            return found[-1].devices

        options = replace(
            options,
            choose=by_costs,
            recompute=self._recompute,
            times=self._times if asks else None,
        )
        plan = compile_step(request, view, options)
        return replace(plan, predicted_seconds=found[-1].seconds) if found else plan

    async def agree(self, plan: Plan, request: StepRequest) -> bool:
        """Settle with the cluster's other clients where the resources of a plan are; False where some are not as it
        says, which is known here from now on.
        """
        if not self._cluster.own or not self.chooses:
            return True
        shared = (node for node in plan.nodes() if _is_shared(node) and node.op not in _BOUNDARY)
        homes = {node.name: (home, node.device) for node in shared if (home := self._open_home(node, request))}
        settled = await self._cluster.settle(dict(homes.values())) if homes else {}
        moved = {name: settled[home] for name, (home, device) in homes.items() if settled[home] != device}
        with _PINNING.lock:
            self._cluster.pins.update(moved)
        return not moved

    def _open_home(self, node: Node, request: StepRequest) -> Home | None:
        """The resource that a node stands for, if the user leaves open on which of several devices it is."""
        graph, asked = _graph_of(request), ""
        if graph is not None:
            with suppress(NotFoundError):  # the compiler has made it
                asked = graph.get_operation_by_name(node.name).device
        spec = DeviceSpec.from_string(asked)
        if sum(spec.matches(DeviceSpec.from_string(device)) for device in self._cluster.devices) == 1:
            return None  # where none does, soft placement chooses
        return node.attrs.get("container", ""), node.attrs["shared_name"] or node.name, asked

    def observe(self, step_stats: Iterable[StepStats]) -> None:
        """Learn from a traced step what its nodes cost; those of delegated parts were not seen."""
        if self.chooses:
            observe_step(
                self.costs,
                [replace(each, nodes=tuple(n for n in each.nodes if n.op != DELEGATED)) for each in step_stats],
            )

    def plan_again(self, request: StepRequest, current: Plan) -> Plan:
        """A plan by the costs as they are known now, if it is expected to be so much better than the current one that
        it is worth replacing that; else the current parts, with the prediction that these costs give.
        """
        devices = {name: device for device, node in current.placed_nodes() for name in _names(node)}
        again = self.plan(request)
        if again.predicted_seconds is None:
            return current
        held: list[float] = []

        def as_it_is(graph: ClientGraph, groups: Sequence[Group], cluster: ClusterView) -> Mapping[str, str]:
            kept = {name: devices.get(name, group.devices[0]) for group in groups for name in group.members}
            held.append(simulate_placement(graph, kept, self.costs, cluster.devices).seconds)
            return kept

        view = self._view(self._known_pins())
        compile_step(request, view, replace(self._options_for(request), choose=as_it_is))
        if worth_replacing(held[-1], again.predicted_seconds):
            return again
        return replace(current, predicted_seconds=held[-1])

    def delegation(self, request: StepRequest) -> Delegation:
        """Return what the engine computes of a step. Raises as `plan`."""
        parts: list[tuple[str, ...]] = []
        stays: dict[str, Staying] = {}

        def noted(device: str, graph: ClientGraph) -> ClientGraph:
            if self._delegate is not None and _device_type(device) == HOST:
                found, reasons = regions(device, graph, self._delegate, self._times(graph)[0])
                parts.extend(region.members for region in found)
                stays.update(
                    (name, Staying(graph.nodes[name].op, reason))
                    for name, reason in reasons.items()
                    if graph.nodes[name].op != "Const"
                )
            return graph

        self._plan(request, replace(self._options_for(request), delegate=noted), True, self._known_pins())
        return Delegation(self.engine, tuple(parts), stays)

    def _delegated(self, device: str, graph: ClientGraph) -> ClientGraph:
        """Cut the parts out of the graph of a CPU (`CompileOptions.delegate`); engines compute on the host."""
        if self._delegate is None or _device_type(device) != HOST:
            return graph
        return delegated(device, graph, self._delegate, self._times(graph)[0])

    def _recompute(self, graph: ClientGraph, node: Node, device: str) -> bool:
        """Whether it takes less time to compute a node of feeds and constants twice than to send it (a kind of device
        computes the same to the last bit; another kind need not).
        """
        kind = _device_type(device)
        if _device_type(node.device) != kind:
            return False
        outputs = self.costs.operands(node)
        limit = self.costs.transfer_seconds(max((o.size for o in outputs), default=0), node.device, device)
        seconds = 0.0
        waiting, seen = [node], {node.name}
        while waiting and seconds < limit:
            current = waiting.pop()
            sources = [graph.nodes[edge.node] for edge in current.inputs]
            inputs = [self.costs.operands(graph.nodes[edge.node])[edge.port] for edge in current.inputs]
            seconds += self.costs.seconds(current, inputs, self.costs.operands(current), kind)
            waiting += [s for s in sources if s.op not in _BOUNDARY and s.name not in seen]
            seen.update(s.name for s in sources)
        return seconds < limit

    def _times(self, graph: ClientGraph) -> tuple[NodeSeconds, TransferSeconds]:
        """The expected seconds of the nodes of a placed graph, and of transfers."""
        costs = self.costs
        operands = {name: costs.operands(node) for name, node in graph.nodes.items()}

        def seconds(node: Node) -> float:
            known = graph.nodes.get(node.name)
            if known is None:
                return 0.0  # the cut has made it
            inputs = [operands[edge.node][edge.port] for edge in known.inputs]
            return costs.seconds(known, inputs, operands[known.name], _device_type(node.device))

        def transfer_seconds(spec: OutputSpec, source: str, destination: str) -> float:
            return costs.transfer_seconds(costs.operand(spec).size, source, destination)

        return seconds, transfer_seconds

    def _known_pins(self) -> dict[str, str]:
        with _PINNING.lock:
            return {**self._cluster.pins, **self._pins}

    def _pin(self, plan: Plan, known: Mapping[str, str]) -> bool:
        """Settle where the state of a plan is; False where a plan made at the same time has put some elsewhere since
        the pins were as `known`.
        """
        placed = [
            (self._cluster.pins if _is_shared(node) else self._pins, node)
            for node in plan.nodes()
            if node.op not in _BOUNDARY and traits_of(node.op).effect.is_stateful
        ]
        with acting(), _PINNING.lock:
            if any(n.name not in known and pins.get(n.name, n.device) != n.device for pins, n in placed):
                return False
            for pins, node in placed:
                pins.setdefault(node.name, node.device)
            return True


def _graph_of(request: StepRequest) -> Graph | None:
    """None where nothing is asked for."""
    for end in (*request.feeds, *request.fetches):
        return end.graph
    for target in request.targets:
        return target.graph
    return None


def _is_shared(node: Node) -> bool:
    """Whether it stands for a resource that others may use by its name."""
    return "shared_name" in node.attrs


def _names(node: Node) -> Iterable[str]:
    """Return the names of the placed nodes that a node of a plan stands for."""
    return node.body.nodes if node.op == DELEGATED and node.body is not None else (node.name,)


def _device_type(device: str) -> str:
    return DeviceSpec.from_string(device).device_type or "CPU"


def cost_model(config: SessionConfig, calibration: Calibration) -> CostModel:
    """What steps cost before any was traced, for a session with this configuration on a machine calibrated so."""
    processors = os.cpu_count() or 1
    devices = config.device_count.get("CPU", 1)
    share = min(1.0, config.threads / processors) if config.threads else 1.0 / devices
    return CostModel(calibration, cpu_share=share)
