"""A program that assigns the values of a large file to variables, and reports the memory used.

    python large_safetensors.py FILE PART…   with PART one of: cast, transposed

It prints JSON: how many bytes the peak memory of the process has grown until the graph was ready ("ready"), and until
all values were assigned and used ("all").
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

import numpy as np

import aioflow as af
from aioflow.interop import safetensors


def memory(of: str) -> int:
    """Return the resident memory in bytes, including mapped files: "VmRSS" now, "VmHWM" at most."""
    # `ru_maxrss` would begin with the peak of the parent process.
    found = re.search(rf"{of}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


async def main(path: str, *parts: str) -> None:
    small = af.Variable(np.zeros([2, 2], np.float32))
    async with af.Session() as session:  # loads kernels and backends
        await session.run(small.initializer)
        await session.run(af.reduce_max(af.matmul(small, small)))
    before = memory("VmRSS")
    with af.Graph().as_default() as graph:
        weights = safetensors.open(path)
        variables = {}
        for name in weights:
            shape = weights.entry(name).shape
            dims = shape[::-1] if "transposed" in parts else shape
            kind = af.float32 if "cast" in parts else weights.entry(name).dtype
            variables[name] = af.get_variable(re.sub(r"\W", "_", name), dims, kind)
        used = [af.reduce_max(v) for v in variables.values()]
        ready = memory("VmHWM")
        async with af.Session(graph=graph) as session:
            names = {v: safetensors.Transposed(n) if "transposed" in parts else n for n, v in variables.items()}
            await safetensors.assign(session, weights, names, cast="cast" in parts)
            await session.run(used)
    print(json.dumps({"ready": ready - before, "all": memory("VmHWM") - before}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
