"""The messages of a step: a request to each worker, the values between workers, and the necessary answers."""

from __future__ import annotations

from typing import NamedTuple

from aioflow.compiler.ir import Part, Plan
from aioflow.graph.boundary import RECV, SEND
from aioflow.graph.device_spec import task_of
from aioflow.graph.opdef import traits_of


class Messages(NamedTuple):
    """The numbers of messages of a step.

    Attributes:
        requests: Requests to the workers of other cluster tasks.
        values: Values from cluster task to cluster task.
        answers: Answers from the workers of other cluster tasks.
    """

    requests: int
    values: int
    answers: int

    @property
    def total(self) -> int:
        """The number of all messages."""
        return sum(self)


def messages(plan: Plan, home: str = "") -> Messages:
    """Return the numbers of messages of one step of a plan. Each value counts as one message.

    Args:
        plan: The plan.
        home: The client's own cluster task; "" if it has no part in the plan.
    """
    tasks = set(plan.parts) - {home}
    values = sum(1 for part in plan.parts.values() for task in _sent(part) if task != part.task)
    return Messages(len(tasks), values, len(tasks - unanswered(plan)))


def unanswered(plan: Plan) -> frozenset[str]:
    """Return the cluster tasks whose parts need not report their end.

    All their work leads to values for other parts, which cannot end before they have received these values.
    """
    quiet = {task for task, part in plan.parts.items() if _only_sends(part)}
    return frozenset(task for task in quiet if _goes_to(plan.parts[task], plan, quiet))


def _only_sends(part: Part) -> bool:
    """Return whether all nodes of a part lead to values for other cluster tasks, and none may be dead."""
    if len(part.subgraphs) != 1 or _may_be_dead(part):
        return False
    (graph,) = part.subgraphs.values()
    # All work of a part ends in its nodes without readers.
    leaves = (graph.nodes[name] for name, readers in graph.consumers().items() if not readers)
    return all(leaf.op == SEND and task_of(leaf.attrs["recv_device"]) != part.task for leaf in leaves)


def _may_be_dead(part: Part) -> bool:
    return any(
        traits_of(node.op).is_control_flow or (node.op == RECV and bool(node.attrs["maybe_dead"]))
        for node in part.nodes()
    )


def _goes_to(part: Part, plan: Plan, quiet: set[str]) -> bool:
    """Return whether a part sends only to parts that answer and that receive every value."""
    goals = [plan.parts.get(task) for task in part.destinations]
    return all(goal is not None and goal.task not in quiet and not _may_be_dead(goal) for goal in goals)


def _sent(part: Part) -> list[str]:
    return [task_of(node.attrs["recv_device"]) for node in part.nodes() if node.op == SEND]
