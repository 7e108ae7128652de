"""Sessions, graphs and scopes with real libraries, which may leave a block in another task, thread or context.

Each row of `WAYS` is one way to enter and leave. In all of them steps run, the session is closed in the end, no scope
stays open, and nothing is raised, printed or logged.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from contextvars import copy_context
from typing import Any

import httpx
import pytest
import uvicorn
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

import aioflow as af
from aioflow.graph.default_session import current_session
from aioflow.graph.scopes import current_scope

_PATIENCE = 60.0


class Program:
    """The program of every row: a session with its own graph, and scopes around its use.

    Attributes:
        sessions: Sessions that were opened.
        results: Results of the steps.
    """

    def __init__(self) -> None:
        self.graph = af.Graph()
        with self.graph.as_default():
            self.x = af.placeholder("float32", [], name="x")
            self.y = af.add(self.x, 1.0, name="y")
        self.sessions: list[af.Session] = []
        self.results: list[float] = []

    def session(self) -> af.Session:
        self.sessions.append(af.Session(graph=self.graph))
        return self.sessions[-1]

    @contextmanager
    def scopes(self) -> Iterator[None]:
        with self.graph.as_default(), af.name_scope("name"), af.variable_scope("variables"), af.device("/cpu:0"):
            yield

    async def opened(self) -> AsyncGenerator[af.Session, None]:
        async with self.session() as session:
            with self.scopes():
                yield session

    def opened_sync(self) -> Iterator[af.Session]:
        with self.session() as session, self.scopes():
            yield session

    def run_sync(self, session: af.Session, value: float) -> str:
        self.results.append(float(session.run_sync(self.y, {self.x: value})))
        return str(self.results[-1])

    async def run(self, session: af.Session, value: float) -> str:
        self.results.append(float(await session.run(self.y, {self.x: value})))
        return str(self.results[-1])

    def check(self, graph: af.Graph) -> None:
        """Assert that every session is closed and no scope is left."""
        assert self.sessions
        assert all(session.closed for session in self.sessions)
        assert self.results
        assert af.get_default_session() is None
        assert current_session(self.graph) is None
        assert af.get_default_graph() is graph
        assert current_scope(self.graph) == current_scope(af.Graph())


# -- asyncio ---------------------------------------------------------------------------------------------------------


def start_up_and_shut_down_in_two_tasks(program: Program) -> None:
    async def main() -> None:
        session = program.session()
        await _as_task(session.__aenter__())
        await program.run(session, 1.0)
        await _as_task(session.__aexit__(None, None, None))

    asyncio.run(main())


async def _as_task(work: Any) -> Any:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work)
    return task.result()


def an_exit_stack_that_is_handed_on(program: Program) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(program.session())
            stack.enter_context(program.scopes())
            kept = stack.pop_all()
        await program.run(session, 1.0)
        await _as_task(kept.aclose())
        assert af.get_default_session() is None

    asyncio.run(main())


def entering_with_a_time_limit(program: Program) -> None:
    async def main() -> None:
        session = program.session()
        assert await asyncio.wait_for(session.__aenter__(), 20) is session
        await program.run(session, 1.0)
        await asyncio.wait_for(session.__aexit__(None, None, None), 20)
        assert session.closed

    asyncio.run(main())


def two_tasks_in_one_session(program: Program) -> None:
    async def main() -> None:
        session = program.session()
        turns = asyncio.Barrier(2)

        async def use(last: bool) -> None:
            async with session:
                await turns.wait()
                assert af.get_default_session() is session
                await program.run(session, 1.0)
                if last:
                    await turns.wait()
                    await program.run(session, 2.0)  # the other task has left
                    assert af.get_default_session() is session
            if not last:
                assert not session.closed
                await turns.wait()

        async with asyncio.TaskGroup() as group:
            group.create_task(use(True))
            group.create_task(use(False))

    asyncio.run(main())


def crossed_sessions(program: Program) -> None:
    async def main() -> None:
        first, second = program.session(), program.session()
        await first.__aenter__()
        await second.__aenter__()
        await first.__aexit__(None, None, None)
        assert current_session(program.graph) is second
        with program.graph.as_default():
            program.results.append(float(await program.y.eval({program.x: 1.0})))
        await second.__aexit__(None, None, None)
        with pytest.raises(af.errors.FailedPreconditionError, match="no default session"):
            await program.y.eval({program.x: 1.0})

    asyncio.run(main())


def an_async_generator_that_is_exhausted_by_another_task(program: Program) -> None:
    async def main() -> None:
        generator = program.opened()
        await program.run(await _as_task(anext(generator)), 1.0)
        with pytest.raises(StopAsyncIteration):
            await anext(generator)

    asyncio.run(main())


def an_async_generator_that_is_closed_by_another_task(program: Program) -> None:
    async def main() -> None:
        generator = program.opened()
        await program.run(await anext(generator), 1.0)
        await _as_task(generator.aclose())
        assert af.get_default_session() is None
        assert current_scope(program.graph).name == ""

    asyncio.run(main())


def an_async_generator_that_is_dropped(program: Program) -> None:
    async def main() -> None:
        async for session in program.opened():
            await program.run(session, 1.0)
            break
        gc.collect()
        while not session.closed:  # noqa: ASYNC110  # the loop closes the session in an internal task
            await asyncio.sleep(0)
        assert af.get_default_session() is None
        assert current_scope(program.graph).name == ""

    asyncio.run(main())


def an_async_generator_that_is_left_to_the_end_of_the_loop(program: Program) -> None:
    kept: list[Any] = []

    async def main() -> None:
        kept.append(program.opened())
        await program.run(await anext(kept[0]), 1.0)

    asyncio.run(main())


def a_task_that_is_left_to_the_end_of_the_loop(program: Program) -> None:
    async def main() -> None:
        entered = asyncio.Event()

        async def serve() -> None:
            async for session in program.opened():
                await program.run(session, 1.0)
                entered.set()
                await asyncio.Event().wait()

        asyncio.get_running_loop().create_task(serve())
        await entered.wait()

    asyncio.run(main())


def a_coroutine_that_is_dropped_without_a_loop(program: Program) -> None:
    _waiting_coroutine(program).close()


def a_coroutine_that_is_dropped_on_another_loop(program: Program) -> None:
    coroutine = _waiting_coroutine(program)

    async def close() -> None:
        coroutine.close()

    asyncio.run(close())


def _waiting_coroutine(program: Program) -> Coroutine[Any, Any, None]:
    """Return a coroutine that waits in a session, on a loop that is closed."""

    async def serve() -> None:
        async with program.session() as session:
            with program.scopes():
                await program.run(session, 1.0)
                await asyncio.get_running_loop().create_future()

    loop = asyncio.new_event_loop()
    coroutine = serve()
    task = loop.create_task(coroutine)
    while not program.results:
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # the task is meant to stay pending
    return coroutine


def two_event_loops(program: Program) -> None:
    session = program.session()
    asyncio.run(session.__aenter__())
    asyncio.run(program.run(session, 1.0))
    asyncio.run(session.__aexit__(None, None, None))


def fixtures_of_an_older_pytest_asyncio(program: Program) -> None:
    """Set up and tear down in two calls of `run_until_complete`, with the test between, like versions up to 0.24."""
    loop = asyncio.new_event_loop()
    generator = program.opened()
    session = loop.run_until_complete(anext(generator))
    loop.run_until_complete(program.run(session, 1.0))

    async def tear_down() -> None:
        with pytest.raises(StopAsyncIteration):
            await anext(generator)

    loop.run_until_complete(tear_down())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


# -- threads ---------------------------------------------------------------------------------------------------------


def a_generator_that_moves_between_threads(program: Program) -> None:
    generator = program.opened_sync()
    program.run_sync(_in_thread(lambda: next(generator)), 1.0)
    assert _in_thread(lambda: list(generator)) == []


def a_generator_that_is_collected_in_a_thread(program: Program) -> None:
    generator = program.opened_sync()
    program.run_sync(next(generator), 1.0)
    cycle: list[Any] = [generator]
    cycle.append(cycle)
    del generator, cycle
    _in_thread(gc.collect)


def a_generator_that_moves_between_contexts(program: Program) -> None:
    generator = program.opened_sync()
    program.run_sync(copy_context().run(next, generator), 1.0)
    assert copy_context().run(list, generator) == []


def a_stack_that_is_left_in_a_thread(program: Program) -> None:
    with ExitStack() as stack:
        session = stack.enter_context(program.session())
        stack.enter_context(session.as_default())
        stack.enter_context(program.scopes())
        program.run_sync(session, 1.0)
        kept = stack.pop_all()
    _in_thread(kept.close)


def _in_thread(call: Callable[[], Any]) -> Any:
    results: list[Any] = []
    context = copy_context()
    thread = threading.Thread(target=lambda: results.append(context.run(call)))
    thread.start()
    thread.join(_PATIENCE)
    return results[0]


# -- web servers -----------------------------------------------------------------------------------------------------


async def _ask(app: Any, *paths: str) -> list[str]:
    """Send requests to an application and return the responses; errors of the application are raised."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
        return [(await client.get(path)).text for path in paths]


def a_starlette_lifespan(program: Program) -> None:
    """Run under uvicorn, where the lifespan and each request have tasks of their own."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
        async for session in program.opened():
            yield {"session": session}

    async def index(request: Request) -> Response:
        return PlainTextResponse(await program.run(request.state.session, 1.0))

    async def main() -> None:
        app = Starlette(routes=[Route("/", index)], lifespan=lifespan)
        server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="on", log_config=None))
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve())
            while not server.started:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            port = server.servers[0].sockets[0].getsockname()[1]
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                assert [(await client.get("/")).text for _ in range(2)] == ["2.0", "2.0"]
            server.should_exit = True

    asyncio.run(main())


def a_fastapi_dependency_that_is_a_sync_generator(program: Program) -> None:
    """Use a dependency that is entered in one thread with a copy of the request's context, and left in another."""
    app = FastAPI()
    opened = Depends(program.opened_sync)

    @app.get("/sync")
    def sync(session: Any = opened) -> str:
        return program.run_sync(session, 1.0)

    @app.get("/async")
    async def index(session: Any = opened) -> str:
        return await program.run(session, 2.0)

    @app.get("/bad")
    def bad(session: Any = opened) -> str:
        raise KeyError(program.run_sync(session, 2.0))

    assert asyncio.run(_ask(app, *("/sync", "/async") * 3)) == ['"2.0"', '"3.0"'] * 3
    with pytest.raises(KeyError, match=r"3\.0"):
        asyncio.run(_ask(app, "/bad"))


def a_fastapi_dependency_that_is_an_async_generator(program: Program) -> None:
    app = FastAPI()
    opened = Depends(program.opened)

    @app.get("/")
    async def index(session: Any = opened) -> str:
        return await program.run(session, 1.0)

    @app.get("/bad")
    async def bad(session: Any = opened) -> str:
        raise KeyError(await program.run(session, 2.0))

    assert asyncio.run(_ask(app, "/")) == ['"2.0"']
    with pytest.raises(KeyError, match=r"3\.0"):
        asyncio.run(_ask(app, "/bad"))


def a_sync_streaming_response(program: Program) -> None:
    """Stream elements, each of which is made in a thread with its own copy of the request's context."""

    def lines() -> Iterator[str]:
        for session in program.opened_sync():
            for i in range(3):
                yield program.run_sync(session, float(i))

    async def index(request: Request) -> Response:
        return StreamingResponse(lines())

    assert asyncio.run(_ask(Starlette(routes=[Route("/", index)]), "/")) == ["1.02.03.0"]


def aiohttp_with_cleanup_ctx(program: Program) -> None:
    """Use a context generator that is entered by the setup of the server and left by its cleanup."""
    key = web.AppKey("session", af.Session)

    async def context(app: web.Application) -> AsyncIterator[None]:
        async for session in program.opened():
            app[key] = session
            yield

    async def index(request: web.Request) -> web.Response:
        return web.Response(text=await program.run(request.app[key], 1.0))

    async def main() -> None:
        app = web.Application()
        app.cleanup_ctx.append(context)
        app.router.add_get("/", index)
        client = TestClient(TestServer(app))
        await _as_task(client.start_server())
        async with client.get("/") as response:
            assert await response.text() == "2.0"
        await _as_task(client.close())

    asyncio.run(main())


WAYS: tuple[Callable[[Program], None], ...] = (
    start_up_and_shut_down_in_two_tasks,
    an_exit_stack_that_is_handed_on,
    entering_with_a_time_limit,
    two_tasks_in_one_session,
    crossed_sessions,
    an_async_generator_that_is_exhausted_by_another_task,
    an_async_generator_that_is_closed_by_another_task,
    an_async_generator_that_is_dropped,
    an_async_generator_that_is_left_to_the_end_of_the_loop,
    a_task_that_is_left_to_the_end_of_the_loop,
    a_coroutine_that_is_dropped_without_a_loop,
    a_coroutine_that_is_dropped_on_another_loop,
    two_event_loops,
    fixtures_of_an_older_pytest_asyncio,
    a_generator_that_moves_between_threads,
    a_generator_that_is_collected_in_a_thread,
    a_generator_that_moves_between_contexts,
    a_stack_that_is_left_in_a_thread,
    a_starlette_lifespan,
    a_fastapi_dependency_that_is_a_sync_generator,
    a_fastapi_dependency_that_is_an_async_generator,
    a_sync_streaming_response,
    aiohttp_with_cleanup_ctx,
)


@pytest.mark.parametrize("way", WAYS, ids=lambda f: f.__name__)
def test_session_can_be_left_in_any_context(
    way: Callable[[Program], None],
    graph: af.Graph,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    unraisable: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", unraisable.append)
    program = Program()
    with caplog.at_level(logging.WARNING):
        way(program)
        gc.collect()
    program.check(graph)
    assert unraisable == []
    assert caplog.records == []
    assert capfd.readouterr().err == ""
