"""Simulated machines: network namespaces with an address each, and links between them that can be cut."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, Self

import pytest

from tests.support.processes import program_on_loop

__all__ = ["Machine", "Network", "machines"]

_SECONDS: Final = 30.0
_EXEC: Final = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
_HOLD: Final = ("sh", "-c", "echo ready; exec sleep 280")  # a namespace lasts as long as a process is in it


class Machine:
    """A network namespace. Its address belongs to its loopback interface, and every link routes to it."""

    def __init__(self, name: str, address: str, pid: int) -> None:
        self.name, self.address = name, address
        self._enter = ("nsenter", "-t", str(pid), "-U", "-n", "--preserve-credentials")
        self.pid = pid

    @asynccontextmanager
    async def program(
        self, *command: str, environment: Mapping[str, str], stdin: int | None = None, stderr: int | None = None
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run a Python program on this machine, like `program_on_loop`."""
        options: Any = {"env": dict(environment), "stdin": stdin, "stderr": stderr}
        async with program_on_loop("-c", _EXEC, *self._enter, sys.executable, *command, **options) as process:
            yield process

    async def sh(self, command: str) -> None:
        """Run a command on this machine. Raise RuntimeError if it fails."""
        done = await asyncio.to_thread(_run, *self._enter, "sh", "-ec", command)
        if done.returncode:
            raise RuntimeError(f"on {self.name}: {command}: {done.stderr}")


class Network:
    """Machines that are linked in pairs."""

    def __init__(self, found: Mapping[str, Machine]) -> None:
        self.machines = found
        self._links: dict[frozenset[str], int] = {}

    def __getitem__(self, name: str) -> Machine:
        return self.machines[name]

    async def link(self, one: str, other: str) -> Self:
        """Connect two machines by a pair of virtual interfaces."""
        number = self._links.setdefault(frozenset((one, other)), len(self._links) + 1)
        first, second = sorted((self[one], self[other]), key=lambda machine: machine.name)
        await first.sh(f"ip link add l{number} type veth peer name l{number} netns {second.pid}")
        for end, machine in enumerate((first, second), 1):
            await machine.sh(f"ip addr add 10.87.{number}.{end}/24 dev l{number}")
        await self.heal(one, other)
        return self

    async def cut(self, one: str, other: str) -> None:
        """Cut the link of two machines silently: packets are lost, and no connection is reset."""
        await self[one].sh(f"ip link set l{self._links[frozenset((one, other))]} down")

    async def heal(self, one: str, other: str) -> None:
        """Restore the link of two machines."""
        number = self._links[frozenset((one, other))]
        ends = sorted((self[one], self[other]), key=lambda machine: machine.name)
        for machine in ends:
            await machine.sh(f"ip link set l{number} up")
        # A link that goes down loses its routes.
        for machine, there, end in ((ends[0], ends[1], 2), (ends[1], ends[0], 1)):
            await machine.sh(f"ip route replace {there.address}/32 via 10.87.{number}.{end} dev l{number}")


@asynccontextmanager
async def machines(*names: str) -> AsyncIterator[Network]:
    """Yield machines of these names, all linked with one another. Skip the test without network namespaces."""
    await asyncio.to_thread(_require_namespaces)
    found: dict[str, Machine] = {}
    async with AsyncExitStack() as stack:
        outer: tuple[str, ...] = ("unshare", "-rn")
        for number, name in enumerate(names, 1):
            process = await stack.enter_async_context(program_on_loop("-c", _EXEC, *outer, *_HOLD))
            async with asyncio.timeout(_SECONDS):
                assert process.stdout is not None
                assert await process.stdout.readline() == b"ready\n"
            found[name] = Machine(name, f"10.88.0.{number}", process.pid)
            await found[name].sh(f"ip link set lo up && ip addr add {found[name].address}/32 dev lo")
            if number == 1:  # the others are namespaces of the same user
                outer = ("nsenter", "-t", str(process.pid), "-U", "--preserve-credentials", "unshare", "-n")
        network = Network(found)
        for one, other in itertools.combinations(names, 2):
            await network.link(one, other)
        yield network


def _require_namespaces() -> None:
    for tool in ("unshare", "nsenter", "ip"):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool} on this machine")
    made = _run("unshare", "-rn", "ip", "link", "add", "l0", "type", "veth", "peer", "name", "l1")
    if made.returncode:
        pytest.skip(f"this machine gives no network namespace with links: {made.stderr.strip()}")


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
