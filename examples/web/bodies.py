"""What clients send, read with a limit."""

from __future__ import annotations

import json
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

__all__ = ["read_body", "read_json"]


async def read_body(request: Request, most: int = 1 << 20) -> bytearray:
    """Return the body, of `most` bytes at most.

    Raises:
        HTTPException: it is too long (413).
        ClientDisconnect: the client has gone away in the middle of it.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise HTTPException(413, f"the body has more than {most} bytes")
    return body


async def read_json(request: Request) -> Any:
    """Return the body as JSON. Raises what `read_body` raises, and HTTPException (400): it is no JSON."""
    try:
        return json.loads(await read_body(request))
    except (RecursionError, ValueError) as error:
        raise HTTPException(400, f"the body is no JSON: {error}") from error
