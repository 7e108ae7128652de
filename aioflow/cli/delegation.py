"""The nodes of a step that another engine computes, formatted for the commands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import aioflow as af
from aioflow.cli import tables
from aioflow.compiler.delegate import Delegation

_NODES: Final = 1  # named nodes for each reason


def delegation_of(
    graph: af.Graph, fetches: Any, feeds: Sequence[af.Tensor], config: af.SessionConfig
) -> Delegation | af.errors.OpError:
    """Return the nodes of a step that the engine of a session computes, or the error if no step can be planned here.

    Raises:
        NotFoundError: there is no such engine.
    """
    with af.Session(graph=graph, config=config) as session:
        try:
            return session.delegation(fetches, feeds)
        except af.errors.OpError as error:  # such as a device that this machine lacks
            return error


def as_lines(found: Delegation | af.errors.OpError) -> Iterator[str]:
    """Yield the number of delegated nodes, and a table of the reasons why the others are not delegated.

    Yield only the error if the step cannot be planned, and nothing without an engine.
    """
    if isinstance(found, af.errors.OpError):
        yield f"  no step can be planned here: {found.message}"
        return
    if found.engine is None:
        return
    # Nodes of the step are those that an engine computes and those that stay.
    count = sum(map(len, found.parts))
    nodes = tables.plural(count + len(found.stays), "node")
    parts = f", in {tables.plural(len(found.parts), 'part')}" if found.parts else ""
    yield f"  {found.engine} computes {count:,} of {nodes} after optimization{parts}"
    yield from (
        f"    {line}"
        for line in tables.rows(
            [(op, f"{len(names):,}", why, _some(names)) for (op, why), names in _grouped(found)], right=[1]
        )
    )


def as_document(found: Delegation | af.errors.OpError) -> dict[str, object]:
    """Return the delegation for JSON, with the names of all nodes."""
    if isinstance(found, af.errors.OpError):
        return {"error": found.message}
    stays = [{"op": op, "reason": why, "nodes": names} for (op, why), names in _grouped(found)]
    return {"engine": found.engine, "parts": [list(part) for part in found.parts], "stays": stays}


def _grouped(found: Delegation) -> list[tuple[tuple[str, str], list[str]]]:
    groups: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for name, staying in found.stays.items():
        groups[staying.op, staying.reason].append(name)
    # The most frequent reasons first.
    return sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))


def _some(names: Sequence[str]) -> str:
    more = f", and {len(names) - _NODES:,} more" if len(names) > _NODES else ""
    return f"at {', '.join(names[:_NODES])}{more}"
