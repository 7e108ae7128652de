"""`explain` output: every node with its device, totals that match the schedule, and a well-formed SVG."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aioflow as af
from aioflow.compiler.place.calibration import DeviceLink
from aioflow.compiler.place.cost_model import CostModel
from aioflow.compiler.place.report import Explanation, explain
from aioflow.compiler.place.simulate import Schedule, Transfer, simulate_placement
from aioflow.compiler.place.strategies import Placement
from aioflow.compiler.place.timeline_svg import byte_text, device_labels, draw_timeline, time_text
from aioflow.compiler.prune import StepRequest, prune
from tests.compiler.place.graphs import CPU0, CPU1, CPU2, Cost, cluster

SVG = "{http://www.w3.org/2000/svg}"


def small() -> Schedule:
    cost = Cost(DeviceLink(latency=0.5, bandwidth=1e6, overhead=0.25))
    cost.add("scope/a", seconds=1.0, size=2_000_000, op="MatMul")
    cost.add("b", "scope/a", seconds=2.0, op="Exp")
    cost.add("c", "^b", seconds=1e-6)
    return simulate_placement(cost.graph, {"scope/a": CPU0, "b": CPU1, "c": CPU1}, cost.model, (CPU0, CPU1, CPU2))


def explained() -> Explanation:
    devices = {"scope/a": CPU0, "b": CPU1, "c": CPU1}
    return Explanation(Placement(devices, 5.75, "greedy"), small(), 3.0, measured_seconds=6.5)


def test_the_text_has_every_node_with_its_times_and_every_transfer() -> None:
    text = str(explained())
    lines = text.splitlines()
    assert lines[0] == "3 nodes after optimization, on 3 devices, placed by greedy"
    assert "predicted step  5.75 s" in text
    assert "measured step   6.5 s" in text
    assert "without a split 3 s" in text
    assert re.search(r"^ +0\.000 +1000\.000 ms +MatMul +scope/a$", text, re.MULTILINE)
    assert re.search(r"^ +3500\.000 +5750\.000 ms +Exp +b$", text, re.MULTILINE)
    assert re.search(r"^ +1000\.000 +3500\.000 ms +2 MB +CPU:0 → CPU:1 +scope/a:0$", text, re.MULTILINE)
    assert f"{CPU0}: 1 node, busy 1 s (17%)" in text
    assert f"{CPU2}: 0 nodes" in text


def test_the_messages_of_a_step_on_several_tasks_are_counted() -> None:
    ps, worker = (f"/job:{job}/replica:0/task:0/device:CPU:0" for job in ("ps", "worker"))
    with af.device(ps):
        scalar = af.Variable(1.0, name="scalar", use_resource=True)
    with af.device(worker):
        result = af.add(scalar, 1.0)
    graph = prune(StepRequest((), (result,), ()))
    found = str(explain(graph, cluster(ps, worker), CostModel(), "greedy"))
    assert found.splitlines()[-1] == "4 messages a step: 2 requests, 1 value from task to task, 1 answer"
    assert "messages" not in str(explain(prune(StepRequest((), (af.constant(1.0),), ())), cluster(CPU0), CostModel()))


def test_a_real_training_step_with_a_loop_is_explained() -> None:
    x = af.placeholder("float32", [None, 8], name="x")
    w = af.Variable(af.zeros([8, 8]), name="w")
    _, y = af.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, af.tanh(af.matmul(y, w))), [0, x])
    train = af.train.GradientDescentOptimizer(0.1).minimize(af.reduce_sum(y))
    graph = prune(StepRequest((x,), (y,), (train,)))
    found = explain(graph, cluster(CPU0, CPU1), CostModel(), "greedy")
    assert found.placement.devices.keys() == graph.nodes.keys()
    listed = [interval.node for nodes in found.schedule.timeline.values() for interval in nodes]
    assert sorted(listed) == sorted(graph.nodes)
    assert found.schedule.seconds == found.placement.seconds
    assert all(name in str(found) for name in graph.nodes)
    ElementTree.fromstring(found.to_svg())


def test_svg_has_lanes_of_devices_bars_of_nodes_and_arcs_of_transfers() -> None:
    root = ElementTree.fromstring(draw_timeline(small(), 'a <step> & "more"'))
    texts = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert 'a <step> & "more"' in texts
    assert {"CPU:0", "CPU:1", "CPU:2", "scope/a", "b", "time (ms)", "2 MB"} <= set(texts)
    tips = [tip.text or "" for tip in root.iter(f"{SVG}title")]
    assert any(tip.startswith("scope/a (MatMul)\n0 µs to 1 s, 1 s") for tip in tips)
    assert any(tip.startswith("scope/a:0, 2 MB, CPU:0 → CPU:1") for tip in tips)
    arcs = [path for path in root.iter(f"{SVG}path") if path.get("marker-end")]
    assert len(arcs) == 1


def test_bar_positions_match_the_time_axis() -> None:
    root = ElementTree.fromstring(draw_timeline(small(), "t"))
    # Two tick labels determine the scale, so that the test does not depend on the layout.
    ticks = {}
    for text in root.iter(f"{SVG}text"):
        if re.fullmatch(r"[\d.]+", text.text or "") and text.get("text-anchor") == "middle":
            ticks[float(text.text or 0)] = float(text.get("x") or 0)
    (low, x0), (high, x1) = min(ticks.items()), max(ticks.items())
    bar = next(g for g in root.iter(f"{SVG}g") if (g[0].text or "").startswith("b (Exp)"))
    milliseconds = [low + (float(bar[1].get("x") or 0) - x0) * (high - low) / (x1 - x0)]
    milliseconds.append(milliseconds[0] + float(bar[1].get("width") or 0) * (high - low) / (x1 - x0))
    assert abs(milliseconds[0] - 3500) < 5
    assert abs(milliseconds[1] - 5750) < 5


def test_short_nodes_are_merged_into_counted_bars() -> None:
    cost = Cost()
    cost.add("long", seconds=1.0)
    for i in range(1000):
        cost.add(f"n{i}", "long", seconds=1e-5)
    schedule = simulate_placement(cost.graph, dict.fromkeys(cost.nodes, CPU0), cost.model)
    root = ElementTree.fromstring(draw_timeline(schedule, "t"))
    assert len(list(root.iter(f"{SVG}g"))) == 2
    assert any((tip.text or "").startswith("1000 nodes: n0 … n999") for tip in root.iter(f"{SVG}title"))


def test_labels_in_bars_fit() -> None:
    cost = Cost()
    for i in range(40):
        cost.add(f"a_long_scope/of_a_layer/n{i}", seconds=1.0 + i % 5)
    schedule = simulate_placement(cost.graph, dict.fromkeys(cost.nodes, CPU0), cost.model)
    root = ElementTree.fromstring(draw_timeline(schedule, "t"))
    labelled = 0
    for group in root.iter(f"{SVG}g"):
        for text in group.iter(f"{SVG}text"):
            labelled += 1
            assert len(text.text or "") * 6.0 <= float(group[1].get("width") or 0)
            assert "n" in (text.text or "")
    assert labelled > 10


def test_an_empty_step_can_be_drawn() -> None:
    ElementTree.fromstring(draw_timeline(Schedule(0.0, {CPU0: ()}, (), {CPU0: 0}), "nothing"))


def test_device_labels_distinguish_tasks() -> None:
    remote = "/job:worker/replica:0/task:1/device:CPU:0"
    assert device_labels([CPU0, CPU1]) == {CPU0: "CPU:0", CPU1: "CPU:1"}
    assert device_labels([CPU0, remote]) == {CPU0: "localhost/0 CPU:0", remote: "worker/1 CPU:0"}


def test_times_and_sizes_have_units() -> None:
    assert [time_text(s) for s in (2.5, 0.0025, 2.5e-6, 0.0)] == ["2.5 s", "2.5 ms", "2.5 µs", "0 µs"]
    assert [time_text(s) for s in (0.9994, 0.9996, 0.0009996)] == ["999 ms", "1 s", "1 ms"]
    assert [byte_text(s) for s in (999_400, 999_600)] == ["999 kB", "1 MB"]
    assert [byte_text(s) for s in (0, 999, 1000, 2.5e6, 3e9)] == ["0 B", "999 B", "1 kB", "2.5 MB", "3 GB"]


def test_ticks_are_evenly_spaced_round_numbers() -> None:
    cost = Cost()
    cost.add("a", seconds=0.0437)
    schedule = simulate_placement(cost.graph, {"a": CPU0}, cost.model)
    root = ElementTree.fromstring(draw_timeline(schedule, "t"))
    numbers = [float(t.text) for t in root.iter(f"{SVG}text") if re.fullmatch(r"[\d.]+", t.text or "")]  # type: ignore[arg-type]
    assert numbers[0] == 0.0
    assert {round(b - a, 9) for a, b in pairwise(numbers)} == {10.0}


# ── readable labels ──────────────────────────────────────────────────────────────────────────────────────────────────

Box = tuple[float, float, float, float]


def text_boxes(svg: str) -> list[tuple[str, Box]]:
    """Return each text with its bounding box in a wide font: left, top, right, bottom."""
    found = []
    for text in ElementTree.fromstring(svg).iter(f"{SVG}text"):
        words, size = "".join(text.itertext()), float(text.get("font-size") or 13)
        width = len(words) * size * (0.65 if text.get("font-weight") else 0.6)
        left = float(text.get("x") or 0) - {"middle": width / 2, "end": width}.get(text.get("text-anchor") or "", 0.0)
        baseline = float(text.get("y") or 0)
        found.append((words, (left, baseline - 0.8 * size, left + width, baseline + 0.2 * size)))
    return found


def assert_readable(svg: str) -> list[str]:
    """Check that texts overlap neither one another nor the border, and return them."""
    root = ElementTree.fromstring(svg)
    width, height = float(root.get("width") or 0), float(root.get("height") or 0)
    boxes = text_boxes(svg)
    for words, (left, top, right, bottom) in boxes:
        assert min(left, top) >= 0, words
        assert right <= width, words
        assert bottom <= height, words
    for (one, a), (other, b) in combinations(boxes, 2):
        apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        assert apart, (one, a, other, b)
    return [words for words, _ in boxes]


def crossing(transfers: Sequence[tuple[int, int, float]], devices: Sequence[str], seconds: float = 10.0) -> Schedule:
    """Return a step that has only 1 MB transfers, each given as source index, destination index and start time."""
    made = tuple(
        Transfer(f"n{i}", 0, devices[source], devices[destination], 1_000_000, start, start + 0.1)
        for i, (source, destination, start) in enumerate(transfers)
    )
    return Schedule(seconds, dict.fromkeys(devices, ()), made, dict.fromkeys(devices, 0))


@pytest.mark.parametrize(
    ("transfers", "labels"),
    [
        ([(0, 1, 5.0), (0, 2, 5.0)], 2),  # one value for two devices
        ([(1, 0, 5.0), (1, 2, 5.0), (0, 1, 5.0), (2, 1, 5.0)], 4),  # all directions at the same time
        ([(0, 1, 5.0 + 0.01 * i) for i in range(6)], 4),
        ([(0, 1, 0.0), (1, 0, 0.0), (0, 2, 9.9), (2, 0, 9.9)], 4),  # at both ends of the axis
        ([(0, 2, 5.0)] * 12, 4),
        ([(i % 3, (i + 1) % 3, 0.8 * i) for i in range(12)], 12),
    ],
)
@pytest.mark.parametrize("task", [None, "a_long_name_of_a_job"])
def test_transfer_labels_do_not_overlap(transfers: list[tuple[int, int, float]], labels: int, task: str | None) -> None:
    """Labels without enough room appear only as tooltips."""
    devices = [CPU0, CPU1, CPU2 if task is None else f"/job:{task}/replica:0/task:0/device:CPU:0"]
    texts = assert_readable(draw_timeline(crossing(transfers, devices), "t"))
    assert texts.count("1 MB") >= labels


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 2), st.floats(0.0, 9.9)), max_size=12),
    st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=300),
)
def test_no_texts_overlap_in_random_timelines(drawn: list[tuple[int, int, float]], title: str) -> None:
    transfers = [(source, (source + by) % 3, start) for source, by, start in drawn]
    assert_readable(draw_timeline(crossing(transfers, [CPU0, CPU1, CPU2]), title))
