"""Execution of a compiled strand: inline on the event loop while it is cheap, otherwise in a thread of its device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter, thread_time
from typing import Final, TypeAlias

import numpy as np

from aioflow.compiler.ir import Edge
from aioflow.concurrency.stopping import BoundedWork, OffloadToThread, current_work, doing
from aioflow.graph.opdef import traits_of
from aioflow.kernels.convert import ResourceConverter
from aioflow.memory.collector import full_collections_postponed
from aioflow.memory.values import Value
from aioflow.runtime.backend_api import Executor
from aioflow.runtime.bind import BoundNode, RaisedLoop, kernel_error
from aioflow.runtime.codegen import CodeVariant
from aioflow.runtime.executor import StepWork, work_here
from aioflow.runtime.loop_raising import UNSTOPPABLE
from aioflow.runtime.step import Probe, Step
from aioflow.runtime.strand_code import StrandCode
from aioflow.runtime.tasks import Task

# ── strands with data-dependent cost: the last run does not predict the next ──────────────────────────────────────────
#
# `fill(n, 0)` takes almost no time for a small n and seconds for a large one, and the sizes of the step's inputs do not
# show which. Such a strand is still tried on the event loop first. When a kernel requests too much there, the strand is
# restarted in a thread. This is impossible if a node before that kernel has had an effect.


def elastic_nodes(task: Task) -> tuple[int, ...]:
    """Return the positions of the nodes whose work depends on values that are known only in the step."""
    fixed: set[Edge] = set()  # values that follow from shapes and constants
    own = {b.node.name for b in task.nodes}
    outside = set(task.inputs)
    found: list[int] = []
    for position, b in enumerate(task.nodes):
        known = all(e in fixed if e.node in own else e not in outside for e in b.node.inputs)
        traits = traits_of(b.node.op)
        if traits.only_shapes or (known and not traits.effect.is_stateful):
            fixed.update(Edge(b.node.name, port) for port in range(len(b.node.outputs)))
        if b.kernel.elastic and any(e not in fixed and (e.node in own or e in outside) for e in _telling(b)):
            found.append(position)
    return tuple(found)


def _telling(bound: BoundNode) -> list[Edge]:
    """Return the inputs that determine the work: shapes and counts, which are host values, or else the data."""
    on_host = [e for a in bound.arguments if not isinstance(a.convert, ResourceConverter | None) for e in a.sources]
    return on_host or list(bound.node.inputs)


def begins_again(task: Task, elastic: tuple[int, ...]) -> bool:
    """Return whether the strand can be abandoned at each of these nodes and restarted."""
    # The duration of a loop cannot be predicted either, and the effects of its iterations must not happen twice.
    if any(isinstance(b, RaisedLoop) for b in task.nodes):
        return False
    return not any(b.has_effects for b in task.nodes[: max(elastic, default=0)])


# ── execution ─────────────────────────────────────────────────────────────────────────────────────────────────────────


# The type of `BackendDevice.captured`.
Capture: TypeAlias = Callable[
    [Callable[..., tuple[Value, ...]], Sequence[BoundNode]], Callable[..., tuple[Value, ...]] | None
]

_WEIGHT: Final = 0.2  # weight of the newest measurement in the running mean
_COUNTED: Final = 64  # strings; a larger array is expected to hold short strings and is not measured


class CostEstimate:
    """Running mean of a duration in seconds, per magnitude of the input.

    The time of a step depends on the size of its feeds, so each power of two of bytes has a separate mean.
    """

    __slots__ = ("_means",)

    def __init__(self) -> None:
        self._means: dict[int, float] = {}

    def expect(self, magnitude: int) -> float:
        """Return the mean for inputs of that magnitude; infinity before the first measurement."""
        return self._means.get(magnitude, float("inf"))

    def observe(self, magnitude: int, seconds: float) -> None:
        """Add a measurement."""
        mean = self._means.get(magnitude)
        self._means[magnitude] = seconds if mean is None else mean + _WEIGHT * (seconds - mean)


class Strand:
    """One strand of a plan, which runs any number of times."""

    def __init__(
        self,
        code: StrandCode,
        executor: Executor,
        budget: float,
        sized: tuple[Sequence[int], Sequence[int]],
        capture: Capture | None = None,
        limit: int | None = None,
    ) -> None:
        """Prepare the strand; its code is compiled on first use.

        Args:
            code: The generated code.
            executor: The executor of the device.
            budget: Inline budget, in seconds.
            sized: The positions of the inputs whose size may vary: of numeric inputs, and of strings.
            capture: The device's `BackendDevice.captured`, if it has one.
            limit: `SessionConfig.max_value_bytes`.
        """
        self.code = code
        self.nodes: tuple[BoundNode, ...] = code.task.nodes
        self.cost = CostEstimate()
        self._executor = executor
        self._sends = code.sends
        self._limit = limit
        elastic = elastic_nodes(code.task)
        # A strand that cannot be restarted never runs inline.
        self._budget = budget if begins_again(code.task, elastic) else -1.0
        # `run_inline` sets no `value_limit`, so a `BoundedWork` has to apply the limit.
        self._brief = bool(elastic) or (limit is not None and any(b.kernel.elastic or b.claims for b in self.nodes))
        self._sized, self._texts = map(tuple, sized)
        self._varies = bool(self._sized or self._texts)
        self._inline = CodeVariant.BRIEF if self._brief else CodeVariant.FAST
        self._fast: Callable[..., tuple[Value, ...]] | None = None
        # A captured function takes only values, and a strand that sends also needs the step.
        self._capture = None if self._sends else capture
        self._captured: Callable[..., tuple[Value, ...]] | None = None

    def is_brief(self, values: Sequence[Value]) -> bool:
        """Return whether `try_inline` certainly runs the strand to its end."""
        if self._brief or (self._fast is None and self.code.is_long):
            return False
        return self.cost.expect(self._magnitude(values) if self._varies else 0) <= self._budget

    def try_inline(self, values: Sequence[Value], step: Step | None = None) -> tuple[Value, ...] | None:
        """Run now if the strand is expected to stay within the budget, otherwise return None.

        A strand that sends needs the step. Other strands may run without a step here.
        """
        with np.errstate(all="ignore"):
            return self.call_inline(values, step)

    def call_inline(self, values: Sequence[Value], step: Step | None) -> tuple[Value, ...] | None:
        """Run like `try_inline`, for a caller that has already silenced NumPy's warnings."""
        magnitude = self._magnitude(values) if self._varies else 0
        if self.cost.expect(magnitude) > self._budget:
            return None
        fast = self._fast
        if fast is None:
            if self.code.is_long:
                return None  # a thread compiles it
            fast = self._fast = self.code.function(self._inline)
        started = perf_counter()
        try:
            if self._brief:
                work = BoundedWork(self._limit)
                result = doing(work, fast, *values, work, *((step,) if self._sends else ()))
            else:
                result = fast(*values, step) if self._sends else fast(*values)
        except Exception as error:
            explained = self._explain(error)
            raise explained from explained.__cause__
        except OffloadToThread:
            return None  # nothing in it has had an effect, so it can be restarted
        self.cost.observe(magnitude, perf_counter() - started)
        return result

    async def run(self, values: Sequence[Value], step: Step) -> tuple[Value, ...]:
        """Run inline or in a thread, depending on the expected cost.

        Raises:
            OpError: a kernel failed, or the step was stopped.
        """
        done = self.try_inline(values, step) if step.probe is None else None
        return await self.hop(values, step) if done is None else done

    async def hop(self, values: Sequence[Value], step: Step) -> tuple[Value, ...]:
        """Run in a thread of the device. Raises like `run`."""
        result, seconds = await self._executor.run(step, self._in_thread, values, step)
        if step.probe is None:
            self.cost.observe(self._magnitude(values), seconds)
        return result

    def call(self, values: Sequence[Value], step: Step | None) -> tuple[Value, ...]:
        """Run in this thread, as a part of `step` if that is not None. Raises like `run`."""
        here = current_work()
        work = here if isinstance(here, StepWork) else UNSTOPPABLE
        try:
            # Always the form that a thread compiles first.
            return self.code.function(CodeVariant.STOPPABLE)(*values, step or UNSTOPPABLE, work)
        except Exception as error:
            explained = self._explain(error)
            raise explained from explained.__cause__

    def _in_thread(self, values: Sequence[Value], step: Step) -> tuple[tuple[Value, ...], float]:
        if step.requested:
            step.halt()
        work = work_here(step)
        work.limit = self._limit
        work.end_critical()
        code = self._made(CodeVariant.STOPPABLE if step.probe is None else CodeVariant.PROBED)
        # `call_inline` does not compile long code, so it is compiled here as soon as the strand is cheap enough for it.
        if self._fast is None and self.code.is_long and self.cost.expect(self._magnitude(values)) <= self._budget:
            self._fast = self._made(self._inline)
        started, worked = perf_counter(), thread_time()  # after the compilation, which happens only once
        try:
            with np.errstate(all="ignore"):
                captured = self._as_captured() if step.probe is None else None
                if captured is not None:
                    result = captured(*values)
                elif step.probe is None:
                    result = code(*values, step, work)
                else:
                    result = code(*values, self._reporter(step.probe), step, work)
        except Exception as error:
            explained = self._explain(error)
            raise explained from explained.__cause__
        return result, _inline_seconds(perf_counter() - started, thread_time() - worked)

    def _made(self, form: CodeVariant) -> Callable[..., tuple[Value, ...]]:
        if not self.code.is_long:
            return self.code.function(form)
        with full_collections_postponed():
            return self.code.function(form)

    def _as_captured(self) -> Callable[..., tuple[Value, ...]] | None:
        if self._capture is not None:  # called once, in the device's thread
            self._captured = self._capture(self.code.function(CodeVariant.FAST), self.nodes)
            # Cleared after the only attempt: what cannot be captured once is not tried again.
            self._capture = None
        return self._captured

    def _reporter(self, probe: Probe) -> Callable[[int, Sequence[Value]], None]:
        report = probe.begin()

        def after_node(index: int, outputs: Sequence[Value]) -> None:
            if not isinstance(self.nodes[index], RaisedLoop):  # a raised loop has reported its nodes itself
                report(self.nodes[index], outputs)

        return after_node

    def _explain(self, error: Exception) -> Exception:
        bound = self.code.failed_node(error)
        return error if bound is None else kernel_error(error, bound.node)

    def _magnitude(self, values: Sequence[Value]) -> int:
        size = 0
        for position in self._sized:
            size += getattr(values[position], "nbytes", 64)
        for position in self._texts:
            size += _size_of_objects(values[position])
        return int(size).bit_length()


def _inline_seconds(passed: float, worked: float) -> float:
    """Return the expected time on the event loop of work that took `passed` seconds in a thread.

    On the loop the work would hold the interpreter lock, for which a thread waits. So if the thread computed for more
    than a quarter of the time, only its processor time `worked` counts. Work that mostly waits for something else
    counts in full.
    """
    return worked if worked > passed / 4 else passed


def magnitude(values: Sequence[Value]) -> int:
    """Return the exponent of the power of two above the total size of the values in bytes."""
    return int(sum(_size(value) for value in values)).bit_length()


def _size(value: Value) -> int:
    dtype = getattr(value, "dtype", None)
    if dtype is None or getattr(dtype, "hasobject", False):
        return _size_of_objects(value)
    return int(getattr(value, "nbytes", 64))


def _size_of_objects(value: Value) -> int:
    """Return the size of strings including their contents if these are few, otherwise a nominal size."""
    if isinstance(value, bytes):
        return 64 + len(value)
    if not isinstance(value, np.ndarray) or value.size > _COUNTED:
        return int(getattr(value, "nbytes", 64))
    if value.size == 1:  # the most frequent case
        return _size_of_objects(value.item())
    return value.nbytes + sum([len(item) for item in value.reshape(-1).tolist() if isinstance(item, bytes)])
