"""The models of a service, by name and version: loaded, unloaded, and replaced without a lost request.

What replaces a version is opened and warmed up first; then it takes over, at once for all versions of the model; then
what it has replaced answers those who came before, and is closed. Tasks belong to the repository's group, so a client
who asks for a model and goes away stops nothing half-way.
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
from typing import Any, Final, TypeVar

from aioflow.checks.numbers import check_whole
from aioflow.errors import ClosedSessionError, InvalidArgumentError, NotFoundError, OpError, UnavailableError
from aioflow.saved.opening import open_model
from aioflow.serve.memory import MemoryBudget, weight_bytes
from aioflow.serve.models import Opener, ServedModel, open_served
from aioflow.serve.options import ModelOptions
from aioflow.serve.sources import NAME, ModelSource
from aioflow.serve.tally import RequestTally
from aioflow.work.threads import although_cancelled, in_thread

__all__ = ["Entry", "Repository", "State"]

T = TypeVar("T")

_LOG: Final = logging.getLogger("aioflow.serve")
_LOOKS: Final = (0.0, 0.05, 0.5)  # seconds before each look for the garbage of a version


class State(enum.Enum):
    """How a version is, in the words of Triton's repository index."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the index: a version, or a model of which there is none."""

    name: str
    version: str
    state: State
    reason: str = ""


@dataclass(slots=True)
class _Model:
    """What is known of a name."""

    source: ModelSource
    options: ModelOptions
    versions: dict[int, ServedModel] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_loading: bool = False
    is_wanted: bool = True
    tallies: dict[int, RequestTally] = field(default_factory=dict)  # which go on, whatever replaces a version
    failure: str = ""  # why there is none, or not the one that was asked for last


class Repository:
    """The models of a service.

        async with Repository({"digits": "models/digits"}) as repository:
            await repository.load_all()
            with repository.used("digits") as model:
                answer = await model.infer(request)

    Args:
        models: By name, the path of a model or of a folder of its versions, or a `ModelSource`.
        options: How they are served; a mapping has those of each name, and by `None` those of all others.
        memory_budget: Bytes that the weights of all models may take together, those of a version that is being replaced
            included: what would not fit is refused before it is read. None for no limit.
        drain_seconds: How long requests to a version that is replaced or unloaded may take to be answered.
        opener: What reads a model; blocks.
    """

    def __init__(
        self,
        models: Mapping[str, str | os.PathLike[str] | ModelSource],
        options: ModelOptions | Mapping[str | None, ModelOptions] | None = None,
        *,
        memory_budget: int | None = None,
        drain_seconds: float = 30.0,
        opener: Opener = open_model,
    ) -> None:
        options = options or ModelOptions()
        each: Mapping[str | None, ModelOptions] = options if isinstance(options, Mapping) else {None: options}
        self._models: dict[str, _Model] = {}
        for name, source in models.items():
            if not NAME.fullmatch(name):
                raise InvalidArgumentError(
                    "a model cannot have that name", expected="letters, digits, _ . -", actual=repr(name)
                )
            found = source if isinstance(source, ModelSource) else ModelSource(os.fspath(source))
            self._models[name] = _Model(found, each.get(name) or each.get(None) or ModelOptions())
        if memory_budget is not None:
            check_whole(memory_budget, "the memory budget of a repository", 0)
        self.memory = None if memory_budget is None else MemoryBudget(memory_budget)
        self._opener = opener
        self._drain_seconds = drain_seconds
        self._group: asyncio.TaskGroup | None = None
        self._leaving: set[ServedModel] = set()
        self._loads: set[asyncio.Task[None]] = set()
        self._closes: set[asyncio.Task[None]] = set()  # of versions; a cancelled one might not have begun
        self._is_closing = False
        self._change = asyncio.Event()  # set once, with the next change of what makes it ready

    # -- life ---------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether it has been entered, and not left."""
        return self._group is not None

    async def __aenter__(self) -> Repository:
        if self._group is not None or self._is_closing:
            raise ClosedSessionError("a repository is entered once", expected="a new one", actual="an old one")
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        self._note_change()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.drain()
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
                served.hurry()
            for task in self._loads | self._closes:
                await although_cancelled(task)
            raise
        finally:
            await group.__aexit__(None, None, None)  # which has no task any more

    def drain(self) -> None:
        """The service is to end: it is not ready any more, and loads nothing. Requests are answered still."""
        self._is_closing = True
        self._note_change()

    @property
    def is_ready(self) -> bool:
        """Whether every model that is wanted is there."""
        wanted = [model for model in self._models.values() if model.is_wanted]
        return self.is_open and not self._is_closing and all(model.versions for model in wanted)

    async def changed(self) -> None:
        """Wait until `is_ready` may have changed."""
        await self._change.wait()

    def _note_change(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    # -- what there is ------------------------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """Of all models, whether or not they are loaded."""
        return list(self._models)

    def index(self) -> list[Entry]:
        """Every version, by name and number; of a model without any, one line that says why."""
        return [entry for name in sorted(self._models) for entry in self._lines(name, self._models[name])]

    def _lines(self, name: str, model: _Model) -> Iterator[Entry]:
        leaving = {served.version for served in self._leaving if served.name == name} - model.versions.keys()
        states = {**dict.fromkeys(leaving, State.UNLOADING), **dict.fromkeys(model.versions, State.READY)}
        for version in sorted(states):
            yield Entry(name, str(version), states[version])
        if not states:
            state = State.LOADING if model.is_loading else State.UNAVAILABLE
            yield Entry(name, "", state, "" if model.is_loading else model.failure or "unloaded")

    def served(self) -> list[ServedModel]:
        """All versions that are ready."""
        return [served for model in self._models.values() for served in model.versions.values()]

    def versions(self, name: str) -> list[int]:
        """The versions of a model that are ready. Raises as `get`."""
        return sorted(self._found(name).versions)

    def get(self, name: str, version: str | None = None) -> ServedModel:
        """A version that is ready; by default the newest.

        Raises:
            NotFoundError: there is no such model, or not that version of it.
            UnavailableError: it is being loaded, or could not be.
        """
        model = self._found(name)
        if not model.versions:
            if not model.is_wanted:
                raise NotFoundError(f"model {name!r} is not loaded", expected="a model that is", actual=name)
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
        """A version, or each of a model, or each there is that is ready. Raises as `get`."""
        if name is None:
            return self.served()
        newest = self.get(name, version)
        return [newest] if version is not None else list(self._found(name).versions.values())

    @contextmanager
    def used(self, name: str, version: str | None = None) -> Iterator[ServedModel]:
        """A block in which a version stays open, whatever replaces it. Raises as `get`."""
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

    async def load_all(self, but: Collection[str] = ()) -> None:
        """Load every model, one after the other, but for those that are taken away. Raises what the first raises that
        cannot be loaded, with its name.
        """
        for name in self._models:
            try:
                await (self.unload(name) if name in but else self.load(name))
            except OpError as error:
                error.message = f"model {name!r}: {error.message}"
                raise

    async def load(self, name: str) -> None:
        """Load a model, or load it again as it now is; what was there goes on answering until the new one can.

        Raises:
            NotFoundError: there is no such model, or nothing in its place.
            OpError: it cannot be opened. What was there still is.
        """
        model = self._found(name)
        await self._owned(self._load(name, model))

    async def unload(self, name: str) -> None:
        """Take a model away, and wait until its requests have been answered. Raises as `load`."""
        model = self._found(name)
        await self._owned(self._unload(name, model))

    async def _owned(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this in a task of the group, to its end, whether or not the caller waits for it."""
        if self._group is None or self._is_closing:
            work.close()
            raise UnavailableError("the service is not open, or is about to end")
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            try:
                await work
            except Exception as error:
                _settle(outcome, error)
            else:
                _settle(outcome, None)

        def ended(task: asyncio.Task[None]) -> None:
            self._loads.discard(task)
            work.close()  # of a task that was cancelled before it began
            _settle(outcome, _ending())

        task = self._group.create_task(run())
        self._loads.add(task)
        task.add_done_callback(ended)
        await outcome

    async def _load(self, name: str, model: _Model) -> None:
        async with model.lock:
            model.is_wanted, model.is_loading = True, True
            self._note_change()
            opened: dict[int, ServedModel] = {}
            try:
                places = await in_thread(model.source.find, effects=False)
                for version, path in sorted(places.items()):
                    served = opened[version] = await self._open(name, version, path, model)
                    served.tally = model.tallies.setdefault(version, served.tally)
            except BaseException as error:
                model.failure = getattr(error, "message", "") or type(error).__name__
                if model.versions:
                    _LOG.warning("model %s cannot be loaded again, and stays as it is: %s", name, model.failure)
                for served in opened.values():
                    await self._let_go(served)
                raise
            finally:
                model.is_loading = False
            if self._group is not None:
                self._leave(model, self._group)
            model.versions, model.failure = opened, ""
            self._note_change()
            _LOG.info("model %s is ready: %s", name, ", ".join(f"version {each}" for each in opened))

    async def _open(self, name: str, version: int, path: str, model: _Model) -> ServedModel:
        count = 0
        if self.memory is not None:
            count = await in_thread(weight_bytes, path, effects=False)
            self.memory.take(count, f"model {name!r} version {version}")
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
            _LOG.info("model %s has been taken away", name)

    def _leave(self, model: _Model, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Let go of all versions of a model, in tasks of a group."""
        closes = []
        while model.versions:
            served = model.versions.popitem()[1]
            self._leaving.add(served)
            close = group.create_task(self._let_go(served))
            self._closes.add(close)
            close.add_done_callback(self._closes.discard)
            closes.append(close)
        return closes

    async def _let_go(self, served: ServedModel) -> None:
        self._leaving.add(served)
        count, graph = served.weight_bytes, weakref.ref(served.model.graph)
        try:
            await served.close(self._drain_seconds)
        except Exception:  # it is of no use any more, and the others are not to end on its account
            _LOG.exception("%s version %d has not been closed properly", served.name, served.version)
        finally:
            self._leaving.discard(served)
            self._give_back(count)
        del served
        # A graph and its nodes refer to one another: left to itself, Python may keep the weights for many reloads. And
        # while the loop has callbacks of the session to call, a look at the garbage does not find it.
        for pause in _LOOKS:
            await asyncio.sleep(pause)
            await in_thread(gc.collect, effects=False)
            if graph() is None or self._is_closing:
                return


def _ending() -> UnavailableError:
    return UnavailableError("the service is about to end")


def _settle(outcome: asyncio.Future[None], error: Exception | None) -> None:
    if outcome.done():
        return
    if error is None:
        outcome.set_result(None)
    else:
        outcome.set_exception(error)
        outcome.exception()  # somebody has looked, should whoever asked be gone
