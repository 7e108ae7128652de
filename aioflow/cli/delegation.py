"""What another engine computes of a step, as the commands show it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import aioflow as af
from aioflow.cli import tables
from aioflow.compiler.delegate import Delegation

__all__ = ["as_document", "as_lines", "delegation_of"]

_NODES: Final = 1  # that are named for a reason


def delegation_of(graph: af.Graph, fetches: Any, feeds: Sequence[Any], engine: str | None) -> Delegation:
    """Return what the engine of `--delegate` computes of a step."""
    with af.Session(graph=graph, config=af.SessionConfig(delegate=engine)) as session:
        return session.delegation(fetches, feeds)


def as_lines(found: Delegation) -> Iterator[str]:
    """Yield how many nodes the engine computes, and a table of why others stay. Nothing where there is no engine."""
    if found.engine is None:
        return
    count = sum(map(len, found.parts))
    nodes = tables.plural(count + len(found.stays), "node")
    parts = f", in {tables.plural(len(found.parts), 'part')}" if found.parts else ""
    yield f"  {found.engine} computes {count:,} of {nodes}{parts}"
    yield from (
        f"    {line}"
        for line in tables.rows(
            [(op, f"{len(names):,}", why, _some(names)) for (op, why), names in _grouped(found)], right=[1]
        )
    )


def as_document(found: Delegation) -> dict[str, Any]:
    """Return the same for JSON, with the names of all nodes."""
    stays = [{"op": op, "reason": why, "nodes": names} for (op, why), names in _grouped(found)]
    return {"engine": found.engine, "parts": [list(part) for part in found.parts], "stays": stays}


def _grouped(found: Delegation) -> list[tuple[tuple[str, str], list[str]]]:
    groups: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for name, staying in found.stays.items():
        groups[staying.op, staying.reason].append(name)
    return sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))


def _some(names: Sequence[str]) -> str:
    more = f", and {len(names) - _NODES:,} more" if len(names) > _NODES else ""
    return f"at {', '.join(names[:_NODES])}{more}"
