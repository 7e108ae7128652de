"""Request bodies, read with a size limit."""

from __future__ import annotations

import json
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

__all__ = ["read_body", "read_json"]


async def read_body(request: Request, most: int = 1 << 20) -> bytearray:
    """Return the body, of at most `most` bytes.

    Raises:
        HTTPException: the body is too long (413).
        ClientDisconnect: the client disconnected before the end of the body.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise HTTPException(413, f"the body has more than {most} bytes")
    return body


async def read_json(request: Request) -> Any:
    """Return the body as JSON.

    Raises:
        HTTPException: the body is too long (413), or is not JSON (400).
        ClientDisconnect: the client disconnected before the end of the body.
    """
    try:
        return json.loads(await read_body(request))
    except (RecursionError, ValueError) as error:
        raise HTTPException(400, f"the body is no JSON: {error}") from error
