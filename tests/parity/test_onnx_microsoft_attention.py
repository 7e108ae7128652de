"""ONNX's domain com.microsoft against onnxruntime: kinds of attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aioflow.interop import onnx
from aioflow.interop.unsupported import UnsupportedError
from tests.parity.microsoft_models import make_model, same_floats

RNG = np.random.default_rng(6)
BATCH, STEPS, HEADS, SIZE, PAST = 2, 5, 3, 8, 4
WIDTH = HEADS * SIZE


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def masks(keys: int) -> dict[str, Any]:
    of_keys = (RNG.random((BATCH, keys)) < 0.6).astype(np.int32)
    of_pairs = (RNG.random((BATCH, STEPS, keys)) < 0.6).astype(np.int32)
    of_keys[0] = 0
    return {"none": None, "ends": np.array([2, keys], np.int32), "keys": of_keys, "pairs": of_pairs}


@pytest.mark.parametrize("mask", ["none", "ends", "keys", "pairs"])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("past", [0, PAST])
async def test_attention(mask: str, causal: int, past: int) -> None:
    inputs: dict[str, Any] = {
        "x": normal(BATCH, STEPS, 10),
        "weights": normal(10, 3 * WIDTH),
        "bias": normal(3 * WIDTH),
    }
    inputs["mask"] = masks(past + STEPS)[mask]
    inputs["past"] = normal(2, BATCH, HEADS, past, SIZE) if past else None
    await same_floats("Attention", inputs, ("y", "present"), num_heads=HEADS, unidirectional=causal, atol=1e-5)


@pytest.mark.parametrize("shape", [(BATCH, HEADS), (1, HEADS), (1, 1)])
async def test_attention_with_a_bias_of_scores(shape: tuple[int, ...]) -> None:
    inputs: dict[str, Any] = {
        "x": normal(BATCH, STEPS, 10),
        "weights": normal(10, 3 * WIDTH),
        "bias": normal(3 * WIDTH),
    }
    inputs |= {"mask": masks(STEPS)["keys"], "past": None, "scores": normal(*shape, STEPS, STEPS)}
    how: dict[str, Any] = {"scale": 0.3, "mask_filter_value": -5.0}
    await same_floats("Attention", inputs, num_heads=HEADS, atol=1e-5, **how)


async def test_attention_with_sizes_of_its_own() -> None:
    sizes = [WIDTH, WIDTH, 2 * HEADS]
    inputs: dict[str, Any] = {
        "x": normal(BATCH, STEPS, 10),
        "weights": normal(10, sum(sizes)),
        "bias": normal(sum(sizes)),
    }
    await same_floats("Attention", inputs, num_heads=HEADS, qkv_hidden_sizes=sizes, weights=["weights"], atol=1e-5)


@pytest.mark.parametrize("mask", ["none", "ends", "keys", "pairs"])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("past", [0, PAST])
@pytest.mark.parametrize("biased", [True, False])
async def test_multi_head(mask: str, causal: int, past: int, biased: bool) -> None:
    inputs: dict[str, Any] = {name: normal(BATCH, STEPS, WIDTH) for name in "qkv"}
    inputs |= {"bias": normal(3 * WIDTH) if biased else None, "mask": masks(past + STEPS)[mask], "scores": None}
    if past:
        inputs |= {name: normal(BATCH, HEADS, past, SIZE) for name in ("past_key", "past_value")}
    outputs = ("y", "key", "value")
    await same_floats("MultiHeadAttention", inputs, outputs, num_heads=HEADS, unidirectional=causal, atol=1e-5)


async def test_multi_head_of_other_keys() -> None:
    inputs: dict[str, Any] = {
        "q": normal(BATCH, STEPS, WIDTH),
        "k": normal(BATCH, 7, WIDTH),
        "v": normal(BATCH, 7, 4 * HEADS),
    }
    inputs |= {"bias": normal(2 * WIDTH + 4 * HEADS), "mask": None, "scores": normal(1, 1, STEPS, 7)}
    await same_floats("MultiHeadAttention", inputs, num_heads=HEADS, scale=0.4, atol=1e-5)


async def test_multi_head_of_keys_with_their_heads_first() -> None:
    inputs: dict[str, Any] = {"q": normal(BATCH, STEPS, WIDTH)}
    inputs |= {name: normal(BATCH, HEADS, 7, SIZE) for name in "kv"}
    await same_floats("MultiHeadAttention", inputs, num_heads=HEADS, atol=1e-5)


def angles(half: int, rows: int = 12) -> dict[str, Any]:
    angle = RNG.uniform(0, 6, (rows, half))
    return {"cos": np.cos(angle).astype(np.float32), "sin": np.sin(angle).astype(np.float32)}


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("part", [0, 4])
async def test_rotary(interleaved: int, rank: int, first: bool, part: int) -> None:
    x = normal(BATCH, STEPS, WIDTH) if rank == 3 else normal(BATCH, HEADS, STEPS, SIZE)
    positions = np.array([3]) if first else RNG.integers(0, 12, (BATCH, STEPS))
    tables = angles((part or SIZE) // 2)
    how: dict[str, Any] = {"num_heads": HEADS, "rotary_embedding_dim": part} if part else {}
    inputs = {"x": x, "positions": positions, **tables}
    await same_floats("RotaryEmbedding", inputs, interleaved=interleaved, weights=["cos", "sin"], **how)


@pytest.mark.parametrize(
    ("op", "how", "why"),
    [
        ("Attention", {"num_heads": 3, "do_rotary": 1}, "do_rotary=1"),
        ("Attention", {"num_heads": 3, "foo": 1}, "attribute 'foo'"),
        ("MultiHeadAttention", {"num_heads": 3, "foo": 1}, "attribute 'foo'"),
        ("RotaryEmbedding", {"scale": 0.5}, "scale=0.5"),
    ],
)
def test_refusals(op: str, how: dict[str, Any], why: str) -> None:
    inputs = {"x": normal(2, 5, 24), "w": normal(24, 72)}
    if op == "RotaryEmbedding":
        inputs = {"x": normal(2, 5, 24), "positions": np.array([0]), **angles(4)}
    with pytest.raises(UnsupportedError, match=why):
        onnx.load(make_model(op, inputs, **how))


def test_refuses_keys_and_values_within_the_queries() -> None:
    with pytest.raises(UnsupportedError, match="in one tensor"):
        onnx.load(make_model("MultiHeadAttention", {"q": normal(2, 5, 3, 3, 8)}, num_heads=3))


def test_refuses_a_mask_of_starts_and_ends() -> None:
    inputs: dict[str, Any] = {name: normal(2, 5, 24) for name in "qkv"}
    inputs |= {"bias": None, "mask": np.array([5, 4, 0, 1], np.int32)}
    with pytest.raises(UnsupportedError, match="more than the ends"):
        onnx.load(make_model("MultiHeadAttention", inputs, num_heads=3))
