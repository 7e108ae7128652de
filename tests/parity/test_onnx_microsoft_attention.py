"""ONNX's domain com.microsoft against onnxruntime: attention operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aioflow.interop import onnx
from aioflow.interop.unsupported import UnsupportedError
from tests.parity.microsoft_models import make_model, run_both, same_floats

RNG = np.random.default_rng(6)
BATCH, STEPS, HEADS, SIZE, PAST = 2, 5, 3, 8, 4
WIDTH = HEADS * SIZE
LARGE = 16  # the smallest head size that GroupQueryAttention rotates


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
async def test_attention_with_score_bias(shape: tuple[int, ...]) -> None:
    inputs: dict[str, Any] = {
        "x": normal(BATCH, STEPS, 10),
        "weights": normal(10, 3 * WIDTH),
        "bias": normal(3 * WIDTH),
    }
    inputs |= {"mask": masks(STEPS)["keys"], "past": None, "scores": normal(*shape, STEPS, STEPS)}
    how: dict[str, Any] = {"scale": 0.3, "mask_filter_value": -5.0}
    await same_floats("Attention", inputs, num_heads=HEADS, atol=1e-5, **how)


async def test_attention_with_qkv_hidden_sizes() -> None:
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


async def test_multi_head_cross_attention() -> None:
    inputs: dict[str, Any] = {
        "q": normal(BATCH, STEPS, WIDTH),
        "k": normal(BATCH, 7, WIDTH),
        "v": normal(BATCH, 7, 4 * HEADS),
    }
    inputs |= {"bias": normal(2 * WIDTH + 4 * HEADS), "mask": None, "scores": normal(1, 1, STEPS, 7)}
    await same_floats("MultiHeadAttention", inputs, num_heads=HEADS, scale=0.4, atol=1e-5)


async def test_multi_head_with_keys_by_head() -> None:
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


def grouped(steps: int, past: int, lengths: list[int], *, packed: bool = False) -> dict[str, Any]:
    """Return the inputs of a GroupQueryAttention: 4 heads of queries, 2 of keys."""
    total = past + steps
    inputs: dict[str, Any] = {"q": normal(BATCH, steps, 4 * LARGE), "k": None, "v": None}
    if packed:
        inputs["q"] = normal(BATCH, steps, 8 * LARGE)
    else:
        inputs |= {name: normal(BATCH, steps, 2 * LARGE) for name in "kv"}
    inputs |= {name: normal(BATCH, 2, past, LARGE) for name in ("past_key", "past_value")}
    return inputs | {"lengths": np.array(lengths, np.int32) - 1, "total": np.array(total, np.int32)}


async def same_grouped(inputs: dict[str, Any], valid: slice = slice(None), **how: Any) -> None:
    """Compare the outputs at the `valid` steps, which exclude padding, and the caches within the sequences."""
    weights = [n for n in ("cos", "sin") if n in inputs]
    how = dict[str, Any](num_heads=4, kv_num_heads=2, weights=weights) | how
    outputs = ("y", "key", "value")
    for known in (True, False):
        results = await run_both("GroupQueryAttention", inputs, outputs, known_shapes=known, **how)
        (found, wanted), *caches = results
        np.testing.assert_allclose(found[:, valid], wanted[:, valid], rtol=1e-5, atol=1e-5)
        for cache, expected in caches:
            assert cache.shape == expected.shape
            for row, length in enumerate(inputs["lengths"] + 1):
                np.testing.assert_allclose(cache[row, :, :length], expected[row, :, :length], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("rotary", [None, 0, 1])
async def test_grouped_queries(packed: bool, rotary: int | None) -> None:
    how: dict[str, Any] = {} if rotary is None else {"do_rotary": 1, "rotary_interleaved": rotary}
    tables = {} if rotary is None else angles(LARGE // 2, 16)
    await same_grouped(grouped(5, 0, [5, 5], packed=packed) | tables, **how)
    await same_grouped(grouped(5, 0, [3, 5], packed=packed) | tables, slice(3), **how)  # padding after a prompt
    await same_grouped(grouped(1, 6, [7, 7], packed=packed) | tables, **how)
    await same_grouped(grouped(1, 6, [4, 7], packed=packed) | tables, **how)
    later = grouped(3, 6, [9, 9], packed=packed)  # a continued prompt, which onnxruntime supports for one sequence only
    one = {name: value if value is None or value.ndim == 0 else value[:1] for name, value in later.items()}
    await same_grouped(one | tables, **how)
    nothing = grouped(5, 0, [5, 5], packed=packed) | {"past_key": None, "past_value": None}
    await same_grouped(nothing | tables, **how)


@pytest.mark.parametrize(("steps", "past", "lengths"), [(5, 0, [5, 5]), (1, 6, [4, 7])])
@pytest.mark.parametrize("how", [{"local_window_size": 2}, {"local_window_size": 1}, {"softcap": 0.5}, {"scale": 0.7}])
async def test_grouped_queries_with_windows(steps: int, past: int, lengths: list[int], how: dict[str, Any]) -> None:
    await same_grouped(grouped(steps, past, lengths), **how)


async def test_grouped_queries_with_positions() -> None:
    how: dict[str, Any] = {"do_rotary": 1}
    inputs = grouped(5, 0, [5, 5]) | angles(LARGE // 2, 16)
    # For several steps onnxruntime 1.32 reads only the first position, and counts on from there.
    await same_grouped(inputs | {"positions": np.tile(np.arange(3, 8), (BATCH, 1))}, **how)
    inputs = grouped(1, 6, [4, 7]) | angles(LARGE // 2, 16)
    await same_grouped(inputs | {"positions": np.array([[9], [3]])}, **how)


async def test_grouped_queries_with_a_long_cache() -> None:
    """Use a cache with room for more steps than it holds so far."""
    inputs = grouped(1, 9, [4, 7])
    await same_grouped(inputs | {"total": np.array(7, np.int32)})


async def test_grouped_queries_with_score_bias() -> None:
    inputs = grouped(1, 6, [4, 7]) | {"cos": None, "sin": None, "positions": None}
    await same_grouped(inputs | {"scores": normal(BATCH, 4, 1, 7)})


@pytest.mark.usefixtures("without_engines")
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"smooth_softmax": 1}, "smooth_softmax=1"),
        ({"causal": 0}, "causal=0"),
        ({"local_window_size": 0}, "local_window_size=0"),
        ({"k_quant_type": "PER_TENSOR"}, "k_quant_type=PER_TENSOR"),
        ({"foo": 1}, "attribute 'foo'"),
    ],
)
def test_rejects_unsupported_grouped_queries(how: dict[str, Any], why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        onnx.load(make_model("GroupQueryAttention", grouped(1, 6, [4, 7]), num_heads=4, kv_num_heads=2, **how))


@pytest.mark.usefixtures("without_engines")
@pytest.mark.parametrize(
    ("op", "how", "why"),
    [
        ("Attention", {"num_heads": 3, "do_rotary": 1}, "do_rotary=1"),
        ("Attention", {"num_heads": 3, "foo": 1}, "attribute 'foo'"),
        ("MultiHeadAttention", {"num_heads": 3, "foo": 1}, "attribute 'foo'"),
        ("RotaryEmbedding", {"scale": 0.5}, "scale=0.5"),
    ],
)
def test_rejects_unsupported_attributes(op: str, how: dict[str, Any], why: str) -> None:
    inputs = {"x": normal(2, 5, 24), "w": normal(24, 72)}
    if op == "RotaryEmbedding":
        inputs = {"x": normal(2, 5, 24), "positions": np.array([0]), **angles(4)}
    with pytest.raises(UnsupportedError, match=why):
        onnx.load(make_model(op, inputs, **how))


@pytest.mark.usefixtures("without_engines")
def test_rejects_keys_and_values_packed_with_queries() -> None:
    with pytest.raises(UnsupportedError, match="in one tensor"):
        onnx.load(make_model("MultiHeadAttention", {"q": normal(2, 5, 3, 3, 8)}, num_heads=3))


@pytest.mark.usefixtures("without_engines")
def test_rejects_masks_of_starts_and_ends() -> None:
    inputs: dict[str, Any] = {name: normal(2, 5, 24) for name in "qkv"}
    inputs |= {"bias": None, "mask": np.array([5, 4, 0, 1], np.int32)}
    with pytest.raises(UnsupportedError, match="more than the ends"):
        onnx.load(make_model("MultiHeadAttention", inputs, num_heads=3))
