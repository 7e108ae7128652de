"""What a hook is: an object that is asked before each run of a monitored session and told after it.

Every method may be a plain function or a coroutine function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from inspect import isawaitable
from typing import Any, NamedTuple, TypeVar

from aioflow.config import RunOptions
from aioflow.errors import DTypeError
from aioflow.runtime.stats import RunMetadata
from aioflow.train.coordinator import Coordinator

__all__ = ["SessionRunArgs", "SessionRunContext", "SessionRunHook", "SessionRunValues", "called", "hooks_of"]

T = TypeVar("T")


async def called(function: Callable[..., T | Awaitable[T]], *args: Any) -> T:
    """`function(*args)`, awaited if need be: what users give may be a coroutine function or a plain one."""
    made = function(*args)
    return await made if isawaitable(made) else made


class SessionRunArgs(NamedTuple):
    """What a hook adds to a run.

    Attributes:
        fetches: As those of `Session.run`; None for nothing.
        feed_dict: What is fed in addition.
        options: A trace level and a time limit; the greater of what is asked for holds.
    """

    fetches: Any
    feed_dict: Mapping[Any, Any] | None = None
    options: RunOptions | None = None


class SessionRunValues(NamedTuple):
    """What came of a run.

    Attributes:
        results: Values of what the hook asked for; None where it asked for nothing.
        options, run_metadata: Those of the run.
    """

    results: Any
    options: RunOptions
    run_metadata: RunMetadata


class SessionRunContext:
    """One run of a monitored session, for its hooks.

    Args:
        original_args: What the caller of `run` asked for.
        session: The session that runs it.
    """

    def __init__(self, original_args: SessionRunArgs, session: Any) -> None:
        self._original_args = original_args
        self._session = session
        self._stop_requested = False
        self.step_error: BaseException | None = None
        self._at_end: list[Callable[[SessionRunContext], None]] = []

    @property
    def original_args(self) -> SessionRunArgs:
        """What the caller of `run` asked for, without what hooks add."""
        return self._original_args

    @property
    def session(self) -> Any:
        """The session; what is run in it passes by the hooks."""
        return self._session

    @property
    def stop_requested(self) -> bool:
        """Whether a hook has asked for the end of the training."""
        return self._stop_requested

    def request_stop(self) -> None:
        """Have `should_stop` of the monitored session answer True from the end of this run on."""
        self._stop_requested = True

    def when_step_ends(self, callback: Callable[[SessionRunContext], None]) -> None:
        """Have `callback(context)` called when the step is over, with a result or not; `after_run` comes later."""
        self._at_end.append(callback)

    def step_ends(self, error: BaseException | None = None) -> None:
        """The step is over: tell those who asked. `step_error` is what it has failed with."""
        self.step_error = error
        while self._at_end:
            self._at_end.pop()(self)


class SessionRunHook:
    """What happens around the runs of a monitored session. Override what is needed; each may be a coroutine function.

    In this order: `begin`, `after_create_session` (for every new session), `before_run` and `after_run` (for every
    run), `end`.
    """

    def begin(self) -> Any:
        """Once, before there is a session: the last chance to add nodes to the default graph."""

    def after_create_session(self, session: Any, coord: Coordinator) -> Any:
        """A session has been made, at the beginning or after a failure; its variables have values, the graph is final.

        Args:
            coord: Owns the tasks of queue runners, and those that the hook starts: `coord.start(...)`.
        """

    def before_run(self, run_context: SessionRunContext) -> Any:
        """Before each run. Returns `SessionRunArgs`, what to fetch and feed in addition, or None."""

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> Any:
        """After each run that had a result."""

    def end(self, session: Any) -> Any:
        """At the end of the training, while the session is open; not if the training ended by an error.

        OutOfRangeError and StopIteration are no errors here: the input has ended.
        """


def hooks_of(hooks: Iterable[SessionRunHook] | None, argument: str) -> list[SessionRunHook]:
    """The hooks that a user gives. Raises DTypeError where these are one hook alone, or a class."""
    if isinstance(hooks, SessionRunHook):
        raise DTypeError(f"{argument} is one hook", expected=f"a list of hooks: {argument}=[…]", actual=repr(hooks))
    chosen = list(hooks or ())
    for hook in chosen:
        if isinstance(hook, type):
            raise DTypeError(
                f"{argument} has a class in it", expected=f"a hook: {hook.__name__}(…)", actual=f"class {hook.__name__}"
            )
    return chosen
