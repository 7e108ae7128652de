"""Program that reads a folder with TensorBoard's own event reader and prints its content as JSON.

It runs in a process of its own, to keep TensorBoard's log handler out of the test process.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def main(folder: str) -> None:
    """Print the content of `folder`, as TensorBoard reads it."""
    found = EventAccumulator(folder, size_guidance={"histograms": 0, "images": 0, "tensors": 0})
    found.Reload()
    tags: dict[str, Any] = found.Tags()
    document = {
        "tags": {kind: sorted(names) if isinstance(names, list) else names for kind, names in tags.items()},
        "scalars": {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in tags["scalars"]},
        "histograms": {tag: [e.histogram_value.num for e in found.Histograms(tag)] for tag in tags["histograms"]},
        "images": {tag: [(e.width, e.height) for e in found.Images(tag)] for tag in tags["images"]},
        "nodes": [(node.name, node.op) for node in found.Graph().node],
        "traced": {
            tag: sorted(n.node_name for d in found.RunMetadata(tag).step_stats.dev_stats for n in d.node_stats)
            for tag in tags["run_metadata"]
        },
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main(sys.argv[1])
