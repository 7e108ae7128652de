"""Programs that fork, one a name: `python forks.py NAME`. They end by 0, or say what went wrong.

Each child has half a minute; one that needs more is killed, and counts as one that hangs.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import numpy as np

import aioflow as af
from aioflow.graph.default_graph import _PROCESS
from aioflow.kernels import resources
from aioflow.net.comm import Comm
from aioflow.net.framing import Kind, Message
from aioflow.net.recycling import RECEIVED
from aioflow.net.transports import connect, listen
from aioflow.runtime.executor import DeviceThreads
from aioflow.runtime.step import Step
from aioflow.session.planner import _PINNING
from aioflow.work.segments import SHARED
from aioflow_cupy.backend import CupyBackend
from tests.backends.cupy.fake_driver import FakeDriver

_PATIENCE: Final = 30.0
_END: Final = 60  # seconds until a child ends that nobody has waited for
THREADS: Final = af.SessionConfig(inline_budget=-1.0)  # everything hops to the device's threads


# -- children --------------------------------------------------------------------------------------------------------


def fork(work: Callable[[], Any], *, leave: bool = False) -> int:
    """Call `work` in a child, which then ends at once, or, with `leave`, as a program does; returns its number."""
    number = os.fork()
    if number:
        return number
    signal.alarm(_END)
    code = 1
    try:
        work()
        code = 0
    except SystemExit as ended:  # of a grandchild
        code = ended.code if isinstance(ended.code, int) else 1
        if code:
            traceback.print_exc()
    except BaseException:
        traceback.print_exc()
    if not leave:
        os._exit(code)
    sys.exit(code)


def end(number: int) -> None:
    """Wait for a child, which must succeed."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        found, status = os.waitpid(number, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
            if code:
                raise SystemExit(f"the child has failed: {code}")
            return
        time.sleep(0.005)
    os.kill(number, signal.SIGKILL)
    os.waitpid(number, 0)
    raise SystemExit("the child hangs")


def in_child(work: Callable[[], Any], *, leave: bool = False) -> None:
    end(fork(work, leave=leave))


def refused(call: Callable[[], Any]) -> None:
    """The call says what to do."""
    try:
        call()
    except af.errors.FailedPreconditionError as error:
        text = str(error)
    else:
        raise SystemExit("it was not refused")
    if "forked" not in text or "in this process" not in text:
        raise SystemExit(text)


# -- steps -----------------------------------------------------------------------------------------------------------


class Model:
    """A step on the device's threads, and one with products that are worth several cores."""

    def __init__(self) -> None:
        self.x = af.placeholder("float32", [None, 256])
        self.w = af.Variable(np.ones((256, 256), np.float32))
        self.y = af.reduce_sum(af.matmul(self.x, self.w))
        self.value = np.ones((600, 256), np.float32)

    async def run(self, target: str = "") -> None:
        async with af.Session(target, config=THREADS) as session:
            await session.run(self.w.initializer)
            for _ in range(3):
                found = await session.run(self.y, {self.x: self.value})
                if found != 600 * 256 * 256:
                    raise SystemExit(f"a wrong result: {found}")

    def run_anew(self, target: str = "") -> None:
        """In a session and on a loop of its own."""
        asyncio.run(self.run(target))

    def opened(self, target: str = "") -> af.Session:
        """A session that has run steps by `run_sync`."""
        session = af.Session(target, config=THREADS)
        session.run_sync(self.w.initializer)
        self.run_in(session)
        return session

    def run_in(self, session: af.Session) -> None:
        if session.run_sync(self.y, {self.x: self.value}) != 600 * 256 * 256:
            raise SystemExit("a wrong result")


def a_process_of_multiprocessing() -> None:
    model = Model()
    model.run_anew()
    process = multiprocessing.get_context("fork").Process(target=model.run_anew)
    process.start()
    process.join(_PATIENCE)
    if process.exitcode != 0:
        process.kill()
        raise SystemExit(f"exit code {process.exitcode}")
    model.run_anew()


INHERITED: Final[list[Model]] = []


def _run_what_is_inherited() -> None:
    INHERITED[0].run_anew()


def a_pool_of_multiprocessing() -> None:
    """Made on the event loop, between two steps."""
    INHERITED.append(Model())

    async def main() -> None:
        await INHERITED[0].run()
        with multiprocessing.get_context("fork").Pool(2) as pool:
            pending = [pool.apply_async(_run_what_is_inherited) for _ in range(4)]
            for result in pending:
                await asyncio.to_thread(result.get, _PATIENCE)
        await INHERITED[0].run()

    asyncio.run(main())


def a_server_that_preloads() -> None:
    """It forks its workers after the import, and after a run; they run steps, fork again and end as programs do."""
    model = Model()
    in_child(model.run_anew, leave=True)
    session = model.opened()

    def work() -> None:
        model.run_anew()
        with model.opened() as own:
            model.run_in(own)
        in_child(model.run_anew, leave=True)
        gc.collect()

    for number in [fork(work, leave=True) for _ in range(3)]:
        end(number)
    model.run_in(session)
    session.__exit__(None, None, None)


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


def a_session_of_the_parent() -> None:
    model = Model()
    session = model.opened()
    call = session.make_callable(model.y, [model.x])
    worker = session.worker

    def work() -> None:
        for attempt in (
            lambda: session.run_sync(model.y, {model.x: model.value}),
            lambda: asyncio.run(session.run(model.y, {model.x: model.value})),
            lambda: asyncio.run(_awaited(call(model.value))),
            lambda: asyncio.run(session.clear()),
            lambda: asyncio.run(session.partial_run_setup([model.y], [model.x])),
            lambda: session.stream(model.y),
            lambda: session.reset(),
            lambda: session.__enter__(),
            lambda: asyncio.run(session.__aenter__()),
            lambda: af.Session(worker),
        ):
            refused(attempt)
        asyncio.run(session.close())
        session.__exit__(None, None, None)
        asyncio.run(session.__aexit__(None, None, None))
        if not session.closed:
            raise SystemExit("it was not closed")

    in_child(work)
    in_child(work, leave=True)
    model.run_in(session)
    session.__exit__(None, None, None)


def a_session_around_the_fork() -> None:
    """The child leaves the block that the parent entered, by an exit."""
    model = Model()
    with af.Session(config=THREADS) as session:
        session.run_sync(model.w.initializer)
        model.run_in(session)
        child = os.fork()
        if not child:
            sys.exit(0)
        end(child)
        model.run_in(session)
    if not session.closed:
        raise SystemExit("it is open")


def a_session_that_the_child_drops() -> None:
    model = Model()
    sessions = [model.opened()]

    def work() -> None:
        sessions.clear()
        gc.collect()
        model.run_anew()

    in_child(work, leave=True)
    model.run_in(sessions[0])


def in_the_middle_of_a_step() -> None:
    """Another thread computes, and a coroutine waits for it."""
    model = Model()
    begun, go = threading.Event(), threading.Event()

    def hold(value: Any) -> Any:
        begun.set()
        go.wait(_PATIENCE)
        return value

    held = af.py_func(hold, [model.y], af.float32)
    results: list[Any] = []

    def compute() -> None:
        with af.Session(config=THREADS) as session:
            session.run_sync(model.w.initializer)
            results.append(session.run_sync(held, {model.x: model.value}))

    thread = threading.Thread(target=compute)
    thread.start()
    begun.wait(_PATIENCE)
    in_child(model.run_anew, leave=True)
    go.set()
    thread.join(_PATIENCE)
    if results != [600 * 256 * 256]:
        raise SystemExit(f"the parent has {results}")


def while_another_thread_holds_each_lock() -> None:
    """The graph's, that of the process's default graph, of plans, of received memory, of a variable."""
    graph = af.get_default_graph()
    model = Model()
    session = model.opened()
    variables: list[Any] = []
    for device in session.worker.devices.values():
        manager = device.resources
        variables += [manager.find("", name) for name in manager.names()]
    if not any(isinstance(found, resources.VariableResource) for found in variables):
        raise SystemExit("no variable")
    held, go = threading.Barrier(2), threading.Event()

    def hold(lock: Any) -> None:
        with lock:
            held.wait()
            go.wait(_PATIENCE)

    managers = [device.resources._lock for device in session.worker.devices.values()]
    locks = [graph.lock, _PROCESS.lock, _PINNING.lock, RECEIVED._lock, *managers, *(v.lock for v in variables)]
    for lock in locks:
        thread = threading.Thread(target=hold, args=(lock,))
        thread.start()
        held.wait(_PATIENCE)

    def work() -> None:
        with graph.as_default():
            v = af.get_variable("made_in_the_child", [3])
            y = af.reduce_sum(v) + 1.0
        config = af.SessionConfig(inline_budget=-1.0, device_count={"CPU": 2})
        with af.Session(config=config) as own:
            own.run_sync(v.initializer)
            own.run_sync(y)
        model.run_anew()
        RECEIVED.empty((1 << 20,), np.dtype(np.float32))
        asyncio.run(session.close())
        af.reset_default_graph()

    in_child(work, leave=True)
    go.set()


def what_is_random_or_unique_differs() -> None:
    """Draws without a seed, and the names of Python functions, which processes of a cluster would take for each
    other's.
    """
    noise = af.random_uniform([4])
    read, write = os.pipe()

    def draw() -> str:
        with af.Session() as session:
            found = session.run_sync(noise)
        token = af.py_func(lambda: np.float32(1.0), [], af.float32).op.get_attr("token")
        return f"{found.tolist()} {token}\n"

    results = {draw()}
    for _ in range(2):
        in_child(lambda: os.write(write, draw().encode()))
    os.close(write)
    with os.fdopen(read) as lines:
        results |= set(lines)
    if len(results) != 3 or len({line.split()[-1] for line in results}) != 3:
        raise SystemExit(str(results))


def a_grandchild() -> None:
    model = Model()
    model.run_anew()

    def child() -> None:
        session = model.opened()

        def grandchild() -> None:
            model.run_anew()
            refused(lambda: model.run_in(session))

        in_child(grandchild, leave=True)
        model.run_in(session)
        session.__exit__(None, None, None)

    in_child(child, leave=True)


def large_graphs_are_compiled_in_threads() -> None:
    y = af.constant(0.0)
    x = af.placeholder("float32", [])
    y = x
    for _ in range(400):
        y = af.sin(y)

    async def main() -> None:
        async with af.Session(config=THREADS) as session:
            await session.run(y, {x: 1.0})

    asyncio.run(main())
    in_child(lambda: asyncio.run(main()), leave=True)


def with_uvloop() -> None:
    import uvloop

    model = Model()
    uvloop.run(model.run())
    in_child(lambda: uvloop.run(model.run()), leave=True)


def gpus_of_the_parent() -> None:
    """CUDA works in no child of a process that has used it."""
    backend = CupyBackend(FakeDriver())
    if not backend.count():
        raise SystemExit("there is no GPU to lose")

    def work() -> None:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            if backend.count():
                raise SystemExit("there is a GPU")
            try:
                backend.device(0)
            except af.errors.NotFoundError:
                pass
            else:
                raise SystemExit("there is a GPU")
        if not all("spawn" in str(warning.message) for warning in found) or not found:
            raise SystemExit(str(found))

    in_child(work)
    if not backend.count():
        raise SystemExit("the parent has lost its GPU")


# -- clusters --------------------------------------------------------------------------------------------------------


class Servers:
    """A server in a thread of the parent, or in a child of its own.

    Attributes:
        target: What sessions are opened with.
    """

    def __init__(self) -> None:
        self._ready, self._done = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),), daemon=True)
        self.registered: Callable[[], int]
        self.server: Any

    async def _serve(self) -> None:
        async with af.train.Server.create_local_server() as self.server:
            loop = asyncio.get_running_loop()

            def registered() -> int:
                state = asyncio.run_coroutine_threadsafe(self.server.worker.state(), loop).result(_PATIENCE)
                return int(state.registered)

            self.registered = registered
            self._ready.set()
            await asyncio.to_thread(self._done.wait)

    def __enter__(self) -> Servers:
        self._thread.start()
        self._ready.wait(_PATIENCE)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._done.set()
        self._thread.join(_PATIENCE)

    @property
    def target(self) -> str:
        return str(self.server.target)


def a_session_on_a_cluster() -> None:
    """A child that closes it, or ends, says nothing to the workers; and it opens its own."""
    model = Model()
    with Servers() as servers:
        session = model.opened(servers.target)

        def work() -> None:
            refused(lambda: model.run_in(session))
            asyncio.run(session.close())
            session.__exit__(None, None, None)
            model.run_anew(servers.target)

        for leave in (False, True):
            in_child(work, leave=leave)
            model.run_in(session)
        session.__exit__(None, None, None)


def a_child_inside_the_loop_of_a_session_on_a_cluster() -> None:
    """It leaves the block that the parent has entered. (Beyond that asyncio itself would harm the parent's loop.)"""
    model = Model()

    async def main(target: str) -> None:
        async with af.Session(target, config=THREADS) as session:
            await session.run(model.w.initializer)
            child = os.fork()
            if child:
                await asyncio.to_thread(end, child)
                if await session.run(model.y, {model.x: model.value}) != 600 * 256 * 256:
                    raise SystemExit("a wrong result")
        if not child:
            os._exit(0)

    with Servers() as servers:
        asyncio.run(main(servers.target))


def a_child_that_drops_what_its_parent_awaits() -> None:
    """As the collector would. It is not counted among what the child's own threads are at."""
    threads = DeviceThreads("-test", 1)
    begun, go = threading.Event(), threading.Event()

    def hold() -> bool:
        begun.set()
        return go.wait(_PATIENCE)

    def child(coroutine: Coroutine[Any, Any, Any]) -> None:
        coroutine.close()
        if asyncio.run(threads.run(Step(), lambda: 1)) != 1:
            raise SystemExit("a wrong result")

    async def main() -> None:
        coroutine = threads.run(Step(), hold)
        future = coroutine.send(None)
        begun.wait(_PATIENCE)
        in_child(lambda: child(coroutine))
        go.set()
        await asyncio.wait([future])
        coroutine.close()

    asyncio.run(main())


def a_parent_that_dies_while_its_child_lives() -> None:
    """Its connections end with it, and its port is free."""
    model = Model()
    read, write = os.pipe()
    with Servers() as servers:

        def parent() -> None:
            session = model.opened(servers.target)
            own = Servers().__enter__()
            child = os.fork()
            if not child:
                os.close(write)
                time.sleep(_PATIENCE)  # killed before
                os._exit(0)
            os.write(write, f"{child} {own.target}".encode())
            model.run_in(session)
            os._exit(0)

        number = fork(parent)
        child, target = os.read(read, 100).decode().split()
        try:
            end(number)
            deadline = time.monotonic() + 10.0  # without a word from its client a server waits for a minute
            while servers.registered() and time.monotonic() < deadline:
                time.sleep(0.01)
            if servers.registered():
                raise SystemExit("the connection lives on")
            try:
                asyncio.run(af.Session(target).__aenter__())
            except af.errors.UnavailableError:
                pass
            else:
                raise SystemExit("the port lives on")
        finally:
            os.kill(int(child), signal.SIGKILL)


def a_server_of_the_parent() -> None:
    """A child can neither start nor stop it, nor does it use it without a connection."""
    model = Model()
    unstarted = af.train.Server.create_local_server()
    with Servers() as servers:

        def work() -> None:
            for server in (servers.server, unstarted):
                refused(lambda: asyncio.run(server.start()))  # noqa: B023
                refused(lambda: asyncio.run(server.join()))  # noqa: B023
                asyncio.run(server.stop())
            model.run_anew(servers.target)

        in_child(work, leave=True)
        model.run_anew(servers.target)


class Echo:
    """A connection to another process, whose tensors are shared."""

    def __init__(self, comm: Comm) -> None:
        self.comm = comm

    async def returned(self, value: int) -> Any:
        """A large array of one value, as it has come back."""
        await self.comm.send(Message(Kind.PUSH, value, {}, [np.full(1_000_000, value, np.uint8)]))
        answer = await self.comm.receive()
        if answer is None or set(answer.tensors[0].tolist()) != {value}:
            raise SystemExit("something else came back")
        return answer.tensors[0]


async def serve_echo(told: int) -> None:
    async def serve(comm: Comm) -> None:
        while (message := await comm.receive()) is not None:
            await comm.send(message)

    async with listen("tcp://127.0.0.1:0", serve) as listener:
        os.write(told, listener.address.encode())
        await asyncio.sleep(_END)


def with_echo(work: Callable[[Echo], Coroutine[Any, Any, None]]) -> None:
    async def main(address: str) -> None:
        async with await connect(address) as comm:
            echo = Echo(comm)
            for value in range(3):
                await echo.returned(value)
            if (await echo.returned(3)).flags.writeable:
                raise SystemExit("nothing is shared")
            await work(echo)

    read, write = os.pipe()
    server = fork(lambda: asyncio.run(serve_echo(write)))
    try:
        asyncio.run(main(os.read(read, 100).decode()))
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)


async def fork_and_go_on(echo: Echo) -> None:
    kept: Any = await echo.returned(101)
    held: list[Any] = [await echo.returned(100), SHARED.empty((1_000_000,), np.dtype(np.uint8))]
    if held[1] is None:
        raise SystemExit("there is no memory to send from")
    held[1][:] = 100
    read, write = os.pipe()

    def work() -> None:
        nonlocal kept
        kept = None  # which the parent goes on to hold
        os.read(read, 1)  # until the parent has sent more
        for array in held:
            if set(array.tolist()) != {100}:
                raise SystemExit(f"the child holds {set(array.tolist())}")

    child = fork(work)
    held.clear()
    for value in range(4, 20):
        await echo.returned(value)
    os.write(write, b"x")
    end(child)
    if set(kept.tolist()) != {101}:
        raise SystemExit(f"the parent holds {set(kept.tolist())}")
    if SHARED.lent + SHARED.waiting > 8_000_000:
        raise SystemExit("memory does not come back after a fork")


async def go_on(echo: Echo) -> None:
    await echo.returned(50)


def with_tensors_in_shared_memory() -> None:
    """What parent and child both hold at the fork stays as it was for both, whatever either sends after it."""
    with_echo(fork_and_go_on)
    in_child(lambda: with_echo(go_on))
    with_echo(go_on)


PROGRAMS: Final[tuple[Callable[[], None], ...]] = (
    a_process_of_multiprocessing,
    a_pool_of_multiprocessing,
    a_server_that_preloads,
    a_session_of_the_parent,
    a_session_around_the_fork,
    a_session_that_the_child_drops,
    in_the_middle_of_a_step,
    while_another_thread_holds_each_lock,
    what_is_random_or_unique_differs,
    a_grandchild,
    large_graphs_are_compiled_in_threads,
    with_uvloop,
    gpus_of_the_parent,
    a_session_on_a_cluster,
    a_child_inside_the_loop_of_a_session_on_a_cluster,
    a_child_that_drops_what_its_parent_awaits,
    a_parent_that_dies_while_its_child_lives,
    a_server_of_the_parent,
    with_tensors_in_shared_memory,
)

if __name__ == "__main__":
    {program.__name__: program for program in PROGRAMS}[sys.argv[1]]()
