"""`python -m benchmarks.serving_http`: single rows of an MLP over HTTP, from another process on loopback.

All servers run at the same time and are measured in alternating rounds, over 64 keep-alive connections. The results are
the medians of the rounds. Each response is compared with its own row. CPU is the processor time of the server and its
children.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import uvloop

import aioflow as af
from benchmarks.tables import Printer, Quantity, Row

__all__ = ["main"]

_SIZES = (784, 512, 512, 10)
_CONNECTIONS = 64
_ROWS = 256
_APPS = "benchmarks.serving_apps"
_UVICORN = ("uvicorn", "--factory", "--log-level", "error", "--port", "{port}")
_GRANIAN = ("granian", "--interface", "asgi", "--factory", "--loop", "uvloop", "--no-ws", "--port", "{port}")
_OURS = ("aioflow", "serve", "mlp={model}/model", "--port", "{port}")
_SERVERS: dict[str, tuple[str, ...]] = {
    "`aioflow serve` (uvicorn)": _OURS,
    "aioflow's application on granian": (*_GRANIAN, f"{_APPS}:ours"),
    "onnxruntime in a thread, uvicorn": (*_UVICORN, f"{_APPS}:by_hand"),
    "onnxruntime in a thread, granian": (*_GRANIAN, f"{_APPS}:by_hand"),
    "`aioflow serve --processes 2`": (*_OURS, "--processes", "2"),
}


# ── the model ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _save(folder: Path) -> tuple[Any, Any]:
    """Save the model in both formats. Return rows and the model's outputs for them."""
    rng = np.random.default_rng(0)
    with af.Graph().as_default() as graph:
        x = y = af.placeholder("float32", [None, _SIZES[0]], name="x")
        for number, (rows, columns) in enumerate(itertools.pairwise(_SIZES)):
            weights = af.Variable(rng.normal(0, rows**-0.5, (rows, columns)).astype(np.float32))
            y = af.matmul(y, weights)
            y = af.nn.relu(y) if number < len(_SIZES) - 2 else y
        y = af.identity(y, name="y")
        start = af.global_variables_initializer()
    async with af.Session(graph=graph) as session:
        await session.run(start)
        signature = af.saved.Signature({"x": x}, {"y": y})
        await af.saved.save(session, folder / "model", {"serving_default": signature})
        exported = await af.interop.onnx.export(session, inputs={"x": x}, outputs={"y": y})
        (folder / "model.onnx").write_bytes(exported.SerializeToString())
        values = rng.normal(size=(_ROWS, _SIZES[0])).astype(np.float32)
        return values, await session.run(y, {x: values})


# ── the load ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Connection(asyncio.Protocol):
    """A client connection that sends requests continuously, one at a time."""

    def __init__(self, load: _Load, number: int) -> None:
        self._load = load
        self._number = number
        self._data = b""
        self._transport: Any = None
        self._begun = 0.0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._number = (self._number + 1) % _ROWS
        self._begun = time.perf_counter()
        self._transport.write(self._load.requests[self._number])

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, rest = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(rest) < length:
            return
        self._load.answered(self._number, time.perf_counter() - self._begun, head, rest)
        self._data = b""
        if self._load.is_on:
            self._ask()
        else:
            self._transport.close()


class _Load:
    """The state of all connections, with the latency of each response."""

    def __init__(self, rows: Any, expected: Any) -> None:
        self.is_on = True
        self.seconds: list[float] = []
        self.wrong = 0
        self._expected = expected
        self.requests = [_request(row) for row in rows]

    def answered(self, number: int, seconds: float, head: bytes, body: bytes) -> None:
        self.seconds.append(seconds)
        values = np.frombuffer(body[-4 * _SIZES[-1] :], "<f4")
        self.wrong += not (head.startswith(b"HTTP/1.1 200") and np.abs(values - self._expected[number]).max() < 1e-3)


def _request(row: Any) -> bytes:
    data: bytes = row.tobytes()
    tensor = {"name": "x", "shape": [1, row.size], "datatype": "FP32", "parameters": {"binary_data_size": len(data)}}
    output = {"name": "y", "parameters": {"binary_data": True}}
    text = json.dumps({"inputs": [tensor], "outputs": [output]}).encode()
    lengths = f"Inference-Header-Content-Length: {len(text)}\r\nContent-Length: {len(text) + len(data)}"
    return f"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: localhost\r\n{lengths}\r\n\r\n".encode() + text + data


async def _load(port: int, seconds: float, data: Path) -> None:
    found = np.load(data)
    load = _Load(found["rows"], found["expected"])
    loop = asyncio.get_running_loop()
    for number in range(_CONNECTIONS):
        await loop.create_connection(partial(_Connection, load, number * 4), "127.0.0.1", port)
    begun = time.perf_counter()
    load.seconds.clear()
    await asyncio.sleep(seconds)
    taken, times = time.perf_counter() - begun, np.array(load.seconds)
    load.is_on = False
    await asyncio.sleep(0.2)
    p50, p99 = np.percentile(times, [50, 99])
    result = {"rate": len(times) / taken, "count": len(load.seconds), "p50": p50, "p99": p99, "wrong": load.wrong}
    print(json.dumps(result))


# ── the servers ──────────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _serving(command: tuple[str, ...], folder: Path) -> Iterator[tuple[int, psutil.Process]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [each.format(port=port, model=folder) for each in command]
    environment = {**os.environ, "BENCHMARK_MODEL": str(folder)}
    with subprocess.Popen([sys.executable, "-m", *arguments], env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            _wait(f"http://127.0.0.1:{port}/v2/health/ready", process)
            yield port, psutil.Process(process.pid)
        finally:
            process.terminate()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError), opener.open(url, timeout=5):
            return
        time.sleep(0.1)
    raise SystemExit(f"{process.args!r} does not serve")


def _cpu(process: psutil.Process) -> float:
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def _round(port: int, process: psutil.Process, seconds: float, data: Path) -> dict[str, float]:
    before = _cpu(process)
    command = ["-m", "benchmarks.serving_http", "--load", str(port), "--seconds", str(seconds), "--data", str(data)]
    printed = subprocess.run([sys.executable, *command], check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(printed)
    if found["wrong"]:
        raise SystemExit(f"{found['wrong']:.0f} wrong answers of {process.cmdline()}")
    found["cpu"] = (_cpu(process) - before) / found["count"]
    return found


def _compare(rounds: int, seconds: float, printer: Printer) -> None:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        rows, expected = asyncio.run(_save(folder))
        np.savez(folder / "data.npz", rows=rows, expected=expected)
        up = {label: stack.enter_context(_serving(command, folder)) for label, command in _SERVERS.items()}
        found: dict[str, list[dict[str, float]]] = {label: [] for label in up}
        for number in range(rounds + 1):
            for label, (port, process) in up.items():
                result = _round(port, process, seconds if number else 1.0, folder / "data.npz")
                if number:  # the first round is a warm-up
                    found[label].append(result)
        for label, results in found.items():
            rate, p50, p99, cpu = (median(each[key] for each in results) for key in ("rate", "p50", "p99", "cpu"))
            times = {"p50": p50, "p99": p99, "CPU per request": cpu}
            cells = {"requests/s": Quantity(rate), **{name: Quantity(value, "s") for name, value in times.items()}}
            printer.row(Row(label, cells))


def main() -> None:
    """Print the comparison, or run as the load generator."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving_http", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--load", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    Printer.add_options(parser)
    arguments = parser.parse_args()
    if arguments.load is None:
        _compare(arguments.rounds, arguments.seconds, Printer(arguments))
    else:
        uvloop.run(_load(arguments.load, arguments.seconds, arguments.data))


if __name__ == "__main__":
    main()
