"""How a server is, as plain data: what its status page shows."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Activity", "RunningStep", "ServerStatus"]


@dataclass(frozen=True, slots=True)
class RunningStep:
    """A step that runs.

    Attributes:
        id: Names it to all workers that take part in it; 0 for one that only this worker does.
        seconds: For how long its part here has been running.
        waiting: The async nodes that are being awaited, each with what it waits for.
    """

    id: int
    seconds: float
    waiting: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Activity:
    """What a server does.

    Attributes:
        connections: Of clients and other tasks.
        parts: Of plans, registered and not forgotten.
        running: Steps that run.
        begun, failed, refused: Steps since the server began; those that were stopped have failed, those that came while
            it drained were refused.
        early_bytes: Of values that came before they were asked for.
        memory: The most bytes that the process has had at once; 0 where the system does not say.
        steps: The first hundred of those that run.
        queues: The first hundred of what steps may wait for (queues, barriers …), each with its state in words.
    """

    connections: int = 0
    parts: int = 0
    running: int = 0
    begun: int = 0
    failed: int = 0
    refused: int = 0
    early_bytes: int = 0
    memory: int = 0
    steps: tuple[RunningStep, ...] = ()
    queues: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """How a server is.

    Attributes:
        task: Its full name.
        target: What a session on it is opened with.
        state: "begins", "serves", "drains" (it begins no more steps) or "ended".
        seconds: Since it was made.
        devices: Their full names.
        lag: Seconds for which its event loop kept others waiting, when it was asked; None where nobody has asked.
    """

    task: str
    target: str
    state: str
    seconds: float
    devices: tuple[str, ...]
    activity: Activity
    lag: float | None = None

    @property
    def is_ready(self) -> bool:
        """Whether it takes steps."""
        return self.state == "serves"
