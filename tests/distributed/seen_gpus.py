"""A module for the tasks of a cluster to import: it records the GPUs that a task would see."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

__all__ = ["FOLDER", "by_process"]

FOLDER: Final = "AIOFLOW_TEST_GPUS"  # environment variable with the folder to write to


def by_process(pid: int) -> str | None:
    """Return CUDA_VISIBLE_DEVICES of that process; None if it was not set."""
    found: str | None = json.loads(_file(pid).read_text(encoding="utf-8"))
    return found


def _file(pid: int) -> Path:
    return Path(os.environ[FOLDER]) / f"{pid}.json"


if FOLDER in os.environ:
    _file(os.getpid()).write_text(json.dumps(os.environ.get("CUDA_VISIBLE_DEVICES")), encoding="utf-8")
