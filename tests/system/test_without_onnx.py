"""Without the onnx package whoever asks for something of ONNX is told how to install it."""

from __future__ import annotations

import subprocess
import sys

import pytest

HIDDEN = "import sys\nsys.modules['onnx'] = None\nimport aioflow\n"  # as if it were not installed


@pytest.mark.parametrize(
    "asked",
    [
        "aioflow.interop.onnx.load('model.onnx')",
        "aioflow.interop.onnx.export",
        "from aioflow.interop.onnx import load",
        "from aioflow.interop.onnx.backend import AioflowBackend",
    ],
)
def test_what_needs_the_package_says_how_to_install_it(asked: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN + asked], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()
    assert any(line.startswith("aioflow.errors.UnimplementedError") for line in last)
    assert "pip install 'aioflow-engine[onnx]'" in done.stderr


def test_the_names_are_shown_all_the_same() -> None:
    program = HIDDEN + "print(aioflow.interop.onnx.__all__, 'load' in dir(aioflow.interop.onnx))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "['export', 'load'] True\n"
