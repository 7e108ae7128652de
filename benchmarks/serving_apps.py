"""The applications that `benchmarks.serving_http` compares: aioflow's, and a hand-written one around onnxruntime.

Both accept and return requests of the Open Inference Protocol with binary tensors, by the same functions.
`BENCHMARK_MODEL` is the folder of the model: `model` in aioflow's own format, and `model.onnx`.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import aioflow.serve
from aioflow.serve.protocol import InferResponse, Limits, decode_request, encode_response

__all__ = ["by_hand", "ours"]

_LENGTH = "inference-header-content-length"


def ours() -> Any:
    """Return aioflow's application."""
    return aioflow.serve.create_app({"mlp": f"{os.environ['BENCHMARK_MODEL']}/model"})


def by_hand() -> Any:
    """Return an application that calls an onnxruntime session in a thread for each request."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # more threads do not make a single row faster
    session = onnxruntime.InferenceSession(f"{os.environ['BENCHMARK_MODEL']}/model.onnx", options)
    limits = Limits()

    async def infer(request: Request) -> Response:
        asked = decode_request(await request.body(), int(request.headers[_LENGTH]), limits)
        (y,) = await asyncio.to_thread(session.run, None, dict(asked.inputs))
        answer = encode_response(InferResponse("mlp", "1", {"y": y}, asked.id), ("y",))
        return Response(answer.body, headers={_LENGTH: str(answer.json_length)}, media_type="application/octet-stream")

    async def ready(_: Request) -> Response:
        return Response()

    return Starlette(routes=[Route("/v2/models/mlp/infer", infer, methods=["POST"]), Route("/v2/health/ready", ready)])
