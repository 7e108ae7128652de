"""Test that programs with onnxruntime neither identify their machine nor collect what they would send."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import aioflow as af

with af.Session(config=af.SessionConfig(delegate="onnxruntime")) as session:
    print(session.run_sync(af.matmul(af.ones([64, 64]), af.ones([64, 64])))[0, 0])
"""


def test_onnxruntime_stores_no_identifier_of_the_machine(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="needs the extra `onnxruntime`")
    environ = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    environ |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", _PROGRAM]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "64.0\n"
    assert not (tmp_path / "Microsoft").exists()
