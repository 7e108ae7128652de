"""Real processes that are killed, stopped and restarted at random."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field

from tests.support.processes import program_on_loop

__all__ = ["Crowd", "Member"]


@dataclass
class Member:
    """A program that is restarted whenever it is killed.

    Attributes:
        name: Name in messages.
        command: Command line of Python, without the interpreter.
        lasts: Whether to restart the program also after it has ended by itself.
        process: The running process, if any.
        done: Set when the program has ended by itself without an error.
        output: Lines that the program has printed.
        killed: Whether the running process has been killed.
    """

    name: str
    command: Sequence[str]
    lasts: bool = False
    process: asyncio.subprocess.Process | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)
    output: list[str] = field(default_factory=list)
    killed: bool = False

    async def run(self) -> None:
        """Run the program until it ends by itself. Raise RuntimeError if it fails."""
        while self.lasts or not self.done.is_set():
            self.killed = False
            async with program_on_loop(*self.command, stderr=asyncio.subprocess.STDOUT) as process:
                self.process = process
                stream = process.stdout
                while stream is not None and (line := await stream.readline()):
                    self.output.append(line.decode(errors="replace").rstrip())
                status = await process.wait()
                self.process = None
            if status == 0:
                self.done.set()
            elif not self.killed:
                raise RuntimeError("\n".join([f"{self.name} has failed with status {status}", *self.output[-60:]]))

    def signal(self, number: int) -> bool:
        """Send a signal, and return whether the program was running."""
        if self.process is None or self.process.returncode is not None:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, number)
            return True
        return False


class Crowd:
    """Several programs that run together."""

    def __init__(self, members: Sequence[Member], seed: int) -> None:
        self.members = {member.name: member for member in members}
        self.story: list[str] = []
        self._random = random.Random(seed)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run all programs until the block ends."""
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tg:
            tasks = [tg.create_task(member.run()) for member in self.members.values()]
            stack.callback(lambda: [task.cancel() for task in tasks])
            yield
            for task in tasks:
                task.cancel()

    async def disturb(self, times: int, pause: float = 1.0) -> None:
        """Kill or pause a random program, `times` times."""
        for _ in range(times):
            await asyncio.sleep(self._random.uniform(0.2, pause))
            member = self._random.choice(list(self.members.values()))
            if self._random.random() < 0.5:
                member.killed = True
                done = member.signal(signal.SIGKILL)
                self.story.append(f"{member.name} is killed" if done else f"{member.name} is not there to be killed")
                continue
            seconds = self._random.choice([0.05, 0.5, 1.6, 2.5])
            if member.signal(signal.SIGSTOP):
                self.story.append(f"{member.name} is stopped for {seconds} s")
                await asyncio.sleep(seconds)
                member.signal(signal.SIGCONT)
