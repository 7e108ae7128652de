"""Faults of a simulated network: a schedule that follows from the network's seed."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from aioflow.testing.sim_net import SimNet


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        at: Start, in virtual seconds after the start of the schedule.
        seconds: Duration, in virtual seconds.
        kind: One of `FAULTS`.
        hosts: The affected hosts: one, or two for a fault of the links between them.
        hard: True for the worse of two forms.
    """

    at: float
    seconds: float
    kind: str
    hosts: tuple[str, ...]
    hard: bool

    def __str__(self) -> str:
        return f"{self.at:7.3f} s: {self.kind}{' (hard)' * self.hard} {', '.join(self.hosts)} for {self.seconds:.3f} s"


_Form: TypeAlias = Callable[[SimNet, Fault], Awaitable[None]]


async def _partition(net: SimNet, fault: Fault) -> None:
    one, other = fault.hosts
    net.partition(one, other, both=not fault.hard)
    await asyncio.sleep(fault.seconds)
    # The hard form resets connections when it ends, the soft one delivers what was held.
    net.heal(one, other, reset=fault.hard)


async def _drop(net: SimNet, fault: Fault) -> None:
    net.drop(*fault.hosts)


async def _slow(net: SimNet, fault: Fault) -> None:
    one, other = fault.hosts
    factor = 100.0 if fault.hard else 5.0
    net.slow(one, other, factor)
    await asyncio.sleep(fault.seconds)
    # Factors multiply, so overlapping faults undo only their own share.
    net.slow(one, other, 1 / factor)


async def _pause(net: SimNet, fault: Fault) -> None:
    (host,) = fault.hosts
    net.pause(host)
    await asyncio.sleep(fault.seconds)
    net.resume(host)


async def _crash(net: SimNet, fault: Fault) -> None:
    (host,) = fault.hosts
    net.crash(host, silent=fault.hard)
    await asyncio.sleep(fault.seconds)
    # A crashed host always comes back: the test checks recovery.
    await net.restart(host)


async def _disk(net: SimNet, fault: Fault) -> None:
    (host,) = fault.hosts
    net.break_disk(host, errno.ENOSPC if fault.hard else errno.EIO)
    await asyncio.sleep(fault.seconds)
    net.break_disk(host, None)


# For each kind, the number of hosts and the function that applies the fault, waits, and undoes it.
FAULTS: Final[Mapping[str, tuple[int, _Form]]] = {
    "partition": (2, _partition),
    "drop": (2, _drop),
    "slow": (2, _slow),
    "pause": (1, _pause),
    "crash": (1, _crash),
    "disk": (1, _disk),
}
_ALONE: Final = ("pause", "crash")  # kinds that must not overlap on one host


class FaultSchedule:
    """Faults of a network.

    Args:
        faults: The faults, in any order. A host is not paused or crashed twice at a time: the second fault waits.
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = sorted(faults, key=lambda fault: fault.at)

    @classmethod
    def random(
        cls,
        net: SimNet,
        hosts: Sequence[str],
        count: int,
        within: float,
        kinds: Sequence[str] = tuple(FAULTS),
        spare: Sequence[str] = (),
    ) -> FaultSchedule:
        """Return a random schedule that follows from the network's seed.

        Args:
            net: The network, for its seed.
            hosts: Names of the hosts.
            count: Number of faults.
            within: Seconds within which the faults begin.
            kinds: Kinds of faults to choose from.
            spare: Names of hosts that are neither paused nor crashed.
        """
        chance = net.random("faults")
        return cls([_fault(chance, hosts, within, kinds, spare) for _ in range(count)])

    async def run(self, net: SimNet) -> None:
        """Apply the faults at their times. Return when the last one is over."""
        # Per host: a process that is paused cannot be paused again, nor resumed twice.
        busy = {host: asyncio.Lock() for fault in self.faults for host in fault.hosts}
        begin = net.loop.time()

        async def happen(fault: Fault) -> None:
            # From the start of the schedule, so that a late fault does not shift the later ones.
            await asyncio.sleep(begin + fault.at - net.loop.time())
            form = FAULTS[fault.kind][1]
            if fault.kind in _ALONE:
                async with busy[fault.hosts[0]]:
                    await form(net, fault)
            else:
                await form(net, fault)

        async with asyncio.TaskGroup() as fault_group:
            for fault in self.faults:
                fault_group.create_task(happen(fault))

    def __str__(self) -> str:
        return "\n".join(map(str, self.faults))


def _fault(
    chance: random.Random, hosts: Sequence[str], within: float, kinds: Sequence[str], spare: Sequence[str]
) -> Fault:
    kind = chance.choice(kinds)
    number = FAULTS[kind][0]
    among = [host for host in hosts if number == 2 or host not in spare]
    # 0.8 s on average, 6 s at most.
    seconds = min(chance.expovariate(1 / 0.8), 6.0)
    return Fault(chance.uniform(0.0, within), seconds, kind, tuple(chance.sample(among, number)), chance.random() < 0.4)
