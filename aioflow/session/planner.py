"""The planner of a session: calls the compiler with the devices of the cluster and the cost model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeAlias

from aioflow.compiler.delegate import Delegate, Delegation, Staying, delegated, regions
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
from aioflow.concurrency.forking import Locked
from aioflow.concurrency.stopping import critical_section
from aioflow.concurrency.threads import in_thread
from aioflow.config import SessionConfig
from aioflow.errors import NotFoundError
from aioflow.graph.boundary import ARG, PARTIAL_FEED, PARTIAL_FETCH, RECV, RETVAL, SEND
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.graph import Graph
from aioflow.graph.opdef import traits_of
from aioflow.graph.traits import Role
from aioflow.kernels.registry import HOST
from aioflow.memory.collector import full_collections_postponed
from aioflow.ops.delegated import DELEGATED
from aioflow.ops.transfer import check_compression
from aioflow.runtime.cluster import Cluster, Home
from aioflow.runtime.delegates import check_delegate, find_delegate
from aioflow.runtime.folding import fold
from aioflow.runtime.stats import StepStats

_BOUNDARY: Final = (ARG, RETVAL, SEND, RECV, PARTIAL_FEED, PARTIAL_FETCH)
_USUAL: Final = frozenset({"CPU", "GPU"})  # devices of other types are used only on request
Meeting: TypeAlias = Callable[[ClientGraph], ClientGraph]
# Guards the pins of all sessions: plans are made in threads, and sessions share workers.
_PINNING: Final = Locked()


class Planner:
    """Plans the steps of one session."""

    def __init__(self, cluster: Cluster, config: SessionConfig) -> None:
        self._cluster = cluster
        self._config = config
        # Invalid settings fail here, when the session is made, instead of in its first step.
        check_strategy(config.placement)
        chosen_passes(config.optimizations)  # raises for names of unknown passes
        self._compression = "" if config.compression is None else check_compression(config.compression)
        check_delegate(config.delegate)
        self._has_delegate = False  # whether `_found` is the engine that the settings choose, or None for none
        self._found: Delegate | None = None
        self._costs: CostModel | None = None
        self._pins: dict[str, str] = {}  # devices of the nodes with state that is private to this session

    @property
    def _delegate(self) -> Delegate | None:
        """The engine, which the first access imports."""
        if not self._has_delegate:
            self._found = None if self._config.reproducible else find_delegate(self._config.delegate)
            self._has_delegate = True
        return self._found

    async def prepare(self) -> None:
        """Import the engine in a thread, so that the event loop goes on: onnxruntime takes 0.1 s.

        Raises:
            NotFoundError: the requirements of the chosen engine are not installed.
        """
        if self._config.delegate is not None and not self._has_delegate:
            await in_thread(full_collections_postponed()(lambda: self._delegate))

    @property
    def engine(self) -> str | None:
        """The name of the engine that computes parts of the steps; None if there is no such engine."""
        return None if self._delegate is None else self._delegate.name

    @property
    def costs(self) -> CostModel:
        """The costs of nodes and transfers, from the calibration of this machine and from traced steps."""
        if self._costs is None:
            self._costs = cost_model(self._config, find_calibration())
        return self._costs

    @property
    def chooses(self) -> bool:
        """True if there is more than one device."""
        return len(self._cluster.devices) > 1

    def plan(self, request: StepRequest, asks: bool = True, meeting: Meeting | None = None) -> Plan:
        """Compile a step. Nodes with state stay on the device on which they were first placed.

        Args:
            request: The feeds, fetches and targets of the step.
            asks: Whether large values may be sent on request, which delays them. A node may then wait for nodes that it
                does not need, so partial runs, where some feeds arrive later, pass False.
            meeting: Replacement of feeds and fetches for partial runs; see `CompileOptions`.

        Raises:
            InvalidArgumentError, UnimplementedError: as `compile_step`.
        """
        # Another thread may have pinned a node elsewhere while this plan was compiled: then compile again.
        while True:
            pins = self._known_pins()
            plan = self._plan(request, replace(self._options_for(request), meeting=meeting), asks, pins)
            if not self.chooses or self._pin(plan, pins):
                return plan

    def _options_for(self, request: StepRequest) -> CompileOptions:
        """Return the session's options, with the graph's optimization switches where the session does not set them."""
        own, graph = self._config.optimizations, _graph_of(request)
        asked = None if graph is None else graph.optimizations
        if asked and own is not False:
            own = asked if own is True else {**asked, **own}
        delegate = None if self._delegate is None else self._delegated
        return CompileOptions(optimizations=own, evaluate=fold, compression=self._compression, delegate=delegate)

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
        """Agree with the other clients of the cluster on the devices of the shared resources of a plan.

        Returns:
            True if all are where the plan has them. False if some are elsewhere; the pins of this client then say
            where, so that the caller can plan again.
        """
        if not self._cluster.own or not self.chooses:
            return True
        shared = (node for node in plan.nodes() if _is_shared(node) and node.op not in _BOUNDARY)
        homes = {node.name: (home, node.device) for node in shared if (home := self._open_home(node, request))}
        resolved = await self._cluster.resolve(dict(homes.values())) if homes else {}
        # Another client may have decided first, on another device.
        moved = {name: resolved[home] for name, (home, device) in homes.items() if resolved[home] != device}
        with _PINNING.lock:
            self._cluster.pins.update(moved)
        return not moved

    def _open_home(self, node: Node, request: StepRequest) -> Home | None:
        """Return the resource of a node if the user's device request leaves a choice of devices, else None."""
        graph, asked = _graph_of(request), ""
        if graph is not None:
            with suppress(NotFoundError):  # the compiler created this node
                asked = graph.get_operation_by_name(node.name).device
        spec = DeviceSpec.from_string(asked)
        if sum(spec.matches(DeviceSpec.from_string(device)) for device in self._cluster.devices) == 1:
            # Only one device is possible, so all clients choose it without asking.
            return None  # with zero matches, soft placement still has a choice
        return node.attrs.get("container", ""), node.attrs["shared_name"] or node.name, asked

    def observe(self, step_stats: Iterable[StepStats]) -> None:
        """Update the cost model from a traced step. Nodes inside delegated parts are not traced."""
        if self.chooses:
            observe_step(
                self.costs,
                [replace(each, nodes=tuple(n for n in each.nodes if n.op != DELEGATED)) for each in step_stats],
            )

    def plan_again(self, request: StepRequest, current: Plan) -> Plan:
        """Return a new plan from the current costs if it is predicted to be better by a margin, else the current plan.

        The current plan is returned with the prediction that the current costs give for it.
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
        # Compiled only to predict the current placement by the same costs; the plan itself is not used.
        compile_step(request, view, replace(self._options_for(request), choose=as_it_is))
        if worth_replacing(held[-1], again.predicted_seconds):
            return again
        return replace(current, predicted_seconds=held[-1])

    def delegation(self, request: StepRequest) -> Delegation:
        """Return the parts of a step that the engine computes, and why other nodes stay. Raises as `plan`."""
        parts: list[tuple[str, ...]] = []
        stays: dict[str, Staying] = {}

        def noted(device: str, graph: ClientGraph) -> ClientGraph:
            if self._delegate is not None and _device_type(device) == HOST:
                found, reasons = regions(device, graph, self._delegate, self._times(graph)[0])
                parts.extend(region.members for region in found)
                stays.update(
                    (name, Staying(graph.nodes[name].op, reason))
                    for name, reason in reasons.items()
                    if graph.nodes[name].role is not Role.CONSTANT
                )
            return graph

        self._plan(request, replace(self._options_for(request), delegate=noted), True, self._known_pins())
        return Delegation(self.engine, tuple(parts), stays)

    def _delegated(self, device: str, graph: ClientGraph) -> ClientGraph:
        """Replace delegated parts in the graph of a CPU (`CompileOptions.delegate`). Engines compute on hosts."""
        if self._delegate is None or _device_type(device) != HOST:
            return graph
        return delegated(device, graph, self._delegate, self._times(graph)[0])

    def _recompute(self, graph: ClientGraph, node: Node, device: str) -> bool:
        """Return True if computing a node again on `device` is expected to be faster than sending its outputs.

        Only for devices of the same type, which compute the same to the last bit. Recomputation includes everything
        upstream up to the feeds.
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
        """Return functions for the expected seconds of the nodes of a placed graph, and of transfers."""
        costs = self.costs
        operands = {name: costs.operands(node) for name, node in graph.nodes.items()}

        def seconds(node: Node) -> float:
            known = graph.nodes.get(node.name)
            if known is None:
                return 0.0  # added by the partitioner
            inputs = [operands[edge.node][edge.port] for edge in known.inputs]
            return costs.seconds(known, inputs, operands[known.name], _device_type(node.device))

        def transfer_seconds(spec: OutputSpec, source: str, destination: str) -> float:
            return costs.transfer_seconds(costs.operand(spec).size, source, destination)

        return seconds, transfer_seconds

    def _known_pins(self) -> dict[str, str]:
        with _PINNING.lock:
            return {**self._cluster.pins, **self._pins}

    def _pin(self, plan: Plan, known: Mapping[str, str]) -> bool:
        """Record the devices of the nodes with state of a plan.

        Returns:
            False, without any change, if a concurrent plan has pinned some of them to other devices since `known` was
            read.
        """
        placed = [
            (self._cluster.pins if _is_shared(node) else self._pins, node)
            for node in plan.nodes()
            if node.op not in _BOUNDARY and traits_of(node.op).effect.is_stateful
        ]
        # A critical section: the planning thread must not be abandoned with only some of the pins set.
        with critical_section(), _PINNING.lock:
            # A node in `known` was placed by its pin. For the others, a pin made meanwhile must say the same.
            if any(n.name not in known and pins.get(n.name, n.device) != n.device for pins, n in placed):
                return False
            for pins, node in placed:
                pins.setdefault(node.name, node.device)
            return True


def _graph_of(request: StepRequest) -> Graph | None:
    """Return the graph of a request; None if the request is empty."""
    for end in (*request.feeds, *request.fetches):
        return end.graph
    for target in request.targets:
        return target.graph
    return None


def _is_shared(node: Node) -> bool:
    """Return True if the node stands for a resource that others may access by name."""
    return "shared_name" in node.attrs


def _names(node: Node) -> Iterable[str]:
    """Return the names of the placed nodes that a node of a plan stands for."""
    return node.body.nodes if node.op == DELEGATED and node.body is not None else (node.name,)


def _device_type(device: str) -> str:
    return DeviceSpec.from_string(device).device_type or "CPU"


def cost_model(config: SessionConfig, calibration: Calibration) -> CostModel:
    """Return the initial cost model of a session, from its configuration and the calibration of the machine."""
    processors = os.cpu_count() or 1
    devices = config.device_count.get("CPU", 1)
    share = min(1.0, config.threads / processors) if config.threads else 1.0 / devices
    return CostModel(calibration, cpu_share=share)
