"""The examples as processes of their own, and an oracle that computes their answers with NumPy."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import psutil
import safetensors.numpy

from aioflow.demo.digits import load_digits
from tests.support.processes import SECONDS, program_on_loop

__all__ = ["IMAGES", "Oracle", "Service", "serving", "uvicorn"]

IMAGES: Final = load_digits().images
_URL: Final = re.compile(rb"http://[\d.]+:(\d+)")


class Oracle:
    """The demo's classifier in plain NumPy, with the weights of a checkpoint."""

    def __init__(self, folder: Path) -> None:
        (file,) = folder.glob("*.safetensors")
        weights = safetensors.numpy.load_file(file)
        names = ("hidden_0", "hidden_1", "logits")
        self._layers = [(weights[f"{name}/weights"], weights[f"{name}/bias"]) for name in names]

    def probabilities(self, images: Any) -> Any:
        """Return the probabilities, [n, 10]."""
        y = images
        for number, (weights, bias) in enumerate(self._layers):
            y = y @ weights + bias
            if number < len(self._layers) - 1:
                y = np.maximum(y, 0)
        shares = np.exp(y - y.max(1, keepdims=True))
        return shares / shares.sum(1, keepdims=True)

    def agrees(self, images: Any, answer: Any) -> bool:
        """Return True if the answer has the probabilities of these images."""
        found = np.asarray(answer)
        expected = self.probabilities(images)
        return found.shape == expected.shape and bool(np.allclose(found, expected, rtol=1e-3, atol=1e-4))


@dataclass
class Service:
    """A running service.

    Attributes:
        port: Port of the service.
        process: Process of the service.
        printed: Lines that it has printed so far.
    """

    port: int
    process: asyncio.subprocess.Process
    printed: list[bytes] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def files(self) -> int:
        """Number of files and sockets that the process has open."""
        return int(psutil.Process(self.process.pid).num_fds())

    def client(self, **options: Any) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=100)
        return httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=SECONDS, limits=limits, **options)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)

    def stop(self) -> None:
        """Send SIGTERM, as a service manager does."""
        self.process.send_signal(signal.SIGTERM)

    async def closed(self, files: int) -> None:
        """Wait until the process has at most `files` files open."""
        async with asyncio.timeout(SECONDS):
            while self.files > files:  # noqa: ASYNC110  # another process cannot signal it
                await asyncio.sleep(0.02)


def uvicorn(app: str) -> list[str]:
    """Return the command that serves an application on a free port."""
    return ["-m", "uvicorn", app, "--port", "0", "--no-access-log"]


@asynccontextmanager
async def serving(*command: str, listener: socket.socket | None = None, **environment: str) -> AsyncIterator[Service]:
    """Run a service in a process of its own. Stop it at the end of the block, and check that it exits cleanly.

    Args:
        *command: Command line of the service, without the interpreter.
        listener: Socket that the service listens on. With it, the block begins before the service is ready.
        **environment: Variables in addition to those of the tests.
    """
    variables = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "always"} | environment
    options: dict[str, Any] = {"env": variables, "stderr": subprocess.STDOUT}
    if listener is not None:
        command = (*command, "--fd", str(listener.fileno()))
        options["pass_fds"] = (listener.fileno(),)
    async with program_on_loop(*command, **options) as process:
        assert process.stdout is not None
        printed: list[bytes] = []
        if listener is None:
            port = await _port(process.stdout, printed)
        else:
            port = listener.getsockname()[1]
        service = Service(port, process, printed)
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(_keep(process.stdout, printed))
            try:
                yield service
            finally:
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        service.stop()
                try:
                    async with asyncio.timeout(SECONDS):
                        await process.wait()
                        await reader
                except TimeoutError:
                    process.kill()
        text = b"".join(printed).decode()
        assert process.returncode in (0, -signal.SIGTERM), text
        for word in ("Traceback", "Warning", "ERROR"):
            assert word not in text, text


async def _port(output: asyncio.StreamReader, printed: list[bytes]) -> int:
    async with asyncio.timeout(SECONDS):
        async for line in output:
            printed.append(line)
            found = _URL.search(line)
            if found:
                return int(found[1])
    raise AssertionError(b"".join(printed).decode())


async def _keep(output: asyncio.StreamReader, printed: list[bytes]) -> None:
    while line := await output.readline():
        printed.append(line)
