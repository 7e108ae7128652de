"""Tests of event files of programs that never close their writer, and of forked children."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.observe.test_file_writer import files, numbers


def test_unclosed_writer_loses_no_event(tmp_path: Path) -> None:
    program = f"""if True:
        import aioflow as af
        writer = af.summary.FileWriter({str(tmp_path)!r})
        for step in range(500):
            writer.add_summary(af.Summary(value=[dict(tag="x", simple_value=step)]), step)
    """
    subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-c", program], check=True, timeout=60)
    assert numbers(tmp_path) == [(step, step) for step in range(500)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_forked_child_writes_its_own_file(tmp_path: Path) -> None:
    program = f"""if True:
        import asyncio, os
        import aioflow as af
        writer = af.summary.FileWriter({str(tmp_path)!r})
        add = lambda step: writer.add_summary(af.Summary(value=[dict(tag="x", simple_value=step)]), step)
        add(1)
        child = os.fork()
        add(2 if child else 3)
        asyncio.run(writer.close())
        if not child:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert sorted(numbers(tmp_path)) == [(1, 1), (2, 2), (3, 3)]
    assert len(files(tmp_path)) == 2
