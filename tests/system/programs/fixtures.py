"""Run pytest on this file: sessions in async fixtures of pytest-asyncio, and in an application of pytest-aiohttp."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from aiohttp import web

import aioflow as af

SESSION = web.AppKey("session", af.Session)
SESSIONS: list[af.Session] = []


@pytest.fixture(autouse=True)
def closed_in_the_end() -> Iterator[None]:
    """Check after all other fixtures are torn down that every session is closed and every scope left."""
    yield
    assert SESSIONS
    assert all(session.closed for session in SESSIONS)
    assert af.get_default_session() is None
    assert af.get_default_graph().get_name_scope() == ""


@pytest.fixture
async def opened() -> AsyncIterator[tuple[af.Session, Any]]:
    with af.Graph().as_default():
        y = af.constant(1.0) + 1.0
        async with af.Session() as session:
            SESSIONS.append(session)
            with af.name_scope("a"), af.variable_scope("b"):
                yield session, y


async def test_async_test_uses_the_session_of_an_async_fixture(opened: tuple[af.Session, Any]) -> None:
    session, y = opened
    assert await session.run(y) == 2.0


def test_sync_test_uses_the_session_of_an_async_fixture(opened: tuple[af.Session, Any]) -> None:
    session, y = opened
    assert session.run_sync(y) == 2.0


async def model(app: web.Application) -> AsyncIterator[None]:
    with af.Graph().as_default():
        x = af.placeholder("float32", [])
        async with af.Session() as session:
            SESSIONS.append(session)
            app[SESSION] = session
            y = x + 1.0

            async def answer(request: web.Request) -> web.Response:
                return web.Response(text=str(await request.app[SESSION].run(y, {x: 1.0})))

            app.router.add_get("/", answer)
            yield


@pytest.fixture
async def client(aiohttp_client: Any) -> Any:
    app = web.Application()
    app.cleanup_ctx.append(model)
    return await aiohttp_client(app)


async def test_application_uses_the_session_of_its_cleanup_context(client: Any) -> None:
    response = await client.get("/")
    assert await response.text() == "2.0"


if __name__ == "__main__":
    settings = ("asyncio_mode=auto", "asyncio_default_fixture_loop_scope=function", "filterwarnings=error")
    options = [part for setting in settings for part in ("-o", setting)]
    sys.exit(
        pytest.main(
            ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir=.", "--noconftest", *options, __file__]
        )
    )
