"""The hook interface: objects that a monitored session calls before and after each run.

Every method may be a plain function or a coroutine function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from inspect import isawaitable
from typing import Any, NamedTuple, TypeVar

from aioflow.config import RunOptions
from aioflow.errors import DTypeError
from aioflow.runtime.stats import RunMetadata
from aioflow.session.fetches import Feeds
from aioflow.train.coordinator import Coordinator

T = TypeVar("T")


async def called(function: Callable[..., T | Awaitable[T]], *args: object) -> T:
    """Call `function(*args)` and await the result if needed: user callbacks may be plain or coroutine functions."""
    made = function(*args)
    return await made if isawaitable(made) else made


class SessionRunArgs(NamedTuple):
    """Additions of a hook to a run.

    Attributes:
        fetches: Fetches, as in `Session.run`; None for no fetches.
        feed_dict: Additional feeds.
        options: A trace level and a time limit; the highest level and the longest limit requested apply.
    """

    fetches: Any
    feed_dict: Feeds | None = None
    options: RunOptions | None = None


class SessionRunValues(NamedTuple):
    """Results of a run for one hook.

    Attributes:
        results: Values of the hook's fetches; None if it had no fetches.
        options, run_metadata: Options and metadata of the run.
    """

    results: Any
    options: RunOptions
    run_metadata: RunMetadata


class SessionRunContext:
    """One run of a monitored session, as its hooks see it.

    Args:
        original_args: Fetches and feeds of the caller of `run`.
        session: The session of the run.

    Attributes:
        step_error: The error of the step; None while the step runs, and if it succeeded.
    """

    def __init__(self, original_args: SessionRunArgs, session: Any) -> None:
        self._original_args = original_args
        self._session = session
        self._stop_requested = False
        self.step_error: BaseException | None = None
        self._at_end: list[Callable[[SessionRunContext], None]] = []

    @property
    def original_args(self) -> SessionRunArgs:
        """Fetches and feeds of the caller of `run`, without those of hooks."""
        return self._original_args

    @property
    def session(self) -> Any:
        """The session; runs in it bypass the hooks."""
        return self._session

    @property
    def stop_requested(self) -> bool:
        """True if a hook has requested the end of the training."""
        return self._stop_requested

    def request_stop(self) -> None:
        """End the training after this run: `should_stop` of the monitored session then returns True."""
        self._stop_requested = True

    def when_step_ends(self, callback: Callable[[SessionRunContext], None]) -> None:
        """Register `callback(context)` for the end of the step, successful or not; it runs before `after_run`.

        The callback that was registered last runs first.
        """
        self._at_end.append(callback)

    def step_ends(self, error: BaseException | None = None) -> None:
        """Call the registered callbacks at the end of the step. `error`, if any, becomes `step_error`."""
        self.step_error = error
        # Popped before the call, so that each callback runs once even if it raises.
        while self._at_end:
            self._at_end.pop()(self)


class SessionRunHook:
    """Callbacks around the runs of a monitored session. Override those needed; each may be a coroutine function.

    They are called in this order: `begin`, `after_create_session` (for every new session), `before_run` and `after_run`
    (for every run), `end`.
    """

    def begin(self) -> object:
        """Prepare the graph. Called once before a session exists: the last chance to add nodes to the default graph."""

    def after_create_session(self, session: Any, coord: Coordinator) -> object:
        """Prepare a new session, at the beginning or after a failure.

        The variables have values and the graph is final. `coord` owns the tasks of queue runners and those that the
        hook starts with `coord.start(...)`.
        """

    def before_run(self, run_context: SessionRunContext) -> Any:
        """Return the hook's additional fetches and feeds for a run as `SessionRunArgs`, or None."""

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> object:
        """Process the results of a run. Not called if the run failed."""

    def end(self, session: Any) -> object:
        """Finish the training while the session is still open. Not called if the training ended with an error.

        OutOfRangeError, StopIteration and StopAsyncIteration do not count as errors: the input has ended.
        """


def hooks_of(hooks: Iterable[SessionRunHook] | None, argument: str) -> list[SessionRunHook]:
    """Return the hooks as a list. Raise DTypeError if `hooks` is a single hook or contains a class."""
    if isinstance(hooks, SessionRunHook):
        raise DTypeError(f"{argument} is one hook", expected=f"a list of hooks: {argument}=[…]", actual=repr(hooks))
    chosen = list(hooks or ())
    for hook in chosen:
        if isinstance(hook, type):
            raise DTypeError(
                f"{argument} has a class in it", expected=f"a hook: {hook.__name__}(…)", actual=f"class {hook.__name__}"
            )
    return chosen
