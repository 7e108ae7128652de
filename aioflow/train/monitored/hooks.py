"""Standard hooks: they feed runs, end the training or delay its start, log values and the speed, and stop at NaN."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from aioflow.arguments import check_kind, check_number, check_whole
from aioflow.errors import DeadlineExceededError, InvalidArgumentError, OutOfRangeError, UnknownNameError
from aioflow.graph.default_graph import default_graph
from aioflow.graph.dtypes import resource
from aioflow.graph.graph import Graph, GraphKeys, Operation, Tensor
from aioflow.graph.traits import Effect
from aioflow.ops.variables.variable import Variable
from aioflow.session.fetches import Feeds, FetchMapper, fetch_key
from aioflow.session.session import Session
from aioflow.train.coordinator import Coordinator
from aioflow.train.monitored.recording_hooks import add_number, writer_for
from aioflow.train.monitored.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    called,
)
from aioflow.train.monitored.timers import HookTimer, NeverTriggerTimer, SecondOrStepTimer, required_global_step

# ── feeds and results ─────────────────────────────────────────────────────────────────────────────────────────────────


_LOGGER: Final = logging.getLogger("aioflow.train")


class FinalOpsHook(SessionRunHook):
    """A hook that fetches values at the end of the training.

    Args:
        final_ops: Fetches, as in `Session.run`.
        final_ops_feed_dict: Feeds.
    """

    def __init__(self, final_ops: Any, final_ops_feed_dict: Feeds | None = None) -> None:
        self._final_ops = final_ops
        self._feeds = final_ops_feed_dict
        self._values: Any = None

    @property
    def final_ops_values(self) -> Any:
        """The fetched values; None before the end."""
        return self._values

    async def end(self, session: Session) -> None:
        """Fetch the values."""
        if self._final_ops is None:
            return
        try:
            self._values = await session.run(self._final_ops, self._feeds)
        except OutOfRangeError as error:
            _LOGGER.warning("a fetch of FinalOpsHook reads an input that has ended: %s", error)
            raise


class FeedFnHook(SessionRunHook):
    """A hook that feeds each run the result of a function.

    Args:
        feed_fn: Function called before each run, without arguments, that returns a feed dictionary. May be a coroutine
            function.
    """

    def __init__(self, feed_fn: Callable[[], Feeds | Awaitable[Feeds | None] | None]) -> None:
        self.feed_fn = feed_fn

    async def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Return the feeds of `feed_fn`."""
        return SessionRunArgs(None, await called(self.feed_fn))


# ── the end and the start of the training ─────────────────────────────────────────────────────────────────────────────


_LOOK: Final = 0.5  # seconds between two polls of the global step


class StopAtStepHook(SessionRunHook):
    """A hook that ends the training after a number of steps, or at a global step.

    Args:
        num_steps: Number of steps from the first session on; steps repeated after a failure count once.
        last_step: The global step; exactly one of the two must be given.

    Raises:
        InvalidArgumentError: both are given, or neither.
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        if (num_steps is None) == (last_step is None):
            given = "neither" if num_steps is None else "both"
            raise InvalidArgumentError(
                "the end is a number of steps or a step", expected="num_steps or last_step", actual=given
            )
        self._num_steps = num_steps
        self._last_step = last_step

    def begin(self) -> None:
        """Find the global step."""
        self._step = required_global_step(self)

    async def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Compute the last step in the first session."""
        # Only once: after a failure the goal stays the same, so that repeated steps count once.
        if self._last_step is None and self._num_steps is not None:
            self._last_step = int(await session.run(self._step)) + self._num_steps

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the global step."""
        return SessionRunArgs(self._step)

    async def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Request a stop at the last step."""
        last = self._last_step
        # The fetched value may be from before or after the update: near the end, read the step again.
        if last is not None and run_values.results + 1 >= last and await run_context.session.run(self._step) >= last:
            run_context.request_stop()


class GlobalStepWaiterHook(SessionRunHook):
    """A hook that delays the first run until the global step, advanced by other tasks, has reached a value.

    Args:
        wait_until_step: The step.
        max_wait_secs: Maximum seconds to wait.
    """

    def __init__(self, wait_until_step: int, *, max_wait_secs: float = 7200) -> None:
        check_whole(wait_until_step, "wait_until_step", -(1 << 63))
        check_number(max_wait_secs, "max_wait_secs", "a number of seconds")
        self._wait_until_step = wait_until_step
        self._max_wait_secs = max_wait_secs

    def begin(self) -> None:
        """Find the global step."""
        self._started = self._wait_until_step <= 0
        self._step = required_global_step(self)

    async def before_run(self, run_context: SessionRunContext) -> None:
        """Wait before the first run.

        Raises:
            DeadlineExceededError: `max_wait_secs` have passed.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + self._max_wait_secs
        while not self._started:
            step = int(await run_context.session.run(self._step))
            if step >= self._wait_until_step:
                self._started = True
                break
            # Checked after the look, so that a step reached in the last interval still counts.
            if clock() >= until:
                raise DeadlineExceededError(
                    f"the global step was not {self._wait_until_step} in time",
                    expected=f"within {self._max_wait_secs:g} s",
                    actual=f"step {step}",
                )
            _LOGGER.debug("waiting for global step %d, it is %d", self._wait_until_step, step)
            await asyncio.sleep(_LOOK)


# ── the variables that a run changes, derived from the graph: they tell training runs from others ─────────────────────


def trains_without(step: Variable, fetches: object) -> Variable | None:
    """Return a trainable variable that a run of `fetches` changes without changing `step`, or None.

    Gradients that another process applies change nothing here; nor do evaluation runs.
    """
    graph: Graph = step.graph
    asked = FetchMapper(graph, fetches)
    changed = set(_changed([*(tensor.op for tensor in asked.tensors), *asked.targets]))
    # Compared by the node of the handle, which stands for the variable.
    if step.handle.op in changed:
        return None
    trainable = graph.get_collection(GraphKeys.TRAINABLE_VARIABLES)
    return next((variable for variable in trainable if variable.handle.op in changed), None)


def _changed(ends: Iterable[Operation]) -> Iterator[Operation]:
    """Yield the nodes from which the changed handles come, for all changing nodes among `ends` and their ancestors."""
    for op in _reached(ends, lambda op: [*(tensor.op for tensor in op.inputs), *op.waits_for]):
        if op.op_def.traits.effect is Effect.CHANGES:
            # A handle may have passed through other nodes, such as Identity, since the node that made it.
            yield from _reached([op], lambda op: [tensor.op for tensor in op.inputs if tensor.dtype is resource])


def _reached(ends: Iterable[Operation], sources: Callable[[Operation], Iterable[Operation]]) -> list[Operation]:
    found = dict.fromkeys(ends)
    waiting = list(found)
    while waiting:
        new = [op for op in sources(waiting.pop()) if op not in found]
        found.update(dict.fromkeys(new))
        waiting += new
    return list(found)


# ── logs of values and speed, and checks for NaN ──────────────────────────────────────────────────────────────────────


_WARNINGS: Final = 5
_PATIENCE: Final = 20  # runs, as in TensorFlow: if several training steps alternate, perhaps only one counts


class LoggingTensorHook(SessionRunHook):
    """A hook that logs values at intervals or at the end, as INFO of the logger "aioflow.train".

    Args:
        tensors: Tensors or their names, as a list or as a dict by tag.
        every_n_iter: Interval in runs of this session.
        every_n_secs: Interval in seconds; at most one of the two may be given.
        at_end: Whether to log at the end, too.
        formatter: Function from a dict of values by tag to the text.

    Raises:
        InvalidArgumentError: no interval is given and `at_end` is false, or both intervals are.
    """

    def __init__(
        self,
        tensors: Mapping[str, object] | Iterable[object],
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Callable[[dict[Any, Any]], str] | None = None,
    ) -> None:
        only_at_end = at_end and every_n_iter is None and every_n_secs is None
        if not only_at_end and (every_n_iter is None) == (every_n_secs is None):
            raise InvalidArgumentError(
                "it is not clear when to log",
                expected="at_end, and at most one of every_n_iter and every_n_secs",
                actual="neither" if every_n_iter is None else "both",
            )
        if every_n_iter is not None:
            check_number(every_n_iter, "every_n_iter", above=0)
        check_kind(tensors, Iterable, "the tensors to log", "a list, or a dictionary by tag")
        if isinstance(tensors, Mapping):
            # A dictionary is logged in the order of its tags, as in TensorFlow.
            self._tensors: dict[object, object] = {tag: tensors[tag] for tag in sorted(tensors)}
        else:
            self._tensors = {item: item for item in tensors}
        self._timer: HookTimer = (
            NeverTriggerTimer() if only_at_end else SecondOrStepTimer(every_secs=every_n_secs, every_steps=every_n_iter)
        )
        self._at_end = at_end
        self._formatter = formatter

    def begin(self) -> None:
        """Find the tensors in the graph."""
        self._timer.reset()
        self._count = 0
        graph = default_graph()
        self._found = {tag: _element(graph, tensor) for tag, tensor in self._tensors.items()}

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Fetch the tensors when they are due."""
        return SessionRunArgs(self._found) if self._timer.should_trigger_for_step(self._count) else None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Log the values, unless a concurrent run has logged them."""
        if run_values.results is not None and self._timer.should_trigger_for_step(self._count):
            self._log(run_values.results)
        self._count += 1

    async def end(self, session: Session) -> None:
        """Log the values at the end."""
        if self._at_end:
            self._log(await session.run(self._found))

    def _log(self, values: dict[object, object]) -> None:
        seconds, _ = self._timer.update_last_triggered_step(self._count)
        with np.printoptions(suppress=True):
            if self._formatter is not None:
                _LOGGER.info("%s", self._formatter(values))
                return
            text = ", ".join(f"{getattr(tag, 'name', tag)} = {value}" for tag, value in values.items())
        _LOGGER.info("%s%s", text, "" if seconds is None else f" ({seconds:.3f} sec)")


def _element(graph: Graph, tensor: Any) -> Tensor | Operation:
    """Return the graph element for a tensor or a name; the name of a node stands for its only output."""
    if not isinstance(tensor, str) or ":" in tensor:
        return graph.as_graph_element(tensor)
    op = graph.get_operation_by_name(tensor)
    if len(op.outputs) != 1:
        raise UnknownNameError(f"{tensor!r} is no tensor", expected="one output", actual=len(op.outputs))
    return op.outputs[0]


class NanLossDuringTrainingError(InvalidArgumentError, RuntimeError):
    """The loss is NaN: the training has diverged."""

    def __init__(self, message: str = "NaN loss during training.", **context: Any) -> None:
        super().__init__(message, **context)


class NanTensorHook(SessionRunHook):
    """A hook that ends the training if the loss is NaN.

    Args:
        loss_tensor: The loss.
        fail_on_nan_loss: Raise NanLossDuringTrainingError; otherwise only request a stop.
    """

    def __init__(self, loss_tensor: object, fail_on_nan_loss: bool = True) -> None:
        self._loss = loss_tensor
        self._fail = fail_on_nan_loss

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the loss."""
        return SessionRunArgs(self._loss)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Check the loss. Raise NanLossDuringTrainingError or request a stop if it is NaN."""
        if not np.isnan(run_values.results).any():
            return
        name = getattr(self._loss, "name", self._loss)
        if self._fail:
            raise NanLossDuringTrainingError(expected=f"a number for {name}", actual="NaN")
        _LOGGER.warning("the model has diverged: %s is NaN", name)
        run_context.request_stop()


class StepCounterHook(SessionRunHook):
    """A hook that logs steps per second as INFO of the logger "aioflow.train" and writes a summary "global_step/sec".

    Args:
        every_n_steps, every_n_secs: Interval in steps or in seconds; exactly one must be given.
        output_dir: Folder of the event files, or the URL of a folder in a store.
        summary_writer: A `summary.FileWriter`, instead of the folder. Without either, nothing is written.
    """

    def __init__(
        self,
        every_n_steps: int | None = 100,
        every_n_secs: float | None = None,
        output_dir: str | os.PathLike[str] | None = None,
        summary_writer: Any = None,
    ) -> None:
        self._timer = SecondOrStepTimer(every_steps=every_n_steps, every_secs=every_n_secs)
        self._folder = output_dir
        self._writer = summary_writer
        self._before: int | None = None
        self._standing = 0
        self._warned = 0

    def begin(self) -> None:
        """Find the global step and the writer."""
        self._writer = writer_for(self._writer, self._folder)
        self._step = required_global_step(self)
        # For each `fetch_key`: a variable that runs of these fetches train without advancing the global step, or None.
        self._trained: dict[Hashable, Variable | None] = {}

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the global step."""
        return SessionRunArgs(self._step)

    async def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Log the speed when it is due. Warn if the global step does not advance."""
        stale = int(run_values.results)
        # This run may have advanced the step, so one more than the fetched step could be due.
        if self._timer.should_trigger_for_step(stale + 1):
            step = int(await run_context.session.run(self._step))
            if self._timer.should_trigger_for_step(step):
                seconds, steps = self._timer.update_last_triggered_step(step)
                if seconds is not None and steps is not None:
                    await self._tell(steps / seconds if seconds > 0 else float("inf"), step)
        self._watch(stale, run_context.original_args.fetches)

    async def _tell(self, speed: float, step: int) -> None:
        tag = f"{self._step.op.name}/sec"
        _LOGGER.info("%s: %g", tag, speed)
        if self._writer is not None:
            await add_number(self._writer, tag, speed, step)

    async def end(self, session: Session) -> None:
        """Wait until everything is written. Raise the error of a failed write."""
        if self._writer is not None:
            await called(self._writer.flush)

    def _watch(self, step: int, fetches: Any) -> None:
        """Warn if consecutive runs train while the global step stays the same.

        Runs that do not train may leave it unchanged: see `trains_without`.
        """
        # The step advances: the training is fine.
        if step != self._before:
            self._before, self._standing = step, 0
            return
        if self._warned == _WARNINGS:
            return
        # The graph is searched once per set of fetches, not at each run.
        key = fetch_key(fetches)
        if key not in self._trained:
            self._trained[key] = trains_without(self._step, fetches)
        trained = self._trained[key]
        if trained is None:
            return
        self._standing += 1
        if self._standing == _PATIENCE:
            self._standing = 0
            self._warned += 1
            _LOGGER.warning(
                "the global step does not grow: it is still %d after %d more runs that change %s. Is it given to the "
                "optimizer? minimize(loss, global_step=train.get_or_create_global_step())",
                step, _PATIENCE, trained.op.name,
            )  # fmt: skip
