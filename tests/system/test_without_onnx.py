"""Errors of ONNX functions without the onnx package: they name the install command."""

from __future__ import annotations

import subprocess
import sys

import pytest

# None in `sys.modules` makes `import onnx` fail as if it were not installed.
HIDDEN = "import sys\nsys.modules['onnx'] = None\nimport aioflow\n"


@pytest.mark.parametrize(
    "asked",
    [
        "aioflow.interop.onnx.load('model.onnx')",
        "aioflow.interop.onnx.export",
        "from aioflow.interop.onnx import load",
        "from aioflow.interop.onnx.backend import AioflowBackend",
    ],
)
def test_onnx_functions_name_the_install_command(asked: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN + asked], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()
    assert any(line.startswith("aioflow.errors.UnimplementedError") for line in last)
    assert "pip install 'aioflow-engine[onnx]'" in done.stderr


def test_public_names_are_listed_without_onnx() -> None:
    program = HIDDEN + "print(aioflow.interop.onnx.__all__, 'load' in dir(aioflow.interop.onnx))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "['export', 'load'] True\n"
