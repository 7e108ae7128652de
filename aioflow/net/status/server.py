"""The status of a server as plain data, for its status page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunningStep:
    """A running step.

    Attributes:
        id: Identifier of the step for all its workers; 0 for a step that only this worker runs.
        seconds: Time since its part here began.
        waiting: The async nodes that are being awaited, each with what it waits for.
    """

    id: int
    seconds: float
    waiting: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Activity:
    """The activity of a server.

    Attributes:
        connections: Number of connections from clients and other tasks.
        parts: Number of registered parts of plans.
        running: Number of running steps.
        begun, failed, refused: Numbers of steps since the server started. Stopped steps count as failed; steps that
            arrive while the server drains are refused.
        early_bytes: Bytes of values that arrived before they were requested.
        memory: Peak memory of the process in bytes; 0 where the system does not report it.
        steps: The first hundred running steps.
        queues: The first hundred objects that steps may wait for (queues, barriers …), each with a description of its
            state.
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
    """The status of a server.

    Attributes:
        task: Full name of the task.
        target: Target of a session on the server.
        state: "begins", "serves", "drains" (refuses new steps) or "ended".
        seconds: Time since the server was created.
        devices: Full names of the devices.
        activity: The activity of the server.
        lag: Delay of the event loop in seconds at the time of the request; None if not measured.
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
        """True if the server accepts steps."""
        return self.state == "serves"
