"""Messages between two processes over loopback TCP: 100 MB one way, and the round trip of a small call.

`python -m benchmarks.network [asyncio|uvloop] [--profile]` prints both. The other process runs this module as a
program.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from statistics import median
from typing import Final

import numpy as np
import uvloop

from aioflow.net.channel import Channel, Reply, ServiceRequest
from aioflow.net.comm import Comm, CommOptions
from aioflow.net.transports import connect, listen
from benchmarks.tables import BASELINE, Printer, Quantity, Row, Target, beside
from benchmarks.tables import seconds as in_seconds

__all__ = ["NETWORK_ROWS"]

LOOPS: Final[Mapping[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
_BYTES: Final = 100_000_000
# GB/s of tensorflow-cpu 2.21 between two of its servers, on the machine of the first measurement.
_TENSORFLOW_RATE: Final = 1.17


async def _serve() -> None:
    done = asyncio.Event()

    async def take(request: ServiceRequest) -> Reply:
        return Reply({"bytes": sum(t.nbytes for t in request.tensors)})

    async def echo(request: ServiceRequest) -> Reply:
        return Reply(request.header, request.tensors)

    async def serve(comm: Comm) -> None:
        async with Channel(comm, {"take": take, "echo": echo}) as channel:
            await channel.wait_ended()
        done.set()

    async with listen("tcp://127.0.0.1:0", serve) as listener:
        print(listener.address, flush=True)
        await done.wait()


@asynccontextmanager
async def _peer(loop: str) -> AsyncIterator[Channel]:
    """Open a channel to a process that serves `take` and `echo`; the process ends with the channel."""
    command = [sys.executable, "-m", "benchmarks.network", loop, "--serve"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    if process.stdout is None:
        raise RuntimeError("the process has no output")
    address = (await process.stdout.readline()).decode().strip()
    async with Channel(await connect(address, options=CommOptions(shared_memory=False))) as channel:
        yield channel
    await process.wait()


async def _one_way(loop: str, rounds: int) -> float:
    """Return the rate in bytes per second of sending 100 MB to the other process, including its acknowledgment."""
    array = np.random.default_rng(0).random(_BYTES // 8)
    times = []
    async with _peer(loop) as channel:
        for _ in range(rounds):
            started = time.perf_counter()
            reply = await channel.call("take", {}, [array], timeout=60)
            times.append(time.perf_counter() - started)
            if reply.header["bytes"] != _BYTES:
                raise RuntimeError("bytes were lost")
    return _BYTES / median(times[2:])


async def _round_trip(loop: str, rounds: int, profile: cProfile.Profile | None = None) -> float:
    """Return the seconds of a call with one scalar in both directions."""
    scalar, times = np.float32(1.5), []
    async with _peer(loop) as channel:
        for number in range(rounds):
            if profile is not None and number == 1:
                profile.enable()
            started = time.perf_counter()
            for _ in range(1000):
                await channel.call("echo", {"step": 1}, [scalar], timeout=60)
            times.append((time.perf_counter() - started) / 1000)
        if profile is not None:
            profile.disable()
    return median(times[1:])


def one_way(loop: str = "uvloop", rounds: int = 15) -> Row:
    """Return the row of the one-way transfer."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        rate = runner.run(_one_way(loop, rounds)) / 1e9
    ours, theirs = Quantity(rate, "GB/s"), Quantity(_TENSORFLOW_RATE, "GB/s")
    return beside(f"100 MB to another process ({loop})", ours, theirs, Target(least=2), other=BASELINE)


def round_trip(loop: str = "uvloop", rounds: int = 11, profile: cProfile.Profile | None = None) -> Row:
    """Return the row of the round trip."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        seconds = runner.run(_round_trip(loop, rounds, profile))
    target = Target(100e-6, column="aioflow")
    return beside(f"call of another process ({loop})", in_seconds(seconds), target=target, other=BASELINE)


NETWORK_ROWS: Final[tuple[Callable[[], Row], ...]] = (one_way, round_trip)


def main() -> int:
    """Print both rows, or serve as the other process. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network", description=__doc__)
    parser.add_argument("loop", nargs="?", choices=list(LOOPS), default="uvloop")
    parser.add_argument("--serve", action="store_true", help="be the other process")
    parser.add_argument("--profile", action="store_true", help="where the time of a call goes in this process")
    Printer.add_options(parser)
    arguments = parser.parse_args()
    if arguments.serve:
        with asyncio.Runner(loop_factory=LOOPS[arguments.loop]) as runner:
            runner.run(_serve())
        return 0
    profile = cProfile.Profile() if arguments.profile else None
    printer = Printer(arguments)
    printer.row(one_way(arguments.loop))
    printer.row(round_trip(arguments.loop, profile=profile))
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    return 0


if __name__ == "__main__":
    sys.exit(main())
