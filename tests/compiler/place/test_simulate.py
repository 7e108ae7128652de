"""Step simulator: hand-made cases with known times, and an oracle that advances one second at a time."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioflow.compiler.place.calibration import DeviceLink
from aioflow.compiler.place.simulate import Schedule, simulate_placement
from tests.compiler.place.graphs import CPU0, CPU1, CPU2, GPU0, Cost, random_cost
from tests.support.random_examples import examples

LINK = DeviceLink(latency=2.0, bandwidth=8.0, overhead=1.0)


def times(schedule: Schedule) -> dict[str, tuple[float, float]]:
    return {n.node: (n.start, n.finish) for nodes in schedule.timeline.values() for n in nodes}


def simulated(cost: Cost, **placement: str) -> Schedule:
    return simulate_placement(cost.graph, placement, cost.model)


def test_a_chain_on_one_device_takes_the_sum_of_its_times() -> None:
    cost = Cost(LINK)
    cost.add("a", seconds=1.0)
    cost.add("b", "a", seconds=2.0)
    cost.add("c", "b ^a", seconds=4.0)
    schedule = simulated(cost, a=CPU0, b=CPU0, c=CPU0)
    assert times(schedule) == {"a": (0, 1), "b": (1, 3), "c": (3, 7)}
    assert schedule.seconds == 7.0
    assert schedule.transfers == ()


def test_a_transfer_costs_latency_bandwidth_and_receiver_time() -> None:
    cost = Cost(LINK)
    cost.add("a", seconds=1.0, size=24)
    cost.add("b", "a", seconds=1.0)
    schedule = simulated(cost, a=CPU0, b=CPU1)
    (sent,) = schedule.transfers
    assert (sent.node, sent.port, sent.source, sent.destination, sent.size) == ("a", 0, CPU0, CPU1, 24)
    assert (sent.start, sent.finish) == (1.0, 1.0 + 2.0 + 24 / 8)
    assert times(schedule)["b"] == (6.0, 6.0 + 1.0 + 1.0)


def test_a_tensor_is_sent_once_to_each_device() -> None:
    cost = Cost(LINK)
    cost.add("a", seconds=1.0, size=8)
    for name in ("b", "c", "d"):
        cost.add(name, "a", seconds=1.0)
    schedule = simulated(cost, a=CPU0, b=CPU1, c=CPU1, d=CPU2)
    assert [(t.node, t.destination) for t in schedule.transfers] == [("a", CPU1), ("a", CPU2)]
    # The first reader pays for the Recv, the second does not.
    assert times(schedule) == {"a": (0, 1), "b": (4, 6), "c": (6, 7), "d": (4, 6)}


def test_two_outputs_are_two_transfers_and_a_control_edge_carries_nothing() -> None:
    cost = Cost(LINK)
    cost.add("a", seconds=1.0, size=8)
    cost.add("b", "a a:1", seconds=1.0)
    cost.add("c", "^a", seconds=1.0)
    schedule = simulated(cost, a=CPU0, b=CPU1, c=CPU2)
    assert sorted((t.port, t.size, t.finish) for t in schedule.transfers) == [(-1, 0, 3.0), (0, 8, 4.0), (1, 8, 4.0)]
    assert times(schedule)["b"] == (4.0, 4.0 + 1.0 + 2 * 1.0)


def test_a_control_edge_beside_a_data_edge_is_not_sent_as_well() -> None:
    cost = Cost(LINK)
    cost.add("a")
    cost.add("b", "a ^a")
    assert len(simulated(cost, a=CPU0, b=CPU1).transfers) == 1


def test_devices_run_nodes_in_order_of_arrival() -> None:
    """`late` comes first in the graph, but its input arrives after that of `early`; `busy` holds the device."""
    cost = Cost(DeviceLink(latency=3.0))
    cost.add("x", seconds=1.0)
    cost.add("y", seconds=2.0)
    cost.add("late", "x", seconds=5.0)
    cost.add("busy", seconds=3.0)
    cost.add("early", "y", seconds=1.0)
    schedule = simulated(cost, x=CPU1, y=CPU0, late=CPU0, busy=CPU0, early=CPU0)
    assert times(schedule) == {"x": (0, 1), "y": (0, 2), "busy": (2, 5), "early": (5, 6), "late": (6, 11)}


def test_free_nodes_do_not_wait_for_the_device() -> None:
    cost = Cost()
    cost.add("a", seconds=5.0)
    cost.add("handle", op="VarHandleOp")
    cost.add("value", "handle", op="ReadVariableOp")
    cost.add("b", "value", seconds=1.0)
    schedule = simulated(cost, a=CPU0, handle=CPU0, value=CPU0, b=CPU1)
    assert times(schedule)["value"] == (0.0, 0.0)
    assert times(schedule)["b"] == (0.0, 1.0)


def test_feeds_and_constants_are_on_every_cpu_already() -> None:
    cost = Cost(LINK)
    cost.add("feed", op="_Arg", size=100)
    cost.add("constant", op="Const", size=100)
    cost.add("a", "feed constant", seconds=1.0)
    schedule = simulated(cost, feed=CPU0, constant=CPU0, a=CPU1)
    assert times(schedule)["a"] == (0.0, 1.0)
    assert schedule.transfers == ()


def test_a_feed_is_transferred_to_a_gpu() -> None:
    cost = Cost(LINK)
    cost.add("feed", op="_Arg", size=16)
    cost.add("a", "feed", seconds=9.0, gpu=1.0)
    cost.add("b", seconds=1.0)
    schedule = simulate_placement(cost.graph, {"feed": CPU0, "a": GPU0, "b": CPU0}, cost.model)
    assert times(schedule)["a"] == (2.0 + 16 / 8, 4.0 + 1.0 + 1.0)


def loop(cost: Cost, size: int = 0) -> Cost:
    """Add the loop entry → [merge → switch → body → next] → exit, whose body has an inner loop around `inner`."""
    cost.add("entry", seconds=None, op="Enter")
    cost.add("outside", seconds=None)
    cost.add("merge", "entry next", seconds=None, op="Merge")
    cost.add("switch", "merge", seconds=None, op="Switch")
    cost.add("body", "switch:1", None, size)
    cost.add("inner_entry", "body", seconds=None, op="Enter")
    cost.add("inner", "inner_entry", None)
    cost.add("inner_exit", "inner", seconds=None, op="Exit")
    cost.add("next", "inner_exit", seconds=None, op="NextIteration")
    cost.add("exit", "switch", seconds=None, op="Exit")
    cost.add("after", "exit", None)
    return cost


def test_the_body_of_a_loop_runs_for_the_assumed_trips() -> None:
    cost = loop(Cost(trip_count=7))
    schedule = simulate_placement(cost.graph, dict.fromkeys(cost.nodes, CPU0), cost.model)
    lengths = {name: finish - start for name, (start, finish) in times(schedule).items()}
    once = lengths["outside"]
    assert once > 0.0
    assert lengths["after"] == pytest.approx(once)
    assert lengths["body"] == pytest.approx(7 * once)
    assert lengths["inner"] == pytest.approx(49 * once)


def test_a_tensor_in_a_loop_is_sent_on_every_trip() -> None:
    cost = loop(Cost(LINK, trip_count=7), size=24)
    placement = dict.fromkeys(cost.nodes, CPU0) | {"inner_entry": CPU1, "inner": CPU1, "inner_exit": CPU1, "next": CPU1}
    schedule = simulate_placement(cost.graph, placement, cost.model)
    (sent,) = schedule.transfers
    assert sent.node == "body"
    assert sent.size == 7 * 24
    assert sent.finish - sent.start == pytest.approx(7 * (LINK.latency + 24 / 8))


def test_measured_trips_replace_the_assumed_ones() -> None:
    cost = loop(Cost(LINK, trip_count=7))
    cost.measured.observe("body", 3.0, 0, executions=3)
    placement = dict.fromkeys(cost.nodes, CPU0) | {"inner_entry": CPU1}
    schedule = simulate_placement(cost.graph, placement, cost.model)
    start, finish = times(schedule)["body"]
    assert finish - start == pytest.approx(3.0)
    sent = next(t for t in schedule.transfers if t.node == "body")
    assert sent.finish - sent.start == pytest.approx(3 * LINK.latency)


def test_outputs_live_from_their_node_to_their_last_reader() -> None:
    cost = Cost()
    cost.add("a", seconds=1.0, size=100)
    cost.add("b", "a", seconds=1.0, size=10)  # a and b: 110
    cost.add("view", "b", op="Reshape", size=10)  # shares b's memory
    cost.add("c", "view", seconds=1.0, size=50)  # b and c: 60
    cost.add("d", "c view b", seconds=1.0, size=60)  # b, c and d: 120
    cost.add("e", "d", seconds=1.0, size=1)
    cost.add("f", "e", seconds=1.0, size=1)
    assert simulated(cost, **dict.fromkeys(cost.nodes, CPU0)).peak_bytes == {CPU0: 120}
    cost.add("g", "a e", seconds=1.0)  # now a is live until the end
    assert simulated(cost, **dict.fromkeys(cost.nodes, CPU0)).peak_bytes == {CPU0: 220}


def test_split_outputs_share_the_memory_of_the_split_value() -> None:
    cost = Cost()
    cost.add("axis", op="Const", size=4)
    cost.add("a", seconds=1.0, size=100)
    cost.add("parts", "axis a ^a", op="Split", size=50)
    cost.add("b", "parts parts:1", seconds=1.0, size=10)
    cost.add("c", "b", seconds=1.0)
    assert simulated(cost, **dict.fromkeys(cost.nodes, CPU0)).peak_bytes == {CPU0: 110}


def test_a_copy_takes_memory_on_arrival_and_frees_the_original() -> None:
    cost = Cost(DeviceLink(latency=1.0))
    cost.add("a", seconds=1.0, size=100)
    cost.add("b", "a", seconds=1.0, size=7)
    cost.add("c", seconds=5.0, size=60)  # on the first device, from 1 to 6: a is gone at 2
    cost.add("d", "c", seconds=1.0, size=90)  # c and d: 150
    cost.add("e", "d b", seconds=1.0)
    schedule = simulated(cost, a=CPU0, b=CPU1, c=CPU0, d=CPU0, e=CPU0)
    assert schedule.peak_bytes == {CPU0: 60 + 100, CPU1: 107}


def test_the_timeline_is_in_the_order_of_the_starts() -> None:
    cost = random_cost(random.Random(1), 30, LINK)
    schedule = simulate_placement(
        cost.graph, {name: (CPU0, CPU1)[i % 2] for i, name in enumerate(cost.nodes)}, cost.model
    )
    assert sum(len(nodes) for nodes in schedule.timeline.values()) == 30
    for nodes in schedule.timeline.values():
        assert all(a.finish <= b.start for a, b in pairwise(nodes))
    assert schedule.seconds == max(finish for _, finish in times(schedule).values())


class Ticks:
    """A simulator of the same rules that advances one second at a time. All times are whole."""

    def __init__(self, cost: Cost, placement: Mapping[str, str], link: DeviceLink) -> None:
        self.cost, self.placement, self.link = cost, placement, link
        self.order = list(cost.nodes)
        # (node, port) → bytes, for every value that a node needs. A byte takes one second.
        self.needs: dict[str, dict[tuple[str, int], int]] = {}
        for name, node in cost.nodes.items():
            self.needs[name] = {
                (e.node, e.port): (cost.nodes[e.node].outputs[0].dims or (0,))[0] or 0 for e in node.inputs
            }
            data = {source for source, _ in self.needs[name]}
            self.needs[name].update({(source, -1): 0 for source in node.control if source not in data})
        self.began: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.ends: dict[str, float] = {}
        self.waiting: dict[str, tuple[float, float]] = {}  # node → (arrival, busy)
        self.received: dict[tuple[str, int, str], float] = {}

    def run(self) -> dict[str, tuple[float, float]]:
        for node in self.order:
            self.announce(node)
        now = 0.0
        while len(self.ended) < len(self.order):
            # Ends come first, so that readers may start in the same second.
            for node in self.order:
                if self.ends.get(node) == now:
                    self.ended[node] = now
                    for reader in self.order:
                        self.announce(reader)
            for device in set(self.placement.values()):
                self.begin(device, now)
            now += 1.0
        return {node: (self.began[node], self.ended[node]) for node in self.order}

    def announce(self, node: str) -> None:
        """Record the arrival and busy times of a node once all its inputs exist."""
        known = node in self.waiting or node in self.began
        if known or not all(source in self.ended for source, _ in self.needs[node]):
            return
        home = self.placement[node]
        busy = self.cost.measured.seconds(node, "GPU" if "GPU" in home else "CPU") or 0.0
        arrival = 0.0
        for (source, port), size in self.needs[node].items():
            there = self.ended[source]
            if self.placement[source] != home:
                if (source, port, home) not in self.received:
                    self.received[source, port, home] = there + self.link.latency + size
                    busy += self.link.overhead
                there = self.received[source, port, home]
            arrival = max(arrival, there)
        self.waiting[node] = (arrival, busy)

    def begin(self, device: str, now: float) -> None:
        """Start the node whose inputs arrived first, if the device is idle."""
        if any(self.placement[node] == device and node not in self.ended for node in self.began):
            return
        here = [n for n in self.order if n in self.waiting and self.placement[n] == device]
        ready = [n for n in here if self.waiting[n][0] <= now]
        if ready:
            node = min(ready, key=lambda n: self.waiting[n][0])
            self.began[node] = now
            self.ends[node] = now + self.waiting.pop(node)[1]


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(0, 3), st.integers(0, 2))
def test_simulator_agrees_with_the_one_second_oracle(seed: int, count: int, latency: int, overhead: int) -> None:
    source = random.Random(seed)
    link = DeviceLink(latency=latency, bandwidth=1.0, overhead=overhead)
    cost = random_cost(source, count, link)
    placement = {name: source.choice((CPU0, CPU1, GPU0)) for name in cost.nodes}
    schedule = simulate_placement(cost.graph, placement, cost.model)
    assert times(schedule) == Ticks(cost, placement, link).run()
