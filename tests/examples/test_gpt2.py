"""`examples/gpt2`: its cache, agreement with NumPy, published folders, and streams.

Streams may run at the same time, and may be abandoned at any point.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import safetensors.numpy as library
from hypothesis import given

import aioflow as af
from aioflow.interop.safetensors import WeightsError
from benchmarks.plain_gpt2 import PlainModel
from examples.gpt2 import __main__ as program
from examples.gpt2.folder import config_of, load, tokenizer_of
from examples.gpt2.generation import Cache, generate, generate_many
from examples.gpt2.model import Config, Model, Step
from examples.gpt2.tokenizer import BytePairs, Bytes, words

CONFIG = Config(n_layer=2, n_head=3, n_embd=24, n_positions=32, vocab_size=50)
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(CONFIG, seed=1)


@pytest.fixture
async def session(model: Model) -> AsyncIterator[af.Session]:
    async with af.Session(graph=model.graph) as opened:
        await opened.run(model.initializer)
        for variable in _biases(model):  # initialized to zeros, which would hide errors
            await variable.load(np.random.default_rng(0).normal(size=variable.shape).astype("f") / 5, opened)
        yield opened


def _biases(model: Model) -> list[Any]:
    return [v for v in model.graph.get_collection(af.GraphKeys.GLOBAL_VARIABLES) if v.op.name.endswith("bias")]


async def weights_of(session: af.Session, model: Model) -> dict[str, Array]:
    """Return the weights under the names of the checkpoints."""
    variables = model.graph.get_collection(af.GraphKeys.GLOBAL_VARIABLES)
    return {v.op.name.replace("/", "."): await session.run(v) for v in variables}


async def logits_of(session: af.Session, step: Step, cache: Cache, tokens: Any) -> Array:
    """Return logits [B, N, V], and add the keys and values of the tokens to the cache."""
    feeds = {step.tokens: tokens, step.lengths: cache.lengths, step.past: cache.past()}
    logits, last, new = await session.run([step.logits, step.last_logits, step.new], feeds)
    np.testing.assert_allclose(logits[:, -1], last, rtol=1e-5, atol=1e-5)
    cache.add(new)
    found: Array = logits
    return found


async def test_logits_with_cache_equal_those_without_and_of_numpy(model: Model, session: af.Session) -> None:
    text = np.random.default_rng(2).integers(0, CONFIG.vocab_size, 20)
    whole = await logits_of(session, model.prompt, Cache(CONFIG, 1), [text])
    cache = Cache(CONFIG, 1)
    parts = [await logits_of(session, model.prompt, cache, [text[:7]])]
    parts += [await logits_of(session, model.one, cache, [[token]]) for token in text[7:12]]
    parts.append(await logits_of(session, model.prompt, cache, [text[12:]]))
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, rtol=1e-4, atol=1e-5)
    plain = PlainModel(CONFIG, await weights_of(session, model))
    np.testing.assert_allclose(whole, plain.logits(text[None]), rtol=1e-4, atol=1e-5)


async def test_one_step_serves_streams_of_different_lengths(model: Model, session: af.Session) -> None:
    rng = np.random.default_rng(3)
    texts = [rng.integers(0, CONFIG.vocab_size, n) for n in (3, 9, 1, 6)]
    together = Cache(CONFIG, len(texts))
    for row, text in enumerate(texts):
        alone = Cache(CONFIG, 1)
        feeds = {model.prompt.tokens: [text], model.prompt.lengths: [0], model.prompt.past: alone.past()}
        together.add(await session.run(model.prompt.new, feeds), row)
    tokens = rng.integers(0, CONFIG.vocab_size, (3, len(texts)))
    steps = [await logits_of(session, model.many, together, t[:, None]) for t in tokens]
    plain = PlainModel(CONFIG, await weights_of(session, model), len(texts))
    for row, text in enumerate(texts):
        one = PlainModel(CONFIG, plain.weights)
        expected = one.logits(np.concatenate([text, tokens[:, row]])[None])[0, len(text) :]
        np.testing.assert_allclose([s[row, 0] for s in steps], expected, rtol=1e-4, atol=1e-5)


async def test_zero_temperature_generates_the_likeliest_tokens(model: Model, session: af.Session) -> None:
    plain = PlainModel(CONFIG, await weights_of(session, model))
    expected, text = [], np.array([[5, 6, 7]])
    for _ in range(10):
        text = plain.logits(text)[:, -1:].argmax(-1)
        expected.append(text.item())
    assert [t async for t in generate(session, model, [5, 6, 7], most=10, temperature=0.0)] == expected
    many = generate_many(session, model, [[1], [5, 6, 7], [2, 3]], most=10, temperature=0.0)
    assert [t[1] async for t in many] == expected


async def test_a_stream_ends_at_the_last_position(model: Model, session: af.Session) -> None:
    count = len([t async for t in generate(session, model, [1] * 30, most=100)])
    assert count == CONFIG.n_positions - 30 + 1  # the last token is not read


async def test_draws_follow_the_seed_and_the_probabilities(model: Model, session: af.Session) -> None:
    async def stream(seed: int, **options: Any) -> list[int]:
        return [t async for t in generate(session, model, [1, 2], most=8, seed=seed, top_k=50, **options)]

    assert await stream(1) == await stream(1)
    assert len({tuple(await stream(seed)) for seed in range(5)}) == 5
    step = model.prompt
    feeds: dict[Any, Any] = {step.tokens: [[1, 2]], step.lengths: [0], step.past: Cache(CONFIG, 1).past()}
    feeds |= {step.temperature: 0.2, step.top_k: 3}
    last = await session.run(step.last_logits, feeds)
    logits, feeds = last[0].astype(float), feeds | {step.last_logits: last}
    best = np.argsort(-logits)[:3]
    shares = np.exp(logits[best] / 0.2)
    drawn = [(await session.run(step.next_tokens, feeds | {step.seed: [0, i]}))[0] for i in range(2000)]
    counts = np.array([drawn.count(token) for token in best])
    assert counts.sum() == 2000
    np.testing.assert_allclose(counts / 2000, shares / shares.sum(), atol=0.05)  # four standard deviations


async def test_concurrent_streams_are_independent(model: Model, session: af.Session) -> None:
    async def stream(prompt: list[int]) -> list[int]:
        return [t async for t in generate(session, model, prompt, most=12, seed=prompt[0])]

    prompts = [[i, i + 1] for i in range(6)]
    alone = [await stream(prompt) for prompt in prompts]
    assert await asyncio.gather(*(stream(prompt) for prompt in prompts)) == alone


async def test_a_stream_may_be_left_or_cancelled(model: Model, session: af.Session) -> None:
    expected = [t async for t in generate(session, model, [3], most=6, seed=1)]
    async with aclosing(generate(session, model, [3], most=6, seed=1)) as left:
        assert [await anext(left), await anext(left)] == expected[:2]
    got: list[int] = []

    async def read() -> None:
        async for token in generate(session, model, [3], seed=1):
            got.append(token)
            if len(got) == 4:
                reader.cancel()

    reader = asyncio.ensure_future(read())  # noqa: TID251 - it is awaited here
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(reader, 60)
    assert got[:4] == expected[:4]
    assert [t async for t in generate(session, model, [3], most=6, seed=1)] == expected


# -- a published folder ----------------------------------------------------------------------


def published(prefix: str = "", kind: str = "float32") -> dict[str, Array]:
    """Return random weights in the names and layouts of the published files: Conv1D has [in, out]."""
    rng, width = np.random.default_rng(4), CONFIG.n_embd
    shapes = {"wte.weight": [CONFIG.vocab_size, width], "wpe.weight": [CONFIG.n_positions, width]}
    shapes |= {"ln_f.weight": [width], "ln_f.bias": [width]}
    for i in range(CONFIG.n_layer):
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"h.{i}.{norm}.weight": [width], f"h.{i}.{norm}.bias": [width]}
        for name, a, b in (("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)):
            shapes |= {f"h.{i}.{name}.weight": [a * width, b * width], f"h.{i}.{name}.bias": [b * width]}
        shapes |= {f"h.{i}.attn.bias": [1, 1, 32, 32]}
    return {prefix + name: (rng.normal(size=shape) / 5).astype(kind) for name, shape in shapes.items()}


def write_folder(folder: Path, weights: dict[str, Array], **config: Any) -> None:
    sizes = {"n_layer": 2, "n_head": 3, "n_embd": 24, "n_positions": 32, "vocab_size": 50, "model_type": "gpt2"}
    (folder / "config.json").write_text(json.dumps(sizes | config))
    library.save_file(weights, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(("prefix", "kind"), [("", "float32"), ("transformer.", "float16")])
async def test_a_published_folder_is_loaded(prefix: str, kind: str, tmp_path: Path) -> None:
    weights = published(prefix, kind)
    write_folder(tmp_path, weights | {"lm_head.weight": weights[prefix + "wte.weight"]})
    config = config_of(tmp_path)
    assert config == CONFIG
    made = Model(config)
    async with af.Session(graph=made.graph) as session:
        await load(session, made, tmp_path)
        logits = await logits_of(session, made.prompt, Cache(config, 1), [[1, 2, 3]])
    plain = PlainModel(config, {n.removeprefix(prefix): w.astype("f") for n, w in weights.items()})
    np.testing.assert_allclose(logits, plain.logits(np.array([[1, 2, 3]])), rtol=1e-4, atol=1e-4)


async def test_a_folder_of_another_model_is_rejected(tmp_path: Path) -> None:
    weights = published()
    del weights["h.1.mlp.c_fc.bias"]
    write_folder(tmp_path, weights, activation_function="relu")
    with pytest.raises(ValueError, match="activation_function='relu'"):
        config_of(tmp_path)
    made = Model(CONFIG)
    async with af.Session(graph=made.graph) as session:
        with pytest.raises(WeightsError, match=r"h\.1\.mlp\.c_fc\.bias"):
            await load(session, made, tmp_path)


def test_the_program_prints_its_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = program.main(["--tokens", "5", "--prompt", "Hi"])
    assert text.startswith("Hi")
    assert text in capsys.readouterr().out
    write_folder(tmp_path, published())
    with_words = ["--folder", str(tmp_path), "--tokens", "6", "--temperature", "0", "--prompt", "ab"]
    _write_vocabulary(tmp_path, 50)
    first = program.main(with_words)
    assert first.startswith("ab")
    assert first == program.main([*with_words, "--seed", "3"])


# -- tokens ------------------------------------------------------------------------------------


def _write_vocabulary(folder: Path, size: int) -> None:
    merges = [("a", "b"), ("Ġ", "ab"), ("ab", "ab"), ("Ã", "©")]
    parts = [*"abcdeĠÃ©!", *("".join(pair) for pair in merges), "<|endoftext|>"]
    parts += [f"unused{i}" for i in range(size - len(parts))]
    (folder / "vocab.json").write_text(json.dumps({part: i for i, part in enumerate(parts)}), encoding="utf-8")
    rules = "".join(f"{a} {b}\n" for a, b in merges)
    (folder / "merges.txt").write_text(f"#version: 0.2\n{rules}", encoding="utf-8")


def test_byte_pairs_encode_and_decode(tmp_path: Path) -> None:
    _write_vocabulary(tmp_path, 20)
    tokenizer = tokenizer_of(tmp_path)
    vocabulary = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    tokens = tokenizer.encode("ababab ab caé!")
    assert tokens == [vocabulary[t] for t in ["abab", "ab", "Ġab", "Ġ", "c", "a", "Ã©", "!"]]
    assert tokenizer.decode(tokens).decode() == "ababab ab caé!"
    assert tokenizer.decode([vocabulary["<|endoftext|>"]]) == b"<|endoftext|>"
    assert isinstance(tokenizer_of(None), Bytes)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Hello world", ["Hello", " world"]),
        ("I'll say it's 42nd, ok?!", ["I", "'ll", " say", " it", "'s", " 42", "nd", ",", " ok", "?!"]),
        ("a   b", ["a", "  ", " b"]),
        ("a \n\n b\t", ["a", " \n\n", " b", "\t"]),
        ("x\nfoo  ", ["x", "\n", "foo", "  "]),
        ("Überzüge 数字", ["Überzüge", " 数字"]),
        ("don't'", ["don", "'t", "'"]),
        ("", []),
    ],
)
def test_words_are_split_as_published(text: str, pieces: list[str]) -> None:
    assert words(text) == pieces


EVERY_BYTE = BytePairs({sign: i for i, sign in enumerate(BytePairs({}, [])._signs.values())}, [])


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_round_trips(text: str) -> None:
    assert EVERY_BYTE.decode(EVERY_BYTE.encode(text)).decode() == text
    assert "".join(words(text)) == text
