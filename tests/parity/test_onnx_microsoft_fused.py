"""ONNX's domain com.microsoft against onnxruntime: fused operators and matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aioflow.interop import onnx
from aioflow.interop.unsupported import UnsupportedError
from tests.parity.microsoft_models import make_model, run_both, same_floats, whole

RNG = np.random.default_rng(5)
ZEROS = ["", "packed", "floats"]


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("flags", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
async def test_matmul(flags: tuple[int, int], batch: tuple[int, ...]) -> None:
    a, b = normal(*batch, 4, 5), normal(*batch, 5, 6)
    if flags[0]:
        a = np.ascontiguousarray(a.swapaxes(-1, -2))
    if flags[1]:
        b = np.ascontiguousarray(b.swapaxes(-1, -2))
    await same_floats("FusedMatMul", {"a": a, "b": b}, transA=flags[0], transB=flags[1], alpha=0.125)
    await same_floats("FusedMatMul", {"a": a, "b": b}, transA=flags[0], transB=flags[1])


async def test_matmul_with_transposed_batch_axes() -> None:
    await same_floats("FusedMatMul", {"a": normal(4, 3, 5), "b": normal(3, 5, 6)}, transBatchA=1)
    await same_floats("FusedMatMul", {"a": normal(3, 4, 5), "b": normal(6, 3, 5)}, transBatchB=1, transB=1)


async def test_matmul_of_vectors() -> None:
    await same_floats("FusedMatMul", {"a": normal(5), "b": normal(6, 5)}, transB=1, transA=1, alpha=2.0)


ACTIVATIONS: list[tuple[str, dict[str, float]]] = [
    ("Relu", {}),
    ("Tanh", {}),
    ("Sigmoid", {}),
    ("Softplus", {}),
    ("LeakyRelu", {"alpha": 0.2}),
    ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
    ("Elu", {"alpha": 0.7}),
    ("ThresholdedRelu", {"alpha": 0.5}),
]


@pytest.mark.parametrize(("name", "parameters"), ACTIVATIONS)
@pytest.mark.parametrize("biased", [True, False])
async def test_gemm(name: str, parameters: dict[str, float], biased: bool) -> None:
    inputs = {"a": normal(3, 4), "b": normal(5, 3), "c": normal(5) if biased else None}
    given: dict[str, Any] = {f"activation_{key}": value for key, value in parameters.items()}
    await same_floats("FusedGemm", inputs, transA=1, transB=1, alpha=0.5, beta=2.0, activation=name, **given)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        (None, None),
        ("Relu", None),
        ("Tanh", None),
        ("Sigmoid", None),
        ("LeakyRelu", [0.2]),
        ("Clip", [-0.5, 1.5]),
        ("HardSigmoid", [0.3, 0.4]),
    ],
)
@pytest.mark.parametrize("extra", ["none", "b", "bz"])
async def test_conv(name: str | None, parameters: list[float] | None, extra: str) -> None:
    inputs = {"x": normal(2, 4, 7, 6), "w": normal(6, 2, 3, 3)}
    inputs["b"] = normal(6) if "b" in extra else None
    inputs["z"] = normal(2, 6, 7, 6) if "z" in extra else None
    given: dict[str, Any] = {"activation": name, "activation_params": parameters}
    how = {key: value for key, value in given.items() if value is not None}
    await same_floats("FusedConv", inputs, group=2, pads=[1, 1, 1, 1], weights=["w", "b"], atol=1e-5, **how)


async def test_gelus() -> None:
    x, bias = normal(3, 50) * 3, normal(50)
    await same_floats("Gelu", {"x": x})
    await same_floats("BiasGelu", {"x": x, "bias": bias})


@pytest.mark.parametrize("alpha", [None, 1.0, 0.5])
async def test_quick_gelu(alpha: float | None) -> None:
    how: dict[str, Any] = {} if alpha is None else {"alpha": alpha}
    await same_floats("QuickGelu", {"x": normal(3, 50) * 3}, **how)


async def test_fast_gelu() -> None:
    x, bias = normal(3, 50) * 3, normal(50)
    await same_floats("FastGelu", {"x": x})
    await same_floats("FastGelu", {"x": x, "bias": bias})


# ── layers of transformers ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("skip", [(2, 5, 8), (1, 5, 8), (5, 8)])
@pytest.mark.parametrize("optional", ["", "beta", "bias", "beta bias"])
async def test_skip_layer_normalization(skip: tuple[int, ...], optional: str) -> None:
    inputs = {"x": normal(2, 5, 8), "skip": normal(*skip), "gamma": normal(8)}
    bias = normal(8) if "bias" in optional else None
    inputs |= {"beta": normal(8) if "beta" in optional else None, "bias": bias}
    outputs = ("y", "", "", "sum")
    await same_floats("SkipLayerNormalization", inputs, outputs, epsilon=1e-5)
    del inputs["beta"]
    await same_floats("SkipSimplifiedLayerNormalization", inputs, outputs)


async def test_skip_layer_normalization_in_float16() -> None:
    inputs = {"x": normal(2, 5, 8, dtype=np.float16), "skip": normal(2, 5, 8, dtype=np.float16)}
    inputs |= {"gamma": normal(8, dtype=np.float16), "beta": normal(8, dtype=np.float16)}
    await same_floats("SkipLayerNormalization", inputs, rtol=3e-3, atol=3e-3)


async def test_simplified_layer_normalization() -> None:
    inputs = {"x": normal(2, 5, 8), "gamma": normal(8)}
    await same_floats("SimplifiedLayerNormalization", inputs, ("y", "inverse"), domain="", axis=-1, epsilon=1e-6)


@pytest.mark.parametrize("segmented", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("positions", [None, 1, 2])
async def test_embed_layer_normalization(segmented: bool, masked: bool, positions: int | None) -> None:
    inputs: dict[str, Any] = {
        "words": RNG.integers(0, 20, (2, 6), np.int32),
        "segments": RNG.integers(0, 2, (2, 6), np.int32) if segmented else None,
        "of_words": normal(20, 8),
        "of_positions": normal(10, 8),
        "of_segments": normal(2, 8) if segmented else None,
        "gamma": normal(8),
        "beta": normal(8),
        "mask": np.array([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]], np.int32) if masked else None,
        "positions": None if positions is None else RNG.integers(0, 10, (positions, 6), np.int32),
    }
    weights = ["of_words", "of_positions", "of_segments", "gamma", "beta"]
    await same_floats("EmbedLayerNormalization", inputs, ("y", "count", "sum"), epsilon=1e-5, weights=weights)


# ── quantized products ───────────────────────────────────────────────────────────────────────────────────────────────


# onnxruntime has no kernel for int8 times uint8.
@pytest.mark.parametrize(("a_dtype", "b_dtype"), [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("optional", ["", "zeros", "zeros bias"])
async def test_matmul_integer_to_float(a_dtype: Any, b_dtype: Any, columns: bool, optional: str) -> None:
    inputs: dict[str, Any] = {"a": whole(a_dtype, (2, 3, 8)), "b": whole(b_dtype, (8, 5))}
    inputs |= {
        "a_scale": np.array(0.02, np.float32),
        "b_scale": np.float32(RNG.uniform(0.01, 0.1, 5 if columns else 1)),
    }
    if "zeros" in optional:
        inputs |= {"a_zero": np.array(3, a_dtype), "b_zero": RNG.integers(0, 9, 5 if columns else 1).astype(b_dtype)}
    if "bias" in optional:
        inputs["bias"] = normal(5)
    constant = ["b", "b_zero"] if a_dtype is not b_dtype else []
    await same_floats("MatMulIntegerToFloat", inputs, atol=1e-5, constant=constant)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("optional", ["", "zero", "bias", "zero bias"])
async def test_dynamic_quantize_matmul(dtype: Any, columns: bool, optional: str) -> None:
    count = 5 if columns else 1
    inputs: dict[str, Any] = {"a": normal(2, 3, 8), "b": whole(dtype, (8, 5))}
    inputs["b_scale"] = np.float32(RNG.uniform(0.01, 0.1, count))
    inputs["b_zero"] = RNG.integers(0, 9, count).astype(dtype) if "zero" in optional else None
    inputs["bias"] = normal(5) if "bias" in optional else None
    constant = ["b", "b_zero"] if dtype is np.int8 else []
    await same_floats("DynamicQuantizeMatMul", inputs, atol=1e-5, constant=constant)
    await same_floats("DynamicQuantizeMatMul", inputs | {"a": np.zeros((3, 8), np.float32)}, weights=["b"])


def lstm(dtype: Any, directions: int, columns: bool, optional: str, batch: int = 2) -> dict[str, Any]:
    """Return the inputs of a DynamicQuantizeLSTM: 6 steps of 5 numbers, 4 units."""
    shape = (directions, 16) if columns else (directions,)
    inputs: dict[str, Any] = {
        "x": normal(6, batch, 5),
        "w": whole(dtype, (directions, 5, 16)),
        "r": whole(dtype, (directions, 4, 16)),
        "b": normal(directions, 32) if "b" in optional else None,
        "lengths": None,
        "h": normal(directions, batch, 4) if "s" in optional else None,
        "c": normal(directions, batch, 4) if "s" in optional else None,
        "p": normal(directions, 12) if "p" in optional else None,
    }
    for name in ("w", "r"):
        inputs[f"{name}_scale"] = np.float32(RNG.uniform(0.005, 0.01, shape))
        inputs[f"{name}_zero"] = np.full(shape, 128 if dtype is np.uint8 else 0, dtype)
    return inputs


LSTM_WEIGHTS = ["w", "r", "b", "p", "w_scale", "w_zero", "r_scale", "r_zero"]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("optional", ["", "b", "bs", "bsp"])
async def test_dynamic_quantize_lstm(dtype: Any, direction: str, columns: bool, optional: str) -> None:
    inputs = lstm(dtype, 2 if direction == "bidirectional" else 1, columns, optional)
    how: dict[str, Any] = {"hidden_size": 4, "direction": direction, "weights": LSTM_WEIGHTS}
    constant = ["w", "r"] if dtype is np.int8 else []
    await same_floats("DynamicQuantizeLSTM", inputs, ("y", "last_h", "last_c"), atol=1e-5, constant=constant, **how)


@pytest.mark.usefixtures("without_engines")
def test_rejects_sequences_of_different_lengths() -> None:
    inputs = lstm(np.uint8, 1, False, "") | {"lengths": np.array([3, 6], np.int32)}
    with pytest.raises(UnsupportedError, match="different lengths"):
        onnx.load(make_model("DynamicQuantizeLSTM", inputs, hidden_size=4, weights=LSTM_WEIGHTS))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("biased", [True, False])
async def test_qgemm(dtype: Any, columns: bool, biased: bool) -> None:
    count = (5,) if columns else ()
    inputs: dict[str, Any] = {
        "a": whole(dtype, (8, 3)),
        "a_scale": np.array(0.02, np.float32),
        "a_zero": np.array(3, dtype),
        "b": whole(dtype, (5, 8)),
        "b_scale": np.array(RNG.uniform(0.01, 0.1, count), np.float32),
        "b_zero": np.zeros(count, dtype),
        "c": RNG.integers(-9000, 9000, 5, np.int32) if biased else None,
    }
    how: dict[str, Any] = {"transA": 1, "transB": 1, "alpha": 0.5}
    await same_floats("QGemm", inputs, atol=1e-5, **how)
    inputs |= {"y_scale": np.array(0.5, np.float32), "y_zero": np.array(9, dtype)}
    for found, wanted in await run_both("QGemm", inputs, **how):
        assert found.dtype == wanted.dtype
        assert np.abs(found.astype(int) - wanted).max() <= 1


# onnxruntime has no kernel for 8 bits with floating-point zero points.
@pytest.mark.parametrize(("bits", "zeros"), [(2, ""), (2, "packed"), (8, ""), (8, "packed"), *((4, z) for z in ZEROS)])
@pytest.mark.parametrize("columns", [32, 48, 80])
async def test_matmul_n_bits(bits: int, columns: int, zeros: str) -> None:
    blocks = -(-columns // 16)
    bytes_of_row = -(-blocks * bits // 8)
    inputs: dict[str, Any] = {"a": normal(2, 3, columns), "b": whole(np.uint8, (6, blocks, 2 * bits))}
    inputs |= {"scales": np.float32(RNG.uniform(0.01, 0.1, (6, blocks))), "zeros": None, "g": None, "bias": normal(6)}
    if zeros == "packed":
        inputs["zeros"] = whole(np.uint8, (6, bytes_of_row))
    elif zeros:
        inputs["zeros"] = np.float32(RNG.integers(0, 3, (6, blocks)))
    how: dict[str, Any] = {"K": columns, "N": 6, "block_size": 16, "bits": bits}
    weights = ["b", "scales", "zeros", "bias"]
    await same_floats("MatMulNBits", inputs, weights=weights, rtol=1e-4, atol=1e-4, **how)


@pytest.mark.usefixtures("without_engines")
def test_rejects_reordered_and_prepacked_weights() -> None:
    inputs: dict[str, Any] = {"a": normal(2, 32), "b": whole(np.uint8, (6, 2, 8)), "scales": normal(6, 2)}
    how: dict[str, Any] = {"K": 32, "N": 6, "block_size": 16}
    with pytest.raises(UnsupportedError, match="input 'g_idx'"):
        onnx.load(make_model("MatMulNBits", inputs | {"zeros": None, "g": np.zeros(32, np.int32)}, **how))
    with pytest.raises(UnsupportedError, match="3 bits"):
        onnx.load(make_model("MatMulNBits", inputs, bits=3, **how))
    with pytest.raises(UnsupportedError, match="weight_prepacked=1"):
        onnx.load(make_model("MatMulNBits", inputs, weight_prepacked=1, **how))


@pytest.mark.usefixtures("without_engines")
@pytest.mark.parametrize(
    ("op", "inputs", "how", "why"),
    [
        ("FusedMatMul", {"a": normal(2, 3), "b": normal(3, 2)}, {"beta": 1.0}, "attribute 'beta'"),
        ("FusedGemm", {"a": normal(2, 3), "b": normal(3, 2)}, {"activation": "Foo"}, "activation=Foo"),
        ("FusedConv", {"x": normal(1, 1, 3, 3), "w": normal(1, 1, 3, 3)}, {"activation": "Foo"}, "activation=Foo"),
        ("QuickGelu", {"x": normal(3)}, {"beta": 1.0}, "attribute 'beta'"),
        (
            "MatMulIntegerToFloat",
            {"a": whole(np.uint8, (2, 3)), "b": whole(np.uint8, (3, 2)), "s": normal(2), "t": normal(1)},
            {},
            "not a scalar",
        ),
    ],
)
def test_rejects_unsupported_attributes(op: str, inputs: dict[str, Any], how: dict[str, Any], why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        onnx.load(make_model(op, inputs, **how))


@pytest.mark.usefixtures("without_engines")
def test_rejects_mean_output_of_skip_layer_normalization() -> None:
    inputs = {"x": normal(2, 5, 8), "skip": normal(2, 5, 8), "gamma": normal(8)}
    with pytest.raises(UnsupportedError, match="mean"):
        onnx.load(make_model("SkipLayerNormalization", inputs, ("y", "mean")))
