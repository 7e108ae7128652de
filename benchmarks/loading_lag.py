"""`python -m benchmarks.loading_lag`: event-loop lag while a model of 100 MB is loaded and run for the first time.

A program that answers requests loads a model in a thread, opens a session and runs it. Meanwhile a task of the same
loop repeatedly sleeps for a millisecond; its delay is the time that every request would wait. The model is ResNet-50
with random weights, as an ONNX file, a SavedModel and a folder of aioflow's own. Each measurement runs in its own
process, which has imported only aioflow: the modules that a first use imports are part of it.

The last rows are the import of `aioflow.serve`, and the start of a server in the program with its first request, by
onnxruntime if it is installed.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import aioflow as af
from benchmarks.kernels import fresh_environment
from benchmarks.tables import Row, Target, program, seconds

# isort: split
import numpy as np

_TARGET: Final = 20e-3
_ROUNDS: Final = 3
_INTERVAL: Final = 1e-3
_LOOPS: Final = ("asyncio", "uvloop")
_FILES: Final = {"ONNX": "resnet50.onnx", "SavedModel": "saved_model", "aioflow's folder": "folder"}
_SERVE: Final = "import aioflow.serve"
_SERVER: Final = "aioflow.serve.Server"


@cache
def _models() -> Path:
    """Write the models into a temporary folder, which lives as long as the process."""
    from benchmarks.models import light_model

    folder = Path(_held(tempfile.TemporaryDirectory()).name)
    path = light_model("resnet50", folder)

    async def write() -> None:
        model = af.interop.onnx.load(path, trainable=True)
        image = next(name for name in model.inputs if name.endswith("data_0"))
        signature = af.saved.Signature({image: model.inputs[image]}, model.outputs)
        async with af.Session(graph=model.graph) as session:
            await model.initialize(session)
            await af.saved.save(session, folder / _FILES["aioflow's folder"], signature)
            await af.interop.tensorflow.save_saved_model(session, folder / _FILES["SavedModel"], signature)

    asyncio.run(write())
    return folder


_HELD: Final[list[Any]] = []


def _held(resource: Any) -> Any:
    _HELD.append(resource)
    return resource


async def _longest_lag(work: Callable[[], Awaitable[object]]) -> float:
    """Await `work()` and return the longest lag of the loop meanwhile, in seconds."""
    longest, done = 0.0, False

    async def tick() -> None:
        nonlocal longest
        while not done:
            began = time.perf_counter()
            await asyncio.sleep(_INTERVAL)
            longest = max(longest, time.perf_counter() - began - _INTERVAL)

    async with asyncio.TaskGroup() as tg:
        tg.create_task(tick())
        await asyncio.sleep(20 * _INTERVAL)
        longest = 0.0
        await work()
        await asyncio.sleep(20 * _INTERVAL)  # include delays that the work causes right after its end
        done = True
    return longest


async def _load(kind: str, path: str) -> None:
    loads: dict[str, Callable[[], af.interop.Model]] = {
        "ONNX": lambda: af.interop.onnx.load(path),
        "SavedModel": lambda: af.interop.tensorflow.load_saved_model(path),
        "aioflow's folder": lambda: af.saved.load(path),
    }
    model = await asyncio.to_thread(loads[kind])
    image = next(tensor for name, tensor in model.inputs.items() if name.endswith("data_0"))
    async with af.Session(graph=model.graph) as session:
        await model.initialize(session)
        await session.run(model.outputs, {image: np.zeros((1, 3, 224, 224), np.float32)})


async def _import() -> None:
    import aioflow.serve  # noqa: F401  # measured


async def _serve(path: str) -> None:
    from aioflow import serve

    server_class = await asyncio.to_thread(lambda: serve.Server)  # the name's first use imports the server
    async with server_class({"net": path}, where=serve.ServerOptions(port=0)) as server:
        await server.ready()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
        writer.write(b"GET /v2/models/net HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()


def print_lag(kind: str, loop: str, path: str) -> None:
    """Print, as JSON, the longest lag in seconds of a loop of that name in this process."""
    import uvloop  # only this process needs it

    works = {_SERVE: _import, _SERVER: partial(_serve, path)}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        print(json.dumps(runner.run(_longest_lag(works.get(kind, partial(_load, kind, path))))))


def _lag(kind: str, loop: str) -> float:
    path = str(_models() / _FILES.get(kind, _FILES["aioflow's folder"]))
    code = f"from benchmarks.loading_lag import print_lag\nprint_lag({kind!r}, {loop!r}, {path!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=Path(__file__).parent.parent,
        env=fresh_environment(),
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    return float(json.loads(done.stdout))


def _row(kind: str, loop: str) -> Row:
    lag = median(_lag(kind, loop) for _ in range(_ROUNDS))
    what = f"`{kind}`" if kind in (_SERVE, _SERVER) else f"the first run of a model of 100 MB, {kind}"
    return Row(f"{what} ({loop})", {"longest lag": seconds(lag)}, (Target(_TARGET, column="longest lag"),))


if __name__ == "__main__":
    _kinds = (*_FILES, _SERVE, _SERVER)
    program("loading_lag", __doc__, (partial(_row, kind, loop) for kind in _kinds for loop in _LOOPS))
