"""A module that a task of a cluster imports: it writes down which GPUs the task would see."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

__all__ = ["FOLDER", "by_process"]

FOLDER: Final = "AIOFLOW_TEST_CARDS"  # in whose environment this is, it writes there


def by_process(pid: int) -> str | None:
    """What CUDA_VISIBLE_DEVICES was in that process; None where it was not set."""
    found: str | None = json.loads(_file(pid).read_text(encoding="utf-8"))
    return found


def _file(pid: int) -> Path:
    return Path(os.environ[FOLDER]) / f"{pid}.json"


if FOLDER in os.environ:
    _file(os.getpid()).write_text(json.dumps(os.environ.get("CUDA_VISIBLE_DEVICES")), encoding="utf-8")
