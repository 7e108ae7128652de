"""Placement: requests are met, or the error lists what there is; soft placement gives way; one device is one part."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import aioflow as af
from aioflow.compiler.ir import ClientGraph, Plan
from aioflow.compiler.partition import partition
from aioflow.compiler.place.cluster import ClusterView
from aioflow.compiler.place.placement import place
from aioflow.compiler.prune import StepRequest, prune
from aioflow.errors import InvalidArgumentError, UnimplementedError
from aioflow.graph.opdef import OPS, define_op
from aioflow.kernels.registry import KERNELS, kernel
from aioflow.ops.apply import apply_op

TASK = "/job:localhost/replica:0/task:0"
CPU0, CPU1, GPU0 = (f"{TASK}/device:{d}" for d in ("CPU:0", "CPU:1", "GPU:0"))


@pytest.fixture(scope="module", autouse=True)
def _ops() -> Iterator[None]:
    """An op with a kernel on GPUs only, and one with none anywhere."""
    if "TestPlaceGpu" not in OPS:
        define_op("TestPlaceGpu", "", "y: float32", shape=lambda ctx: ())
        define_op("TestPlaceNowhere", "", "y: float32", shape=lambda ctx: ())
        kernel("TestPlaceGpu", device="GPU")(lambda: 1.0)
    yield
    assert not KERNELS.for_op("TestPlaceNowhere")


def _placed(*fetches: af.Tensor, devices: tuple[str, ...] = (GPU0, CPU0, CPU1), soft: bool = False) -> ClientGraph:
    return place(prune(StepRequest((), fetches)), ClusterView(devices, soft))


def test_every_node_gets_a_whole_name() -> None:
    x = af.placeholder("float32", [])
    graph = place(prune(StepRequest((x,), (x + 1.0,))), ClusterView((CPU0, CPU1)))
    assert {n.device for n in graph.nodes.values()} == {CPU0}


@pytest.mark.parametrize(
    ("request_", "device"),
    [("", GPU0), ("/cpu:1", CPU1), ("/cpu", CPU0), ("/device:CPU:*", CPU0), ("/job:localhost/task:0/cpu:1", CPU1)],
)
def test_the_first_device_that_fits_the_request(request_: str, device: str) -> None:
    with af.device(request_):
        c = af.constant(1.0, name="c")
    assert _placed(c).nodes["c"].device == device


def test_a_device_without_a_kernel_is_passed_over() -> None:
    y = apply_op("TestPlaceGpu", name="y")
    assert _placed(y, devices=(CPU0, GPU0)).nodes["y"].device == GPU0


def test_a_request_that_nothing_fits_lists_the_devices() -> None:
    with af.device("/gpu:7"):
        c = af.constant(1.0, name="c")
    with pytest.raises(InvalidArgumentError) as caught:
        _placed(c)
    error = caught.value
    assert error.node == "c"
    assert error.actual == "/device:GPU:7"
    assert all(d in error.expected for d in (CPU0, CPU1, GPU0, "allow_soft_placement"))
    assert error.source is not None
    assert error.source.filename == __file__


def test_a_kernel_that_exists_elsewhere_only() -> None:
    with af.device("/cpu:0"):
        y = apply_op("TestPlaceGpu", name="y")
    with pytest.raises(UnimplementedError) as caught:
        _placed(y)
    assert caught.value.node == "y"
    assert "GPU" in str(caught.value.expected)
    assert "CPU" in str(caught.value.actual)
    assert _placed(y, soft=True).nodes["y"].device == GPU0, "soft placement goes where the kernel is"


def test_no_kernel_at_all() -> None:
    y = apply_op("TestPlaceNowhere", name="y")
    for soft in (False, True):
        with pytest.raises(UnimplementedError, match="no kernel") as caught:
            _placed(y, soft=soft)
        assert caught.value.node == "y"


def test_soft_placement_gives_way_only_where_it_must() -> None:
    with af.device("/gpu:7"):
        lost = af.constant(1.0, name="lost")
    with af.device("/cpu:1"):
        kept = af.constant(1.0, name="kept")
    graph = _placed(lost, kept, soft=True)
    assert graph.nodes["lost"].device == GPU0
    assert graph.nodes["kept"].device == CPU1


def _parted(*devices: str) -> Plan:
    made = []
    for i, device in enumerate(devices):
        with af.device(device):
            made.append(af.constant(1.0, name=f"c{i}"))
    return partition(_placed(*made, devices=(CPU0, CPU1)))


def test_one_device_is_one_part() -> None:
    plan = _parted("/cpu:0", "")
    assert list(plan.parts) == [TASK]
    part = plan.parts[TASK]
    assert part.task == TASK
    assert list(part.subgraphs) == [CPU0]
    assert (plan.feeds, plan.fetches) == (0, 2)
    assert set(part.subgraphs[CPU0].nodes) == {"c0", "c1", "_retval_0", "_retval_1"}


def test_several_devices_are_refused_rather_than_run_wrong() -> None:
    with pytest.raises(UnimplementedError) as caught:
        _parted("/cpu:0", "/cpu:1")
    assert caught.value.actual == [CPU0, CPU1]


def test_a_step_of_nothing_is_a_plan() -> None:
    plan = partition(ClientGraph({}, 0, 0))
    assert (plan.feeds, plan.fetches, len(plan.parts)) == (0, 0, 1)
