"""`python -m aioflow.serve.processes LISTENER GIVE TAKE BOARD OWN LINE`: a process that a supervisor starts.

The arguments are descriptors that it has inherited, and its line on the board.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys

from aioflow.serve.processes.accepting import Sockets
from aioflow.serve.processes.board import Board
from aioflow.serve.processes.member import Member
from aioflow.serve.quiet import log_no_garbage
from aioflow.web_server import EmbeddedSettings


async def _main(listener: int, give: int, take: int, board: int, own: int, line: int) -> None:
    sockets = Sockets(*(socket.socket(fileno=each) for each in (listener, give, take)))
    member = Member(sockets, Board(board, own))
    os.close(board)
    await member.run(socket.socket(fileno=line))


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a word for the supervisor
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log_no_garbage()
    with asyncio.Runner(loop_factory=EmbeddedSettings("").get_loop_factory()) as runner:
        runner.run(_main(*map(int, sys.argv[1:])))
