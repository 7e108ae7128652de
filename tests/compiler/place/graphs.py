"""Small graphs with explicit node costs, for the tests of the simulator and the strategies."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec
from aioflow.compiler.place.calibration import Calibration, DeviceLink
from aioflow.compiler.place.cluster import ClusterView
from aioflow.compiler.place.constraints import Group
from aioflow.compiler.place.cost_model import CostModel, Measurements
from aioflow.graph.dtypes import as_dtype

TASK = "/job:localhost/replica:0/task:0"
CPU0, CPU1, CPU2, GPU0 = (f"{TASK}/device:{d}" for d in ("CPU:0", "CPU:1", "CPU:2", "GPU:0"))
BYTES = as_dtype("uint8")


@dataclass
class Cost:
    """A builder of graphs whose nodes have explicit costs.

    Attributes:
        link: Link between any two devices.
        trip_count: Assumed trip count of loops.
        nodes: Nodes added so far, by name.
        measured: Costs of these nodes, as measurements.
    """

    link: DeviceLink = field(default_factory=DeviceLink)
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
        """Add a node with two outputs, and return its name.

        Args:
            name: Name of the node.
            reads: Inputs and control inputs, such as "a b:1 ^c".
            seconds: Time on a CPU. None leaves the time to the cost model's estimate.
            size: Size of each output, in bytes.
            gpu: Time on a GPU, in seconds.
            op: Op of the node. An op that costs nothing stays free.
            device: Requested device.
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
        """Return a group for each of `together` and for each remaining node, all with the same devices."""
        taken = {name for names in together for name in names}
        alone = [(name,) for name in self.nodes if name not in taken]
        return [Group(tuple(names), tuple(devices)) for names in (*together, *alone)]


def cluster(*devices: str) -> ClusterView:
    return ClusterView(devices)


def random_cost(source: random.Random, count: int, link: DeviceLink, *, free: bool = False) -> Cost:
    """Return a graph whose nodes each read up to three earlier nodes and take a whole number of seconds."""
    cost = Cost(link)
    for i in range(count):
        earlier = list(cost.nodes)
        reads = source.sample(earlier, min(len(earlier), source.randint(0, 3)))
        words = [("^" if source.random() < 0.2 else "") + name for name in reads]
        op = "Identity" if free and source.random() < 0.3 else "Add"
        cost.add(f"n{i}", " ".join(words), source.randint(1, 9), source.randint(0, 5), gpu=source.randint(1, 9), op=op)
    return cost
