"""The records of a traced run as the `RunMetadata` message that TensorBoard shows beside the graph."""

from __future__ import annotations

from aioflow.protos import Message, message
from aioflow.runtime.stats import NodeStats, RunMetadata


def run_metadata_message(run_metadata: RunMetadata) -> Message:
    """Return the message: for each device its nodes, with times relative to the start of the step and output sizes."""
    made = message("RunMetadata")()
    for device in run_metadata.step_stats:
        stats = made.step_stats.dev_stats.add(device=device.device)
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
