"""TensorFlow's messages of a `RunMetadata`: node times, graphs and costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from aioflow.compiler.ir import ClientGraph, Node
from aioflow.errors import OpError
from aioflow.formats.graphs.published.attributes import write_attributes
from aioflow.formats.graphs.published.graphs import PRODUCER
from aioflow.graph.graphdef import NodeDef, plain_attrs
from aioflow.protos import Message, message, to_bytes
from aioflow.runtime.stats import NodeStats, RunMetadata, StepStats


def run_metadata_message(run_metadata: RunMetadata) -> Message:
    """Return the message: for each device its nodes, with times relative to the start of the step and output sizes."""
    made = message("RunMetadata")(
        step_stats=step_stats_message(run_metadata.step_stats), cost_graph=run_metadata.cost_graph
    )
    made.partition_graphs.extend(run_metadata.partition_graphs)
    return made


def serialized(run_metadata: RunMetadata) -> bytes:
    """Return the bytes of the message."""
    return to_bytes(run_metadata_message(run_metadata))


# ── node times ────────────────────────────────────────────────────────────────────────────────────────────────────────


def step_stats_message(step_stats: Iterable[StepStats]) -> Message:
    """Return the `StepStats` message: for each device its nodes, with times relative to the start of the step."""
    made = message("StepStats")()
    for device in step_stats:
        stats = made.dev_stats.add(device=device.device)
        threads: dict[str, int] = {}
        for node in device.nodes:
            _write(stats.node_stats.add(), node, threads.setdefault(node.thread, len(threads)))
        for thread, number in threads.items():
            stats.thread_names[number] = thread
    return made


def _write(made: Message, node: NodeStats, thread: int) -> None:
    start, duration = round(node.start * 1e9), round(node.duration * 1e9)
    made.node_name, made.timeline_label, made.thread_id = node.node, f"{node.node} = {node.op}", thread
    made.all_start_nanos = made.scheduled_nanos = start
    made.op_end_rel_nanos = made.all_end_rel_nanos = duration
    made.all_start_micros = made.scheduled_micros = round(start / 1000)
    made.op_end_rel_micros = made.all_end_rel_micros = round(duration / 1000)
    output = made.output.add()
    output.tensor_description.allocation_description.requested_bytes = node.output_bytes


# ── graphs and costs ──────────────────────────────────────────────────────────────────────────────────────────────────


def graph_message(device: str, graph: ClientGraph) -> Message:
    """Return the `GraphDef` message of the nodes of one device."""
    made = message("GraphDef")()
    made.versions.producer = PRODUCER
    for node in graph.nodes.values():
        added = made.node.add(name=node.name, op=node.op, device=device)
        added.input.extend(f"{edge.node}:{edge.port}" if edge.port else edge.node for edge in node.inputs)
        added.input.extend(f"^{name}" for name in node.control)
        write_attributes(added, node.op, dict(_stored(node)))
    return made


def _stored(node: Node) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that a stored graph can hold."""
    for name, value in plain_attrs(node.attrs).items():
        try:
            # Its constructor checks them.
            NodeDef("node", node.op, (), "", {name: value})
        except OpError:
            continue
        yield name, value


def cost_message(graphs: Iterable[tuple[str, ClientGraph]], step_stats: Iterable[StepStats]) -> Message:
    """Return the `CostGraphDef` message of the graphs of all devices, with measured times and sizes."""
    made = message("CostGraphDef")()
    measured = {(stats.device, node.node): node for stats in step_stats for node in stats.nodes}
    for device, graph in graphs:
        _add_costs(made, device, graph, measured)
    return made


def _add_costs(made: Message, device: str, graph: ClientGraph, measured: Mapping[tuple[str, str], NodeStats]) -> None:
    first = len(made.node)
    numbers = {name: first + index for index, name in enumerate(graph.nodes)}
    for name, node in graph.nodes.items():
        cost = made.node.add(name=name, device=device, id=numbers[name])
        for edge in node.inputs:
            cost.input_info.add(preceding_node=numbers[edge.node], preceding_port=edge.port)
        cost.control_input.extend(numbers[before] for before in node.control)
        found = measured.get((device, name))
        if found is not None:
            cost.compute_cost = cost.compute_time = round(found.duration * 1e6)
        for port, spec in enumerate(node.outputs):
            output = cost.output_info.add(alias_input_port=-1, dtype=spec.dtype.as_datatype_enum)
            # The trace measures all outputs of a node together.
            output.size = found.output_bytes if found is not None and port == 0 and len(node.outputs) == 1 else -1
