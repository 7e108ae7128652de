"""`MonitoredTrainingSession`: a monitored session with the standard hooks of training."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from aioflow.arguments import check_seconds
from aioflow.config import SessionConfig
from aioflow.errors import InvalidArgumentError
from aioflow.runtime.worker import Worker
from aioflow.train.monitored.checkpointed_input import CheckpointedInput
from aioflow.train.monitored.checkpointing import CheckpointSaverHook
from aioflow.train.monitored.hooks import StepCounterHook
from aioflow.train.monitored.monitored_session import MonitoredSession
from aioflow.train.monitored.recording_hooks import SummarySaverHook
from aioflow.train.monitored.scaffold import Scaffold
from aioflow.train.monitored.session_creation import ChiefSessionCreator, SessionCreator, WorkerSessionCreator
from aioflow.train.monitored.session_run_hook import SessionRunHook, hooks_of


class _Default:
    """The default of arguments for which None has a meaning."""

    def __repr__(self) -> str:
        return "USE_DEFAULT"


_DEFAULT: Final[Any] = _Default()
_SAVE_SECS: Final = 600
_SUMMARY_STEPS: Final = 100


def MonitoredTrainingSession(
    master: str | Worker = "",
    is_chief: bool = True,
    checkpoint_dir: str | Path | None = None,
    scaffold: Scaffold | None = None,
    hooks: Iterable[SessionRunHook] | None = None,
    chief_only_hooks: Iterable[SessionRunHook] | None = None,
    save_checkpoint_secs: float | None = _DEFAULT,
    save_summaries_steps: int | None = _DEFAULT,
    save_summaries_secs: float | None = _DEFAULT,
    config: SessionConfig | None = None,
    stop_grace_period_secs: float = 120,
    log_step_count_steps: int | None = 100,
    max_wait_secs: float | None = 7200,
    save_checkpoint_steps: int | None = _DEFAULT,
    summary_dir: str | Path | None = None,
    save_graph_def: bool = True,
    *,
    input: CheckpointedInput | None = None,
    max_recovery_secs: float = 7200,
    at_most_once: bool = False,
) -> MonitoredSession:
    """Return a monitored session for training.

    The chief restores the latest checkpoint or initializes the variables, writes checkpoints and summaries, and logs
    its speed. A worker waits until the chief has initialized the variables.

    Args:
        master: Target of the session: "" or "aioflow://host:port".
        is_chief: Whether this is the chief.
        checkpoint_dir: Folder of the checkpoints, or the URL of a folder in a store; None for no checkpoints.
        scaffold: The nodes that training needs besides the model; None for a default scaffold.
        hooks: Hooks called around runs, after the standard ones.
        chief_only_hooks: Additional hooks of the chief, called before the standard ones.
        save_checkpoint_secs: Interval of checkpoints in seconds; None or 0 for never. 600 s if no interval is given.
        save_summaries_steps: Interval of the scaffold's summaries in steps; None or 0 for never. 100 if no interval is
            given.
        save_summaries_secs: The same in seconds.
        config: Settings of the session.
        stop_grace_period_secs: Seconds that queue runners have to end on their own.
        log_step_count_steps: Interval of logging and writing the speed, in steps, if there is a folder; None or 0 for
            never.
        max_wait_secs: Seconds that a worker waits for the chief; None for no limit.
        save_checkpoint_steps: Interval of checkpoints in steps, instead of seconds.
        summary_dir: Folder of the event files; by default that of the checkpoints.
        save_graph_def: Write the graph beside the checkpoints.
        input: Feeds every run; its position is saved with the variables.
        max_recovery_secs: As in `MonitoredSession`.
        at_most_once: As in `MonitoredSession`.

    Raises:
        InvalidArgumentError: checkpoints or summaries are given both intervals; a worker's `input` would store its
            position in no checkpoint; a time limit is NaN; or the limit of a recovery is negative.
        DTypeError: `hooks` or `chief_only_hooks` is a single hook or contains a class.
    """
    check_seconds(max_wait_secs, "max_wait_secs")
    scaffold = scaffold or Scaffold()
    chosen = hooks_of(hooks, "hooks")
    creator: SessionCreator
    standard: list[SessionRunHook] = []
    if is_chief:
        creator = ChiefSessionCreator(scaffold, master, config, checkpoint_dir)
        standard += hooks_of(chief_only_hooks, "chief_only_hooks")
        standard += _speed(summary_dir or checkpoint_dir, log_step_count_steps)
        every = _how_often(save_summaries_secs, save_summaries_steps, steps=_SUMMARY_STEPS)
        standard += _summaries(summary_dir or checkpoint_dir, *every, scaffold)
        every = _how_often(save_checkpoint_secs, save_checkpoint_steps, secs=_SAVE_SECS)
        standard += _saving(checkpoint_dir, *every, scaffold, save_graph_def, input)
    else:
        _check_follows(input)
        creator = WorkerSessionCreator(scaffold, master, config, max_wait_secs)
    first = [] if input is None else [input]
    return MonitoredSession(
        creator,
        [*first, *standard, *chosen],
        stop_grace_period_secs,
        max_recovery_secs=max_recovery_secs,
        at_most_once=at_most_once,
    )


def _check_follows(input: CheckpointedInput | None) -> None:
    """Raise unless the input follows the global step: a worker has no checkpoint that could store a position."""
    if input is not None and not input.follows_step:
        raise InvalidArgumentError(
            "the position of an input is saved by the chief",
            expected="follows_step=True, or input=None, on a worker",
            actual=input,
        )


def _speed(folder: str | Path | None, every_steps: int | None) -> list[SessionRunHook]:
    """Return the hook that logs the speed, if there is a folder."""
    return [StepCounterHook(every_steps, output_dir=folder)] if folder and (every_steps or 0) > 0 else []


def _summaries(
    folder: str | Path | None, secs: float | None, steps: int | None, scaffold: Scaffold
) -> list[SessionRunHook]:
    """Return the hook that writes summaries, if there is a folder and an interval."""
    return [SummarySaverHook(steps, secs, folder, scaffold=scaffold)] if folder and (secs or steps) else []


def _saving(
    folder: str | Path | None,
    secs: float | None,
    steps: int | None,
    scaffold: Scaffold,
    save_graph_def: bool,
    input: CheckpointedInput | None,
) -> list[SessionRunHook]:
    """Return the hook that writes checkpoints, if there is a folder and an interval."""
    if not folder or not (secs or steps):
        return []
    return [CheckpointSaverHook(folder, secs, steps, scaffold=scaffold, save_graph_def=save_graph_def, input=input)]


def _how_often(
    given_secs: float | None, given_steps: int | None, *, secs: float | None = None, steps: int | None = None
) -> tuple[float | None, int | None]:
    """Return an interval in seconds and in steps, None for never; `secs` and `steps` apply if neither is given."""
    # Only if neither is given: an explicit None turns the feature off.
    if given_secs is _DEFAULT and given_steps is _DEFAULT:
        return secs, steps
    chosen_secs = None if given_secs is _DEFAULT else given_secs
    chosen_steps = None if given_steps is _DEFAULT else given_steps
    return (
        chosen_secs if chosen_secs is not None and chosen_secs > 0 else None,
        chosen_steps if chosen_steps is not None and chosen_steps > 0 else None,
    )
