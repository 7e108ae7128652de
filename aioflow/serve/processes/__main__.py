"""The entry point of a serving process, started by its supervisor.

`python -m aioflow.serve.processes LISTENER BOARD SLOT CHANNEL`. The arguments are inherited descriptors, and the
process's slot on the board. Its settings, which contain secrets, arrive on standard input.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys

from aioflow.concurrency.loops import loop_factory
from aioflow.serve.processes.board import Board
from aioflow.serve.processes.serving import ServingProcess
from aioflow.serve.processes.settings import Settings
from aioflow.serve.quiet import log_no_garbage


async def _main(settings: Settings, listener: int, board: int, slot: int, channel: int) -> None:
    process = ServingProcess(settings, socket.socket(fileno=listener), Board(board, slot))
    await process.run(socket.socket(fileno=channel))


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the supervisor handles these two signals for all processes
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Not among the arguments, which all users of the machine can read in the process list.
    settings = sys.stdin.buffer.read()
    if settings:  # empty if the supervisor has ended
        log_no_garbage()
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_main(Settings.from_json(settings), *map(int, sys.argv[1:])))
