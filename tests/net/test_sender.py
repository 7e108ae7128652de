"""The sending half of a connection whose transport has failed."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from aioflow.errors import UnavailableError
from aioflow.net.framing import CHUNK_BYTES, FrameKind, WireMessage
from aioflow.net.limits import DEFAULT_LIMITS
from aioflow.net.sender import Sender
from aioflow.net.shared_memory.sharing import Sharing


class FailedTransport(asyncio.Transport):
    """A transport whose first write fails. As asyncio's, it is closing then, and reports that in the next turn."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.writes > 0

    def write(self, data: Any) -> None:
        self.writes += 1

    def writelines(self, list_of_data: Any) -> None:
        self.writes += 1


async def test_nothing_is_written_to_a_transport_that_has_failed() -> None:
    """Otherwise asyncio logs a warning for each further write."""
    transport, lost = FailedTransport(), UnavailableError("the connection was lost")
    turns: list[int] = []

    def require_open() -> None:
        if turns:
            raise lost

    sender = Sender(DEFAULT_LIMITS, Sharing(DEFAULT_LIMITS, False), require_open, lambda _: None)
    sender.start(transport, False)
    asyncio.get_running_loop().call_later(0.0, turns.append, 1)
    large = WireMessage(FrameKind.PUSH, 1, {}, tuple(np.zeros(CHUNK_BYTES // 4, np.uint8) for _ in range(20)))
    with pytest.raises(UnavailableError):
        await sender.send(large)
    assert transport.writes == 1
    turns.clear()
    for number in range(9):
        assert sender.post(WireMessage(FrameKind.PUSH, number))
        sender.flush()
    await sender.send(WireMessage(FrameKind.PUSH, 2, {}, (np.zeros(CHUNK_BYTES, np.uint8),)))
    sender.write_bare(b"heartbeat")
    assert transport.writes == 1
