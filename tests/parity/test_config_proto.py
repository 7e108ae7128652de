"""Settings and records of runs against TensorFlow's messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.protos.session_config import session_config
from tests.support.config_cases import CONFIGS

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("name", CONFIGS)
def test_config_proto_has_tensorflows_bytes(tf: Any, name: str) -> None:
    mine, theirs = af.ConfigProto(), tf.ConfigProto()
    CONFIGS[name].fill(mine, af)
    CONFIGS[name].fill(theirs, tf)
    assert mine.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)
    assert session_config(theirs) == af.SessionConfig(**CONFIGS[name].settings), "TensorFlow's own message"


async def test_run_metadata_is_filled_where_tensorflow_fills_it(tf: Any) -> None:
    """Compare which parts of the message are filled, by the options of the run."""

    def program(m: Any) -> tuple[Any, Any]:
        x = m.placeholder("float32", [2, 3], name="x")
        return x, m.matmul(x, m.ones([3, 4]), name="product")

    def filled(metadata: Any) -> tuple[bool, bool]:
        traced = {node.node_name for device in metadata.step_stats.dev_stats for node in device.node_stats}
        nodes = {node.name for graph in metadata.partition_graphs for node in graph.node}
        return "product" in traced, "product" in nodes

    for level in (0, 1, 3):
        for graphs in (False, True):
            mine, theirs = af.RunMetadata(), tf.RunMetadata()
            values = np.ones((2, 3), np.float32)
            with tf.Graph().as_default(), tf.Session() as session:
                options = tf.RunOptions(trace_level=level, output_partition_graphs=graphs)
                x, product = program(tf)
                session.run(product, {x: values}, options, theirs)
            with af.Graph().as_default():
                x, product = program(af)
                async with af.Session() as own:
                    asked = af.RunOptions(trace_level=level, output_partition_graphs=graphs)
                    await own.run(product, {x: values}, options=asked, run_metadata=mine)
            assert filled(mine) == filled(theirs) == (level > 0, graphs)
