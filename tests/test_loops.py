"""Which event loop programs run."""

from __future__ import annotations

import asyncio
import sys

import pytest
import uvloop

from aioflow.work.loops import is_debug_mode, loop_factory


@pytest.mark.parametrize("debugging", ["", "1"])
def test_programs_run_on_uvloop_but_for_debug_mode_where_python_crashes(
    debugging: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONASYNCIODEBUG", debugging)
    assert is_debug_mode() == bool(debugging)
    crashes = bool(debugging) and sys.version_info < (3, 12)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        assert isinstance(runner.get_loop(), uvloop.Loop) != crashes
