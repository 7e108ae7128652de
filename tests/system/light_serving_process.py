"""A stand-in for a serving process that starts instantly, because it imports nothing of aioflow.

It writes heartbeats, reports to its supervisor that it is ready, and ends when the supervisor sends "leave". If
`AIOFLOW_TEST_STUCK` names a file, the first such process creates it and is stuck from then on.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import sys
import time


def _main(board: int, slot: int, channel: int) -> None:
    mark = os.environ.get("AIOFLOW_TEST_STUCK")
    if mark:
        with contextlib.suppress(FileExistsError), open(mark, "x"):
            signal.pause()
    end = socket.socket(fileno=channel)
    end.sendall(b'{"number": null, "call": "ready", "arguments": {"index": []}}\n')
    heard = b""
    while b'"call": "leave"' not in heard:
        os.pwrite(board, struct.pack("d", time.monotonic()), slot * 32)
        if select.select([end], [], [], 0.02)[0]:
            more = end.recv(1 << 16)
            if not more:
                return
            heard += more


if __name__ == "__main__":
    _main(*map(int, sys.argv[-3:]))
