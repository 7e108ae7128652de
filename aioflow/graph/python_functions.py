"""Python functions that nodes call, by token.

A function is not plain data, so a node holds a token and the process a table. An entry lives as long as the graph that
uses it: the table is weak, the graph holds the entry. In another process there is no such entry, and the token, which
has a random part for each process, cannot stand for another function there.

Tokens are no secrets: they are in graphs, and those are written to files. So a process that serves others calls none of
its functions for them, whatever token they name. Who says that he is the process itself shows a number that it has told
nobody (`proof`).
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

from aioflow.errors import NotFoundError
from aioflow.graph.graph import Graph
from aioflow.work.forking import in_child

__all__ = ["PythonFunction", "RetryPolicy", "find_function", "is_proof", "keep_function", "proof"]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How a coroutine is tried.

    Attributes:
        timeout: Seconds for one attempt, or None.
        retries: Attempts after the first.
        retry_on: What is worth another attempt.
        backoff: Seconds to wait after failed attempt 1, 2, ….
        sleep: What waits them.
    """

    timeout: float | None
    retries: int
    retry_on: tuple[type[Exception], ...]
    backoff: Callable[[int], float]
    sleep: Callable[[float], Awaitable[Any]]


@dataclass(slots=True, weakref_slot=True, eq=False)
class PythonFunction:
    """One entry: the function (or async iterable), and how it is tried where it is a coroutine function."""

    call: Any
    policy: RetryPolicy | None = None
    reader: object | None = None  # who reads an async iterator that can be read only once


_PROCESS = secrets.token_hex(4)
_PROOF = secrets.token_hex(16)
_COUNT: Final = itertools.count()
_FUNCTIONS: Final[WeakValueDictionary[str, PythonFunction]] = WeakValueDictionary()


@in_child
def _be_another_process() -> None:
    global _PROCESS, _PROOF
    _PROCESS = secrets.token_hex(4)
    _PROOF = secrets.token_hex(16)


def proof() -> str:
    """What nobody but this process knows. It is sent to no other."""
    return _PROOF


def is_proof(given: Any) -> bool:
    """Whether it is that of this process."""
    return isinstance(given, str) and given.isascii() and secrets.compare_digest(given, _PROOF)


def keep_function(graph: Graph, function: PythonFunction) -> str:
    """Enter a function into the table for as long as `graph` lives; returns its token."""
    token = f"pyfunc_{_PROCESS}_{next(_COUNT)}"
    _FUNCTIONS[token] = function
    graph.held.append(function)
    return token


def find_function(token: str) -> PythonFunction:
    """The function of that token.

    Raises:
        NotFoundError: it belongs to another process, or to a graph that is gone.
    """
    found = _FUNCTIONS.get(token)
    if found is None:
        raise NotFoundError(
            f"there is no Python function with the token {token!r}: functions stay in the process, and with the graph, "
            "for which the node was built",
            expected="a token of this process whose graph is alive",
            actual=token,
        )
    return found
