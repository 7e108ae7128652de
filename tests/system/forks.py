"""Programs that fork: `python forks.py NAME` runs one. It exits with 0 or an error message.

Each child has half a minute. A child that needs more is killed, and counts as hanging.
"""

from __future__ import annotations

import asyncio
import gc
import logging
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
from aioflow.memory.segments import SHARED
from aioflow.net.comm import Comm
from aioflow.net.framing import FrameKind, WireMessage
from aioflow.net.tensor_format import RECEIVED
from aioflow.net.transports import connect, listen
from aioflow.observe.logs import BackgroundHandler
from aioflow.runtime.executor import DeviceThreads
from aioflow.runtime.step import Step
from aioflow.session.planner import _PINNING
from aioflow_cupy.backend import CupyBackend
from tests.backends.cupy.fake_driver import FakeDriver

_PATIENCE: Final = 30.0
_END: Final = 60  # seconds after which a child ends if its parent does not wait for it
THREADS: Final = af.SessionConfig(inline_budget=-1.0)  # every kernel runs on the device's threads


# -- children --------------------------------------------------------------------------------------------------------


def fork(work: Callable[[], Any], *, leave: bool = False) -> int:
    """Call `work` in a child and return its process ID.

    The child then ends at once, or, with `leave`, by a normal exit of the program.
    """
    number = os.fork()
    if number:
        return number
    signal.alarm(_END)
    code = 1
    try:
        work()
        code = 0
    except SystemExit as ended:  # raised in a grandchild
        code = ended.code if isinstance(ended.code, int) else 1
        if code:
            traceback.print_exc()
    except BaseException:
        traceback.print_exc()
    if not leave:
        os._exit(code)
    sys.exit(code)


def end(number: int) -> None:
    """Wait for a child. Exit with an error unless it succeeds in time."""
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
    """Exit with an error unless the call is rejected because of the fork, with advice."""
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
    """A step that runs on the device's threads, with a product that is large enough for several cores."""

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
        """Run steps in a new session on a new loop."""
        asyncio.run(self.run(target))

    def opened(self, target: str = "") -> af.Session:
        """Return a session that has run steps by `run_sync`."""
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
    """Make the pool on the event loop, between two steps."""
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
    """Fork workers after the import and after a step; they run steps, fork again and exit normally."""
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
    """Leave the block of the parent's session in the child by `sys.exit`."""
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
    """Fork while another thread computes and a coroutine waits for it."""
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
    """Fork while the locks of graphs, plans, received memory, resource managers and variables are held."""
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


def while_another_thread_makes_its_event_loop() -> None:
    """Fork while a blocking session of another thread holds a lock of asyncio's policy."""
    began, lock = threading.Event(), threading.Lock()

    class SlowPolicy(asyncio.DefaultEventLoopPolicy):
        def new_event_loop(self) -> asyncio.AbstractEventLoop:
            with lock:
                began.set()
                time.sleep(0.2)  # the main thread has asked to fork by now
                return super().new_event_loop()

    asyncio.set_event_loop_policy(SlowPolicy())
    x = af.constant(2.0) * 3.0

    def run() -> None:
        with af.Session() as session:
            session.run_sync(x)

    thread = threading.Thread(target=run)
    thread.start()
    began.wait(_PATIENCE)
    in_child(run)
    thread.join()


def what_is_random_or_unique_differs() -> None:
    """Check that children draw other random numbers, and give Python functions other tokens.

    Processes of a cluster would otherwise take such a function for one of another process.
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
    """Check that a child sees no GPU: CUDA does not work in a child of a process that has used it."""
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
    """A server in a thread of this process.

    Attributes:
        registered: Function that returns the number of registered parts.
        server: The running server.
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
    """Check that a child may close the parent's session without an effect on the workers, and can open its own."""
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
    """Leave the block of the parent's session in a child, inside the loop.

    The child does nothing else, because asyncio itself would then harm the parent's loop.
    """
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
    """Close a coroutine in the child that the parent awaits, as the garbage collector would.

    The coroutine does not count as work of the child's own threads.
    """
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
    """Check that the parent's connections end with it and its port becomes free, although its child lives."""
    model = Model()
    read, write = os.pipe()
    with Servers() as servers:

        def parent() -> None:
            session = model.opened(servers.target)
            own = Servers().__enter__()
            child = os.fork()
            if not child:
                os.close(write)
                time.sleep(_PATIENCE)  # the test kills it before
                os._exit(0)
            os.write(write, f"{child} {own.target}".encode())
            model.run_in(session)
            os._exit(0)

        number = fork(parent)
        child, target = os.read(read, 100).decode().split()
        try:
            end(number)
            deadline = (
                time.monotonic() + 10.0
            )  # a server waits a minute for a silent client before it drops the connection
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
    """Check that a child can neither start nor stop the server, and reaches it by a connection only."""
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
    """A connection to a process that returns each message; tensors travel in shared memory."""

    def __init__(self, comm: Comm) -> None:
        self.comm = comm

    async def returned(self, value: int) -> Any:
        """Send a large array of one value, and return the array that comes back."""
        await self.comm.send(WireMessage(FrameKind.PUSH, value, {}, [np.full(1_000_000, value, np.uint8)]))
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
        kept = None  # the parent still holds it
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
    if SHARED.exported + SHARED.waiting > 8_000_000:
        raise SystemExit("memory does not come back after a fork")


async def go_on(echo: Echo) -> None:
    await echo.returned(50)


def with_a_log() -> None:
    """Log in a child, which has no thread that writes."""
    reading, writing = os.pipe()
    with open(reading, encoding="utf-8") as lines, open(writing, "w", encoding="utf-8") as stream:
        handler = BackgroundHandler(stream)

        def log(text: str) -> None:
            handler.handle(logging.LogRecord("aioflow", logging.INFO, __file__, 1, text, (), None))

        def in_the_child() -> None:
            log("child")
            handler.close()

        log("parent")
        written = [lines.readline()]
        in_child(in_the_child)
        written.append(lines.readline())
        log("parent again")
        handler.close()
        written.append(lines.readline())
    if written != ["parent\n", "child\n", "parent again\n"]:
        raise SystemExit(str(written))


def with_tensors_in_shared_memory() -> None:
    """Check that arrays held at the fork stay unchanged in both processes, whatever either sends afterwards."""
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
    while_another_thread_makes_its_event_loop,
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
    with_a_log,
    with_tensors_in_shared_memory,
)

if __name__ == "__main__":
    {program.__name__: program for program in PROGRAMS}[sys.argv[1]]()
