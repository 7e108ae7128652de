"""Synchronous training between replicas (OSDI'16, 4.4): all gradients of a step are averaged before they are applied.

Each replica adds its gradients to accumulators on the parameter servers, tagged with the step they were computed for,
and waits for a token. The chief takes the number needed, updates the variables, and hands out tokens that carry the
new step. If there are more replicas than a step needs gradients, the rest are backup workers: late gradients are stale
and are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from aioflow.arguments import check_whole
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
from aioflow.train.optimizer import Optimizer, WrappingOptimizer, cast_to
from aioflow.train.queue_runner import QueueRunner
from aioflow.train.sync_gradients import AnyAccumulator, Gathered, RollCall, gather_the_first
from aioflow.train.sync_hook import Preparation, SyncReplicasHook


class SyncReplicasOptimizer(WrappingOptimizer):
    """An optimizer that averages the gradients of several replicas and has another optimizer apply the mean.

    Each replica builds the same graph, with its variables on parameter servers, and runs the result of
    `apply_gradients`. The chief also runs the queue runner. The hook of `make_session_run_hook` prepares each new
    session.

    Args:
        opt: Optimizer that computes and applies the gradients.
        replicas_to_aggregate: Number of gradients per step; the first to arrive count.
        total_num_replicas: Number of replicas, by default `replicas_to_aggregate`. If it is larger, the others are
            backup workers; if smaller, replicas compute several gradients per step.
        variable_averages, variables_to_average: Moving averages to update after each step, and their variables.
        worker_index: Index of this replica, from 0. Each replica then contributes one gradient per step, and the sum is
            made in index order, so equal gradients give bit-identical results. Without it, they are added in order of
            arrival. Either all replicas have an index or no replica does.
        elastic: Let a step need no more gradients than there are live replicas, but at least one. If a replica fails,
            the others continue; a new replica is included. The chief's hook counts the replicas, so the chief itself
            must not fail. Each replica contributes one gradient per step and has no index.

    Attributes (after `apply_gradients`):
        chief_init_op, local_step_init_op: Ops that the chief, or another replica, runs first in a session.
            `chief_init_op` continues from the current global step, also after a restore to an earlier one.
        ready_for_local_init_op: Tensor of the names of variables without a value; must be empty before these ops run.

    Raises:
        DTypeError, InvalidArgumentError: the numbers are invalid or inconsistent.
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
        """Return a node that submits this replica's gradients and waits until the variables have been updated.

        Args:
            grads_and_vars: Pairs as returned by `compute_gradients`.
            global_step: Variable that counts the updates. It determines which gradients are stale.
            name: Ignored.

        Raises:
            InvalidArgumentError: there are no pairs, or no global step.
        """
        pairs = list(grads_and_vars)
        if not pairs:
            raise InvalidArgumentError("no variables are given", expected="(gradient, variable) pairs", actual="none")
        if global_step is None:
            raise InvalidArgumentError(
                "synchronous training needs a global step to detect stale gradients",
                expected="global_step=",
                actual=None,
            )
        graph = global_step.graph
        with graph.as_default():
            self._global_step = global_step
            local_step = self._make_local_step(graph, global_step)
            # Read before the gradients are added: it is the step for which they were computed.
            present = cast_to(local_step.value(), dtypes.int64)
            with graph.name_scope(self._name):
                roll = self._make_roll_call(global_step)
                # On the device of each variable, so that gradients travel once.
                gathered = [self._gather(g, v, present, roll) for g, v in pairs]
            given = [found.given for found in gathered if found]
            accumulators = [accumulator for found in gathered if found for accumulator in found.accumulators]
            with graph.device(global_step.device), graph.name_scope(None):
                # All gradients are taken before any is applied: if a pending take is cancelled, no update is left
                # half-done.
                means = iter(tuple_([found.taken for found in gathered if found]))
                averaged = [(next(means) if found else None, v) for found, (_, v) in zip(gathered, pairs, strict=True)]
                # The wrapped optimizer applies the mean and advances the global step, which makes late gradients stale.
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
        # On this worker, whatever the device function does with variables: the no-op carries the current device.
        with graph.colocate_with(no_op()):
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

    def _gather(
        self, gradient: TensorLike | None, variable: Variable, step: Tensor, roll: RollCall | None
    ) -> Gathered | None:
        if gradient is None:
            return None
        with variable.graph.device(variable.device):
            given = convert_to_tensor_or_indexed_slices(gradient)
            if roll is not None:
                return roll.gather(given, variable, step)
            return gather_the_first(given, variable, step, self._needed)

    def _make_queues(self) -> list[FIFOQueue]:
        dtype = self._step().dtype
        # With indices each worker has a queue of its own: no other worker can take its token.
        names = ["sync_token_q"] if self._worker is None else [f"sync_token_q_{i}" for i in range(self._replicas)]
        # Unlimited: the chief must never wait for a replica that has gone.
        return [FIFOQueue(-1, dtype, shapes=(), name=name, shared_name=name) for name in names]

    def _wait_for_token(self, given: Sequence[Operation], local_step: Variable) -> Operation:
        with local_step.graph.control_dependencies(given):
            token = self._queues[self._worker or 0].dequeue()
        # The token is the new step, which the next gradients of this replica then carry.
        train: Operation = local_step.assign(token, read_value=False)
        return train

    def _make_living(self, accumulators: Sequence[AnyAccumulator]) -> LivingReplicas:
        return LivingReplicas(
            self._replicas,
            lambda count: _beside(accumulators, lambda accumulator: accumulator.limit(count)),
            lambda count: _enqueue(self._queues, self._step().read_value(), count),
            (self._step().read_value(), self._queues[0].num_waiting()),
        )

    def _make_runner(self, update: Operation, accumulators: Sequence[AnyAccumulator]) -> QueueRunner:
        """Build the chief's loop: take gradients, apply them, then hand out the tokens of the next step."""
        graph = update.graph
        with graph.control_dependencies([update]):
            next_step = self._step().read_value()
            # The optimizer may skip the update: then the accumulators must accept gradients of the same step again.
            again = cast_to(next_step, dtypes.int64)
            ready = _beside(accumulators, lambda accumulator: accumulator.go_back(again)) if self._opt.may_skip else []
        with graph.control_dependencies([update, *ready]):
            # At least one token per gradient needed: replicas may have to compute several.
            tokens = max(self._needed, self._replicas) if self._living is None else self._living.read()
            sync = _enqueue(self._queues, next_step, tokens)
        if self._averages is not None:
            with graph.control_dependencies([sync]):
                sync = self._averages.apply(self._averaged)
        # Replicas that wait for a token see the queue closed, and end.
        refuse = [queue.close(cancel_pending_enqueues=True) for queue in self._queues]
        stop = group(*refuse, *_beside(accumulators, lambda accumulator: accumulator.close()))
        return QueueRunner(self._queues[0], [sync], close_op=stop, cancel_op=stop)

    def _make_initializers(self, local_step: Variable, accumulators: Sequence[AnyAccumulator]) -> None:
        step = self._step()
        self.local_step_init_op: Operation = local_step.assign(step.value(), read_value=False)
        self.ready_for_local_init_op = report_uninitialized_variables(global_variables())
        begin = cast_to(step.value(), dtypes.int64)
        restarts = _beside(accumulators, lambda accumulator: accumulator.restart(begin))
        opened = [_reopened(queue) for queue in self._queues]
        reset = [] if self._living is None else [self._living.reset]
        self.chief_init_op = group(self.local_step_init_op, *restarts, *opened, *reset)

    # -- tasks of the chief -------------------------------------------------------------------------------------------

    def get_chief_queue_runner(self) -> QueueRunner:
        """Return the chief's runner, which updates the variables and hands out tokens. If it stops, so do all replicas.

        Raises:
            InvalidArgumentError: `apply_gradients` has not been called.
        """
        if self._runner is None:
            raise _too_early()
        return self._runner

    def get_init_tokens_op(self, num_tokens: int = -1) -> Operation:
        """Return the node with which the chief hands out the first tokens, before any update.

        Each token lets a replica compute another gradient before the first update. If there are fewer replicas than a
        step needs gradients, at least the difference must be handed out.

        Args:
            num_tokens: Number of tokens, or -1 for the default: `replicas_to_aggregate`; in elastic training, one per
                live replica; with worker indices, one per replica except the chief. If the chief has restarted, an
                indexed worker that still waits for a token computes its gradient again. Any other worker adds a second
                gradient for the same step, which does not count.

        Raises:
            InvalidArgumentError: there are too few tokens, they cannot be split evenly among indexed workers, or
                `apply_gradients` has not been called.
        """
        step = self._step()
        queues, count = self._queues, num_tokens
        if num_tokens == -1:
            queues = [queue for index, queue in enumerate(queues) if index != self._worker]
            count = self._needed if self._worker is None else len(queues)
        check_whole(count, "num_tokens", max(0, self._needed - self._replicas))
        # Each worker's queue gets the same number of tokens.
        if count and count % len(queues):
            raise InvalidArgumentError(
                "num_tokens must be divisible among the workers",
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
        """Return a hook that prepares each new session: local step, and for the chief accumulators, tokens and runner.

        Args:
            is_chief: Whether this replica applies the gradients.
            num_tokens: See `get_init_tokens_op`.
            health: For elastic training, an async function that returns the state of each replica, as `Session.health`
                does; called every second. By default the replicas are the tasks of jobs that hold no variables, and a
                replica is alive while its server answers.
        """
        return SyncReplicasHook(lambda: self._preparation(is_chief, num_tokens), health)

    def _preparation(self, is_chief: bool, num_tokens: int) -> Preparation:
        if not is_chief:
            step = self._step()
            # Indexed workers have a queue each, so no other worker could use the token.
            # The current step: the replica that takes the token sees at once that the training has ended.
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
    return InvalidArgumentError(
        "apply_gradients has not been called", expected="apply_gradients before this call", actual="not called"
    )


def _check_worker(index: int, needed: int, total: int) -> None:
    check_whole(index, "worker_index", 0)
    if needed != total:
        raise InvalidArgumentError(
            "worker_index needs a gradient from every replica",
            expected="as many replicas as gradients, or no worker_index",
            actual=f"{needed} of {total}",
        )
    if index >= total:
        raise InvalidArgumentError("worker_index is out of range", expected=f"less than {total}", actual=index)


def _check_elastic(index: int | None, needed: int, total: int) -> None:
    if index is not None:
        raise InvalidArgumentError(
            "elastic training cannot have a worker_index",
            expected="elastic or a worker_index, not both",
            actual=f"elastic, and worker_index={index}",
        )
    if total < needed:
        raise InvalidArgumentError(
            "elastic training needs at least replicas_to_aggregate replicas",
            expected=f"total_num_replicas >= {needed}",
            actual=total,
        )


def _enqueue(queues: Sequence[FIFOQueue], step: Tensor, count: int | Tensor) -> Operation:
    """Enqueue `count` tokens of that step in all, the same number in each queue."""
    each = make("ExpandDims", count, 0) if isinstance(count, Tensor) else [count // len(queues)]
    # The number may be known only in the step, as in elastic training.
    tokens = make("Fill", each, step)
    return group(*[queue.enqueue_many([tokens]) for queue in queues])


def _beside(
    accumulators: Sequence[AnyAccumulator], make_node: Callable[[AnyAccumulator], Operation]
) -> list[Operation]:
    """Return a node for each accumulator, on its device."""
    made = []
    for accumulator in accumulators:
        with accumulator.accumulator_ref.graph.device(accumulator.accumulator_ref.device):
            made.append(make_node(accumulator))
    return made


def _reopened(queue: FIFOQueue) -> Tensor:
    """Drop the queue if an earlier chief has closed it, so that the next step finds a new one under its name."""

    def drop() -> Tensor:
        with queue.queue_ref.graph.control_dependencies([make_op("DestroyResourceOp", queue.queue_ref)]):
            return constant(True)

    return cond(queue.is_closed(), drop, lambda: constant(False))
