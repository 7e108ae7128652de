"""Peak memory of a process that loads weights, including mapped pages."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from aioflow.interop import safetensors
from tests.support.processes import SECONDS, program

SIZE = 160 << 20  # bytes of the file; variables take more if they are cast to a wider dtype
PROGRAM = Path(__file__).with_name("large_safetensors.py")


@pytest.mark.blocks_loop("it waits for another process")
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the peak is counted in other ways")
@pytest.mark.parametrize(
    ("parts", "times"),
    [
        ((), 1.1),
        (("transposed",), 1.15),  # plus a copy of one tensor, a twentieth of the file
        (("cast",), 2.5),  # float16 cast to float32: the values alone take twice the file's size
    ],
)
async def test_peak_memory_of_loading_a_large_file(parts: tuple[str, ...], times: float, tmp_path: Path) -> None:
    kind = np.float16 if "cast" in parts else np.float32
    shape = (20, 1024, SIZE // 20 // 1024 // np.dtype(kind).itemsize)
    path = tmp_path / "m.safetensors"
    await safetensors.save(path, {f"w.{i}": np.full(shape[1:], i, kind) for i in range(shape[0])})
    with program(str(PROGRAM), str(path), *parts) as process:
        output, _ = process.communicate(timeout=SECONDS)
    peak = json.loads(output)
    assert peak["ready"] < SIZE / 20
    assert SIZE * 0.9 < peak["all"] < SIZE * times
