"""Placement strategies: graphs with a known best placement, constraints, and bounds for every placement."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioflow.compiler.place.calibration import DEFAULT_LINKS, DeviceLink
from aioflow.compiler.place.constraints import Group
from aioflow.compiler.place.simulate import simulate_placement
from aioflow.compiler.place.strategies import STRATEGIES, Placement, choose, heft_is_affordable
from aioflow.errors import InternalError, InvalidArgumentError
from tests.compiler.place.graphs import CPU0, CPU1, CPU2, GPU0, Cost, cluster, random_cost
from tests.support.random_examples import examples

BOTH = (CPU0, CPU1)
SEARCHING = ("greedy", "heft", "auto")


def chosen(cost: Cost, devices: Sequence[str], strategy: str, *together: Sequence[str], seed: int = 0) -> Placement:
    return choose(cost.graph, cost.groups(devices, *together), cluster(*devices), cost.model, strategy, seed)


def two_chains(link: DeviceLink, length: int = 5, seconds: float = 1.0, size: int = 0) -> Cost:
    cost = Cost(link)
    cost.add("feed", op="_Arg", size=size)
    for chain in "ab":
        for i in range(length):
            cost.add(f"{chain}{i}", f"{chain}{i - 1}" if i else "feed", seconds, size)
    cost.add("sum", f"a{length - 1} b{length - 1}", seconds)
    return cost


@pytest.mark.parametrize("strategy", SEARCHING)
def test_two_heavy_chains_are_split(strategy: str) -> None:
    placement = chosen(two_chains(DeviceLink(latency=0.5)), BOTH, strategy)
    for chain in "ab":
        assert len({placement.devices[f"{chain}{i}"] for i in range(5)}) == 1
    assert placement.devices["a0"] != placement.devices["b0"]
    assert placement.seconds == 5.0 + 0.5 + 1.0


@pytest.mark.parametrize("strategy", SEARCHING)
def test_a_chain_stays_on_one_device(strategy: str) -> None:
    cost = Cost(DeviceLink(latency=0.1))
    for i in range(20):
        cost.add(f"n{i}", f"n{i - 1}" if i else "")
    placement = chosen(cost, (CPU0, CPU1, CPU2), strategy)
    assert set(placement.devices.values()) == {CPU0}
    assert placement.seconds == 20.0


@pytest.mark.parametrize("strategy", SEARCHING)
def test_an_expensive_transfer_keeps_readers_with_their_data(strategy: str) -> None:
    """Sending the data takes ten seconds; its two readers take one second each."""
    cost = Cost(DeviceLink(bandwidth=1.0))
    cost.add("data", size=10)
    cost.add("b", "data")
    cost.add("c", "data")
    placement = chosen(cost, BOTH, strategy)
    assert set(placement.devices.values()) == {CPU0}
    assert placement.seconds == 3.0


@pytest.mark.parametrize("strategy", SEARCHING)
def test_a_fast_device_is_preferred_until_it_is_loaded(strategy: str) -> None:
    cost = Cost()
    for i in range(5):
        cost.add(f"n{i}", seconds=3.5, gpu=1.0)
    three = Cost(nodes={name: cost.nodes[name] for name in ("n0", "n1", "n2")}, measured=cost.measured)
    assert set(chosen(three, (GPU0, CPU0), strategy).devices.values()) == {GPU0}
    placement = chosen(cost, (GPU0, CPU0), strategy)
    assert sorted(placement.devices.values()).count(CPU0) == 1
    assert placement.seconds == 4.0


@pytest.mark.parametrize("strategy", ["greedy", "heft"])
def test_a_group_is_one_decision(strategy: str) -> None:
    cost = two_chains(DeviceLink(latency=0.5))
    placement = chosen(cost, BOTH, strategy, ("a1", "b3"), ("a2", "sum"))
    assert placement.devices["a1"] == placement.devices["b3"]
    assert placement.devices["a2"] == placement.devices["sum"]
    assert len(set(placement.devices.values())) == 2


@pytest.mark.parametrize("strategy", [*STRATEGIES, "auto"])
def test_every_node_is_on_a_feasible_device_of_its_group(strategy: str) -> None:
    source = random.Random(5)
    cost = random_cost(source, 40, DeviceLink(latency=1.0, bandwidth=1.0), free=True)
    names = list(cost.nodes)
    everywhere = (CPU0, CPU1, GPU0)
    groups = [
        Group(tuple(names[i : i + 2]), tuple(source.sample(everywhere, source.randint(1, 3)))) for i in range(0, 40, 2)
    ]
    placement = choose(cost.graph, groups, cluster(*everywhere), cost.model, strategy, seed=3)
    for group in groups:
        (device,) = {placement.devices[name] for name in group.members}
        assert device in group.devices


@pytest.mark.parametrize("strategy", ["greedy", "heft"])
def test_ties_go_to_the_preferred_device(strategy: str) -> None:
    cost = Cost()
    cost.add("a")
    cost.add("b", "a")
    groups = [Group(("a",), (CPU2, CPU1, CPU0)), Group(("b",), (CPU1, CPU2))]
    placement = choose(cost.graph, groups, cluster(CPU0, CPU1, CPU2), cost.model, strategy)
    assert placement.devices["a"] == CPU2
    # `b` costs the same everywhere, too: the transfer takes no time.
    assert placement.devices["b"] == CPU1


@pytest.mark.parametrize("strategy", ["greedy", "heft"])
def test_a_variable_is_placed_with_its_readers(strategy: str) -> None:
    """The handle comes first and costs nothing. Deciding at the handle would put every variable on the first device."""
    cost = two_chains(DeviceLink(latency=0.5))
    for chain in "ab":
        cost.add(f"handle_{chain}", op="VarHandleOp")
        cost.add(f"value_{chain}", f"handle_{chain}", op="ReadVariableOp", size=100)
        cost.add(f"{chain}2", f"{chain}1 value_{chain}")
    order = ["feed", "handle_a", "handle_b", "value_a", "value_b"]
    cost.nodes = {name: cost.nodes[name] for name in [*order, *(n for n in cost.nodes if n not in order)]}
    for chain in "ab":
        cost.add(f"update_{chain}", f"handle_{chain} {chain}4")
    together = [(f"handle_{chain}", f"value_{chain}", f"update_{chain}") for chain in "ab"]
    placement = chosen(cost, BOTH, strategy, *together)
    for chain, names in zip("ab", together, strict=True):
        assert {placement.devices[name] for name in names} == {placement.devices[f"{chain}2"]}
    assert placement.devices["a2"] != placement.devices["b2"]


@pytest.mark.parametrize("strategy", ["greedy", "heft"])
def test_placing_a_handle_with_its_reader_fixes_its_group(strategy: str) -> None:
    """`x` follows `reader`, so `big` must as well, although its data is on the other device."""
    cost = Cost(DeviceLink(latency=1.0))
    cost.add("x", op="VarHandleOp")
    cost.add("y", op="VarHandleOp")
    cost.add("pair", "x y", op="IdentityN")
    cost.add("reader", "pair", seconds=9.0)
    cost.add("late", seconds=2.0)
    cost.add("big", "late x", seconds=2.0)
    fixed = [Group(("reader",), (CPU1,)), Group(("late",), (CPU0,))]
    groups = [*fixed, Group(("x", "big"), BOTH), Group(("y",), BOTH), Group(("pair",), BOTH)]
    placement = choose(cost.graph, groups, cluster(*BOTH), cost.model, strategy)
    assert {placement.devices[name] for name in ("x", "y", "pair", "big")} == {CPU1}


def test_nodes_are_placed_in_the_order_in_which_they_become_ready() -> None:
    """`late` comes first in the graph. If placed first, it would take the device that is free for `early`."""
    cost = Cost()
    cost.add("slow", seconds=5.0)
    cost.add("quick", seconds=1.0)
    cost.add("late", "slow", seconds=3.0)
    cost.add("early", "quick", seconds=3.0)
    groups = [Group(("slow",), (CPU0,)), Group(("quick",), (CPU1,))]
    groups += [Group((name,), (CPU1, CPU0)) for name in ("late", "early")]
    placement = choose(cost.graph, groups, cluster(*BOTH), cost.model, "greedy")
    assert placement.devices["early"] == CPU1


@pytest.mark.parametrize("strategy", ["greedy", "heft"])
def test_a_second_reader_on_a_device_pays_no_transfer(strategy: str) -> None:
    """`next` ends at 4.9 on the device of `first`, 5.4 on that of `data`, and 6.9 if it paid for the tensor again."""
    cost = Cost(DeviceLink(overhead=2.0))
    cost.add("data", seconds=1.0)
    cost.add("first", "data", seconds=1.0)
    cost.add("other", "data", seconds=3.5)
    cost.add("next", "data", seconds=0.9)
    groups = [Group(("data",), (CPU0,)), Group(("first",), (CPU1,)), Group(("other",), (CPU0,)), Group(("next",), BOTH)]
    placement = choose(cost.graph, groups, cluster(*BOTH), cost.model, strategy)
    assert placement.devices["next"] == CPU1
    assert placement.seconds == 4.9


@pytest.mark.parametrize("strategy", ["greedy", "heft"])
def test_the_receivers_time_is_part_of_the_decision(strategy: str) -> None:
    """Waiting three seconds for the busy device is cheaper than a five-second Recv on the idle one."""
    cost = Cost(DeviceLink(overhead=5.0))
    cost.add("data", seconds=1.0)
    cost.add("busy", "data", seconds=3.0)
    cost.add("next", "data", seconds=1.0)
    groups = [Group(("data",), (CPU0,)), Group(("busy",), (CPU0,)), Group(("next",), (CPU1, CPU0))]
    placement = choose(cost.graph, groups, cluster(*BOTH), cost.model, strategy)
    assert placement.devices["next"] == CPU0
    assert placement.seconds == 5.0


@pytest.mark.parametrize("strategy", ["greedy", "heft"])
def test_a_handle_that_cannot_follow_its_reader_costs_a_transfer(strategy: str) -> None:
    cost = Cost(DeviceLink(latency=1.0))
    cost.add("value", op="VarHandleOp")
    cost.add("reader", "value")
    groups = [Group(("value",), (CPU0, CPU2)), Group(("reader",), (CPU1, CPU0))]
    placement = choose(cost.graph, groups, cluster(CPU0, CPU1, CPU2), cost.model, strategy)
    assert placement.devices == {"value": CPU0, "reader": CPU0}


@pytest.mark.parametrize("strategy", ["greedy", "heft"])
def test_feeds_and_constants_are_placed_beside_their_first_reader(strategy: str) -> None:
    cost = Cost()
    cost.add("feed", op="_Arg")
    cost.add("constant", op="Const")
    cost.add("a", "feed constant", seconds=3.0)
    groups = [Group((name,), BOTH) for name in ("feed", "constant")] + [Group(("a",), (CPU1,))]
    placement = choose(cost.graph, groups, cluster(*BOTH), cost.model, strategy)
    assert set(placement.devices.values()) == {CPU1}


def test_light_nodes_are_not_worth_a_transfer() -> None:
    """A hundred parallel additions take a microsecond each; the shipped cost of a hop between threads is higher."""
    cost = Cost(DEFAULT_LINKS["memory"])
    cost.add("feed", op="_Arg")
    for i in range(100):
        cost.add(f"n{i}", "feed", 1e-6, 4)
    cost.add("sum", " ".join(f"n{i}" for i in range(100)), 1e-5)
    placement = chosen(cost, (CPU0, CPU1, CPU2), "auto")
    assert set(placement.devices.values()) == {CPU0}
    assert placement.strategy == "first"


@pytest.mark.parametrize(("latency", "split"), [(0.88, True), (0.92, False)])
def test_auto_ignores_gains_below_5_percent(latency: float, split: bool) -> None:
    """Two one-second nodes joined by a third take 3 s on one device, and 2 s plus the latency when split."""
    placement = chosen(two_chains(DeviceLink(latency=latency - 0.05), length=1, seconds=1.0), BOTH, "auto")
    assert placement.seconds == pytest.approx(2 + latency - 0.05 if split else 3.0)
    assert len(set(placement.devices.values())) == 1 + split


def hidden_long_node(second: float = 1.0) -> Cost:
    """Return a graph whose short nodes come first and occupy both devices before the long node."""
    cost = Cost()
    for name, seconds in (("a", 2.0), ("b", 2.0), ("long", 4.0)):
        cost.add(name, seconds=seconds * second)
    return cost


def test_auto_chooses_heft_if_it_is_better() -> None:
    assert chosen(hidden_long_node(), BOTH, "greedy").seconds == 6.0
    assert chosen(hidden_long_node(), BOTH, "heft").seconds == 4.0
    placement = chosen(hidden_long_node(), BOTH, "auto")
    assert (placement.strategy, placement.seconds) == ("heft", 4.0)


def test_auto_skips_heft_for_short_steps() -> None:
    placement = chosen(hidden_long_node(second=1e-6), BOTH, "auto")
    assert placement.strategy == "greedy"
    assert placement.seconds == pytest.approx(6e-6)


def test_the_budget_of_heft_is_5_percent_of_compiling_and_running() -> None:
    """For 1,000 nodes on two devices HEFT takes 8.4 ms and compilation 150 ms, so the step must take at least 18 ms."""
    assert not heft_is_affordable(1000, 2, 0.0179)
    assert heft_is_affordable(1000, 2, 0.0181)
    assert not heft_is_affordable(10_000, 8, 1.0)


def test_heft_fills_gaps() -> None:
    """`late` waits on CPU 1 for the transfer from `first`; the less urgent `small` fits into that gap."""
    cost = Cost(DeviceLink(latency=3.0))
    cost.add("first", seconds=1.0)
    cost.add("late", "first", seconds=6.0)
    cost.add("small", seconds=3.0)
    groups = [Group(("first",), (CPU0,)), Group(("late",), (CPU1,)), Group(("small",), BOTH)]
    cost.add("block", seconds=5.0)
    groups.append(Group(("block",), (CPU0,)))
    placement = choose(cost.graph, groups, cluster(*BOTH), cost.model, "heft")
    assert placement.devices["small"] == CPU1
    assert placement.seconds == 1.0 + 3.0 + 6.0


def test_random_and_round_robin_follow_their_seed() -> None:
    cost = random_cost(random.Random(2), 50, DeviceLink())
    for strategy in ("random", "round_robin"):
        first, again, other = (chosen(cost, BOTH, strategy, seed=seed).devices for seed in (1, 1, 2))
        assert first == again
        assert first != other
    assert list(chosen(cost, BOTH, "round_robin").devices.values())[:4] == [CPU0, CPU1, CPU0, CPU1]


def test_an_unknown_strategy_is_refused_with_the_names() -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        chosen(hidden_long_node(), BOTH, "best")
    assert "heft" in str(raised.value.expected)


@pytest.mark.parametrize("devices", [(), (CPU2,)])
def test_a_group_without_a_device_of_the_cluster_is_an_internal_error(devices: tuple[str, ...]) -> None:
    cost = Cost()
    cost.add("a")
    with pytest.raises(InternalError):
        choose(cost.graph, [Group(("a",), devices)], cluster(*BOTH), cost.model)


def test_a_node_in_no_group_keeps_its_request() -> None:
    cost = Cost()
    cost.add("a", device=CPU1)
    cost.add("b", "a")
    placement = choose(cost.graph, (), cluster(*BOTH), cost.model, "greedy")
    assert placement.devices == {"a": CPU1, "b": CPU0}


def test_an_empty_graph_takes_no_time() -> None:
    assert choose(Cost().graph, (), cluster(*BOTH), Cost().model) == Placement({}, 0.0, "first")


def longest_path(cost: Cost, kind: str) -> float:
    lengths: dict[str, float] = {}
    for name, node in cost.nodes.items():
        own = 0.0 if node.op == "Identity" else cost.measured.seconds(name, kind) or 0.0
        lengths[name] = own + max((lengths[source] for source in node.predecessors()), default=0.0)
    return max(lengths.values())


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 25), st.sampled_from(["greedy", "heft", "auto", "random"]))
def test_bounds_that_hold_for_any_placement(seed: int, count: int, strategy: str) -> None:
    cost = random_cost(random.Random(seed), count, DeviceLink(latency=1.0, bandwidth=2.0, overhead=1.0), free=True)
    devices = (CPU0, CPU1, CPU2)
    placement = chosen(cost, devices, strategy)
    assert placement == chosen(cost, devices, strategy)
    work = sum(cost.measured.seconds(n, "CPU") or 0.0 for n in cost.nodes if cost.nodes[n].op != "Identity")
    assert placement.seconds >= max(longest_path(cost, "CPU"), work / 3) - 1e-9
    # The predicted time equals that of a separate simulation.
    simulated = simulate_placement(cost.graph, placement.devices, cost.model, devices)
    assert placement.seconds == simulated.seconds
    if strategy == "auto":
        assert placement.seconds <= work
