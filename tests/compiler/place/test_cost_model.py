"""Cost model: estimates from shapes, measured means, and calibration files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioflow.compiler.ir import Edge, Node, OutputSpec
from aioflow.compiler.place.calibration import (
    DEFAULT_LINKS,
    DEFAULT_SPEEDS,
    Calibration,
    DeviceLink,
    Speeds,
    calibration_path,
    find_calibration,
    read_calibration,
    write_calibration,
)
from aioflow.compiler.place.cost_model import CostModel, Measurements, observe_step, worth_replacing
from aioflow.errors import DataLossError, InvalidArgumentError, NotFoundError
from aioflow.graph.dtypes import as_dtype
from aioflow.graph.shapes import Dims
from aioflow.runtime.stats import NodeStats, StepStats
from tests.compiler.place.graphs import CPU0, CPU1, GPU0

REMOTE = "/job:worker/replica:0/task:1/device:CPU:0"

# One unit of work per second and no overhead, so an estimate equals the work.
_UNITS = Speeds(0.0, dict.fromkeys(DEFAULT_SPEEDS["CPU"].rates, 1.0), {"float32": 1.0})
UNITS = CostModel(Calibration({"CPU": _UNITS, "GPU": replace(_UNITS, overhead=5.0)}))


def node(op: str, output: Dims, dtype: str = "float32", inputs: int = 0, **attrs: Any) -> Node:
    edges = tuple(Edge(f"x{i}", 0) for i in range(inputs))
    return Node("n", op, edges, (), attrs, (OutputSpec(as_dtype(dtype), output),))


def estimate(made: Node, *inputs: Dims, costs: CostModel = UNITS, device_type: str = "CPU") -> float:
    operands = [costs.operand(OutputSpec(made.outputs[0].dtype, dims)) for dims in inputs]
    return costs.estimate(made, operands, costs.operands(made), device_type)


@pytest.mark.parametrize(
    ("made", "inputs", "work"),
    [
        (node("Add", (3, 5)), [(3, 5), (5,)], (15 + 5 + 15) * 4),
        (node("Add", (3, 5), "float64"), [(3, 5), (5,)], (15 + 5 + 15) * 8),
        (node("Sum", ()), [(7, 5)], 35 * 4),
        (node("MatMul", (3, 7)), [(3, 5), (5, 7)], 3 * 5 * 7),
        (node("MatMul", (3, 7), transpose_a=True), [(5, 3), (5, 7)], 3 * 5 * 7),
        (node("BatchMatMulV2", (2, 3, 7), adj_x=True), [(2, 5, 3), (2, 5, 7)], 2 * 3 * 5 * 7),
        (node("Einsum", (3, 7), equation="ij,jk->ik"), [(3, 5), (5, 7)], 3 * 5 * 7),
        # Each of 4x6 positions of 2 images and 8 channels is a sum over 3x3 places of 5 channels.
        (node("Conv2D", (2, 4, 6, 8)), [(2, 4, 6, 5), (3, 3, 5, 8)], 2 * 4 * 6 * 8 * 3 * 3 * 5),
        (node("Conv2DBackpropInput", (2, 4, 6, 5)), [(4,), (3, 3, 5, 8), (2, 4, 6, 8)], 2 * 4 * 6 * 8 * 3 * 3 * 5),
        (node("Conv2DBackpropFilter", (3, 3, 5, 8)), [(2, 4, 6, 5), (4,), (2, 4, 6, 8)], 2 * 4 * 6 * 8 * 3 * 3 * 5),
        (node("MaxPool", (1, 2, 2, 3), ksize=(1, 2, 2, 1)), [(1, 4, 4, 3)], 12 * 4 * 4),
        (node("Reshape", (15,)), [(3, 5), (1,)], 0),
        (node("Identity", (3, 5)), [(3, 5)], 0),
    ],
    ids=lambda value: value.op if isinstance(value, Node) else None,
)
def test_the_work_of_an_op_follows_from_its_shapes(made: Node, inputs: list[Dims], work: float) -> None:
    assert estimate(made, *inputs) == work


def test_unknown_sizes_count_as_the_stated_default() -> None:
    costs = replace(UNITS, unknown_size=10)
    assert estimate(node("Neg", (None, 3)), (None, 3), costs=costs) == (30 + 30) * 4
    assert estimate(node("Neg", None), None, costs=costs) == (100 + 100) * 4


def test_estimate_adds_the_overhead_of_the_device() -> None:
    assert estimate(node("Neg", ()), (), device_type="GPU") == 5.0 + 8
    assert estimate(node("Identity", ()), (), device_type="GPU") == 0.0
    unmeasured = CostModel(Calibration({}))
    assert estimate(node("MatMul", (64, 64)), (64, 64), (64, 64), costs=unmeasured) == pytest.approx(
        DEFAULT_SPEEDS["CPU"].overhead + 64**3 / DEFAULT_SPEEDS["CPU"].products["float32"]
    )


def test_matmul_estimate_depends_on_its_dtype() -> None:
    costs = CostModel()
    by_dtype = [estimate(node("MatMul", (64, 64), t), (64, 64), (64, 64), costs=costs) for t in ("float32", "int32")]
    assert by_dtype[1] > 10 * by_dtype[0]


# ── measured ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_observations_are_averaged_plainly() -> None:
    measured = Measurements(time_constant=100.0)
    for seconds in (1.0, 2.0, 6.0):
        measured.observe("n", seconds, 10 * seconds)
    assert measured.seconds("n", "CPU") == pytest.approx(3.0)
    assert measured.output_bytes("n") == pytest.approx(30.0)


def test_an_old_value_decays_to_1_over_e_after_the_time_constant() -> None:
    measured = Measurements(time_constant=25.0, floor=0.0)
    for _ in range(2000):
        measured.observe("n", 1.0, 0)
    for _ in range(25):
        measured.observe("n", 0.0, 0)
    assert measured.seconds("n", "CPU") == pytest.approx(math.exp(-1))


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30), st.floats(0.5, 50))
def test_the_mean_stays_between_the_least_and_the_greatest(values: list[float], time_constant: float) -> None:
    measured = Measurements(time_constant)
    for seconds in values:
        measured.observe("n", seconds, 0)
    assert min(values) * (1 - 1e-9) <= (measured.seconds("n", "CPU") or 0.0) <= max(values) * (1 + 1e-9)


def test_no_node_is_measured_faster_than_a_microsecond() -> None:
    measured = Measurements()
    measured.observe("n", 1e-9, 0)
    assert measured.seconds("n", "CPU") == 1e-6
    assert measured.seconds("other", "CPU") is None


@pytest.mark.parametrize("time_constant", [0.0, -1.0, math.nan])
def test_invalid_time_constants_are_rejected(time_constant: float) -> None:
    with pytest.raises(InvalidArgumentError):
        Measurements(time_constant)


def test_a_measured_time_scales_the_estimate_for_other_devices() -> None:
    costs = replace(UNITS, measured=Measurements())
    made = node("Neg", (10,))
    operands = costs.operands(made)
    assert costs.seconds(made, operands, operands, "CPU", trips=3.0) == 3 * 80
    costs.measured.observe("n", 20.0, 40)  # a quarter of the estimated 80
    assert costs.seconds(made, operands, operands, "CPU") == 20.0
    assert costs.seconds(made, operands, operands, "GPU") == (80 + 5) / 4


def test_an_estimate_of_zero_scales_no_other_estimate() -> None:
    costs = replace(UNITS, measured=Measurements())
    made = node("Neg", (0,))
    costs.measured.observe("n", 20.0, 0)
    operands = costs.operands(made)
    assert costs.estimate(made, operands, operands, "CPU") == 0.0
    assert costs.seconds(made, operands, operands, "GPU") == 5.0


def test_measured_bytes_replace_those_of_unknown_shapes_only() -> None:
    costs = replace(UNITS, measured=Measurements())
    costs.measured.observe("n", 1.0, 3000, executions=3)
    assert costs.operands(node("Neg", (None,)))[0].size == 1000
    assert costs.operands(node("Neg", (5,)))[0].size == 20


def test_observe_step_sums_the_executions_of_a_loop() -> None:
    costs = replace(UNITS, measured=Measurements())
    rows = [("a", 2.0, 8), ("b", 1.0, 4), ("b", 1.5, 4), ("b", 0.5, 4)]
    stats = tuple(NodeStats(name, "Add", "main", 0.0, seconds, size) for name, seconds, size in rows)
    observe_step(costs, [StepStats(CPU0, stats), StepStats(GPU0, stats[:1])])
    assert costs.measured.seconds("a", "CPU") == costs.measured.seconds("a", "GPU") == 2.0
    assert costs.measured.seconds("b", "CPU") == 3.0
    assert costs.measured.seconds("b", "GPU") is None
    assert costs.measured.executions("b") == 3.0
    assert costs.measured.output_bytes("b") == 4.0


def test_replacing_a_placement_requires_a_gain_beyond_the_margin() -> None:
    assert worth_replacing(1.0, 0.89)
    assert not worth_replacing(1.0, 0.91)
    assert not worth_replacing(0.89, 1.0)
    assert not worth_replacing(1.0, 1.0, margin=0.0)


# ── links and the file ───────────────────────────────────────────────────────────────────────────────────────────────


def test_link_kind_depends_on_the_locations_of_the_devices() -> None:
    kinds = ("memory", "host", "peer", "network")
    costs = CostModel(
        Calibration(links={kind: DeviceLink(latency=i + 1.0, bandwidth=4.0) for i, kind in enumerate(kinds)})
    )
    other_gpu = GPU0.replace("GPU:0", "GPU:1")
    pairs = [(CPU0, CPU1), (CPU0, GPU0), (GPU0, CPU0), (GPU0, other_gpu), (CPU0, REMOTE), (REMOTE, GPU0)]
    assert [costs.link(*pair).latency for pair in pairs] == [1.0, 2.0, 2.0, 3.0, 4.0, 4.0]
    assert costs.transfer_seconds(100, CPU0, GPU0) == 2.0 + 25.0
    assert costs.transfer_seconds(100, CPU0, CPU0) == 0.0


def test_shared_memory_transfers_cost_only_latency() -> None:
    costs = CostModel()
    assert (
        costs.transfer_seconds(1e9, CPU0, CPU1)
        == costs.transfer_seconds(1, CPU0, CPU1)
        == DEFAULT_LINKS["memory"].latency
    )


def test_a_calibration_round_trips_through_its_file(tmp_path: Path) -> None:
    made = Calibration(
        {"CPU": replace(_UNITS, overhead=0.125)}, {"memory": DeviceLink(1e-5, None, 2e-6), "host": DeviceLink(1.0, 3.0)}
    )
    path = tmp_path / "cache" / "calibration.json"
    write_calibration(made, path)
    assert read_calibration(path) == made
    assert find_calibration(path) == made
    # Unmeasured links and devices keep the shipped values.
    assert made.link("network") == DEFAULT_LINKS["network"]
    assert made.speeds_of("GPU") == DEFAULT_SPEEDS["GPU"]


def test_without_a_file_the_shipped_calibration_holds(tmp_path: Path) -> None:
    assert find_calibration(tmp_path / "none.json") == Calibration()
    with pytest.raises(NotFoundError):
        read_calibration(tmp_path / "none.json")


def _changed(path: tuple[str, ...], value: Any) -> str:
    data = json.loads(Calibration().to_json())
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "kind", "part"),
    [
        ("{", DataLossError, "not a calibration"),
        ("\xff\xfe", DataLossError, "not a calibration"),
        ("[]", DataLossError, "not a calibration"),
        ("[" * 100_000, DataLossError, "not a calibration"),
        (_changed(("version",), 2), InvalidArgumentError, "aioflow calibrate"),
        (_changed(("speeds",), None), DataLossError, "speeds"),
        (_changed(("speeds",), 3), DataLossError, "incomplete"),
        (_changed(("speeds", "CPU", "rates", "movement"), None), DataLossError, "movement"),
        (_changed(("speeds", "CPU", "rates", "movement"), 0), InvalidArgumentError, "CPU movement"),
        (_changed(("speeds", "CPU", "products", "float32"), "fast"), InvalidArgumentError, "CPU float32"),
        (_changed(("links", "host", "latency"), -1), InvalidArgumentError, "host latency"),
        (_changed(("links", "host", "bandwidth"), math.inf), InvalidArgumentError, "host bandwidth"),
        (_changed(("links", "host", "bandwidth"), True), InvalidArgumentError, "host bandwidth"),
    ],
)
def test_malformed_calibration_file_error_names_the_file(
    tmp_path: Path, text: str, kind: type[Exception], part: str
) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(kind) as raised:
        find_calibration(path)
    assert str(path) in str(raised.value)
    assert part in str(raised.value)


@pytest.mark.parametrize(
    ("environ", "platform", "expected"),
    [
        ({"HOME": "/h"}, "linux", "/h/.cache/aioflow/calibration.json"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/c"}, "linux", "/c/aioflow/calibration.json"),
        ({"HOME": "/h"}, "darwin", "/h/Library/Caches/aioflow/calibration.json"),
        ({"LOCALAPPDATA": "/a"}, "win32", "/a/aioflow/calibration.json"),
    ],
)
def test_the_file_is_in_the_cache_folder_of_the_platform(environ: dict[str, str], platform: str, expected: str) -> None:
    assert calibration_path(environ, platform) == Path(expected)
