"""The option `--delegated`: sessions that choose no engine delegate what they can to onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

from aioflow.compiler.delegate import Delegate
from aioflow.runtime.delegates import PREPARATIONS, find_delegate
from aioflow.session import planner
from aioflow_onnxruntime.engine import Engine

__all__ = ["delegate_all"]


def delegate_all() -> None:
    """Delegate parts of any size from the first run on, which itself prepares the models it needs."""

    def chosen(setting: str | None) -> Delegate | None:
        return find_delegate(setting or "onnxruntime")

    def begin(job: Callable[[], None]) -> bool:
        job()
        return True

    patch.object(Engine, "call_seconds", 0.0).start()  # never stopped: for the whole test run
    patch.object(planner, "find_delegate", chosen).start()
    patch.object(PREPARATIONS, "begin", begin).start()
