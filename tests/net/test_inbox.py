"""The receiving half of a comm: messages wait or go straight to the dispatcher, and the end is reported once."""

from __future__ import annotations

import asyncio

import pytest

from aioflow.errors import DataLossError, FailedPreconditionError, OpError, UnavailableError
from aioflow.net.framing import FrameKind, WireMessage
from aioflow.net.inbox import Inbox


class Taker:
    """The target of an inbox's dispatch."""

    def __init__(self, inbox: Inbox, fail_at: int | None = None) -> None:
        self.inbox = inbox
        self.fail_at = fail_at
        self.numbers: list[int] = []
        self.ends: list[OpError | None] = []

    def take(self, message: WireMessage) -> None:
        self.numbers.append(message.request)
        if message.request == self.fail_at:
            self.inbox.finish(DataLossError("malformed"))

    def begin(self) -> None:
        self.inbox.dispatch("a peer", self.take, self.ends.append)


def inbox(room: int = 100, freed: list[int] | None = None) -> Inbox:
    return Inbox(room, lambda: None if freed is None else freed.append(1))


def put(box: Inbox, *numbers: int) -> None:
    for number in numbers:
        box.put(WireMessage(FrameKind.PUSH, number), 10)


def test_dispatch_hands_over_waiting_messages_then_new_ones() -> None:
    box = inbox()
    taker = Taker(box)
    put(box, 1, 2)
    taker.begin()
    assert taker.numbers == [1, 2]
    put(box, 3)
    assert taker.numbers == [1, 2, 3]
    assert taker.ends == []


@pytest.mark.parametrize("error", [None, UnavailableError("gone")])
def test_end_is_reported_once_and_last(error: OpError | None) -> None:
    box = inbox()
    taker = Taker(box)
    taker.begin()
    box.finish(error)
    box.finish(DataLossError("another"))
    put(box, 1)
    assert taker.ends == [error]
    assert taker.numbers == []


def test_earlier_end_is_reported_after_waiting_messages() -> None:
    box = inbox()
    taker = Taker(box)
    put(box, 1, 2)
    box.finish(None)
    taker.begin()
    assert taker.numbers == [1, 2]
    assert taker.ends == [None]


def test_end_caused_by_a_message_is_reported_once() -> None:
    for waiting in (True, False):
        box = inbox()
        taker = Taker(box, fail_at=2)
        if waiting:
            put(box, 1, 2)
        taker.begin()
        if not waiting:
            put(box, 1, 2, 3)
        assert taker.numbers == [1, 2]
        assert [type(error) for error in taker.ends] == [DataLossError]


def test_dispatch_frees_room() -> None:
    freed: list[int] = []
    box = inbox(room=25, freed=freed)
    put(box, 1, 2, 3)
    assert box.full
    Taker(box).begin()
    assert freed == [1]
    put(box, *range(10))
    assert [box.full, *freed] == [False, 1], "what is handed over at once takes no room"


async def test_receive_and_dispatch_are_exclusive() -> None:
    box = inbox()
    async with asyncio.TaskGroup() as tg:
        receiving = tg.create_task(box.receive("a peer"))
        await asyncio.sleep(0)
        with pytest.raises(FailedPreconditionError):
            Taker(box).begin()
        put(box, 1)
        assert (await receiving) == WireMessage(FrameKind.PUSH, 1)
    Taker(box).begin()
    with pytest.raises(FailedPreconditionError):
        await box.receive("a peer")
    with pytest.raises(FailedPreconditionError):
        Taker(box).begin()
