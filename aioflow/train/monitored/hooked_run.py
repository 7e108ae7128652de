"""One run with hooks: collect their requests, run everything as one step, pass each hook its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aioflow.config import RunOptions, TraceLevel
from aioflow.errors import DTypeError, FailedPreconditionError
from aioflow.runtime.stats import RunMetadata
from aioflow.session.streaming import Feeds
from aioflow.train.monitored.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    called,
)


async def run_with_hooks(
    hooks: Sequence[SessionRunHook],
    context: SessionRunContext,
    options: RunOptions | None,
    run_metadata: RunMetadata | None,
) -> object:
    """Run a step with hooks and return the results of `context.original_args`.

    Args:
        hooks: Hooks to call before and after the step.
        context: The run.
        options: Options of the caller, merged with those of the hooks.
        run_metadata: Receives the metadata of the step.

    Raises:
        FailedPreconditionError: a tensor is fed twice.
        DTypeError: `before_run` of a hook returned neither SessionRunArgs nor None.
    """
    try:
        asked = [await _request(hook, context) for hook in hooks]
        caller = context.original_args
        feeds = _merged_feeds(asked, caller.feed_dict)
        chosen = _merged_options(asked, options)
        metadata = run_metadata if run_metadata is not None else RunMetadata()
        wanted = [args.fetches for args in asked if args is not None and args.fetches is not None]
        # Options are passed only if one is set, so that the session can take its fast path.
        special: Mapping[str, Any] = {} if chosen == RunOptions() else {"options": chosen, "run_metadata": metadata}
        result, *others = await context.session.run([caller.fetches, *wanted], feeds, **special)
    except BaseException as error:
        # Hooks that have prepared for the step, such as `CheckpointedInput`, must learn of every end.
        context.step_ends(error)
        raise
    context.step_ends()
    values = iter(others)
    for hook, args in zip(hooks, asked, strict=True):
        found = next(values) if args is not None and args.fetches is not None else None
        await called(hook.after_run, context, SessionRunValues(found, chosen, metadata))
    return result


async def _request(hook: SessionRunHook, context: SessionRunContext) -> SessionRunArgs | None:
    args = await called(hook.before_run, context)
    if args is not None and not isinstance(args, SessionRunArgs):
        raise DTypeError(
            f"before_run of {type(hook).__name__} returned something else",
            expected="SessionRunArgs or None",
            actual=repr(args),
        )
    return args


def _merged_feeds(asked: Sequence[SessionRunArgs | None], of_caller: Feeds | None) -> dict[object, object]:
    merged: dict[object, object] = {}
    for args in asked:
        if args is not None and args.feed_dict:
            _add(merged, args.feed_dict, "a tensor is fed by two hooks")
    _add(merged, of_caller or {}, "a tensor is fed by a hook and by the caller of `run`")
    return merged


def _add(merged: dict[object, object], feeds: Feeds, problem: str) -> None:
    twice = [getattr(key, "name", key) for key in feeds if key in merged]
    if twice:
        raise FailedPreconditionError(problem, expected="one feed for each tensor", actual=twice)
    merged.update(feeds)


def _merged_options(asked: Sequence[SessionRunArgs | None], of_caller: RunOptions | None) -> RunOptions:
    """Return options that satisfy all requests: a trace if any requests it, and the largest timeout."""
    every = [args.options for args in asked if args is not None and args.options is not None]
    if of_caller is not None:
        every.append(of_caller)
    if not every:
        return RunOptions()
    traced = any(options.trace_level is TraceLevel.FULL for options in every)
    limits = [options.timeout for options in every if options.timeout is not None]
    return RunOptions(TraceLevel.FULL if traced else TraceLevel.NO_TRACE, max(limits, default=None))
