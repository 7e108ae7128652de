"""The event loop that aioflow's programs use."""

from __future__ import annotations

import asyncio
import sys

import pytest
import uvloop

from aioflow.concurrency.loops import is_debug_mode, loop_factory


@pytest.mark.parametrize("variable", ["", "1"])
def test_programs_run_on_uvloop_except_in_debug_mode_on_python_3_11(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONASYNCIODEBUG", variable)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        loop = runner.get_loop()
        assert loop.get_debug() == is_debug_mode()
        assert isinstance(loop, uvloop.Loop) == (sys.version_info >= (3, 12) or not loop.get_debug())
