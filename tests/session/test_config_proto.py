"""TensorFlow's `ConfigProto`, `RunOptions` and `RunMetadata` in sessions and servers."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.config import log_ignored
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.protos import parse
from tests.support.config_cases import CONFIGS


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    log_ignored.cache_clear()
    caplog.set_level(logging.WARNING, "aioflow.config")
    return caplog


def settings(config: Any) -> af.SessionConfig:
    return af.Session(config=config).config


@pytest.mark.parametrize("name", CONFIGS)
def test_config_proto_sets_the_settings_it_names(name: str, logged: pytest.LogCaptureFixture) -> None:
    case = CONFIGS[name]
    config = af.ConfigProto()
    case.fill(config, af)
    assert settings(config) == af.SessionConfig(**case.settings)
    assert [record.args[0] for record in logged.records if isinstance(record.args, tuple)] == [
        f"ConfigProto.{field}" for field in case.ignored
    ]


def test_ignored_field_is_logged_once_with_a_replacement(logged: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        settings(af.ConfigProto(placement_period=5))
    assert [r.getMessage() for r in logged.records] == [
        "ConfigProto.placement_period is ignored: use SessionConfig.replace_after"
    ]


def test_config_proto_is_a_message() -> None:
    config = af.ConfigProto(device_count={"CPU": 2}, gpu_options=af.GPUOptions(allow_growth=True))
    config.graph_options.CopyFrom(af.GraphOptions(optimizer_options=af.OptimizerOptions(opt_level=-1)))
    again = af.ConfigProto.FromString(config.SerializeToString())
    assert again == config != af.ConfigProto()
    assert again.graph_options.optimizer_options.opt_level == af.OptimizerOptions.L0
    assert settings(again) == settings(config)
    with pytest.raises(ValueError, match="not_there"):
        af.ConfigProto(not_there=1)
    with pytest.raises(AttributeError, match="not_there"):
        config.not_there = 1
    with pytest.raises(TypeError):
        config.allow_soft_placement = "yes"


async def test_servers_sessions_and_device_lists_take_a_config_proto() -> None:
    config, three = af.ConfigProto(device_count={"CPU": 2, "GPU": 0}), af.constant(2.0) + 1.0
    assert [device.name[-5:] for device in af.list_devices(config)] == ["CPU:0", "CPU:1"]
    async with af.train.Server.create_local_server(config) as server:
        assert len(server.worker.devices) == 2
        async with af.train.MonitoredTrainingSession(server.target, config=af.ConfigProto()) as session:
            assert await session.run(three) == 3.0
    manager = af.train.SessionManager()
    ready = await manager.prepare_session("", init_op=af.no_op(), config=af.ConfigProto(log_device_placement=True))
    assert ready.config.log_device_placement
    await ready.close()
    with pytest.raises(DTypeError, match="ConfigProto"):
        af.train.Server.create_local_server(af.GPUOptions())


def test_run_options_take_tensorflows_names(logged: pytest.LogCaptureFixture) -> None:
    options = af.RunOptions(trace_level=3, timeout_in_ms=1500, report_tensor_allocations_upon_oom=True)
    assert options == af.RunOptions(af.TraceLevel.FULL, 1.5)
    assert (options.timeout_in_ms, af.RunOptions.FULL_TRACE, af.RunOptions.SOFTWARE_TRACE) == (1500, 3, 1)
    options.timeout_in_ms, options.trace_level = 0, af.RunOptions.NO_TRACE
    assert options == af.RunOptions()
    assert "report_tensor_allocations_upon_oom is ignored" in logged.text
    for wrong in ({"trace_level": 4}, {"trace_level": True}, {"timeout_in_ms": -1}, {"output_partition_graphs": 1}):
        with pytest.raises((DTypeError, InvalidArgumentError), match=f"RunOptions.{next(iter(wrong))}"):
            af.RunOptions(**wrong)
    with pytest.raises(InvalidArgumentError, match="two time limits"):
        af.RunOptions(timeout=1.0, timeout_in_ms=1)
    with pytest.raises(TypeError, match="not_there"):
        af.RunOptions(not_there=1)  # type: ignore[call-arg]  # wrong on purpose


async def test_run_metadata_has_tensorflows_messages() -> None:
    x = af.placeholder("float32", [2, 3], name="x")
    product = af.matmul(x, af.ones([3, 4]), name="product")
    chain = af.nn.relu(product + 1.0, name="chain") * 2.0
    counted = af.while_loop(lambda i: i < 3, lambda i: i + 1, [af.constant(0)])
    metadata = af.RunMetadata()
    options = af.RunOptions(trace_level=af.RunOptions.SOFTWARE_TRACE, output_partition_graphs=True)
    async with af.Session(config=af.ConfigProto(device_count={"CPU": 1})) as session:
        feeds = {x: np.ones((2, 3), np.float32)}
        await session.run([chain, counted], feeds, options=options, run_metadata=metadata)
        [graph], costs = metadata.partition_graphs, {node.name: node for node in metadata.cost_graph.node}
        [device] = metadata.step_stats.dev_stats
        found = parse("RunMetadata", metadata.SerializeToString())
        await session.run(chain, feeds, options=af.RunOptions(), run_metadata=metadata)
    assert {node.op for node in graph.node} >= {"_Arg", "MatMul", "_Retval"}
    times = {node.node_name: node for node in device.node_stats}
    assert device.device.endswith("CPU:0")
    assert times["product"].op_end_rel_micros == costs["product"].compute_time
    assert costs["product"].output_info[0].size == 2 * 4 * 4
    assert [costs["product"].input_info[i].preceding_node for i in (0, 1)] == [
        costs[name].id for name in next(node.input for node in graph.node if node.name == "product")
    ]
    assert (found.step_stats.dev_stats[0], list(found.partition_graphs)) == (device, [graph])
    assert (list(metadata.step_stats), metadata.partition_graphs, len(metadata.cost_graph.node)) == ([], [], 0)
