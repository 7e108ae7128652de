"""The two programs of docs/howto/tensorflow.md: the ported one resumes where TensorFlow's ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import aioflow as af
from tests.support.follow import agrees, blocks
from tests.support.processes import SECONDS

pytestmark = pytest.mark.parity

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "howto" / "tensorflow.md"


def test_ported_program_resumes_from_tensorflows_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    found = blocks(PAGE)
    shown = next(block.code for block in found if block.language == "text")
    steps = []
    for name in ("before.py", "after.py"):
        code = next(block.code for block in found if block.title == name)
        (tmp_path / name).write_text(code, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, name],
            cwd=tmp_path,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stderr
        assert agrees(shown, done.stdout), done.stdout
        steps.append(af.train.latest_checkpoint(tmp_path / "run"))
    assert [step and step.rpartition("-")[2] for step in steps] == ["160", "320"]
