"""`python -m aioflow.worker`: one task of a cluster as a process, until a signal; `… demo` runs a small cluster.

python -m aioflow.worker --cluster ps=127.0.0.1:2222 --cluster worker=127.0.0.1:2223 --job ps --task 0
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Final

from aioflow.cli.program import StoppedBySignal, print_line, run, run_command, run_demo, say
from aioflow.cli.worker_options import WorkerOptions, make_parser, parse_options
from aioflow.concurrency.loops import loop_factory
from aioflow.config import SessionConfig
from aioflow.net.limit_settings import with_limits
from aioflow.net.server import Server, server_options
from aioflow.net.status_page import serve_status
from aioflow.observe.logs import log_to

__all__ = ["loop_factory", "main"]

_CLOSE_SECONDS: Final = 5.0  # seconds after the drain until the process is ended forcibly
_PROGRAM: Final = "python -m aioflow.worker"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["demo"]:
        name = f"{_PROGRAM} demo"
        return run_command(name, partial(run_demo, "aioflow.demo.cluster", given[1:], name))
    return run_command(_PROGRAM, partial(_run, given))


def _run(given: Sequence[str]) -> int:
    parser = make_parser(_PROGRAM, (__doc__ or "").partition("\n")[0])
    options = parse_options(parser, given, os.environ)
    task = options.task
    if not task.comes_from("--"):
        say(_PROGRAM, str(task))
    config = SessionConfig(device_count={"CPU": options.cpus})
    server = Server(
        task.cluster,
        task.job_name,
        task.task_index,
        config=config,
        allow_dirs=options.allow_dir,
        options=with_limits(server_options(options.credentials), options.limits),
        bind=options.bind,
    )
    told = asyncio.Event()
    try:
        with log_to(options.logs):
            run(_serve(server, options, told), on_terminate=told.set, patience=options.drain_seconds + _CLOSE_SECONDS)
    except StoppedBySignal as stopped:  # the normal end of a worker, so no message
        return stopped.status
    return 0


async def _serve(server: Server, options: WorkerOptions, told: asyncio.Event) -> None:
    """Serve until `told` is set, then until no step runs, but at most `options.drain_seconds` longer."""
    async with AsyncExitStack() as stack:
        page = None
        if options.status_port is not None:
            page = await stack.enter_async_context(serve_status(server.status, options.status_port))
        await stack.enter_async_context(server)
        print_line(f"{server.task} serves at {server.target}")
        if page is not None:
            print_line(f"status page of {server.task}: {page}")
        if options.until_eof:
            # A daemon: the read cannot be interrupted and must not keep the process alive.
            threading.Thread(target=_wait_for_the_end, args=(asyncio.get_running_loop(), told), daemon=True).start()
        # Set by a signal or by the end of standard input.
        await told.wait()
        await server.drain(options.drain_seconds)


def _wait_for_the_end(loop: asyncio.AbstractEventLoop, told: asyncio.Event) -> None:
    """Wait until the other end of standard input is closed, then set `told`."""
    # Input is discarded: only its end has a meaning.
    while os.read(0, 1 << 12):
        pass
    with suppress(RuntimeError):  # the loop has ended already
        loop.call_soon_threadsafe(told.set)


if __name__ == "__main__":
    sys.exit(main())
