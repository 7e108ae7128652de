"""The models of a service, by name and version: loaded, unloaded, and replaced without losing a request.

A replacement is opened and warmed up first. Then it takes over, for all versions of the model at once. The replaced
version answers its pending requests and is closed. The tasks belong to the repository's group, so a client that
disconnects does not interrupt a load. A budget limits the memory of the weights of all models (`MemoryBudget`).
"""

from __future__ import annotations

import asyncio
import enum
import gc
import logging
import os
import weakref
from collections.abc import Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Final, TypeVar

from aioflow.arguments import check_whole
from aioflow.concurrency.threads import although_cancelled, in_thread
from aioflow.errors import ClosedSessionError, InvalidArgumentError, NotFoundError, OpError, UnavailableError
from aioflow.saved.opening import kind_of, open_model
from aioflow.saved.surveys import survey
from aioflow.serve.models import ModelOpener, ServedModel, open_served
from aioflow.serve.options import ModelOptions, Readiness, options_by_model
from aioflow.serve.protocol.errors import NoMemoryError, message_of
from aioflow.serve.sources import NAME, ModelSource
from aioflow.serve.tally import RequestTally

# ── a memory budget for the weights of all models of a process, checked before weights are read ───────────────────────


def weight_bytes(path: str | os.PathLike[str]) -> int:
    """Return the size of the weights of a model file without importing it. Blocks on the disk. Raises as `survey`."""
    return sum(each.size for each in survey(path, kind_of(path)).parameters)


class MemoryBudget:
    """A budget of bytes.

    Args:
        limit: The size of the budget.

    Attributes:
        taken: The bytes in use.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0

    def take(self, count: int, what: str) -> None:
        """Reserve `count` bytes. Raise NoMemoryError, about `what`, if fewer are left."""
        if self.taken + count > self.limit:
            raise NoMemoryError(
                f"there is no memory left for {what}",
                expected=f"at most {self.limit - self.taken} of {self.limit} bytes",
                actual=count,
            )
        self.taken += count

    def give(self, count: int) -> None:
        """Release `count` bytes."""
        self.taken -= count


# ── the repository ────────────────────────────────────────────────────────────────────────────────────────────────────


T = TypeVar("T")

_LOG: Final = logging.getLogger("aioflow.serve")
_LOOKS: Final = (0.0, 0.05, 0.5)  # seconds before each collection of a version's garbage


class VersionState(enum.Enum):
    """The state of a version, as in Triton's repository index."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """An entry of the index: a version, or a model without versions."""

    name: str
    version: str
    state: VersionState
    reason: str = ""


@dataclass(slots=True)
class _Model:
    """The state of one model."""

    source: ModelSource
    options: ModelOptions
    versions: dict[int, ServedModel] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_loading: bool = False
    is_wanted: bool = True
    tallies: dict[int, RequestTally] = field(default_factory=dict)  # kept when a version is replaced
    failure: str = ""  # why there is no version, or why the last load failed
    failure_type: str = ""  # the class of that error


class Repository:
    """The models of a service.

        async with Repository({"digits": "models/digits"}) as repository:
            await repository.load_all()
            with repository.used("digits") as model:
                answer = await model.infer(request)

    Leaving the block cancels loads, answers pending requests, and closes all versions. A repository is entered once.

    Args:
        models: By name, the path of a model or of a folder of its versions, or a `ModelSource`.
        options: The options of all models, or a mapping with the options by name, and by `None` those of all others.
        memory_budget: Bytes for the weights of all models, including versions that are being replaced. A model that
            does not fit is rejected before it is read. None for no limit.
        drain_seconds: Time for the pending requests of a version that is replaced or unloaded.
        readiness: As in `ServerOptions`.
        opener: Reads a model; blocks.

    Raises:
        InvalidArgumentError: a name is not allowed, or the memory budget is not a whole number.
    """

    def __init__(
        self,
        models: Mapping[str, str | os.PathLike[str] | ModelSource],
        options: ModelOptions | Mapping[str | None, ModelOptions] | None = None,
        *,
        memory_budget: int | None = None,
        drain_seconds: float = 30.0,
        readiness: Readiness = "all",
        opener: ModelOpener = open_model,
    ) -> None:
        each = options_by_model(models, options)
        self._models: dict[str, _Model] = {}
        for name, source in models.items():
            if not NAME.fullmatch(name):
                raise InvalidArgumentError("invalid model name", expected="letters, digits, _ . -", actual=repr(name))
            found = source if isinstance(source, ModelSource) else ModelSource(os.fspath(source))
            self._models[name] = _Model(found, each[name])
        if memory_budget is not None:
            check_whole(memory_budget, "the memory budget of a repository", 0)
        self.memory = None if memory_budget is None else MemoryBudget(memory_budget)
        self._opener = opener
        self._drain_seconds = drain_seconds
        self._readiness = readiness
        self._group: asyncio.TaskGroup | None = None
        self._leaving: set[ServedModel] = set()
        self._loads: set[asyncio.Task[None]] = set()
        # Closings of versions. Never cancelled: a task that is cancelled before it starts would close nothing.
        self._closes: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._change = asyncio.Event()  # set at the next change that may affect `is_ready`, then replaced

    # -- opening and closing ------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """True inside the `async with` block."""
        return self._group is not None

    async def __aenter__(self) -> Repository:
        if self._group is not None or self._is_closing:
            raise ClosedSessionError(
                "a repository can be entered only once", expected="a new repository", actual="already entered"
            )
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        self._note_change()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.drain()
        # From here on no task can be added to the group by `_owned`.
        group, self._group = self._group, None
        if group is None:
            return
        for load in self._loads:
            load.cancel()
        for model in self._models.values():
            self._leave(model, group)
        try:
            while tasks := self._loads | self._closes:
                await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for served in self._leaving:
                # Cancelled, so there is no time left for pending requests.
                served.hurry()
            for task in self._loads | self._closes:
                await although_cancelled(task)
            raise
        finally:
            await group.__aexit__(None, None, None)  # no tasks are left

    def drain(self) -> None:
        """Prepare for the end: report not ready and refuse loads, but still answer requests."""
        self._is_closing = True
        for served in self.served():
            if served.streams is not None:
                served.streams.finish(self._drain_seconds)
        self._note_change()

    @property
    def is_ready(self) -> bool:
        """True if every model is loaded that was not unloaded. False outside the block, and after `drain`.

        With `readiness="any"`, models that could not be loaded do not count if another one is loaded.
        """
        wanted = [model for model in self._models.values() if model.is_wanted]
        if self._readiness == "any" and any(model.versions for model in wanted):
            wanted = [model for model in wanted if not model.failure]
        return self.is_open and not self._is_closing and all(model.versions for model in wanted)

    async def changed(self) -> None:
        """Wait until `is_ready` may have changed."""
        await self._change.wait()

    def _note_change(self) -> None:
        # A waiter of the old event is released once; the next wait is for the new event.
        self._change.set()
        self._change = asyncio.Event()

    # -- queries ------------------------------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The names of all models, loaded or not."""
        return list(self._models)

    def index(self) -> list[IndexEntry]:
        """Return all versions by name and number; for a model without versions, one entry with the reason."""
        return [entry for name in sorted(self._models) for entry in self._lines(name, self._models[name])]

    def states(self, name: str, version: str | None = None) -> list[IndexEntry]:
        """Return the entries of a model in the index, or that of one version. Raises NotFoundError."""
        found = list(self._lines(name, self._found(name)))
        if version is not None:
            found = [entry for entry in found if entry.version == version]
        if not found:
            raise NotFoundError(f"model {name!r} has no version {version!r:.20}", expected="a version of the model")
        return found

    def _lines(self, name: str, model: _Model) -> Iterator[IndexEntry]:
        # A version that is being replaced under the same number counts as ready.
        leaving = {served.version for served in self._leaving if served.name == name} - model.versions.keys()
        states = {**dict.fromkeys(leaving, VersionState.UNLOADING), **dict.fromkeys(model.versions, VersionState.READY)}
        for version in sorted(states):
            yield IndexEntry(name, str(version), states[version])
        if not states:
            state = VersionState.LOADING if model.is_loading else VersionState.UNAVAILABLE
            yield IndexEntry(name, "", state, "" if model.is_loading else model.failure or "unloaded")

    def failures(self) -> dict[str, str]:
        """Return the models whose last load failed, with the class of the error. `index` has the reasons."""
        return {name: model.failure_type for name, model in self._models.items() if model.failure}

    def failure(self, name: str) -> str:
        """Return the reason why the last load of a model failed, or "". Raises NotFoundError."""
        return self._found(name).failure

    def served(self) -> list[ServedModel]:
        """Return all versions that are ready."""
        return [served for model in self._models.values() for served in model.versions.values()]

    def versions(self, name: str) -> list[int]:
        """Return the versions of a model that are ready. Raises as `get`."""
        return sorted(self._found(name).versions)

    def get(self, name: str, version: str | None = None) -> ServedModel:
        """Return a version that is ready, by default the newest.

        Raises:
            NotFoundError: there is no such model, or not that version of it.
            UnavailableError: the model is being loaded, or could not be loaded.
        """
        model = self._found(name)
        if not model.versions:
            if not model.is_wanted:
                raise NotFoundError(f"model {name!r} is not loaded", expected="a loaded model", actual=name)
            why = "is being loaded" if model.is_loading or not model.failure else "could not be loaded"
            raise UnavailableError(f"model {name!r} {why}")
        if version is None:
            return model.versions[max(model.versions)]
        found = next((served for number, served in model.versions.items() if str(number) == version), None)
        if found is None:
            raise NotFoundError(
                f"model {name!r} has no version {version[:20]!r}", expected=f"one of {sorted(model.versions)}"
            )
        return found

    def chosen(self, name: str | None, version: str | None) -> list[ServedModel]:
        """Return one version, all ready versions of a model, or all ready versions of all models. Raises as `get`."""
        if name is None:
            return self.served()
        newest = self.get(name, version)
        return [newest] if version is not None else list(self._found(name).versions.values())

    @contextmanager
    def used(self, name: str, version: str | None = None) -> Iterator[ServedModel]:
        """Keep a version open inside the block, even if it is replaced. Raises as `get`."""
        with self.get(name, version).used() as served:
            yield served

    def _found(self, name: str) -> _Model:
        found = self._models.get(name)
        if found is None:
            raise NotFoundError(
                f"there is no model {name[:60]!r}", expected=f"one of {sorted(self._models)}", actual=name[:60]
            )
        return found

    # -- changes ------------------------------------------------------------------------------------------------------

    async def load_all(self, but: Collection[str] = (), *, strict: bool = True) -> None:
        """Load the models one after the other, and unload those in `but`.

        Raises the error of the first model that fails to load, with the model's name added. Unless `strict`, log the
        errors, load the others, and raise only if no model can be loaded.
        """
        strict = strict or len(self._models) == 1
        first: Exception | None = None
        for name in self._models:
            try:
                await (self.unload(name) if name in but else self.load(name))
            except Exception as error:
                is_fault = not isinstance(error, OpError)
                if not strict:
                    _LOG.error("model %s cannot be loaded: %s", name, message_of(error), exc_info=is_fault)
                if isinstance(error, OpError):
                    error.message = f"model {name!r}: {error.message}"
                if strict or self._is_closing:
                    raise
                first = first or error
        if first is not None and not self.served():
            raise first

    async def load(self, name: str) -> None:
        """Load or reload a model. The old versions answer requests until the new ones are ready.

        Raises:
            NotFoundError: there is no such model, or nothing at its path.
            UnavailableError: the repository is not open, or is about to end.
            OpError: it cannot be opened. The old versions stay.
        """
        model = self._found(name)
        await self._owned(self._load(name, model))

    async def unload(self, name: str) -> None:
        """Unload a model, and wait until its requests are answered.

        Raises:
            NotFoundError: there is no such model.
            UnavailableError: the repository is not open, or is about to end.
        """
        model = self._found(name)
        await self._owned(self._unload(name, model))

    async def _owned(self, work: Coroutine[object, object, None]) -> None:
        """Run `work` in a task of the group, to its end, even if the caller is cancelled."""
        if self._group is None or self._is_closing:
            work.close()
            raise UnavailableError("the service is not open, or is shutting down")
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            try:
                await work
            # The error goes through `outcome`: one that left the task would cancel the whole group.
            except Exception as error:
                _resolve(outcome, error)
            else:
                _resolve(outcome, None)

        def ended(task: asyncio.Task[None]) -> None:
            self._loads.discard(task)
            work.close()  # if the task was cancelled before it started
            # No effect if `run` has resolved it; otherwise the task was cancelled.
            _resolve(outcome, _ending())

        task = self._group.create_task(run())
        self._loads.add(task)
        task.add_done_callback(ended)
        await outcome

    async def _load(self, name: str, model: _Model) -> None:
        async with model.lock:
            model.is_wanted, model.is_loading = True, True
            self._note_change()
            opened: dict[int, ServedModel] = {}
            # Without the versions that are being replaced: a reload must not need twice the budget.
            limit = model.options.memory_budget
            own = None if limit is None else MemoryBudget(limit)
            try:
                places = await in_thread(model.source.find, effects=False)
                for version, path in sorted(places.items()):
                    # Stored at once, so that a failure at a later version closes this one.
                    served = opened[version] = await self._open(name, version, path, model, own)
                    # Counters go on over a reload: Prometheus takes a decrease for a restart.
                    served.tally = model.tallies.setdefault(version, served.tally)
            except BaseException as error:
                model.failure = getattr(error, "message", "") or type(error).__name__
                model.failure_type = type(error).__name__
                if model.versions:
                    _LOG.warning("model %s could not be reloaded and is unchanged: %s", name, model.failure)
                for served in opened.values():
                    await self._let_go(served)
                raise
            finally:
                model.is_loading = False
            if self._group is not None:
                self._leave(model, self._group)
            # No await since `_leave`, so no request finds the model without versions.
            model.versions, model.failure, model.failure_type = opened, "", ""
            self._note_change()
            _LOG.info("model %s is ready: %s", name, ", ".join(f"version {each}" for each in opened))

    async def _open(self, name: str, version: int, path: str, model: _Model, own: MemoryBudget | None) -> ServedModel:
        count, what = 0, f"model {name!r} version {version}"
        if self.memory is not None or own is not None:
            count = await in_thread(weight_bytes, path, effects=False)
        if own is not None:
            own.take(count, f"{what}, which has a budget of its own")
        if self.memory is not None:
            # `take` checks and reserves without an await in between, so two loads never take the same bytes.
            self.memory.take(count, what)
        try:
            shapes = model.source.shapes
            opener = partial(self._opener, shapes=shapes) if shapes else self._opener
            served = await open_served(name, version, path, model.options, opener)
        except BaseException:
            self._give_back(count)
            raise
        served.weight_bytes = count
        return served

    def _give_back(self, count: int) -> None:
        if self.memory is not None:
            self.memory.give(count)

    async def _unload(self, name: str, model: _Model) -> None:
        async with model.lock:
            model.is_wanted = False
            closes = [] if self._group is None else self._leave(model, self._group)
            self._note_change()
            if closes:
                await asyncio.wait(closes)
            _LOG.info("model %s is unloaded", name)

    def _leave(self, model: _Model, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Close all versions of a model in tasks of the group, and return the tasks."""
        closes = []
        while model.versions:
            # Out of the mapping first: no new request can reach the version from now on.
            served = model.versions.popitem()[1]
            self._leaving.add(served)
            close = group.create_task(self._let_go(served))
            self._closes.add(close)
            close.add_done_callback(self._closes.discard)
            closes.append(close)
        return closes

    async def _let_go(self, served: ServedModel) -> None:
        self._leaving.add(served)
        # A weak reference, since a strong one would keep the graph alive and spoil the check below.
        count, graph = served.weight_bytes, weakref.ref(served.model.graph)
        try:
            await served.close(self._drain_seconds)
        except Exception:
            # The version is unused now, and an error here would cancel the whole group.
            _LOG.exception("closing %s version %d failed", served.name, served.version)
        finally:
            self._leaving.discard(served)
            self._give_back(count)
        # The last reference of this coroutine, for the same reason.
        del served
        # A graph and its nodes form reference cycles: without an explicit collection Python may keep the weights for
        # many reloads. A collection misses the graph while the loop has callbacks of the session, so it is repeated.
        for pause in _LOOKS:
            await asyncio.sleep(pause)
            await in_thread(gc.collect, effects=False)
            if graph() is None or self._is_closing:
                return


def _ending() -> UnavailableError:
    return UnavailableError("the service is shutting down")


def _resolve(outcome: asyncio.Future[None], error: Exception | None) -> None:
    if outcome.done():
        return
    if error is None:
        outcome.set_result(None)
    else:
        outcome.set_exception(error)
        outcome.exception()  # mark it as retrieved: the caller may have been cancelled
