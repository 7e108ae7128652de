"""From a request to a plan, for one session: the compiler with what it needs to know of the cluster."""

from __future__ import annotations

from typing import Final

from aioflow.compiler.ir import ClientGraph, Plan
from aioflow.compiler.pipeline import CompileOptions, compile_step
from aioflow.compiler.place.cluster import ClusterView
from aioflow.compiler.prune import StepRequest
from aioflow.config import SessionConfig
from aioflow.graph.opdef import OPS
from aioflow.ops.transfer import RECV, SEND, check_compression
from aioflow.runtime.cluster import Cluster

__all__ = ["Planner"]

_BOUNDARY: Final = ("_Arg", "_Retval", SEND, RECV)


class Planner:
    """Plans the steps of one session."""

    def __init__(self, cluster: Cluster, config: SessionConfig) -> None:
        self._cluster = cluster
        self._config = config
        compression = "" if config.compression is None else check_compression(config.compression)
        self._options = CompileOptions(optimizations=config.optimizations, compression=compression)

    def plan(self, request: StepRequest) -> Plan:
        """Compile a step. What keeps state stays on the device on which it was first placed.

        Raises:
            InvalidArgumentError, UnimplementedError: as `compile_step`.
        """
        cluster = ClusterView(tuple(self._cluster.devices), self._config.allow_soft_placement, self._cluster.pins)
        plan = compile_step(request, cluster, self._options)
        if len(cluster.devices) > 1:
            for part in plan.parts.values():
                for graph in part.subgraphs.values():
                    self._pin(graph)
        return plan

    def _pin(self, graph: ClientGraph) -> None:
        for node in graph.nodes.values():
            if node.op not in _BOUNDARY and OPS.get(node.op).stateful:
                self._cluster.pins.setdefault(node.name, node.device)
