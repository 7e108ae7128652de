"""Faults planted in the engine, to check that the simulated clusters find them.

`python -m tests.sweep.sim.planted` plays seeds with each fault until one fails, and prints after how many: the table in
docs/simulation.md. If none of `LIMIT` seeds fails, the scenes do not detect this kind of fault.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any, Final, NamedTuple
from unittest import mock

from aioflow.errors import OpError, UnavailableError
from aioflow.formats import checkpoint
from aioflow.kernels.registry import KERNELS
from aioflow.net import (
    links,
    outbox,
    pending_steps,
    remote_step,
    resource_directory,
    step_table,
    task_worker,
    worker_service,
)
from aioflow.net.channel import Calls, Channel
from aioflow.net.heartbeat import Heartbeat
from aioflow.net.step_table import EndedSteps
from aioflow.net.tcp import TcpComm
from aioflow.runtime.parts import _FanOut
from aioflow.runtime.rendezvous import Rendezvous
from aioflow.runtime.step import Step, StoppableBlock
from aioflow.sync.waiting import Waiting, wake_all
from tests.sweep.sim.scenes import play
from tests.sweep.sim.stories import SCENES

LIMIT: Final = 200

Plant = Callable[[], AbstractContextManager[Any]]


def every(count: int) -> Callable[[], bool]:
    """Return a function that returns True on every `count`-th call."""
    calls = itertools.count(1)
    return lambda: next(calls) % count == 0


def replaced(owner: Any, name: str, change: Callable[[Any], Any]) -> AbstractContextManager[Any]:
    """Patch a method or function with the result of `change` on the original."""
    return mock.patch.object(owner, name, change(getattr(owner, name)))


def lost_wake_up() -> AbstractContextManager[Any]:
    now = every(2)

    def change(wake: Any) -> Any:
        return lambda lane: None if now() else wake(lane)

    return replaced(outbox._SendQueue, "_wake", change)


def stale_registration() -> AbstractContextManager[Any]:
    def is_ready(step: Any) -> bool:
        return bool(step._registered) and all(way.is_open for way, _ in step._parts)

    return mock.patch.object(remote_step.RemoteStep, "_is_ready", property(is_ready))


def restart_unnoticed() -> AbstractContextManager[Any]:
    def change(met: Any) -> Any:
        def meet(link: Any, hello: Any, incarnation: int) -> None:
            link._incarnation = 0
            met(link, hello, incarnation)

        return meet

    return replaced(links.Link, "_met", change)


def retry_that_applies_twice() -> AbstractContextManager[Any]:
    def change(run: Any) -> Any:
        async def run_again(step: Any, feeds: Sequence[Any], execution: Step) -> Any:
            try:
                return await run(step, feeds, execution)
            except UnavailableError:
                execution.id += 1
                return await run(step, feeds, execution)

        return run_again

    return replaced(remote_step.RemoteStep, "run", change)


def fence_forgotten() -> AbstractContextManager[Any]:
    async def wanted(*asked: Any) -> None:
        """Accept every step."""

    return mock.patch.object(worker_service._Client, "_require_wanted", wanted)


def early_value_dropped() -> AbstractContextManager[Any]:
    def change(deliver: Any) -> Any:
        def if_begun(table: Any, id: int, *value: Any) -> None:
            if table.get(id) is not None:
                deliver(table, id, *value)

        return if_begun

    return replaced(step_table.StepTable, "deliver", change)


def abort_not_forwarded() -> AbstractContextManager[Any]:
    async def abort(steps: Any, step: int, error: OpError) -> bool:
        return True

    def give_up(calls: Any, number: int, sent: Any = None) -> None:
        """Forget the call without telling the worker."""
        calls.forget(number)

    stack = ExitStack()
    stack.enter_context(mock.patch.object(pending_steps.PendingSteps, "abort", abort))
    stack.enter_context(mock.patch.object(Calls, "give_up", give_up))
    return stack


def heartbeat_that_never_fires() -> AbstractContextManager[Any]:
    return mock.patch.object(Heartbeat, "tick", return_value=None)


def waiter_leaked() -> AbstractContextManager[Any]:
    async def wait(waiting: Any) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        ticket = waiting._make(wake)
        wake_all(waiting._submit(ticket))
        await future  # if this wait is cancelled, the ticket stays in the queue
        if ticket.error is not None:
            raise ticket.error
        return ticket.value if waiting._finish is None else waiting._finish(ticket.value)

    return mock.patch.object(Waiting, "_wait", wait)


def ended_steps_forgotten() -> AbstractContextManager[Any]:
    return mock.patch.object(EndedSteps, "add")


def frame_delivered_twice() -> AbstractContextManager[Any]:
    now = every(40)

    def change(arrived: Any) -> Any:
        def arrive(comm: Any, message: Any) -> None:
            arrived(comm, message)
            if now():
                arrived(comm, message)

        return arrive

    return replaced(TcpComm, "_arrived", change)


def frame_lost() -> AbstractContextManager[Any]:
    now = every(40)

    def change(arrived: Any) -> Any:
        return lambda comm, message: None if now() else arrived(comm, message)

    return replaced(TcpComm, "_arrived", change)


def error_that_denies_its_effect() -> AbstractContextManager[Any]:
    def account(step: Any, error: BaseException) -> None:
        if isinstance(error, OpError):
            error.may_have_been_applied = False

    return mock.patch.object(Step, "account", account)


def client_not_forgotten() -> AbstractContextManager[Any]:
    async def close(session: Any) -> None:
        """Keep the parts."""

    return mock.patch.object(task_worker.WorkerSession, "close", close)


def call_not_stopped() -> AbstractContextManager[Any]:
    def ignore(waiting: Any) -> None:
        """Leave the wait pending."""

    stack = ExitStack()
    stack.enter_context(mock.patch.object(StoppableBlock, "_stop", ignore))
    stack.enter_context(mock.patch.object(_FanOut, "_on_stop", ignore))
    return stack


def calls_that_outlive_their_connection() -> AbstractContextManager[Any]:
    def change(finish: Any) -> Any:
        def end(channel: Any, error: OpError) -> None:
            channel.calls.end = lambda *_: None
            finish(channel, error)

        return end

    return replaced(Channel, "_finish", change)


def disk_error_swallowed() -> AbstractContextManager[Any]:
    def change(write: Any) -> Any:
        def try_to(store: Any, name: Any, arrays: Any) -> None:
            with suppress(OpError):
                write(store, name, arrays)

        return try_to

    return replaced(checkpoint, "_write_file", change)


def value_for_another_iteration() -> AbstractContextManager[Any]:
    now = every(30)

    def change(deliver: Any) -> Any:
        previous: dict[str, Any] = {}

        def stale(meeting: Any, name: str, tag: str, value: Any) -> None:
            old = previous.get(name, value)
            previous[name] = value
            fits = getattr(old, "shape", None) == getattr(value, "shape", None)
            deliver(meeting, name, tag, old if now() and fits else value)

        return stale

    return replaced(Rendezvous, "deliver", change)


def home_not_written_down() -> AbstractContextManager[Any]:
    async def claim(*asked: Any) -> None:
        """Do not record the owner on the task itself; only the coordinator knows it."""

    return mock.patch.object(resource_directory.ResourceDirectory, "_claim", claim)


PLANTS: Final[Mapping[str, Plant]] = {
    "a wake-up of a send queue is lost, one of two": lost_wake_up,
    "a part counts as registered with a restarted task": stale_registration,
    "a session does not notice that a task was restarted": restart_unnoticed,
    "a step is run again after UnavailableError, and applied twice": retry_that_applies_twice,
    "a step that its client gave up is begun anyway": fence_forgotten,
    "a value that comes before its step is dropped": early_value_dropped,
    "neither an abort nor a CANCEL is sent to the worker": abort_not_forwarded,
    "a silent peer is never found dead": heartbeat_that_never_fires,
    "a waiter that was cancelled stays in its queue": waiter_leaked,
    "the step table forgets the steps that have ended": ended_steps_forgotten,
    "one message of forty arrives twice": frame_delivered_twice,
    "one message of forty is lost": frame_lost,
    "an error denies that its step was applied": error_that_denies_its_effect,
    "a worker keeps what a client had, after its end": client_not_forgotten,
    "a call to a worker is not stopped with its step": call_not_stopped,
    "calls wait on when their connection has ended": calls_that_outlive_their_connection,
    "a checkpoint counts as written, although the disk has failed": disk_error_swallowed,
    "one value of thirty is that of the step before": value_for_another_iteration,
    "only the coordinator knows where a variable is to be": home_not_written_down,
}


# Scenes to play for a fault. Faults without an entry are sought in all scenes in turn.
_WITNESSES: Final[Mapping[Plant, Sequence[str]]] = {
    restart_unnoticed: ("restarting",),
    retry_that_applies_twice: ("fencing",),
    fence_forgotten: ("fencing",),
    error_that_denies_its_effect: ("fencing",),
    ended_steps_forgotten: ("fencing",),
    abort_not_forwarded: ("queueing",),
    call_not_stopped: ("queueing",),
    calls_that_outlive_their_connection: ("queueing",),
    waiter_leaked: ("queueing",),
    disk_error_swallowed: ("saving",),
    heartbeat_that_never_fires: ("vanishing",),
    home_not_written_down: ("settling",),
}


class Found(NamedTuple):
    """The play that found a fault: number of plays until then, scene, seed and error."""

    plays: int
    scene: str
    seed: int
    error: str


def seeds(scenes: Sequence[str], limit: int) -> Iterator[tuple[str, int]]:
    """Yield the first `limit` pairs of scene and seed: every scene with seed 0, then with seed 1, and so on."""
    return itertools.islice(((name, seed) for seed in itertools.count() for name in scenes), limit)


def search(plant: Plant, limit: int = LIMIT) -> Found | None:
    """Play scenes with the fault until one fails. Return None if none of `limit` plays does."""
    with plant():
        for plays, (name, seed) in enumerate(seeds(_WITNESSES.get(plant, tuple(SCENES)), limit), 1):
            try:
                play(SCENES[name], seed)
            except Exception as error:
                first, *_ = str(error).splitlines() or [""]
                return Found(plays, name, seed, f"{type(error).__name__}: {first}")
    return None


def main(words: Sequence[str]) -> None:
    """Print the table of all faults, or of those whose names contain one of the words."""
    KERNELS.load()
    print("| fault | found after | by | what it says |\n|---|---:|---|---|")
    for name, plant in PLANTS.items():
        if not words or any(word in name for word in words):
            found = search(plant)
            last = (
                "not found | | |" if found is None else f"{found.plays} | {found.scene} {found.seed} | {found.error} |"
            )
            print(f"| {name} | {last}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
