"""A process that pauses while it saves a checkpoint: it prints "writing", and continues when it reads a line."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from aioflow.formats import checkpoint as checkpoint_format
from aioflow.formats.tensor_file import write_tensors


def main(prefix: str, stop: str) -> None:
    """Save a checkpoint, and pause inside the data file ("inside") or before the manifest ("pending")."""
    original: Any = {"inside": write_tensors, "pending": checkpoint_format._manifest}[stop]

    def waiting(*args: Any) -> Any:
        result = original(*args)
        if stop == "inside":
            args[0].flush()
        print("writing", flush=True)
        sys.stdin.readline()
        return result

    setattr(checkpoint_format, original.__name__, waiting)
    checkpoint_format.write_checkpoint(prefix, {"a": np.full(1000, 7, np.float32)})
    print("saved", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
