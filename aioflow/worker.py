"""`python -m aioflow.worker`: one task of a cluster as a process, until it is told to end; `… demo` shows several.

python -m aioflow.worker --cluster ps=127.0.0.1:2222 --cluster worker=127.0.0.1:2223 --job ps --task 0
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import signal
import sys
from collections.abc import Callable, Sequence

from aioflow.config import SessionConfig
from aioflow.errors import InvalidArgumentError, OpError
from aioflow.net.cluster_spec import ClusterSpec
from aioflow.net.server import Server

__all__ = ["loop_factory", "main", "parse_cluster"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["demo"]:
        return _demo(given[1:])
    parser = argparse.ArgumentParser(prog="python -m aioflow.worker", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--cluster", action="append", required=True, metavar="JOB=HOST:PORT[,…]", help="the tasks of a job; once a job"
    )
    parser.add_argument("--job", help="the job of this task")
    parser.add_argument("--task", type=int, help="its number in the job")
    parser.add_argument("--cpus", type=int, default=1, help="CPU devices (default %(default)s)")
    options = parser.parse_args(given)
    config = SessionConfig(device_count={"CPU": options.cpus})
    try:
        server = Server(parse_cluster(options.cluster), options.job, options.task, config=config)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(server))
    except OpError as error:
        print(f"python -m aioflow.worker: {error}", file=sys.stderr)
        return 2
    return 0


def parse_cluster(jobs: Sequence[str]) -> ClusterSpec:
    """The cluster of "ps=host:port,host:port" and so on. Raises InvalidArgumentError."""
    found: dict[str, list[str]] = {}
    for text in jobs:
        job, equals, addresses = text.partition("=")
        if not equals or not job or job in found:
            raise InvalidArgumentError("--cluster", expected="JOB=HOST:PORT[,…], once a job", actual=text)
        found[job] = addresses.split(",")
    return ClusterSpec(found)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The faster event loop where there is one."""
    try:
        import uvloop  # there is none for Windows, where asyncio's own loop does
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(server: Server) -> None:
    end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end.set)
    async with server:
        print(f"{server.task} serves at {server.target}", flush=True)
        await end.wait()


def _demo(arguments: Sequence[str]) -> int:
    try:
        # Here and not at the top: the package of the demos needs an extra, which a worker does without.
        status: int = importlib.import_module("aioflow.demo.cluster").main(arguments)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "aioflow":
            raise
        print(f"The demo needs {error.name}, which is not installed: pip install 'aioflow[demo]'", file=sys.stderr)
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())
