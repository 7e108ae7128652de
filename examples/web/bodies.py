"""What clients send, read with a limit."""

from __future__ import annotations

import json
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

__all__ = ["read_json"]


async def read_json(request: Request, most: int = 1 << 20) -> Any:
    """The body as JSON; it has `most` bytes at most.

    Raises:
        HTTPException: it is too long (413), or no JSON (400).
        ClientDisconnect: the client has gone away in the middle of it.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise HTTPException(413, f"the body has more than {most} bytes")
    try:
        return json.loads(body)
    except (RecursionError, ValueError) as error:
        raise HTTPException(400, f"the body is no JSON: {error}") from error
