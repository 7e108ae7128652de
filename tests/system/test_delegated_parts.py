"""Tests of programs that end while a part of a step is being prepared for another engine."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, sys
import numpy as np
import aioflow as af

async def main():
    x = y = af.placeholder("float32", [None, 256])
    for _ in range(30):
        y = af.tanh(af.matmul(y, af.constant(np.eye(256, dtype=np.float32))))
    async with af.Session(config=af.SessionConfig(delegate="onnxruntime")) as session:
        await session.run(y, {x: np.zeros((4, 256), np.float32)})

if sys.argv[1] == "uvloop":
    import uvloop
    uvloop.run(main())
else:
    asyncio.run(main())
print("over")
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_program_exits_cleanly_during_preparation(loop: str) -> None:
    for _ in range(3):
        command = [sys.executable, "-c", PROGRAM, loop]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "over\n", "")
