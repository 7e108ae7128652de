"""Coroutines as nodes: a step that calls many services concurrently and runs a model on their responses.

A request names a few users. For each user the graph calls two services, with at most `LIMIT` calls in flight. A call
that times out or loses its connection is retried. The responses are the input of a small model. All of it is one
`session.run`, and any number of requests may be in flight.

    python examples/coroutine_nodes.py
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import aioflow as af

USERS = 16  # per request
FEATURES = 8  # of a user, from each service
LIMIT = 64  # concurrent calls of all requests together

REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="-")


@dataclass
class Service:
    """A simulated remote service: it has a latency, and every tenth response is lost."""

    name: str
    seconds: float
    limit: asyncio.Semaphore
    asked: int = 0
    most: int = 0
    requests: set[str] = field(default_factory=set)
    _open: int = 0

    async def ask(self, user: Any) -> Any:
        """Return the features of a user."""
        async with self.limit:
            self.asked += 1
            lost = self.asked % 10 == 0
            self.requests.add(REQUEST.get())
            self._open += 1
            self.most = max(self.most, self._open)
            try:
                await asyncio.sleep(self.seconds)
                if lost:
                    raise ConnectionError(f"{self.name} hung up")
            finally:
                self._open -= 1
        rng = np.random.default_rng([int(user), len(self.name)])
        return rng.standard_normal(FEATURES).astype(np.float32)


def _soon(attempt: int) -> float:
    return 0.001 * attempt


def build(services: list[Service]) -> tuple[af.Tensor, af.Tensor]:
    """Return the placeholder for the users of a request, and a score for each user."""
    users = af.placeholder("int64", [USERS], name="users")
    rows = []
    for user in af.unstack(users):
        answers = [
            af.py_coroutine(
                s.ask,
                [user],
                "float32",
                shapes=[FEATURES],
                timeout=1.0,
                retries=3,
                backoff=lambda _: 0.001,
                name=s.name,
            )
            for s in services
        ]
        rows.append(af.concat(answers, axis=0))
    width = FEATURES * len(services)
    weights = af.constant(np.random.default_rng(0).standard_normal((width, 1)) / width, "float32")
    return users, af.sigmoid(af.squeeze(af.matmul(af.stack(rows), weights), [1]), name="scores")


async def serve(requests: int) -> dict[str, Any]:
    """Process concurrent requests and return the figures of the report."""
    limit = asyncio.Semaphore(LIMIT)
    services = [Service("profiles", 0.005, limit), Service("purchases", 0.01, limit)]
    with af.Graph().as_default() as graph:
        users, scores = build(services)
    async with af.Session(graph=graph) as session:

        async def answer(number: int) -> Any:
            REQUEST.set(f"request {number}")
            return await session.run(scores, {users: np.arange(USERS) + number})

        started = time.perf_counter()
        async with asyncio.TaskGroup() as tg:
            tasks = [tg.create_task(answer(n)) for n in range(requests)]
        seconds = time.perf_counter() - started
    return {
        "scores": np.array([task.result() for task in tasks]),
        "asked": sum(s.asked for s in services),
        "most": max(s.most for s in services),
        "requests": sorted(set.union(*(s.requests for s in services))),
        "waited": sum(s.asked * s.seconds for s in services),
        "seconds": seconds,
    }


def main(requests: int = 8) -> dict[str, Any]:
    """Run the requests and print a report."""
    report = asyncio.run(serve(requests))
    print(f"{requests} requests of {USERS} users: {report['asked']} questions, {report['most']} at a time")
    print(f"{report['waited']:.2f} s of waiting took {report['seconds']:.2f} s")
    print(f"scores of the first request: {np.round(report['scores'][0][:4], 3).tolist()} ...")
    return report


if __name__ == "__main__":
    main()
