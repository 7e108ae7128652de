"""Elastic synchronous training: departed replicas are not awaited, and new ones are included."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

import aioflow as af
from aioflow.runtime.worker import WorkerState
from aioflow.testing.virtual_clock import run_virtual
from aioflow.train.elastic import Attendance, ReplicaWatch, tasks_without

HERE, STARTED = WorkerState((), 1, 0), WorkerState((), 0, 0)
AWAY = af.errors.UnavailableError("away")


# ── living replicas ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_attendance_drops_replicas_after_two_failed_health_checks() -> None:
    attendance = Attendance()
    looks: list[dict[str, Any]] = [
        {"a": HERE, "b": AWAY},
        {"a": HERE, "b": STARTED},
        {"a": HERE, "b": HERE},
        {"a": HERE, "b": AWAY},
        {"a": HERE, "b": HERE},
        {"a": HERE, "b": AWAY},
        {"a": HERE, "b": AWAY},
        {"a": AWAY, "b": AWAY},
        {"a": AWAY, "b": AWAY},
    ]
    assert [attendance.look(health) for health in looks] == [1, 1, 2, 2, 2, 2, 1, 1, 1]


def test_tasks_of_jobs_with_variables_are_not_replicas() -> None:
    tasks = [f"/job:{name}/replica:0/task:{index}" for name, index in [("ps", 0), ("chief", 0), ("worker", 1)]]
    health = dict.fromkeys(tasks, HERE)
    assert list(tasks_without(["ps"], health)) == tasks[1:]
    assert list(tasks_without(["ps", "chief", "worker"], health)) == tasks, "all, where each has variables"
    assert list(tasks_without([None], health)) == tasks


class Living:
    """A fake of the state on the parameter servers."""

    def __init__(self) -> None:
        self.story: list[tuple[float, int, int]] = []
        # At each look: the step, and the number of replicas that wait for a token.
        self.waiting: list[tuple[int, int]] = []

    async def progress(self, session: Any) -> tuple[int, int]:
        return self.waiting.pop(0) if self.waiting else (0, 0)

    async def set(self, session: Any, living: int, more: int) -> None:
        self.story.append((asyncio.get_running_loop().time(), living, more))


def test_watch_replaces_a_lost_token_if_all_replicas_wait() -> None:
    living: Any = Living()
    living.waiting = [(5, 2), (6, 2), (6, 1), (6, 2), (6, 3), (6, 2), (7, 2)]
    session: Any = None

    async def health() -> Mapping[str, Any]:
        return {"a": HERE, "b": HERE}

    async def main() -> list[int]:
        watch, given = ReplicaWatch(living, session, health), []
        for _ in range(8):
            await watch.look()
            given.append(len(living.story) - 1)
        return given

    assert run_virtual(main()) == [0, 0, 0, 0, 0, 1, 2, 2]
    assert living.story[1:] == [(0, 2, 1), (0, 2, 1)]


def test_watch_reports_changes_each_second_until_a_stop() -> None:
    """Entries are (time, living, new tokens). The first look and a death issue no tokens."""
    counts = [2, 2, 3, 2, 2, 3, 3]
    living: Any = Living()
    session: Any = None

    async def main() -> None:
        async with af.train.Coordinator() as coord:

            async def health() -> Mapping[str, Any]:
                count = counts.pop(0)
                if not counts:
                    coord.request_stop()
                return {str(index): HERE for index in range(count)}

            watch = ReplicaWatch(living, session, health)
            await watch.look()
            await watch.run(coord)

    run_virtual(main())
    assert living.story == [(0, 2, 0), (2, 3, 1), (4, 2, 0), (5, 3, 1)]


# ── building ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"worker_index": 0}, "cannot have a worker_index"),
        ({"total_num_replicas": 1}, "at least replicas_to_aggregate"),
    ],
)
def test_arguments_incompatible_with_elastic_are_rejected(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(af.errors.InvalidArgumentError, match=message):
        af.train.SyncReplicasOptimizer(af.train.GradientDescentOptimizer(1.0), 2, elastic=True, **arguments)


def test_number_of_replicas_is_on_the_server_and_not_saved(graph: af.Graph) -> None:
    with af.device(af.train.replica_device_setter(ps_tasks=2, worker_device="/job:worker/task:1")):
        step, v = af.train.get_or_create_global_step(), af.get_variable("v", [2])
        opt = af.train.SyncReplicasOptimizer(af.train.GradientDescentOptimizer(0.1), 2, elastic=True)
        opt.minimize(af.reduce_sum(v * v), step)
    made = {op.name: op for op in graph.get_operations()}
    assert made["sync_rep_living"].device == step.device
    assert [limit.device for limit in made.values() if limit.type == "_ResourceAccumulatorLimit"] == [v.device]
    assert {v.op.name for v in af.global_variables()} == {"global_step", "v"}
    assert {v.op.name for v in af.local_variables()} == {"sync_rep_local_step"}
