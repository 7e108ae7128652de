"""A GPU driver without a GPU, whose streams and events are logged and checked for races.

Work runs at once, in the order of the calls; the check is whether that order was *required*. Each stream, and the host,
has a vector clock. An event carries its stream's clock to each stream that waits for it. An access to memory that is
not ordered after the last write by another stream (or, for a write, after all reads) is a `RaceError`. On a real GPU it
would be an occasional race. (Lamport, "Time, clocks, and the ordering of events", CACM 21, 1978.)

Events pass when the test says so (`passes_at_once = False`, then `advance`). Work submitted to a stream during its
capture is recorded, and undone at the end, since CUDA would not have run it. A launch of the graph repeats the work,
and its accesses to memory are those of the launch's stream.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tests.backends.cupy.fake_arrays import SURFACE, FakeArray, FakeCupy, Memory

__all__ = ["FakeDriver", "FakePool", "RaceError"]

HOST = "host"
Clock = dict[str, int]


class RaceError(Exception):
    """Two unordered accesses to one memory, at least one of them a write."""


class _History:
    """The last write to a memory and the reads since, each as stream and tick."""

    __slots__ = ("reads", "write")

    def __init__(self) -> None:
        self.write: tuple[str, int] | None = None
        self.reads: Clock = {}


class FakeEvent:
    """A fake of an event of CUDA."""

    def __init__(self, driver: FakeDriver, name: str) -> None:
        self.driver = driver
        self.name = name
        self.clock: Clock = {}
        self.passed = False
        self.error: Exception | None = None

    @property
    def done(self) -> bool:
        if self.error is not None:
            raise self.error
        if self.passed:
            self.driver.merge(HOST, self.clock)
        return self.passed

    def synchronize(self) -> None:
        self.driver.note("synchronize", self.name)
        self.passed = True
        self.driver.merge(HOST, self.clock)


class FakeStream:
    """A fake stream; the log uses its name."""

    def __init__(self, driver: FakeDriver, name: str, device: int) -> None:
        self.driver = driver
        self.name = name
        self.device_id = device
        self.noted: list[Callable[[], object]] | None = None
        self.accesses: list[tuple[Memory, bool]] = []
        self.saved: dict[Memory, Any] = {}

    def record(self, event: FakeEvent) -> FakeEvent:
        self.driver.tick(self.name)
        event.clock = dict(self.driver.clocks[self.name])
        event.name = f"{self.name}#{next(self.driver.numbers)}"
        event.passed = self.driver.passes_at_once
        self.driver.events.append(event)
        self.driver.note("record", self.name, event.name)
        return event

    def wait_event(self, event: FakeEvent) -> None:
        self.driver.note("wait", self.name, event.name)
        self.driver.merge(self.name, event.clock)

    def begin_capture(self) -> None:
        self.driver.note("capture", self.name)
        self.noted, self.accesses, self.saved = [], [], {}

    def end_capture(self) -> FakeGraph:
        noted, self.noted = self.noted, None
        for memory, before in self.saved.items():
            memory.root[...] = before
        if noted is None:
            raise RuntimeError("cudaErrorStreamCaptureInvalidated: the capture has failed")
        self.driver.note("captured", self.name)
        return FakeGraph(self.driver, noted, self.accesses)


class FakeGraph:
    """A fake graph: captured work."""

    def __init__(
        self, driver: FakeDriver, noted: list[Callable[[], object]], accesses: list[tuple[Memory, bool]]
    ) -> None:
        self.driver = driver
        self.noted = noted
        self.accesses = accesses

    def launch(self, stream: FakeStream) -> None:
        self.driver.note("launch", stream.name)
        self.driver.merge(stream.name, self.driver.clocks[HOST])
        for memory, writes in self.accesses:
            self.driver.access(stream.name, memory, writes)
        for work in self.noted:
            work()


class FakePool:
    """A fake memory pool, which counts the bytes of live arrays."""

    def __init__(self) -> None:
        self.used = 0
        self.peak = 0

    def malloc(self, size: int) -> FakePool:
        self.used += size
        self.peak = max(self.peak, self.used)
        return self

    def release(self, size: int) -> None:
        self.used -= size

    def used_bytes(self) -> int:
        return self.used

    def total_bytes(self) -> int:
        return self.peak

    def free_all_blocks(self) -> None:
        self.peak = self.used


class Pinned(np.ndarray[Any, Any]):
    """Page-locked host memory, which records reads and writes by the host."""

    memory: Memory
    driver: FakeDriver

    def __array_finalize__(self, other: Any) -> None:
        if isinstance(other, Pinned):
            self.memory, self.driver = other.memory, other.driver

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function is np.copyto:
            self.driver.access(HOST, args[0].memory, writes=True)
            args = (args[0].view(np.ndarray), *args[1:])
            return np.copyto(*args, **kwargs)
        return super().__array_function__(function, types, args, kwargs)

    def copy(self, order: Any = "C") -> Any:
        self.driver.access(HOST, self.memory, writes=False)
        return np.array(self.view(np.ndarray))


class FakeDriver:
    """A fake of `aioflow_cupy.driver.CudaDriver`.

    Attributes:
        log: The calls, as tuples that begin with a word.
        passes_at_once: Whether events pass as soon as they are recorded.
        neighbours: Whether devices can copy to each other directly.
    """

    def __init__(self, devices: int = 1, *, passes_at_once: bool = True, neighbours: bool = True) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.events: list[FakeEvent] = []
        self.clocks: dict[str, Clock] = {HOST: {}}
        self.numbers = itertools.count()
        self.passes_at_once = passes_at_once
        self.neighbours = neighbours
        self.pools: dict[int, FakePool] = {}
        self.xp = FakeCupy(self)
        self.extras = self.xp
        self._devices = devices
        self._names = itertools.cycle(("compute", "upload", "download", "capture"))
        self._here = threading.local()
        self._lock = threading.RLock()

    # -- the driver ------------------------------------------------------------------------------------------------

    def device_count(self) -> int:
        return self._devices

    def describe(self, device: int) -> tuple[int, str]:
        return 1 << 30, "a fake GPU"

    @contextmanager
    def current(self, device: int, stream: FakeStream, allocator: Any) -> Iterator[None]:
        before = getattr(self._here, "stream", None), getattr(self._here, "allocator", None)
        self._here.stream, self._here.allocator = stream, allocator
        try:
            yield
        finally:
            self._here.stream, self._here.allocator = before

    def stream(self, device: int) -> FakeStream:
        name = next(self._names) + (str(device) if self._devices > 1 else "")
        self.clocks[name] = {}
        return FakeStream(self, name, device)

    def external_stream(self, device: int, pointer: int) -> FakeStream:
        name = f"external{pointer}"
        self.clocks.setdefault(name, {})
        return FakeStream(self, name, device)

    def event(self, device: int) -> FakeEvent:
        return FakeEvent(self, "unrecorded")

    def pool(self, device: int) -> FakePool:
        return self.pools.setdefault(device, FakePool())

    def private_pool(self) -> FakePool:
        return FakePool()

    def pinned(self, size: int) -> Any:
        made = np.zeros(size, np.uint8).view(Pinned)
        made.memory, made.driver = Memory(made), self
        self.note("pinned", size)
        return made

    def upload(self, target: FakeArray, source: Any, stream: FakeStream) -> None:
        self._copy("upload", stream, source.memory, target.memory)
        target.raw[...] = source.view(np.ndarray)

    def download(self, target: Any, source: FakeArray, stream: FakeStream) -> None:
        self._copy("download", stream, source.memory, target.memory)
        target.view(np.ndarray)[...] = source.raw

    def copy_between(self, target: FakeArray, source: FakeArray, stream: FakeStream) -> None:
        self._copy("peer", stream, source.memory, target.memory)
        target.raw[...] = source.raw

    def _copy(self, what: str, stream: FakeStream, source: Memory, target: Memory) -> None:
        self.note(what, stream.name)
        self.merge(stream.name, self.clocks[HOST])
        self.access(stream.name, source, writes=False)
        self.access(stream.name, target, writes=True)

    def reach(self, device: int, other: int) -> bool:
        return self.neighbours

    def generator(self, entropy: Any) -> Any:
        return FakeGenerator(self.xp, np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy))))

    def special(self) -> Any:
        return None

    def import_array(self, exporter: Any) -> Any:
        self.note("import", self._here.stream.name)
        return exporter.__dlpack__(stream=self._here.stream.name)

    # -- the tracker -----------------------------------------------------------------------------------------------

    def read(self, memory: Memory) -> None:
        self._touch(memory, writes=False)

    def write(self, memory: Memory) -> None:
        self._touch(memory, writes=True)

    def wait(self) -> None:
        stream = self._stream()
        if stream is not None and stream.noted is not None:
            stream.noted = None
            raise RuntimeError("cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing")
        if stream is not None:
            self.merge(HOST, self.clocks[stream.name])

    def make(self, memory: Memory) -> None:
        allocator = getattr(self._here, "allocator", None)
        if allocator is not None:
            pool = allocator(memory.root.nbytes)
            weakref.finalize(memory, pool.release, memory.root.nbytes)

    def did(self, again: Callable[[], object]) -> None:
        stream = self._stream()
        if stream is not None and stream.noted is not None:
            stream.noted.append(again)

    def _stream(self) -> FakeStream | None:
        return getattr(self._here, "stream", None)

    def _touch(self, memory: Memory, writes: bool) -> None:
        stream = self._stream()
        if stream is None:
            raise RaceError("an array is used with no stream current: that is the legacy default stream")
        if stream.noted is not None:
            stream.accesses.append((memory, writes))
            if writes:
                stream.saved.setdefault(memory, memory.root.copy())
            return
        self.merge(stream.name, self.clocks[HOST])
        self.access(stream.name, memory, writes)

    # -- order -----------------------------------------------------------------------------------------------------

    def tick(self, stream: str) -> int:
        with self._lock:
            clock = self.clocks[stream]
            clock[stream] = clock.get(stream, 0) + 1
            return clock[stream]

    def merge(self, stream: str, clock: Clock) -> None:
        """Merge `clock` into the clock of `stream`: these events have happened before."""
        with self._lock:
            own = self.clocks[stream]
            for name, tick in list(clock.items()):
                own[name] = max(own.get(name, 0), tick)

    def access(self, stream: str, memory: Memory, writes: bool) -> None:
        """Check and record an access by a stream or by the host.

        Raises:
            RaceError: the access is not ordered after a conflicting one.
        """
        with self._lock:
            tick, known = self.tick(stream), self.clocks[stream]
            history = memory.history = memory.history or _History()
            before = list(history.reads.items()) if writes else []
            if history.write is not None:
                before.append(history.write)
            for other, at in before:
                if known.get(other, 0) < at:
                    raise RaceError(f"{stream} {'writes' if writes else 'reads'} what {other} may still be at")
            if writes:
                history.write, history.reads = (stream, tick), {}
            else:
                history.reads[stream] = tick

    def note(self, *what: Any) -> None:
        self.log.append(what)

    def advance(self, stream: str | None = None) -> None:
        """Let the events recorded until now pass: those of one stream, or all."""
        for event in self.events:
            if stream is None or event.name.startswith(f"{stream}#"):
                event.passed = True

    def words(self, *kinds: str) -> list[tuple[Any, ...]]:
        """Return the log entries that begin with these words, with event numbers removed."""
        return [tuple(str(w).split("#")[0] for w in entry) for entry in self.log if entry[0] in kinds]


class FakeGenerator:
    """A fake of CuPy's `cupy.random.Generator`, with only the methods that CuPy has."""

    def __init__(self, xp: FakeCupy, generator: Any) -> None:
        self._xp = xp
        self._generator = generator

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in SURFACE["generator"]:
            raise AttributeError(f"CuPy's generator has no {name!r}")
        draw = getattr(self._generator, name)
        return lambda *args, **kwargs: self._xp.wrapped(
            np.asarray(draw(*(self._xp.argument(a) for a in args), **kwargs)), None
        )
