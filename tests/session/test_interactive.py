"""`InteractiveSession`: the default session and graph of a notebook, whose inputs run in contexts of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from contextvars import Context
from typing import Any

import pytest

import aioflow as af


async def input_of_a_notebook(coroutine: Awaitable[Any]) -> Any:
    """Await something in a task whose context knows nothing of the other inputs, as notebooks may do."""

    async def cell() -> Any:
        return await coroutine

    async with asyncio.TaskGroup() as group:
        return await group.create_task(cell(), context=Context())


def in_thread(call: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


async def test_it_is_the_default_until_it_is_closed() -> None:
    y = af.constant(2.0) * 3.0
    session = af.InteractiveSession()
    try:
        assert await y.eval() == 6.0
        assert await input_of_a_notebook(y.eval()) == 6.0
        assert in_thread(af.get_default_session) is session
        async with af.Session() as inner:
            assert af.get_default_session() is inner
            assert af.get_default_session(af.Graph()) is None
        assert Context().run(af.get_default_session) is session
    finally:
        await input_of_a_notebook(session.close())
    await session.close()
    assert Context().run(af.get_default_session) is af.get_default_session() is None
    with pytest.raises(ValueError, match="no default session"):
        await y.eval()


async def test_its_graph_is_the_default_graph_if_it_is_given() -> None:
    before = Context().run(af.get_default_graph)
    one, two = af.Graph(), af.Graph()

    def default() -> af.Graph:
        return Context().run(af.get_default_graph)

    first, second = af.InteractiveSession(graph=one), af.InteractiveSession("", two)
    try:
        assert default() is two
        assert af.get_default_graph() is two
        with pytest.raises(af.errors.FailedPreconditionError, match="interactive session"):
            Context().run(af.reset_default_graph)
        await input_of_a_notebook(first.close())
        assert default() is two
    finally:
        await second.close()
    assert default() is before


async def test_a_second_one_is_the_default_and_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async with af.InteractiveSession() as first:
        assert not caplog.messages
        with af.InteractiveSession() as second:
            assert "already active" in caplog.text
            assert Context().run(af.get_default_session) is second
        assert second.closed
        assert Context().run(af.get_default_session) is first
    assert first.closed
    assert Context().run(af.get_default_session) is None
    caplog.clear()
    await af.InteractiveSession().close()
    assert not caplog.messages


def test_it_works_without_an_event_loop() -> None:
    y = af.constant(2.0) + 1.0
    session = af.InteractiveSession()
    assert session.wait_for(y.eval()) == 3.0
    session.wait_for(session.close())
    assert session.closed
    assert af.get_default_session() is None
