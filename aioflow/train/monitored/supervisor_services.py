"""Background services of a `Supervisor`: logging the speed and writing summaries."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from aioflow.graph.graph import Graph
from aioflow.session.session import Session
from aioflow.train.monitored.session_run_hook import called
from aioflow.train.monitored.summaries import add_number, add_status

_LOGGER: Final = logging.getLogger("aioflow.train")


class Speed:
    """A service that logs steps per second and, if there is a writer, writes them as a summary."""

    def __init__(self, session: Session, global_step: Any, writer: Any) -> None:
        self._session = session
        self._global_step = global_step
        self._writer = writer
        self._last: tuple[float, int] | None = None

    async def tell(self) -> None:
        """Log the speed since the last call. The first call only records the starting point."""
        step, now = int(await self._session.run(self._global_step)), asyncio.get_running_loop().time()
        if self._last is not None and now > self._last[0]:
            speed = (step - self._last[1]) / (now - self._last[0])
            tag = f"{self._global_step.op.name}/sec"
            _LOGGER.info("%s: %g", tag, speed)
            if self._writer is not None:
                await add_number(self._writer, tag, speed, step)
        self._last = now, step


class Summaries:
    """A service that runs the summaries of a graph, without feeds, and writes the results."""

    def __init__(self, session: Session, summary_op: Any, global_step: Any, writer: Any) -> None:
        self._session = session
        self._fetches = [summary_op] if global_step is None else [summary_op, global_step]
        self._writer = writer

    async def write(self) -> None:
        """Run the summaries once and write the result."""
        summary, *step = await self._session.run(self._fetches)
        await called(self._writer.add_summary, summary, int(step[0]) if step else None)


async def begin_summaries(writer: Any, graph: Graph, session: Session, global_step: Any) -> None:
    """Open the writer, which an earlier session may have closed, and write the graph.

    If `global_step` is set, also log the START of a session at that step.
    """
    await called(writer.reopen)
    await called(writer.add_graph, graph)
    if global_step is not None:
        await add_status(writer, "START", int(await session.run(global_step)))
