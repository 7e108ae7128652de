"""Checkpoints with the input position: after losses, each feed has been applied to the variables exactly once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import AbortedError, DataLossError, DeadlineExceededError, InvalidArgumentError, UnavailableError
from aioflow.runtime.worker import Worker
from tests.support.loops import virtually
from tests.train.monitored.lost_peers import FlakyCreator, NoSession, Script

COUNT = 24


class Records:
    """A model that counts the applied updates of each record."""

    def __init__(self, open_at: Callable[[int], Any] | None = None) -> None:
        self.x = af.placeholder("int32", [])
        self.step = af.train.get_or_create_global_step()
        self.seen = af.Variable(np.zeros(COUNT, np.int32), name="seen")
        self.train = af.group(self.step.assign_add(1), af.scatter_add(self.seen, self.x, 1))
        self.input = af.train.CheckpointedInput(af.train.SeekableFeeds(open_at or self.feeds))

    def feeds(self, start: int) -> Iterator[dict[Any, int]]:
        for number in range(start, COUNT):
            yield {self.x: number}

    async def slow_feeds(self, start: int) -> AsyncIterator[dict[Any, int]]:
        for number in range(start, COUNT):
            await asyncio.sleep(0)
            yield {self.x: number}

    def session(self, folder: Path, script: Script | None = None, every: int = 5) -> af.train.MonitoredSession:
        scaffold = af.train.Scaffold()
        creator = af.train.ChiefSessionCreator(scaffold, checkpoint_dir=folder)
        saver = af.train.CheckpointSaverHook(folder, save_steps=every, scaffold=scaffold, input=self.input)
        return af.train.MonitoredSession(FlakyCreator(script, creator) if script else creator, [saver, self.input])


def in_checkpoint(folder: Path) -> tuple[int, list[int]]:
    reader = af.train.load_checkpoint(folder)
    return int(reader.read("global_step")), reader.read("seen").tolist()


async def test_killed_program_resumes_at_the_checkpoint(quick_path: Path, graph: af.Graph) -> None:
    for killed_after in (8, 9, None):
        with af.Graph().as_default():
            records = Records()

            async def until_killed(records: Records, steps: int | None) -> None:
                async with records.session(quick_path) as session:
                    while not session.should_stop():
                        if steps is not None:
                            steps -= 1
                            if steps < 0:
                                raise KeyboardInterrupt
                        await session.run(records.train)

            try:
                await until_killed(records, killed_after)
            except KeyboardInterrupt:
                step, seen = in_checkpoint(quick_path)
                assert sum(seen) == step < COUNT
    assert in_checkpoint(quick_path) == (COUNT, [1] * COUNT)


@pytest.mark.parametrize("seed", range(20))
async def test_random_losses_apply_each_record_once(quick_path: Path, seed: int) -> None:
    """Losses before and after steps, numbers of concurrent runs, and checkpoint intervals are random."""
    rng = random.Random(seed)
    records: Records = Records(
        rng.choice([lambda start: records.feeds(start), lambda start: records.slow_feeds(start)])
    )
    numbers = rng.sample(range(3 * COUNT), rng.randrange(6))
    script = Script(records.train, before=tuple(numbers[::2]), after=tuple(numbers[1::2]))
    script.kind = rng.choice([AbortedError, UnavailableError])

    async def trainer(session: af.train.MonitoredSession) -> None:
        with suppress(af.errors.OutOfRangeError):
            while not session.should_stop():
                await session.run(records.train)

    async with records.session(quick_path, script, every=rng.randrange(1, 8)) as session, asyncio.TaskGroup() as group:
        for _ in range(rng.randrange(1, 5)):
            group.create_task(trainer(session))
    assert in_checkpoint(quick_path) == (COUNT, [1] * COUNT)


async def test_checkpoint_waiting_for_a_lost_step_is_not_written() -> None:
    """Its position would be past feeds that were never applied."""
    records = Records()
    records.input.begin()
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        await records.input.take_up(session)
        for error in (None, InvalidArgumentError("the feeds are used up"), AbortedError("a peer was lost")):
            context = af.train.SessionRunContext(af.train.SessionRunArgs(None), session)
            await records.input.before_run(context)
            saved: list[bool] = []

            async def save(into: list[bool] = saved) -> None:
                async with records.input.saving(session):
                    into.append(True)

            async with asyncio.TaskGroup() as group:
                task = group.create_task(outcome(save()))
                for _ in range(5):
                    await asyncio.sleep(0)
                assert not saved
                context.step_ends(error)
            assert saved == ([] if isinstance(error, AbortedError) else [True])
            assert isinstance(task.result(), AbortedError) == isinstance(error, AbortedError)


async def outcome(work: Any) -> Exception | None:
    """Return the exception that an awaitable raises, or None."""
    try:
        await work
    except Exception as error:
        return error
    return None


async def test_every_checkpoint_is_consistent(quick_path: Path) -> None:
    """In each checkpoint, the position equals the number of records in its variables."""
    records: Records = Records(lambda start: records.slow_feeds(start))
    scaffold = af.train.Scaffold()
    creator = af.train.ChiefSessionCreator(scaffold, checkpoint_dir=quick_path)
    found = []

    class Reads(af.train.CheckpointSaverListener):
        def after_save(self, session: Any, global_step_value: int) -> None:
            reader = af.train.load_checkpoint(quick_path)
            found.append((reader.read("seen").sum(), int(bytes(reader.read("input_position")[()]).strip(b"="))))

    saver = af.train.CheckpointSaverHook(
        quick_path, save_steps=1, scaffold=scaffold, input=records.input, listeners=[Reads()]
    )

    async def trainer(session: af.train.MonitoredSession) -> None:
        for _ in range(COUNT // 3):
            await session.run(records.train)

    async with af.train.MonitoredSession(creator, [saver, records.input]) as session, asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(trainer(session))
    assert len(found) > 3
    assert all(records == position for records, position in found)


async def test_training_session_takes_the_input_as_an_argument(quick_path: Path) -> None:
    for _ in range(2):
        with af.Graph().as_default():
            records = Records()
            hooks = [af.train.StopAtStepHook(num_steps=COUNT // 2)]
            async with af.train.MonitoredTrainingSession(
                checkpoint_dir=quick_path, hooks=hooks, save_checkpoint_steps=5, input=records.input
            ) as session:
                while not session.should_stop():
                    await session.run(records.train)
    assert in_checkpoint(quick_path) == (COUNT, [1] * COUNT)
    with pytest.raises(InvalidArgumentError, match="saved by the chief"):
        af.train.MonitoredTrainingSession(is_chief=False, input=records.input)


async def test_input_that_follows_the_global_step_needs_no_variable(quick_path: Path) -> None:
    """A worker that trains synchronously uses one element of the feeds for each global step."""
    shared = Worker(af.SessionConfig())
    records = Records()
    fed = af.train.CheckpointedInput(af.train.SeekableFeeds(records.feeds), follows_step=True)
    async with af.train.MonitoredTrainingSession(shared):
        assert "input_position" not in {v.op.name for v in af.global_variables()}
    script = Script(records.train, before=(3, 9))
    creator = FlakyCreator(script, af.train.WorkerSessionCreator(master=shared))
    async with af.train.MonitoredSession(creator, [fed, af.train.StopAtStepHook(last_step=12)]) as session:
        while not session.should_stop():
            await session.run(records.train)
    with af.Graph().as_default():  # stands for the next program
        records = Records()
        fed = af.train.CheckpointedInput(af.train.SeekableFeeds(records.feeds), follows_step=True)
        async with af.train.MonitoredTrainingSession(shared, False, input=fed) as session:
            while not session.should_stop():
                await session.run(records.train)
        async with af.Session(shared) as after:
            assert (await after.run(records.seen)).tolist() == [1] * COUNT
    assert script.created == 3


async def test_new_session_restarts_the_input_without_checkpoints() -> None:
    records = Records()
    script = Script(records.train, before=(5,))
    fetched = []
    async with af.train.MonitoredSession(FlakyCreator(script), [records.input]) as session:
        while not session.should_stop():
            fetched.append(int((await session.run([records.x, records.train]))[0]))
    assert fetched == [*range(5), *range(COUNT)]


@virtually
async def test_checkpoint_wait_for_an_endless_step_times_out() -> None:
    source = af.train.SeekableFeeds(lambda start: iter([{}, {}]))
    taken = af.train.CheckpointedInput(source, max_wait_secs=30)
    taken.begin()
    session = NoSession()
    session.run = _empty  # type: ignore[method-assign, assignment]
    await taken.take_up(session)
    context = af.train.SessionRunContext(af.train.SessionRunArgs(None), session)
    await taken.before_run(context)
    with pytest.raises(DeadlineExceededError, match="running steps"):
        async with taken.saving(session):
            pytest.fail("a step is in flight")
    assert asyncio.get_running_loop().time() == pytest.approx(30)
    context.step_ends()
    async with taken.saving(session):
        pass


async def _empty(fetches: Any, feed_dict: Any = None) -> bytes:
    return b""


async def test_run_of_an_old_session_receives_no_feeds() -> None:
    taken = af.train.CheckpointedInput(af.train.SeekableFeeds(lambda start: iter([{}])))
    taken.begin()
    old = NoSession()
    old.run = _empty  # type: ignore[method-assign, assignment]
    with pytest.raises(AbortedError):
        await taken.before_run(af.train.SessionRunContext(af.train.SessionRunArgs(None), old))
    assert taken._source.state() == b"0"


# ── sources ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_seekable_feeds_restore_their_position() -> None:
    closed = []

    def numbers(start: int) -> Iterator[dict[Any, int]]:
        try:
            yield from ({"n": n} for n in range(start, 9))
        finally:
            closed.append(start)

    source = af.train.SeekableFeeds(numbers)
    assert [(await anext(source))["n"] for _ in range(4)] == [0, 1, 2, 3]
    state = source.state()
    assert [(await anext(source))["n"] for _ in range(3)] == [4, 5, 6]
    await source.restore(state)
    assert closed == [0]
    assert [feeds["n"] async for feeds in source] == [4, 5, 6, 7, 8]
    with pytest.raises(DataLossError):
        await source.restore(b"half")


async def test_user_defined_source(quick_path: Path) -> None:
    """A source chooses its own state: here an epoch, which is the seed, and a position."""

    class Shuffled:
        def __init__(self, x: Any) -> None:
            self.x = x
            self.epoch = self.place = 0

        def __aiter__(self) -> Shuffled:
            return self

        async def __anext__(self) -> dict[Any, Any]:
            if self.place == COUNT:
                self.epoch, self.place = self.epoch + 1, 0
            if self.epoch == 2:
                raise StopAsyncIteration
            order = np.random.default_rng(self.epoch).permutation(COUNT)
            self.place += 1
            return {self.x: order[self.place - 1].astype(np.int32)}

        def state(self) -> bytes:
            return b"%d %d" % (self.epoch, self.place)

        def restore(self, state: bytes) -> None:
            self.epoch, self.place = map(int, state.split())

    records = Records()
    records.input = af.train.CheckpointedInput(Shuffled(records.x))
    script = Script(records.train, before=(9, 30), after=(16, 41))
    async with records.session(quick_path, script) as session:
        while not session.should_stop():
            await session.run(records.train)
    assert in_checkpoint(quick_path) == (2 * COUNT, [2] * COUNT)


async def test_error_of_the_feeds_ends_training(quick_path: Path) -> None:
    records = Records(lambda start: (1 // 0 for _ in range(3)))
    with pytest.raises(ZeroDivisionError):
        async with records.session(quick_path) as session:
            await session.run(records.train)
