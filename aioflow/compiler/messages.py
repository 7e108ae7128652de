"""Which messages a step takes: a request to each worker, the values between them, and the answers that are needed."""

from __future__ import annotations

from typing import NamedTuple

from aioflow.compiler.ir import Part, Plan
from aioflow.graph.boundary import RECV, SEND
from aioflow.graph.device_spec import task_of
from aioflow.graph.opdef import traits_of

__all__ = ["Messages", "messages", "unanswered"]


class Messages(NamedTuple):
    """How many messages a step takes.

    Attributes:
        requests, answers: To the workers of other tasks, and from them.
        values: From task to task.
    """

    requests: int
    values: int
    answers: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)


def messages(plan: Plan, home: str = "") -> Messages:
    """The messages of a step of a plan, if the small ones are the only ones.

    Args:
        home: The task that the client is itself; "" where it is none of the plan's.
    """
    tasks = set(plan.parts) - {home}
    values = sum(1 for part in plan.parts.values() for task in _sent(part) if task != part.task)
    return Messages(len(tasks), values, len(tasks - unanswered(plan)))


def unanswered(plan: Plan) -> frozenset[str]:
    """The tasks whose parts need not say that they have ended: all that is done there leads to values for other parts,
    and these have not ended before they have got them.
    """
    quiet = {task for task, part in plan.parts.items() if _only_sends(part)}
    return frozenset(task for task in quiet if _goes_to(plan.parts[task], plan, quiet))


def _only_sends(part: Part) -> bool:
    """Whether all nodes of a part lead to values for other tasks, and none can be left out."""
    if len(part.subgraphs) != 1 or _may_be_dead(part):
        return False
    (graph,) = part.subgraphs.values()
    leaves = (graph.nodes[name] for name, readers in graph.consumers().items() if not readers)
    return all(leaf.op == SEND and task_of(leaf.attrs["recv_device"]) != part.task for leaf in leaves)


def _may_be_dead(part: Part) -> bool:
    return any(
        traits_of(node.op).steers or (node.op == RECV and bool(node.attrs["maybe_dead"])) for node in part.nodes()
    )


def _goes_to(part: Part, plan: Plan, quiet: set[str]) -> bool:
    """Whether it only sends to parts that answer, and that take every value."""
    goals = [plan.parts.get(task) for task in part.destinations]
    return all(goal is not None and goal.task not in quiet and not _may_be_dead(goal) for goal in goals)


def _sent(part: Part) -> list[str]:
    return [task_of(node.attrs["recv_device"]) for node in part.nodes() if node.op == SEND]
