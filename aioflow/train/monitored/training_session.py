"""`MonitoredTrainingSession`: a monitored session with the hooks that training usually has."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from aioflow.checks.numbers import check_seconds
from aioflow.config import SessionConfig
from aioflow.errors import InvalidArgumentError
from aioflow.runtime.worker import Worker
from aioflow.train.monitored.checkpointed_input import CheckpointedInput
from aioflow.train.monitored.checkpointing import CheckpointSaverHook
from aioflow.train.monitored.monitored_session import MonitoredSession
from aioflow.train.monitored.scaffold import Scaffold
from aioflow.train.monitored.session_creators import ChiefSessionCreator, SessionCreator, WorkerSessionCreator
from aioflow.train.monitored.session_run_hook import SessionRunHook, hooks_of
from aioflow.train.monitored.summaries import SummarySaverHook
from aioflow.train.monitored.watching import StepCounterHook

__all__ = ["MonitoredTrainingSession"]


class _Default:
    """Not given."""

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
    """A monitored session for training.

    The chief restores the latest checkpoint or initializes the variables, writes checkpoints and summaries and logs its
    speed; a worker waits until the chief has given the variables values.

    Args:
        master: Target of the session: "" or "aioflow://host:port".
        is_chief: Whether this is the chief.
        checkpoint_dir: Where checkpoints are, a folder or the URL of one in a store; without it there are none.
        scaffold: What training needs besides the model; a default one without it.
        hooks, chief_only_hooks: Called around runs, the latter only on the chief; after the standard ones.
        save_checkpoint_secs, save_checkpoint_steps: How often checkpoints are written, by one of the two; every 600 s
            if neither is given. None or 0 for never.
        save_summaries_steps, save_summaries_secs: How often the summaries of the scaffold are written, by one of the
            two; every 100 steps if neither is given. None or 0 for never.
        config: Settings of the session.
        stop_grace_period_secs: Seconds that queue runners have to end by themselves.
        log_step_count_steps: How often the speed is logged and written, where there is a folder; None or 0 for never.
        max_wait_secs: Seconds that a worker waits for the chief.
        summary_dir: Where event files are; beside the checkpoints without it.
        save_graph_def: Write the graph beside the checkpoints.
        input: Feeds every run, and has its position saved with the variables.
        max_recovery_secs, at_most_once: As for `MonitoredSession`.

    Raises:
        InvalidArgumentError: checkpoints or summaries both by steps and by seconds; or an `input` on a worker whose
            position would be in no checkpoint; or a time limit is NaN, or that of a recovery less than 0.
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
    """A worker has no checkpoints of its own."""
    if input is not None and not input.follows_step:
        raise InvalidArgumentError(
            "the position of an input is saved by the chief",
            expected="follows_step=True, or input=None, on a worker",
            actual=input,
        )


def _speed(folder: str | Path | None, every_steps: int | None) -> list[SessionRunHook]:
    """What logs the speed, if there is a folder."""
    return [StepCounterHook(every_steps, output_dir=folder)] if folder and (every_steps or 0) > 0 else []


def _summaries(
    folder: str | Path | None, secs: float | None, steps: int | None, scaffold: Scaffold
) -> list[SessionRunHook]:
    """What writes summaries, if there is a folder."""
    return [SummarySaverHook(steps, secs, folder, scaffold=scaffold)] if folder and (secs or steps) else []


def _saving(
    folder: str | Path | None,
    secs: float | None,
    steps: int | None,
    scaffold: Scaffold,
    save_graph_def: bool,
    input: CheckpointedInput | None,
) -> list[SessionRunHook]:
    """What writes checkpoints, if there are to be any."""
    if not folder or not (secs or steps):
        return []
    return [CheckpointSaverHook(folder, secs, steps, scaffold=scaffold, save_graph_def=save_graph_def, input=input)]


def _how_often(
    given_secs: float | None, given_steps: int | None, *, secs: float | None = None, steps: int | None = None
) -> tuple[float | None, int | None]:
    """Seconds and steps between two; None where there are to be none. The last two hold where neither is given."""
    if given_secs is _DEFAULT and given_steps is _DEFAULT:
        return secs, steps
    chosen_secs = None if given_secs is _DEFAULT else given_secs
    chosen_steps = None if given_steps is _DEFAULT else given_steps
    return (
        chosen_secs if chosen_secs is not None and chosen_secs > 0 else None,
        chosen_steps if chosen_steps is not None and chosen_steps > 0 else None,
    )
