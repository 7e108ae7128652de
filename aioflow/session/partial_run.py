"""Partial runs: one step that is fed and fetched in several calls.

The step is an ordinary step with async nodes as feeds and fetches. It starts at set-up and runs as far as its feeds
allow. Every node runs once, including stateful ones, and computed values stay on their devices.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from aioflow.arguments import check_seconds
from aioflow.compiler.ir import ClientGraph, Node, Plan
from aioflow.compiler.prune import StepRequest
from aioflow.concurrency.stopping import OffloadToThread
from aioflow.concurrency.threads import in_thread
from aioflow.config import SessionConfig
from aioflow.errors import (
    CancelledError,
    ClosedSessionError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    ResourceExhaustedError,
)
from aioflow.graph.boundary import ARG, PARTIAL_FEED, PARTIAL_FETCH, RECV, RETVAL, SEND
from aioflow.graph.graph import Tensor
from aioflow.memory.values import Value
from aioflow.runtime.bind import own
from aioflow.runtime.cluster import Cluster, RegisteredStep
from aioflow.runtime.codegen import finish
from aioflow.runtime.handing_over import is_large, large_bytes
from aioflow.runtime.step import Probe, Step
from aioflow.session.fetches import FetchMapper, convert_feeds, feed_converter
from aioflow.session.planner import Planner
from aioflow.session.prepared import described, planned
from aioflow.session.time_limit import abandoned
from aioflow.sync.background import Background
from aioflow.sync.partial_run import EXCHANGE, Exchange

_IDS: Final = itertools.count(1)
_LONGEST: Final = 86_400.0 * 365  # seconds; a timer needs a finite delay
_NODES: Final = 1 << 20  # passed to `planned` as the size of the graph, so that it always plans in a thread
_polish: Final = finish(None, owned=False)


@dataclass(slots=True)
class _Prepared:
    """A compiled set-up.

    Attributes:
        registered: The step, as registered with the workers.
        needs: For each fetch, the indices of the feeds that it depends on.
        steps: Number of its steps that run or are about to start.
    """

    registered: RegisteredStep
    needs: tuple[frozenset[int], ...]
    steps: int = 0


class _PartialRun:
    """A step in progress, with the feeds and fetches that are still due."""

    def __init__(self, request: StepRequest, prepared: _Prepared, step: Step) -> None:
        self.step = step
        self.loop = asyncio.get_running_loop()
        self.needs = prepared.needs
        self.feeds = {tensor: i for i, tensor in enumerate(request.feeds)}
        self.fetches = {tensor: i for i, tensor in enumerate(request.fetches)}
        self.unfed = set(self.feeds.values())
        self.unfetched = set(self.fetches.values())
        self.error: BaseException | None = None
        self.expired: OpError | None = None
        self.ended = asyncio.Event()
        self.calls = 0
        self.timer: asyncio.TimerHandle | None = None
        self.exchange = Exchange(
            tuple(self.loop.create_future() for _ in self.feeds), tuple(self.loop.create_future() for _ in self.fetches)
        )

    @property
    def complete(self) -> bool:
        """True if everything has been fed and fetched."""
        return not self.unfed and not self.unfetched

    def check(self, fetches: Sequence[Tensor], feeds: Mapping[Tensor, Value]) -> None:
        """Check the tensors of a call before any is fed.

        Raises:
            InvalidArgumentError: a feed or fetch was not set up, occurs a second time, or needs feeds that are missing.
        """
        for tensor in feeds:
            _check_once("feed", "fed", tensor, self.feeds, self.unfed)
        # The feeds of this call count as fed, though they are passed on only after all checks.
        unfed = self.unfed - {self.feeds[t] for t in feeds}
        for tensor in fetches:
            _check_once("fetch", "fetched", tensor, self.fetches, self.unfetched)
            # Otherwise the call would wait for a feed that can come only with a later call.
            missing = self.needs[self.fetches[tensor]] & unfed
            if missing:
                names = [t.name for t, i in self.feeds.items() if i in missing]
                raise InvalidArgumentError(
                    f"the fetch {tensor.name} cannot be computed from the values fed so far",
                    expected=f"feeds for {', '.join(names)}",
                    actual="not fed yet",
                )

    def feed(self, feeds: Mapping[Tensor, Value]) -> None:
        """Pass checked values, which the step owns from now on, to its feed nodes."""
        for tensor, value in feeds.items():
            index = self.feeds[tensor]
            self.unfed.discard(index)
            future = self.exchange.feeds[index]
            if not future.done():  # it is done if the step has failed
                future.set_result(value)

    def watch(self, seconds: float | None) -> None:
        """Start the expiry timer, unless a call is in progress or the run is complete.

        The timer holds only a weak reference, so that it keeps neither the run nor its session alive.
        """
        if seconds is not None and not self.calls and not self.complete and self.expired is None:
            self.timer = self.loop.call_later(min(seconds, _LONGEST), _expire, weakref.ref(self), seconds)

    def unwatch(self) -> None:
        """Stop the expiry timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def expire(self, seconds: float) -> None:
        """Stop the step and drop its values. A step that has failed keeps its error."""
        if self.error is not None:
            return
        self.expired = DeadlineExceededError(
            "the partial run was not finished in time",
            expected=f"a call at least every {seconds:g} s (SessionConfig.partial_run_timeout)",
            actual="none",
        )
        if not self.ended.is_set():
            self.step.stop(self.expired)
        self.exchange = Exchange((), ())

    def end(self, error: BaseException | None) -> None:
        """Record that the step has ended, and cancel all pending feeds and fetches."""
        self.error = error
        for future in (*self.exchange.fetches, *self.exchange.feeds):
            if not future.done():
                # Wakes the calls that wait for it. They learn the error in `_results`.
                future.cancel()
        self.ended.set()


def _expire(run: weakref.ref[_PartialRun], seconds: float) -> None:
    if (found := run()) is not None:
        found.expire(seconds)


def _check_once(what: str, done: str, tensor: Tensor, known: Mapping[Tensor, int], left: set[int]) -> None:
    if tensor not in known:
        raise InvalidArgumentError(
            f"the {what} {tensor.name} was not specified in partial_run_setup",
            expected=f"one of {[t.name for t in known]}",
            actual=tensor.name,
        )
    if known[tensor] not in left:
        raise InvalidArgumentError(
            f"the {what} {tensor.name} has already been {done}", expected="once", actual=tensor.name
        )


class PartialRuns:
    """The partial runs of one session."""

    def __init__(
        self,
        cluster: Cluster,
        planner: Planner,
        session: int,
        config: SessionConfig,
        background: Background,
        steps: dict[Step, asyncio.AbstractEventLoop],
    ) -> None:
        """Initialize without partial runs. Set-ups are dropped whenever the cluster moves resources.

        Args:
            cluster: The workers of the session.
            planner: Plans the steps.
            session: Id of the session.
            config: Settings of the session.
            background: Owner of the tasks that drive partial runs.
            steps: Steps in flight of the session, with their event loops. Closing the session stops them.
        """
        self._cluster = cluster
        self._planner = planner
        self._session = session
        # The `executor` setting does not apply here: partial runs always use strands.
        self._config = replace(config, executor="strands")
        self._background = background
        self._steps = steps
        self._runs: dict[str, _PartialRun] = {}
        self._beginning = 0
        self._prepared: dict[Hashable, _Prepared] = {}
        cluster.on_move.append(self.drop)

    async def begin(self, request: StepRequest, mutations: int, probe: Probe | None) -> str:
        """Start the step and return the handle for `advance`. Raises ResourceExhaustedError if too many are open."""
        self._make_room()
        # Counts runs between this check and their entry in `_runs`, so that concurrent calls cannot exceed the limit.
        self._beginning += 1
        try:
            return await self._begin(request, mutations, probe)
        finally:
            self._beginning -= 1

    async def _begin(self, request: StepRequest, mutations: int, probe: Probe | None) -> str:
        key = (request, mutations)
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = await self._remember(key, await self._prepare(request))
        # No await since `_remember`, so no concurrent call can have deregistered this set-up as unused.
        prepared.steps += 1
        step = Step(probe, self._cluster.next_step(), describe=partial(described, request))
        run = _PartialRun(request, prepared, step)
        await self._background.start(self._drive(run, prepared))
        handle = f"partial_run_{self._session}_{next(_IDS)}"
        self._runs[handle] = run
        run.watch(self._config.partial_run_timeout)
        return handle

    def _make_room(self) -> None:
        """Forget failed and expired runs if the limit is reached. Raises ResourceExhaustedError if it still is."""
        most = self._config.partial_runs - self._beginning
        if len(self._runs) >= most:
            for handle in [h for h, run in self._runs.items() if run.error is not None or run.expired is not None]:
                del self._runs[handle]
        if len(self._runs) >= most:
            raise ResourceExhaustedError(
                "too many unfinished partial runs in this session",
                expected=f"at most {most} (SessionConfig.partial_runs)",
                actual=len(self._runs) + self._beginning + 1,
            )

    async def drop(self) -> None:
        """Forget all set-ups, here and on the workers, so that they are planned again. Running steps continue."""
        dropped = list(self._prepared.values())
        self._prepared.clear()
        for prepared in dropped:
            await prepared.registered.deregister()

    async def _remember(self, key: Hashable, made: _Prepared) -> _Prepared:
        """Cache a set-up, or return the equal one that a concurrent call has compiled meanwhile."""
        prepared = self._prepared.setdefault(key, made)
        unused = [k for k, other in list(self._prepared.items()) if not other.steps and k != key]
        excess = max(0, len(self._prepared) - self._config.plan_cache_size)
        dropped = [self._prepared.pop(k) for k in unused[:excess]]
        # If a concurrent call was faster, its set-up is used and `made` is superfluous.
        for other in dropped if prepared is made else [*dropped, made]:
            await other.registered.deregister()
        return prepared

    async def _prepare(self, request: StepRequest) -> _Prepared:
        meeting = partial(_with_exchanges, own=self._cluster.own)
        plan = await planned(self._planner, request, _NODES, asks=False, meeting=meeting)
        needs = _feeds_needed(plan)
        registered = await self._cluster.register(plan, self._session, self._config)
        return _Prepared(registered, tuple(needs[i] for i in range(len(request.fetches))))

    async def _drive(self, run: _PartialRun, prepared: _Prepared) -> None:
        EXCHANGE.set(run.exchange)  # inherited by the tasks of the step, which start in this context
        step = run.step
        self._steps[step] = run.loop
        # Stays the error if this task is cancelled, since `CancelledError` of asyncio is no `Exception`.
        error: BaseException | None = CancelledError(f"the session was closed while {step.describe()} ran")
        try:
            if self._background.is_closed:
                raise ClosedSessionError.refusing()
            await prepared.registered.run([], step)
            error = None
        except Exception as raised:
            error = raised
        finally:
            del self._steps[step]
            prepared.steps -= 1
            step.finish()
            run.end(error)

    async def advance(
        self, handle: str, fetches: FetchMapper, feeds: Mapping[Tensor, Value], limit: float | None
    ) -> Value:
        """Feed and fetch some of the tensors, within `limit` seconds.

        Args:
            handle: Handle that `begin` returned.
            fetches: The fetches of this call.
            feeds: The feeds of this call.
            limit: Time limit in seconds; None for no limit.

        Raises:
            InvalidArgumentError: the handle is unknown, or a feed or fetch is not valid now. Nothing has been fed then.
                Or a fetch has no value, because it is on a branch that was not taken.
            DeadlineExceededError: the fetches were not ready in time; they may be requested again. Or the run has
                expired (`SessionConfig.partial_run_timeout`).
            FailedPreconditionError: the run was set up on another event loop.
            OpError: the step failed and has ended.
        """
        check_seconds(limit, "the timeout of a partial run")
        run = self._runs.get(handle)
        values: Mapping[Tensor, Value] | None = None
        try:
            async with asyncio.timeout(limit) as deadline:
                values = await _owned_feeds(feeds)
                return await self._advance(handle, fetches, values)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            state = "; it was converting its feeds" if values is None or run is None else run.step.state()
            raise DeadlineExceededError(
                f"the fetches were not computed in time{state}{abandoned(error)}",
                expected=f"at most {limit} s",
                actual="not computed yet",
            ) from error

    async def _advance(self, handle: str, fetches: FetchMapper, feeds: Mapping[Tensor, Value]) -> Value:
        run = self._runs.get(handle)
        if run is None:
            raise InvalidArgumentError(
                "unknown partial run; call partial_run_setup before partial_run",
                expected="the handle of an unfinished partial run",
                actual=handle,
            )
        if run.loop is not asyncio.get_running_loop():
            raise FailedPreconditionError("the partial run was set up on another event loop")
        if run.expired is not None:
            self._runs.pop(handle, None)
            raise run.expired
        run.check(fetches.tensors, feeds)
        positions = [run.fetches[t] for t in fetches.tensors]
        # No await since the check, so of two concurrent calls for one fetch the second is rejected.
        run.unfetched.difference_update(positions)
        run.unwatch()
        run.calls += 1
        run.feed(feeds)
        try:
            return await fetches.give(await _results(run, positions))
        except asyncio.CancelledError:
            # The fetches were not delivered, so they may be requested again.
            run.unfetched.update(positions)
            raise
        finally:
            run.calls -= 1
            # A handle is valid until everything is fetched, or until one call has reported the error.
            if run.ended.is_set() and (run.error is not None or run.complete):
                self._runs.pop(handle, None)
            else:
                run.watch(self._config.partial_run_timeout)


async def _owned_feeds(feeds: Mapping[Tensor, Value]) -> dict[Tensor, Value]:
    """Convert and copy the fed values: the step continues after the call, when the caller may change its arrays."""
    converters = [feed_converter(tensor) for tensor in feeds]
    fed = list(feeds.values())

    def convert() -> list[Value]:
        return [own(value) for value in convert_feeds(converters, fed)]

    if any(is_large(value, large_bytes(0.0)) for value in fed):
        values = await in_thread(convert, effects=False)
    else:
        try:
            values = convert()
        except OffloadToThread:
            values = await in_thread(convert, effects=False)
    return dict(zip(feeds, values, strict=True))


async def _results(run: _PartialRun, positions: Sequence[int]) -> list[Value]:
    futures = [run.exchange.fetches[i] for i in positions]
    if futures:
        # If this call is cancelled, `wait` leaves the futures as they are, and the fetches may be requested again.
        await asyncio.wait(futures)
    # The last call, or one with a lost fetch, waits for the end of the step to learn its error.
    if run.complete or (any(f.cancelled() for f in futures) and not run.ended.is_set()):
        await run.ended.wait()
    if run.error is not None:
        raise run.error if isinstance(run.error, OpError) else CancelledError("the step was stopped")
    if any(f.cancelled() for f in futures):
        raise InvalidArgumentError("a fetch has no value: its branch was not taken")
    values = [f.result() for f in futures]
    if any(is_large(value, large_bytes(0.0)) for value in values):
        return await in_thread(_polished, values, effects=False)
    return _polished(values)


def _polished(values: Sequence[Value]) -> list[Value]:
    return [value if _polish is None else _polish(value) for value in values]


def _feeds_needed(plan: Plan) -> dict[int, frozenset[int]]:
    """Return, by the index of each fetch, the indices of all feeds upstream of it, on any device."""
    nodes = {(device, node.name): node for device, node in plan.placed_nodes()}
    # A value that crosses devices leaves the graph at a Send and enters it again at the Recv of the same name.
    senders = {node.attrs["tensor_name"]: key for key, node in nodes.items() if node.op == SEND}
    return {n.attrs["index"]: _upstream_feeds(key, nodes, senders) for key, n in nodes.items() if n.op == PARTIAL_FETCH}


def _upstream_feeds(
    fetch: tuple[str, str], nodes: Mapping[tuple[str, str], Node], senders: Mapping[str, tuple[str, str]]
) -> frozenset[int]:
    seen = {fetch}
    stack = [fetch]
    found: set[int] = set()
    while stack:
        key = stack.pop()
        node = nodes[key]
        if node.op == PARTIAL_FEED:
            found.add(node.attrs["index"])
        before = [(key[0], source) for source in node.predecessors()]
        if node.op == RECV:
            before.append(senders[node.attrs["tensor_name"]])
        for source in before:
            if source not in seen:
                seen.add(source)
                stack.append(source)
    return frozenset(found)


def _with_exchanges(graph: ClientGraph, own: str) -> ClientGraph:
    """Replace feeds and fetches by nodes that exchange values with the caller, on device `own` if not empty."""
    nodes = {name: _exchange(node, own) for name, node in graph.nodes.items()}
    return ClientGraph(nodes, 0, 0, graph.targets)


def _exchange(node: Node, own: str) -> Node:
    device = own or node.device
    if node.op == ARG:
        (spec,) = node.outputs
        attrs = {"dtype": spec.dtype, "shape": spec.dims, "index": node.attrs["index"]}
        return replace(node, op=PARTIAL_FEED, attrs=attrs, device=device)
    if node.op == RETVAL:
        attrs = {"T": node.attrs["T"], "index": node.attrs["index"]}
        return replace(node, op=PARTIAL_FETCH, attrs=attrs, device=device)
    return node
