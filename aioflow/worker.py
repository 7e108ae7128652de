"""`python -m aioflow.worker`: one task of a cluster as a process, until it is told to end; `… demo` shows several.

python -m aioflow.worker --cluster ps=127.0.0.1:2222 --cluster worker=127.0.0.1:2223 --job ps --task 0
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final

import aioflow
from aioflow.cli.arguments import Parser, add_imports, count, positive
from aioflow.cli.cluster import parse_cluster
from aioflow.cli.program import Stopped, loop_factory, run, run_command, run_demo
from aioflow.config import SessionConfig
from aioflow.net.server import Server

__all__ = ["loop_factory", "main"]

_PROGRAM: Final = "python -m aioflow.worker"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["demo"]:
        name = f"{_PROGRAM} demo"
        return run_command(name, partial(run_demo, "aioflow.demo.cluster", given[1:], name))
    return run_command(_PROGRAM, partial(_run, given))


def _run(given: Sequence[str]) -> int:
    parser = Parser(prog=_PROGRAM, description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--version", action="version", version=f"aioflow {aioflow.__version__}")
    parser.add_argument(
        "--cluster",
        action="append",
        required=True,
        metavar="JOB=HOST:PORT[,…]",
        help="the tasks of a job; once per job",
    )
    parser.add_argument("--job", help="the job of this task")
    parser.add_argument("--task", type=count, help="its number in the job")
    parser.add_argument("--cpus", type=positive, default=1, help="CPU devices (default %(default)s)")
    add_imports(parser)
    options = parser.parse_args(given)
    config = SessionConfig(device_count={"CPU": options.cpus})
    server = Server(parse_cluster(options.cluster), options.job, options.task, config=config)
    try:
        run(_serve(server))
    except Stopped as stopped:  # which is how a worker ends, so there is nothing to say
        return 0 if stopped.number == signal.SIGTERM else stopped.status
    return 0


async def _serve(server: Server) -> None:
    async with server:
        print(f"{server.task} serves at {server.target}", flush=True)
        await asyncio.Event().wait()  # until it is cancelled


if __name__ == "__main__":
    sys.exit(main())
