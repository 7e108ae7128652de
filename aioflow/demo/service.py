"""The demo's web service and its client: an ASGI app that predicts with the live variables."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import aioflow as af
from aioflow.demo.digits import Digits
from aioflow.demo.model import PIXELS, DigitsModel
from aioflow.errors import InvalidArgumentError
from aioflow.serve.embedded import EmbeddedServer, EmbeddedSettings

_PAUSE = 0.002  # seconds between two requests of the client: realistic use, not a flood


@dataclass(slots=True)
class Traffic:
    """The client's statistics: seconds of each response, and the number of correct ones."""

    latencies: list[float] = field(default_factory=list)
    right: int = 0


def make_app(model: DigitsModel, session: af.Session) -> Starlette:
    """Return an app that answers `POST /predict` of {"pixels": [[64 numbers in 0..1], …]}.

    The response is {"digits": […], "probabilities": […]}.
    """
    # Prepared once, so that a request does not look up the step again.
    predict = session.make_callable(model.probabilities, [model.images])

    async def answer(request: Request) -> Response:
        try:
            pixels = af.web.rows_of((await request.json())["pixels"], model.images)
        except ClientDisconnect:
            return Response(status_code=499)  # the client is gone and does not read it
        except (InvalidArgumentError, LookupError, RecursionError, TypeError, ValueError) as error:
            why = getattr(error, "message", str(error))
            return JSONResponse({"error": f"expected {{'pixels': rows of {PIXELS} numbers}}: {why}"}, status_code=400)
        probabilities = await predict(pixels)
        best = probabilities.argmax(axis=1)
        return JSONResponse({"digits": best.tolist(), "probabilities": probabilities.max(axis=1).tolist()})

    async def step(request: Request) -> JSONResponse:
        return JSONResponse({"global_step": int(await session.run(model.global_step))})

    return Starlette(routes=[Route("/predict", answer, methods=["POST"]), Route("/step", step)])


@contextlib.asynccontextmanager
async def serving(app: Starlette, port: int) -> AsyncIterator[str]:
    """Serve `app` on the loopback address while the block runs, and yield the base URL. Port 0 is any free port.

    Raises:
        OSError: the port is taken or needs privileges.
    """
    # The protocol is spelled out: asyncio turns Nagle's algorithm off only where the socket says that it is TCP, and
    # with it on, every answer waits 40 ms for the client's delayed acknowledgement.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen()  # before the URL is yielded: the server's task may start later than the first request
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"127.0.0.1:{port}") from error
        server = EmbeddedServer(EmbeddedSettings(app, lifespan="off", access_log=False))
        async with asyncio.TaskGroup() as tg:
            tg.create_task(server.serve(sockets=[listener]))
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True


async def ask_again_and_again(url: str, digits: Digits, traffic: Traffic, stop: asyncio.Event) -> None:
    """Send one digit after another to the service until `stop` is set, and record the responses."""
    rows = digits.images.tolist()
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        index = 0
        while not stop.is_set():
            started = time.perf_counter()
            response = await client.post("/predict", json={"pixels": [rows[index]]})
            traffic.latencies.append(time.perf_counter() - started)
            response.raise_for_status()
            traffic.right += response.json()["digits"][0] == digits.labels[index]
            index = (index + 1) % len(rows)
            await asyncio.sleep(_PAUSE)
