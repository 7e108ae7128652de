"""Small graphs whose costs are given outright, for the tests of the simulator and the strategies."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec
from aioflow.compiler.place.calibration import Calibration, Link
from aioflow.compiler.place.cluster import ClusterView
from aioflow.compiler.place.constraints import Group
from aioflow.compiler.place.cost_model import CostModel, Measurements
from aioflow.graph.dtypes import as_dtype

TASK = "/job:localhost/replica:0/task:0"
CPU0, CPU1, CPU2, GPU0 = (f"{TASK}/device:{d}" for d in ("CPU:0", "CPU:1", "CPU:2", "GPU:0"))
BYTES = as_dtype("uint8")


@dataclass
class Cost:
    """Collects nodes with what they cost.

    Attributes:
        link: Between any two devices.
        trip_count: Of loops.
    """

    link: Link = field(default_factory=Link)
    trip_count: int = 10
    nodes: dict[str, Node] = field(default_factory=dict)
    measured: Measurements = field(default_factory=lambda: Measurements(floor=0.0))

    def add(
        self,
        name: str,
        reads: str = "",
        seconds: float | None = 1.0,
        size: int = 0,
        *,
        gpu: float | None = None,
        op: str = "Add",
        device: str = "",
    ) -> str:
        """A node that reads "a b:1 ^c", takes some seconds on a CPU (and on a GPU), and has two outputs of some bytes.

        An op that is free stays so. Without seconds the cost model is left to estimate.
        """
        words = reads.split()
        edges = [w.partition(":") for w in words if not w.startswith("^")]
        self.nodes[name] = Node(
            name,
            op,
            tuple(Edge(source, int(port or 0)) for source, _, port in edges),
            tuple(w[1:] for w in words if w.startswith("^")),
            {},
            (OutputSpec(BYTES, (size,)), OutputSpec(BYTES, (size,))),
            device,
        )
        if seconds is not None:
            self.measured.observe(name, seconds, size)
        if gpu is not None:
            self.measured.observe(name, gpu, size, device_type="GPU")
        return name

    @property
    def graph(self) -> ClientGraph:
        return ClientGraph(self.nodes, 0, 0, tuple(self.nodes))

    @property
    def model(self) -> CostModel:
        links = dict.fromkeys(("memory", "host", "peer", "network"), self.link)
        return CostModel(Calibration(links=links), self.measured, self.trip_count)

    def groups(self, devices: Sequence[str], *together: Sequence[str]) -> list[Group]:
        """Every node on its own, except those that belong together; all of them anywhere."""
        taken = {name for names in together for name in names}
        alone = [(name,) for name in self.nodes if name not in taken]
        return [Group(tuple(names), tuple(devices)) for names in (*together, *alone)]


def cluster(*devices: str) -> ClusterView:
    return ClusterView(devices)


def random_cost(source: random.Random, count: int, link: Link, *, free: bool = False) -> Cost:
    """A graph in which each node reads up to three earlier ones, with whole seconds."""
    cost = Cost(link)
    for i in range(count):
        earlier = list(cost.nodes)
        reads = source.sample(earlier, min(len(earlier), source.randint(0, 3)))
        words = [("^" if source.random() < 0.2 else "") + name for name in reads]
        op = "Identity" if free and source.random() < 0.3 else "Add"
        cost.add(f"n{i}", " ".join(words), source.randint(1, 9), source.randint(0, 5), gpu=source.randint(1, 9), op=op)
    return cost
