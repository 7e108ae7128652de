"""Synchronous training between replicas (OSDI'16, 4.4): all gradients of a step are averaged before they are applied.

Each replica adds its gradients to accumulators on the parameter servers, with the step for which it has computed them,
and waits for a token. The chief takes what is enough, updates the variables, and hands out tokens that carry the new
step. With more replicas than gradients a step needs, the others are backup workers: what they bring late is stale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from aioflow.checks.numbers import check_whole
from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.graph import Graph, GraphKeys, Operation, Tensor
from aioflow.ops.apply import TensorLike, constant, make, make_op
from aioflow.ops.control.branches_and_loops import cond
from aioflow.ops.core import group, no_op, tuple_
from aioflow.ops.queues.queues import FIFOQueue
from aioflow.ops.sparse.indexed_slices import convert_to_tensor_or_indexed_slices
from aioflow.ops.variables.collections import global_variables, report_uninitialized_variables
from aioflow.ops.variables.variable import Variable
from aioflow.train.elastic import Health, LivingReplicas
from aioflow.train.moving_averages import ExponentialMovingAverage
from aioflow.train.optimizer import Optimizer, cast_to
from aioflow.train.queue_runner import QueueRunner
from aioflow.train.sync_gradients import Accumulator, Gathered, RollCall, gather_the_first
from aioflow.train.sync_hook import Preparation, SyncReplicasHook
from aioflow.train.wrapping import WrappingOptimizer

__all__ = ["SyncReplicasOptimizer"]


class SyncReplicasOptimizer(WrappingOptimizer):
    """Averages the gradients of several replicas, and has another optimizer apply them in one go.

    Each replica builds the same graph, with its variables on parameter servers, and runs what `apply_gradients` gives.
    The chief runs the queue runner besides; `make_session_run_hook` does all that is to be done in a new session.

    Args:
        opt: What computes and applies gradients.
        replicas_to_aggregate: How many gradients a step needs: the first that come count.
        total_num_replicas: How many replicas there are; as many by default. Of more, the others are backup workers;
            fewer compute several gradients a step.
        variable_averages, variables_to_average: Moving averages to keep after each step, and of which variables.
        worker_index: The number of this replica, from 0 on. Then each replica gives one gradient a step, and they are
            added up in the order of these numbers: the same gradients give the same bits. Without it the order is that
            in which they come. All replicas have a number, or none has.
        elastic: A step needs no more gradients than there are replicas that live, but at least one: where one has gone
            the others go on, and one that comes is taken in. The hook of the chief, which has to live itself, sees to
            it. Each replica gives one gradient a step, and has no number.

    Attributes (after `apply_gradients`):
        chief_init_op, local_step_init_op: What the chief, or another replica, runs first in a session. The chief's goes
            on from the present global step, also where that has been restored from an earlier one.
        ready_for_local_init_op: The names of the variables that must have a value before.

    Raises:
        DTypeError, InvalidArgumentError: the numbers do not fit together.
    """

    def __init__(
        self,
        opt: Optimizer,
        replicas_to_aggregate: int,
        total_num_replicas: int | None = None,
        variable_averages: ExponentialMovingAverage | None = None,
        variables_to_average: Sequence[Variable] | None = None,
        use_locking: bool = False,
        name: str = "sync_replicas",
        *,
        worker_index: int | None = None,
        elastic: bool = False,
    ) -> None:
        super().__init__(opt, use_locking, name)
        check_whole(replicas_to_aggregate, "replicas_to_aggregate", 1)
        total = replicas_to_aggregate if total_num_replicas is None else total_num_replicas
        check_whole(total, "total_num_replicas", 1)
        if worker_index is not None:
            _check_worker(worker_index, replicas_to_aggregate, total)
        if elastic:
            _check_elastic(worker_index, replicas_to_aggregate, total)
        self._needed = replicas_to_aggregate
        self._replicas = total
        self._worker = worker_index
        self._elastic = elastic
        self._living: LivingReplicas | None = None
        self._averages = variable_averages
        self._averaged = variables_to_average
        self._global_step: Variable | None = None
        self._queues: list[FIFOQueue] = []
        self._runner: QueueRunner | None = None

    # -- building -----------------------------------------------------------------------------------------------------

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[TensorLike | None, Variable]],
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Operation:
        """A node that hands this replica's gradients in, and waits until the variables have been updated.

        Args:
            grads_and_vars: Pairs as `compute_gradients` gives them.
            global_step: Counts the updates. It tells which gradients are stale.

        Raises:
            InvalidArgumentError: there are no pairs, or no global step.
        """
        pairs = list(grads_and_vars)
        if not pairs:
            raise InvalidArgumentError("no variables are given", expected="(gradient, variable) pairs", actual="none")
        if global_step is None:
            raise InvalidArgumentError("staleness is told by the global step", expected="global_step=", actual=None)
        graph = global_step.graph
        with graph.as_default():
            self._global_step = global_step
            local_step = self._make_local_step(graph, global_step)
            present = cast_to(local_step.value(), dtypes.int64)
            with graph.name_scope(self._name):
                roll = self._make_roll_call(global_step)
                gathered = [self._gather(g, v, present, roll) for g, v in pairs]
            given = [found.given for found in gathered if found]
            accumulators = [accumulator for found in gathered if found for accumulator in found.accumulators]
            with graph.device(global_step.device), graph.name_scope(None):
                # All are taken before any is applied: where the wait for one is ended, no update is left half-done.
                means = iter(tuple_([found.taken for found in gathered if found]))
                averaged = [(next(means) if found else None, v) for found, (_, v) in zip(gathered, pairs, strict=True)]
                update = self._opt.apply_gradients(averaged, global_step)
                self._queues = self._make_queues()
                if roll is not None:
                    given = [roll.answer(given, present)]
                    accumulators.append(roll.accumulator)
                train = self._wait_for_token(given, local_step)
                if self._elastic:
                    self._living = self._make_living(accumulators)
                self._runner = self._make_runner(update, accumulators)
                self._make_initializers(local_step, accumulators)
        return train

    def _make_local_step(self, graph: Graph, global_step: Variable) -> Variable:
        with graph.colocate_with(no_op()):  # on this worker, whatever the device function does with variables
            return Variable(
                0,
                trainable=False,
                collections=[GraphKeys.LOCAL_VARIABLES],
                dtype=global_step.dtype,
                name="sync_rep_local_step",
            )

    def _make_roll_call(self, global_step: Variable) -> RollCall | None:
        if self._worker is None:
            return None
        with global_step.graph.device(global_step.device):
            return RollCall(self._worker, self._replicas)

    def _gather(self, gradient: Any, variable: Variable, step: Tensor, roll: RollCall | None) -> Gathered | None:
        if gradient is None:
            return None
        with variable.graph.device(variable.device):
            given = convert_to_tensor_or_indexed_slices(gradient)
            if roll is not None:
                return roll.gather(given, variable, step)
            return gather_the_first(given, variable, step, self._needed)

    def _make_queues(self) -> list[FIFOQueue]:
        dtype = self._step().dtype
        names = ["sync_token_q"] if self._worker is None else [f"sync_token_q_{i}" for i in range(self._replicas)]
        return [FIFOQueue(-1, dtype, shapes=(), name=name, shared_name=name) for name in names]

    def _wait_for_token(self, given: Sequence[Operation], local_step: Variable) -> Operation:
        with local_step.graph.control_dependencies(given):
            token = self._queues[self._worker or 0].dequeue()
        train: Operation = local_step.assign(token, read_value=False)
        return train

    def _make_living(self, accumulators: Sequence[Accumulator]) -> LivingReplicas:
        return LivingReplicas(
            self._replicas,
            lambda count: _beside(accumulators, lambda accumulator: accumulator.limit(count)),
            lambda count: _enqueue(self._queues, self._step().read_value(), count),
            (self._step().read_value(), self._queues[0].num_waiting()),
        )

    def _make_runner(self, update: Operation, accumulators: Sequence[Accumulator]) -> QueueRunner:
        """The chief's loop: gradients are taken and applied, and then each replica gets the token of the next step."""
        graph = update.graph
        with graph.control_dependencies([update]):
            next_step = self._step().read_value()
            # What was taken may have changed nothing: then gradients of the same step are wanted once more.
            again = cast_to(next_step, dtypes.int64)
            ready = _beside(accumulators, lambda accumulator: accumulator.go_back(again)) if self._opt.may_skip else []
        with graph.control_dependencies([update, *ready]):
            tokens = max(self._needed, self._replicas) if self._living is None else self._living.read()
            sync = _enqueue(self._queues, next_step, tokens)
        if self._averages is not None:
            with graph.control_dependencies([sync]):
                sync = self._averages.apply(self._averaged)
        refuse = [queue.close(cancel_pending_enqueues=True) for queue in self._queues]
        stop = group(*refuse, *_beside(accumulators, lambda accumulator: accumulator.close()))
        return QueueRunner(self._queues[0], [sync], close_op=stop, cancel_op=stop)

    def _make_initializers(self, local_step: Variable, accumulators: Sequence[Accumulator]) -> None:
        step = self._step()
        self.local_step_init_op: Operation = local_step.assign(step.value(), read_value=False)
        self.ready_for_local_init_op = report_uninitialized_variables(global_variables())
        begin = cast_to(step.value(), dtypes.int64)
        restarts = _beside(accumulators, lambda accumulator: accumulator.restart(begin))
        opened = [_reopened(queue) for queue in self._queues]
        reset = [] if self._living is None else [self._living.reset]
        self.chief_init_op = group(self.local_step_init_op, *restarts, *opened, *reset)

    # -- what the chief does ------------------------------------------------------------------------------------------

    def get_chief_queue_runner(self) -> QueueRunner:
        """The runner for the chief: it updates the variables and hands out tokens. When it stops, so do all replicas.

        Raises:
            InvalidArgumentError: `apply_gradients` has not been called.
        """
        if self._runner is None:
            raise _too_early()
        return self._runner

    def get_init_tokens_op(self, num_tokens: int = -1) -> Operation:
        """The node with which the chief hands out the first tokens, before any update.

        Args:
            num_tokens: How many; -1 for `replicas_to_aggregate`. Each lets a replica compute another gradient before
                the first update; where there are fewer replicas than a step needs gradients, it takes as many tokens as
                are missing. Of elastic training -1 is one for each that lives. Where workers have numbers, -1 is one
                for each but the chief: whoever waits for a token of an earlier chief computes its gradient again. Of
                others it does not count, as the second of a step.

        Raises:
            InvalidArgumentError: they are too few, `apply_gradients` has not been called, or workers have numbers and
                some would get more than others.
        """
        step = self._step()
        queues, count = self._queues, num_tokens
        if num_tokens == -1:
            queues = [queue for index, queue in enumerate(queues) if index != self._worker]
            count = self._needed if self._worker is None else len(queues)
        check_whole(count, "num_tokens", max(0, self._needed - self._replicas))
        if count and count % len(queues):
            raise InvalidArgumentError(
                "numbered workers get the same number of tokens",
                expected=f"a multiple of {len(queues)}",
                actual=num_tokens,
            )
        with step.graph.as_default(), step.graph.device(step.device), step.graph.name_scope(None):
            if num_tokens == -1 and self._living is not None:
                return _enqueue(queues, step.value(), self._living.read())
            return _enqueue(queues, step.value(), count) if count else no_op(name="no_init_tokens")

    def make_session_run_hook(
        self, is_chief: bool, num_tokens: int = -1, *, health: Health | None = None
    ) -> SyncReplicasHook:
        """A hook that prepares each new session: the local step, and for the chief the accumulators, tokens and runner.

        Args:
            is_chief: Whether this replica is the one that applies the gradients.
            num_tokens: See `get_init_tokens_op`.
            health: Of elastic training, an async function that says of each replica how it is, as `Session.health`
                does; asked every second. By default a replica is a task of a job that holds no variables, and it lives
                while its server answers.
        """
        return SyncReplicasHook(lambda: self._preparation(is_chief, num_tokens), health)

    def _preparation(self, is_chief: bool, num_tokens: int) -> Preparation:
        if not is_chief:
            step = self._step()
            # With numbers, each worker has tokens of its own.
            leave = _enqueue(self._queues, step.read_value(), 1) if self._worker is None else None
            return Preparation(self.ready_for_local_init_op, self.local_step_init_op, leave=leave)
        runner, tokens = self.get_chief_queue_runner(), self.get_init_tokens_op(num_tokens)
        shared = frozenset(DeviceSpec.from_string(v.device).job for v in global_variables())
        return Preparation(
            self.ready_for_local_init_op, self.chief_init_op, tokens, runner, self._living, shared
        )  # fmt: skip

    def _step(self) -> Variable:
        if self._global_step is None:
            raise _too_early()
        return self._global_step


def _too_early() -> InvalidArgumentError:
    return InvalidArgumentError("apply_gradients comes first", expected="that it has been called", actual="not yet")


def _check_worker(index: int, needed: int, total: int) -> None:
    check_whole(index, "worker_index", 0)
    if needed != total:
        raise InvalidArgumentError(
            "there is no order where only the first gradients count",
            expected="as many replicas as gradients, or no worker_index",
            actual=f"{needed} of {total}",
        )
    if index >= total:
        raise InvalidArgumentError("worker_index is out of range", expected=f"less than {total}", actual=index)


def _check_elastic(index: int | None, needed: int, total: int) -> None:
    if index is not None:
        raise InvalidArgumentError(
            "there is no order of replicas that come and go",
            expected="elastic, or a worker_index",
            actual=f"elastic, and worker_index={index}",
        )
    if total < needed:
        raise InvalidArgumentError(
            "each replica of elastic training gives one gradient a step",
            expected=f"total_num_replicas >= {needed}",
            actual=total,
        )


def _enqueue(queues: Sequence[FIFOQueue], step: Tensor, count: int | Tensor) -> Operation:
    """Tokens of that step, the same number in each queue; so many in all."""
    each = make("ExpandDims", count, 0) if isinstance(count, Tensor) else [count // len(queues)]
    tokens = make("Fill", each, step)
    return group(*[queue.enqueue_many([tokens]) for queue in queues])


def _beside(accumulators: Sequence[Accumulator], make_node: Callable[[Accumulator], Operation]) -> list[Operation]:
    """A node for each accumulator, on its device."""
    made = []
    for accumulator in accumulators:
        with accumulator.accumulator_ref.graph.device(accumulator.accumulator_ref.device):
            made.append(make_node(accumulator))
    return made


def _reopened(queue: FIFOQueue) -> Tensor:
    """A queue that the last chief has closed is dropped: the next step finds a new one in its place."""

    def drop() -> Tensor:
        with queue.queue_ref.graph.control_dependencies([make_op("DestroyResourceOp", queue.queue_ref)]):
            return constant(True)

    return cond(queue.is_closed(), drop, lambda: constant(False))
