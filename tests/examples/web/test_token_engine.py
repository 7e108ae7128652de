"""`examples/web/tokens` under a virtual clock: streams that start and end at any time are independent."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import aioflow as af
from aioflow.concurrency.stopping import Work, doing
from aioflow.concurrency.threads import Threads
from aioflow.errors import (
    ClosedSessionError,
    DataLossError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    OpError,
    ResourceExhaustedError,
)
from aioflow.serve.tokens import Sampling, TokenEngine, Tokens, token_engine
from aioflow.serve.tokens.slots import Slots, TokenStream
from aioflow.testing.virtual_clock import run_virtual
from benchmarks.plain_gpt2 import PlainModel
from examples.gpt2.model import Config, Model
from examples.web.tokens.computing import Gpt2
from tests.support.loops import virtually
from tests.support.random_examples import examples

VOCABULARY, POSITIONS = 11, 40


def next_token(text: Sequence[int]) -> int:
    """Return the token that `Counting` finds likeliest. It depends on every token and on their order."""
    return (sum((place + 2) * token * token for place, token in enumerate(text)) + len(text)) % VOCABULARY


def alone(prompt: Sequence[int], most: int) -> list[int]:
    text = [*prompt]
    for _ in range(min(most, POSITIONS - len(prompt) + 1)):
        text.append(next_token(text))
    return text[len(prompt) :]


class Counting:
    """A model that records the text of each slot. A piece takes `piece` seconds, a step one."""

    positions, vocabulary = POSITIONS, VOCABULARY
    end_token: int | None = None

    def __init__(self, slots: int, piece: float = 0.5) -> None:
        self.texts: list[list[int]] = [[] for _ in range(slots)]
        self.piece = piece
        self.log: list[tuple[str, int]] = []  # each operation, with its number of tokens
        self.busy = False

    def clear(self, slot: int) -> None:
        assert not self.busy
        self.texts[slot] = []

    async def _take(self, kind: str, count: int, seconds: float) -> None:
        assert not self.busy
        self.busy = True
        self.log.append((kind, count))
        await asyncio.sleep(seconds)
        self.busy = False

    async def read(self, slot: int, tokens: Sequence[int]) -> Any:
        await self._take("read", len(tokens), self.piece)
        self.texts[slot] += tokens
        return self._logits(slot)

    async def write(self, tokens: Mapping[int, int]) -> Mapping[int, Any]:
        await self._take("write", len(tokens), 1.0)
        for slot, token in tokens.items():
            assert self.texts[slot], "a prompt has been read there"
            self.texts[slot].append(token)
            assert len(self.texts[slot]) <= POSITIONS
        return {slot: self._logits(slot) for slot in tokens}

    def _logits(self, slot: int) -> Any:
        return np.eye(VOCABULARY, dtype=np.float32)[next_token(self.texts[slot])]


async def whole(tokens: Tokens) -> list[int]:
    with tokens:
        return [token async for token in tokens]


async def read(tokens: Tokens, into: list[int]) -> None:
    while True:
        into.append(await anext(tokens))


def now() -> float:
    return asyncio.get_running_loop().time()


@virtually
async def test_streams_share_steps_and_join_between_them() -> None:
    computing = Counting(4, piece=0.25)
    async with token_engine(computing, 4) as engine, asyncio.TaskGroup() as group:
        first = group.create_task(whole(engine.begin([1, 2], 6)))
        await asyncio.sleep(2.5)
        second = group.create_task(whole(engine.begin([3], 3)))
    assert (first.result(), second.result()) == (alone([1, 2], 6), alone([3], 3))
    assert computing.log == [("read", 2), *[("write", 1)] * 3, ("read", 1), ("write", 2), ("write", 2)]
    assert engine.statistics().free == 4


@virtually
async def test_a_long_prompt_blocks_neither_writers_nor_short_prompts() -> None:
    computing = Counting(3)
    async with token_engine(computing, 3, piece=4) as engine, asyncio.TaskGroup() as group:
        writer = group.create_task(whole(engine.begin([1], 12)))
        await asyncio.sleep(0.6)
        long = group.create_task(whole(engine.begin([2] * 30, 2)))
        short = group.create_task(whole(engine.begin([3] * 3, 1)))
        await short
        assert now() < 5
        assert not long.done()
        await writer
        assert long.result() == alone([2] * 30, 2)
    between = "".join(kind[0] for kind, _ in computing.log)
    assert "rr" not in between, "between two pieces those who write get a token"
    assert max(count for kind, count in computing.log if kind == "read") == 4


@virtually
async def test_an_abandoned_stream_frees_its_slot_at_once() -> None:
    computing = Counting(1)
    async with token_engine(computing, 1, most_waiting=1) as engine:
        with engine.begin([1], 20) as left:
            assert await anext(left) == alone([1], 1)[0]
            waiting = engine.begin([5, 6], 3)
            with pytest.raises(ResourceExhaustedError):
                engine.begin([7], 1)
        begun = now()
        assert engine.statistics().free == 1
        assert await whole(waiting) == alone([5, 6], 3)
        assert now() - begun == 1.0 + 0.5 + 2.0, "the step that was running, a piece, two more tokens"


@virtually
async def test_an_abandoned_place_in_the_queue_is_free() -> None:
    async with token_engine(Counting(1), 1, most_waiting=1) as engine:
        with engine.begin([1], 4) as first:
            await anext(first)
            with engine.begin([2], 4):
                pass
            with engine.begin([3], 1) as third:
                first.end()
                assert await whole(third) == alone([3], 1)


@virtually
async def test_timeouts_apply_in_the_queue_and_in_a_slot() -> None:
    async with token_engine(Counting(1), 1) as engine:
        got: list[int] = []
        with engine.begin([1], 30, timeout=4.25) as writing, engine.begin([2], 2, timeout=3.0) as waiting:
            with pytest.raises(DeadlineExceededError):
                await anext(waiting)
            assert now() == 3.0
            with pytest.raises(DeadlineExceededError):
                await read(writing, got)
            assert now() == 4.25
            with pytest.raises(DeadlineExceededError):  # raises again, and does not wait forever
                await anext(writing)
        assert got == alone([1], 30)[: len(got)]
        assert len(got) == 4
        assert await whole(engine.begin([4], 2, timeout=3.0)) == alone([4], 2)


@virtually
async def test_clients_take_turns_in_the_queue() -> None:
    ends: list[str] = []

    async def write(engine: TokenEngine, name: str, client: str) -> None:
        assert await whole(engine.begin([1], 2, client=client)) == alone([1], 2)
        ends.append(name)

    async with token_engine(Counting(1), 1) as engine, asyncio.TaskGroup() as group:
        for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
            group.create_task(write(engine, name, name[0]))
            await asyncio.sleep(0)
    assert ends == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


@pytest.mark.parametrize(
    ("error", "kind"), [(InvalidArgumentError("no"), InvalidArgumentError), (ZeroDivisionError(), InternalError)]
)
@virtually
async def test_a_failing_step_ends_only_its_own_streams(error: Exception, kind: type[OpError]) -> None:
    class Failing(Counting):
        async def write(self, tokens: Mapping[int, int]) -> Mapping[int, Any]:
            if len(self.log) == 3:
                self.log.append(("fail", len(tokens)))
                raise error
            return await super().write(tokens)

    async with token_engine(Failing(2), 2) as engine, asyncio.TaskGroup() as group:
        first, second = (engine.begin([i], 5) for i in (1, 2))
        third = group.create_task(whole(engine.begin([3], 5)))
        for failed in (first, second):
            with failed, pytest.raises(kind):
                async for _ in failed:
                    pass
    assert third.result() == alone([3], 5)


@virtually
async def test_logits_that_are_no_numbers_end_their_stream_alone() -> None:
    class Broken(Counting):
        async def write(self, tokens: Mapping[int, int]) -> Mapping[int, Any]:
            logits = await super().write(tokens)
            return {slot: each * np.nan if slot == 0 else each for slot, each in logits.items()}

    async with token_engine(Broken(2), 2) as engine, asyncio.TaskGroup() as group:
        broken, other = engine.begin([1], 5), group.create_task(whole(engine.begin([2], 5)))
        with broken, pytest.raises(DataLossError, match="no numbers"):
            async for _ in broken:
                pass
    assert other.result() == alone([2], 5)


@virtually
async def test_streams_end_with_the_engine() -> None:
    async with token_engine(Counting(1), 1) as engine:
        first, second = engine.begin([1], 9), engine.begin([2], 9)
        await anext(first)
    for each in (first, second):
        with pytest.raises(ClosedSessionError):
            async for _ in each:
                pass
    with pytest.raises(ClosedSessionError):
        engine.begin([1], 1)


@virtually
async def test_invalid_requests_are_rejected() -> None:
    async with token_engine(Counting(1), 1) as engine:
        for prompt, most in (([], 1), ([1], 0), ([1] * (POSITIONS + 1), 1), ([VOCABULARY], 1), ([-1], 1)):
            with pytest.raises(InvalidArgumentError):
                engine.begin(prompt, most)
        assert await whole(engine.begin([1] * POSITIONS, 9)) == alone([1] * POSITIONS, 1)


# ── random streams ───────────────────────────────────────────────────────────────────────────────────────────────────


async def _anything(engine: TokenEngine, chance: random.Random, count: int, expected: Callable[..., list[int]]) -> int:
    """Run streams that start, are read, abandoned and limited at random times. Return how many reach their ends."""
    ended = 0

    async def one(number: int) -> None:
        nonlocal ended
        await asyncio.sleep(chance.uniform(0, 40))
        prompt = [chance.randrange(VOCABULARY) for _ in range(chance.choice([1, 2, 5, 17, 30]))]
        most, timeout = chance.randint(1, 14), chance.choice([None, None, chance.uniform(0, 30)])
        leaves = chance.choice([None, None, chance.randint(0, most)])
        got: list[int] = []
        try:
            with engine.begin(prompt, most, timeout=timeout, client=str(number % 3)) as tokens:
                async with asyncio.timeout(chance.choice([None, None, None, chance.uniform(0, 20)])):
                    async for token in tokens:
                        got.append(token)
                        if len(got) == leaves:
                            return
                        await asyncio.sleep(chance.choice([0, 0, 3]))
        except (ResourceExhaustedError, TimeoutError):
            return
        finally:
            assert got == expected(prompt, most)[: len(got)]
        assert got == expected(prompt, most)
        ended += 1

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(one(number))
    return ended


@given(seed=st.integers(0, 2**32), slots=st.integers(1, 5), piece=st.integers(1, 20))
@settings(max_examples=examples(100))
def test_random_streams_are_independent_with_a_counting_model(seed: int, slots: int, piece: int) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        computing = Counting(slots, chance.choice([0.0, 0.3, 2.0]))
        async with token_engine(computing, slots, piece=piece, most_waiting=chance.randint(0, 20)) as engine:
            await _anything(engine, chance, 25, alone)
            await asyncio.sleep(3)
            statistics = engine.statistics()
            assert (statistics.free, statistics.waiting) == (slots, 0)

    run_virtual(main())


CONFIG = Config(n_layer=2, n_head=3, n_embd=24, n_positions=POSITIONS, vocab_size=VOCABULARY)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run steps on the loop: its virtual clock would not wait for a thread."""

    async def call(self: Threads, work: Work, function: Callable[..., Any], *args: Any) -> Any:
        return doing(work, function, *args)

    monkeypatch.setattr(Threads, "call", call)


async def random_weights(session: af.Session, seed: int) -> dict[str, Any]:
    """Load large random weights and return them. Large weights make the likeliest token win by far."""
    rng, weights = np.random.default_rng(seed), {}
    for variable in session.graph.get_collection(af.GraphKeys.GLOBAL_VARIABLES):
        value = weights[variable.op.name.replace("/", ".")] = rng.normal(size=variable.shape).astype("f") / 2
        await variable.load(value, session)
    return weights


@virtually
@pytest.mark.parametrize("seed", range(4))
async def test_random_streams_are_independent_with_gpt2(seed: int, no_threads: None) -> None:
    """The reference is a model in plain NumPy that runs each stream alone."""
    chance = random.Random(seed)
    model = Model(CONFIG, seed=1)
    async with af.Session(graph=model.graph) as session:
        weights = await random_weights(session, seed)

        def expected(prompt: Sequence[int], most: int) -> list[int]:
            plain, text, found = PlainModel(CONFIG, weights), np.array([prompt]), []
            for _ in range(min(most, POSITIONS - len(prompt) + 1)):
                text = plain.logits(text)[:, -1:].argmax(-1)
                found.append(text.item())
            return found

        async with token_engine(Slow(session, model, 3), 3, piece=7, most_waiting=12) as engine:
            assert await _anything(engine, chance, 25, expected) > 5


class Slow(Gpt2):
    """A model whose steps take time by the virtual clock."""

    async def read(self, slot: int, tokens: Sequence[int]) -> Any:
        await asyncio.sleep(0.5)
        return await super().read(slot, tokens)

    async def write(self, tokens: Mapping[int, int]) -> Mapping[int, Any]:
        logits = await super().write(tokens)
        await asyncio.sleep(1.0)
        return logits


async def test_a_slot_keeps_nothing_of_its_previous_stream() -> None:
    """Infinite values do not remain either."""
    model = Model(CONFIG, seed=1)
    async with af.Session(graph=model.graph) as session, asyncio.timeout(60):
        weights = await random_weights(session, 1)
        computing = Gpt2(session, model, 2)
        async with token_engine(computing, 2) as engine:
            expected = await both(engine)
            with engine.begin([5] * 20, 10) as poisoned:
                await anext(poisoned)
                (places,) = (v for v in model.graph.get_collection(af.GraphKeys.GLOBAL_VARIABLES) if "wpe" in v.op.name)
                await places.load(weights["wpe.weight"] * np.float32(np.inf), session)
                with pytest.raises(DataLossError, match="no numbers"):
                    await anext(poisoned)
            await places.load(weights["wpe.weight"], session)
            assert await both(engine) == expected


async def both(engine: TokenEngine) -> tuple[list[int], list[int]]:
    """Generate a short and a long stream together. Steps that they share pad the short one to the same length."""
    async with asyncio.TaskGroup() as group:
        short, long = (group.create_task(whole(engine.begin([1] * count, 9))) for count in (2, 25))
    return short.result(), long.result()


async def test_a_full_slot_does_not_block_other_streams() -> None:
    """A full slot has no position for another token, and steps skip it."""
    model = Model(CONFIG, seed=1)
    async with af.Session(graph=model.graph) as session, asyncio.timeout(60):
        await random_weights(session, 1)
        async with token_engine(Gpt2(session, model, 2), 2, piece=POSITIONS) as engine:
            expected = await whole(engine.begin([1], 9))
            async with asyncio.TaskGroup() as group:
                full = group.create_task(whole(engine.begin([1] * POSITIONS, 9)))
                other = group.create_task(whole(engine.begin([1], 9)))
            assert len(full.result()) == 1
            assert other.result() == expected


def test_draws_depend_on_the_seed_and_the_logits_alone() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    choice = Sampling(temperature=1.0, top_k=3, seed=4)
    assert choice(logits, 7) == choice(logits, 7)
    drawn = [choice(logits, number) for number in range(3000)]
    shares = np.bincount(drawn, minlength=4) / 3000
    np.testing.assert_allclose(shares, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0], atol=0.04)
    assert Sampling()(logits, 0) == 0
    assert Sampling(temperature=1e-3, top_k=99)(logits, 0) == 0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("temperature", [1e-9, 1e-46, 5e-324])
def test_a_tiny_temperature_selects_the_likeliest_token(dtype: type, temperature: float) -> None:
    logits: Any = np.array([-3, -2, -1, -2, -3], dtype)
    for shift in (0, 4):  # to logits that are all negative, and to some that are positive
        assert [Sampling(temperature, 4)(logits + dtype(shift), number) for number in range(9)] == [2] * 9


def test_slots_reject_invalid_settings() -> None:
    for settings_ in ((0, 1, 1), (1, 0, 1), (1, 1, -1)):
        with pytest.raises(InvalidArgumentError):
            Slots(*settings_)
    stream = TokenStream([1], 1)
    slots = Slots(1)
    slots.join(stream)
    slots.leave(stream)
    slots.leave(stream)
    assert slots.place() == []
