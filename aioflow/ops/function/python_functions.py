"""Python functions that nodes call, by token.

A function is not plain data, so a node holds a token, and the process has a table of functions. The table is weak and
the graph holds the entry, so an entry lives as long as the graph that uses it. Each process adds a random part to its
tokens, so a token never selects another function in another process.

Tokens are not secret: they are part of graphs, which are written to files. So a server calls none of its functions for
a client, whatever token the client's graph contains. A connection of the process to itself identifies itself by a
secret number (`proof`) that never leaves the process.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

from aioflow.concurrency.forking import in_child
from aioflow.errors import NotFoundError
from aioflow.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Timeout and retries of a coroutine function.

    Attributes:
        timeout: Seconds for one attempt, or None.
        retries: Attempts after the first.
        retry_on: Exceptions after which to try again.
        backoff: Returns the seconds to wait after failed attempt 1, 2, ….
        sleep: Waits for that many seconds.
    """

    timeout: float | None
    retries: int
    retry_on: tuple[type[Exception], ...]
    backoff: Callable[[int], float]
    sleep: Callable[[float], Awaitable[Any]]


@dataclass(slots=True, weakref_slot=True, eq=False)
class PythonFunction:
    """One entry of the table.

    Attributes:
        call: The function or async iterable.
        policy: Timeout and retries of a coroutine function.
        reader: The reader of an async iterator that can be read only once.
    """

    call: Any
    policy: RetryPolicy | None = None
    reader: object | None = None


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
    """Return the secret number of this process. It is never sent to another process."""
    return _PROOF


def is_proof(given: Any) -> bool:
    """Return True if `given` is the secret number of this process."""
    # Constant-time, so that the time of the answer tells nothing about the secret.
    # `compare_digest` raises TypeError for text that is not ASCII.
    return isinstance(given, str) and given.isascii() and secrets.compare_digest(given, _PROOF)


def keep_function(graph: Graph, function: PythonFunction) -> str:
    """Add a function to the table for as long as `graph` lives. Return its token."""
    token = f"pyfunc_{_PROCESS}_{next(_COUNT)}"
    _FUNCTIONS[token] = function
    graph.held.append(function)
    return token


def find_function(token: str) -> PythonFunction:
    """Return the function with that token.

    Raises:
        NotFoundError: the token belongs to another process, or to a graph that no longer exists.
    """
    found = _FUNCTIONS.get(token)
    if found is None:
        raise NotFoundError(
            f"there is no Python function with the token {token!r}: a function exists only in the process "
            "that built its node, while the graph is alive",
            expected="a token of this process whose graph is alive",
            actual=token,
        )
    return found
