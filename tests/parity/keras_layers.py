"""Small cases of every Keras layer: constructors, inputs, and the ops that are still missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import pytest

tensorflow: Any = pytest.importorskip("tensorflow")
L: Any = tensorflow.keras.layers

Spec: TypeAlias = tuple[tuple[int, ...], str]

VECTOR: Final[Spec] = ((4,), "float32")
SEQUENCE: Final[Spec] = ((8, 3), "float32")
IMAGE: Final[Spec] = ((8, 8, 3), "float32")
WIDE_IMAGE: Final[Spec] = ((8, 8, 4), "float32")
VOLUME: Final[Spec] = ((4, 6, 6, 2), "float32")
IDS: Final[Spec] = ((5,), "int32")
BY_RANK: Final = {"1D": SEQUENCE, "2D": IMAGE, "3D": VOLUME}


@dataclass(frozen=True)
class Case:
    """One Keras layer.

    Attributes:
        make: Function that creates the layer.
        inputs: Shape without the batch dimension, and dtype, of each input.
        call: Further arguments of the call.
        together: Whether the layer takes its inputs as one list.
    """

    make: Callable[[], Any]
    inputs: tuple[Spec, ...] = (VECTOR,)
    call: Mapping[str, Any] = field(default_factory=dict)
    together: bool = False


CASES: Final[dict[str, Case]] = {}


def _add(name: str, kind: str, *inputs: Spec, **arguments: Any) -> None:
    """Add a case for a layer of class `kind`. `call` and `together` go to the case, other arguments to the layer."""
    made = getattr(L, kind)
    call, together = arguments.pop("call", {}), arguments.pop("together", False)
    CASES[name] = Case(lambda: made(**arguments), inputs or (VECTOR,), call, together)


def _activations() -> None:
    names = """relu sigmoid tanh softmax elu selu gelu silu softplus softsign exponential hard_sigmoid hard_silu
        leaky_relu log_softmax mish relu6 celu glu hard_shrink hard_tanh linear log_sigmoid soft_shrink sparse_plus
        squareplus tanh_shrink sparse_sigmoid sparsemax"""
    for name in names.split():
        _add(f"Activation {name}", "Activation", activation=name)
    for kind in ("ELU", "LeakyReLU", "PReLU", "Softmax", "ActivityRegularization", "Identity"):
        _add(kind, kind)
    _add("ReLU", "ReLU", max_value=6.0, negative_slope=0.1, threshold=0.2)


def _by_rank() -> None:
    for rank, spec in BY_RANK.items():
        for kind in ("Average", "Max"):
            _add(f"Adaptive{kind}Pooling{rank}", f"Adaptive{kind}Pooling{rank}", spec, output_size=2)
            _add(f"{kind}Pooling{rank}", f"{kind}Pooling{rank}", spec, pool_size=2)
            _add(f"{kind}Pooling{rank} same", f"{kind}Pooling{rank}", spec, pool_size=3, strides=2, padding="same")
            _add(f"Global{kind}Pooling{rank}", f"Global{kind}Pooling{rank}", spec)
        convolution = {"filters": 4, "kernel_size": 3}
        _add(f"Conv{rank}", f"Conv{rank}", spec, **convolution)
        _add(f"Conv{rank} same", f"Conv{rank}", spec, **convolution, strides=2, padding="same")
        _add(f"Conv{rank} dilated", f"Conv{rank}", spec, filters=4, kernel_size=2, dilation_rate=2)
        _add(f"Conv{rank}Transpose", f"Conv{rank}Transpose", spec, **convolution, strides=2)
        _add(f"Conv{rank}Transpose same", f"Conv{rank}Transpose", spec, **convolution, strides=2, padding="same")
        _add(f"Cropping{rank}", f"Cropping{rank}", spec, cropping=1)
        _add(f"UpSampling{rank}", f"UpSampling{rank}", spec)
        _add(f"ZeroPadding{rank}", f"ZeroPadding{rank}", spec, padding=1)
        _add(f"SpatialDropout{rank}", f"SpatialDropout{rank}", spec, rate=0.5)
        over_time = ((3, *spec[0]), "float32")
        _add(f"ConvLSTM{rank}", f"ConvLSTM{rank}", over_time, filters=2, kernel_size=2)
    for rank in ("1D", "2D"):
        spec = BY_RANK[rank]
        _add(f"DepthwiseConv{rank}", f"DepthwiseConv{rank}", spec, kernel_size=3)
        strided = {"kernel_size": 3, "strides": 2, "padding": "same", "depth_multiplier": 2}
        _add(f"DepthwiseConv{rank} strided", f"DepthwiseConv{rank}", spec, **strided)
        _add(f"SeparableConv{rank}", f"SeparableConv{rank}", spec, filters=4, kernel_size=3)
    _add("Conv1D causal", "Conv1D", SEQUENCE, filters=4, kernel_size=3, padding="causal")
    _add("Conv2D grouped", "Conv2D", WIDE_IMAGE, filters=4, kernel_size=3, groups=2)
    for method in ("bilinear", "bicubic", "lanczos3", "lanczos5"):
        _add(f"UpSampling2D {method}", "UpSampling2D", IMAGE, interpolation=method)


def _merging_and_attention() -> None:
    for kind in ("Add", "Average", "Concatenate", "Maximum", "Minimum", "Multiply"):
        _add(kind, kind, VECTOR, VECTOR, VECTOR, together=True)
    _add("Subtract", "Subtract", VECTOR, VECTOR, together=True)
    _add("Dot", "Dot", VECTOR, VECTOR, together=True, axes=1)
    _add("Dot normalized", "Dot", SEQUENCE, ((3, 8), "float32"), together=True, axes=(1, 2), normalize=True)
    _add("Attention", "Attention", SEQUENCE, SEQUENCE, together=True)
    scored = {"use_scale": True, "score_mode": "concat", "dropout": 0.1}
    _add("Attention scored", "Attention", SEQUENCE, SEQUENCE, SEQUENCE, together=True, **scored)
    _add("AdditiveAttention", "AdditiveAttention", SEQUENCE, SEQUENCE, together=True)
    heads = {"num_heads": 2, "key_dim": 4}
    _add("MultiHeadAttention", "MultiHeadAttention", SEQUENCE, SEQUENCE, **heads)
    _add("MultiHeadAttention causal", "MultiHeadAttention", SEQUENCE, SEQUENCE, call={"use_causal_mask": True}, **heads)
    groups = {"head_dim": 4, "num_query_heads": 4, "num_key_value_heads": 2}
    _add("GroupQueryAttention", "GroupQueryAttention", SEQUENCE, SEQUENCE, **groups)


def _normalizing() -> None:
    _add("BatchNormalization", "BatchNormalization", IMAGE)
    _add("BatchNormalization of vectors", "BatchNormalization")
    _add("BatchNormalization in training", "BatchNormalization", call={"training": True})
    _add("GroupNormalization", "GroupNormalization", WIDE_IMAGE, groups=2)
    _add("LayerNormalization", "LayerNormalization", SEQUENCE)
    _add("LayerNormalization of two axes", "LayerNormalization", SEQUENCE, axis=[1, 2])
    _add("RMSNormalization", "RMSNormalization", SEQUENCE)
    _add("UnitNormalization", "UnitNormalization", SEQUENCE)
    _add("Normalization", "Normalization", SEQUENCE, mean=[1.0, 2, 3], variance=[1.0, 2, 3])
    CASES["SpectralNormalization"] = Case(lambda: L.SpectralNormalization(L.Conv2D(3, 2)), (IMAGE,))
    for kind, rate in (("AlphaDropout", 0.3), ("Dropout", 0.3), ("GaussianDropout", 0.3)):
        _add(kind, kind, rate=rate)
        _add(f"{kind} in training", kind, rate=rate, seed=1, call={"training": True})
    _add("GaussianNoise", "GaussianNoise", stddev=0.3)
    _add("GaussianNoise in training", "GaussianNoise", stddev=0.3, seed=1, call={"training": True})


def _dense_and_shapes() -> None:
    _add("Dense", "Dense", units=5)
    _add("Dense of a sequence", "Dense", SEQUENCE, units=5, activation="relu")
    _add("EinsumDense", "EinsumDense", SEQUENCE, equation="abc,cd->abd", output_shape=(8, 5), bias_axes="d")
    _add("Embedding", "Embedding", IDS, input_dim=10, output_dim=4)
    _add("ReversibleEmbedding", "ReversibleEmbedding", IDS, input_dim=10, output_dim=4)
    _add("Flatten", "Flatten", IMAGE)
    _add("Permute", "Permute", SEQUENCE, dims=(2, 1))
    _add("RepeatVector", "RepeatVector", n=3)
    _add("Reshape", "Reshape", target_shape=(2, 2))
    _add("Masking", "Masking", SEQUENCE)
    CASES["Lambda"] = Case(lambda: L.Lambda(lambda x: x * 2))
    CASES["TimeDistributed"] = Case(lambda: L.TimeDistributed(L.Dense(3)), (SEQUENCE,))


def _recurrent() -> None:
    for kind in ("GRU", "LSTM", "SimpleRNN"):
        _add(kind, kind, SEQUENCE, units=3)
        _add(f"{kind} backwards", kind, SEQUENCE, units=3, return_sequences=True, go_backwards=True)
        _add(f"{kind} unrolled", kind, SEQUENCE, units=3, unroll=True)
        _add(f"{kind} with dropout", kind, SEQUENCE, units=3, dropout=0.2, recurrent_dropout=0.2)
        _add(f"{kind} with states", kind, SEQUENCE, units=3, return_state=True, return_sequences=True)
    _add("GRU reset before", "GRU", SEQUENCE, units=3, reset_after=False)
    sequential = tensorflow.keras.Sequential
    CASES["LSTM of what is masked"] = Case(lambda: sequential([L.Masking(), L.LSTM(3)]), (SEQUENCE,))
    masked = Case(lambda: sequential([L.Embedding(10, 4, mask_zero=True), L.GRU(3)]), (IDS,))
    CASES["GRU of what is masked"] = masked
    CASES["RNN of cells"] = Case(lambda: L.RNN([L.LSTMCell(3), L.GRUCell(2), L.SimpleRNNCell(2)]), (SEQUENCE,))
    stacked = Case(lambda: L.RNN(L.StackedRNNCells([L.LSTMCell(3), L.LSTMCell(2)])), (SEQUENCE,))
    CASES["StackedRNNCells"] = stacked
    CASES["Bidirectional"] = Case(lambda: L.Bidirectional(L.LSTM(3)), (SEQUENCE,))


def _preprocessing() -> None:
    _add("CategoryEncoding one_hot", "CategoryEncoding", ((1,), "int32"), num_tokens=4, output_mode="one_hot")
    for mode in ("multi_hot", "count"):
        _add(f"CategoryEncoding {mode}", "CategoryEncoding", ((3,), "int32"), num_tokens=4, output_mode=mode)
    _add("Discretization", "Discretization", bin_boundaries=[-0.5, 0.0, 0.5])
    _add("Discretization multi_hot", "Discretization", bin_boundaries=[-0.5, 0.0, 0.5], output_mode="multi_hot")
    _add("HashedCrossing", "HashedCrossing", ((), "string"), ((), "string"), together=True, num_bins=5)
    _add("Hashing", "Hashing", ((2,), "string"), num_bins=5)
    _add("Hashing of numbers", "Hashing", ((2,), "int64"), num_bins=5)
    _add("Hashing with salt", "Hashing", ((2,), "string"), num_bins=5, salt=[133, 137])
    _add("IntegerLookup", "IntegerLookup", ((3,), "int64"), vocabulary=[1, 5, 7])
    words = ["a", "b"]
    _add("StringLookup", "StringLookup", ((3,), "string"), vocabulary=words)
    _add("StringLookup inverted", "StringLookup", ((3,), "int64"), vocabulary=words, invert=True)
    _add("StringLookup multi_hot", "StringLookup", ((3,), "string"), vocabulary=words, output_mode="multi_hot")
    _add("TextVectorization", "TextVectorization", ((), "string"), vocabulary=["hello", "world"])
    weighted = {"idf_weights": [0.3, 0.4], "max_tokens": 5, "output_mode": "tf_idf", "pad_to_max_tokens": True}
    _add("TextVectorization tf_idf", "TextVectorization", ((), "string"), vocabulary=["hello", "world"], **weighted)
    spectrum = {"fft_length": 64, "sequence_stride": 16, "num_mel_bins": 8, "sampling_rate": 1000, "max_freq": 400}
    _add("MelSpectrogram", "MelSpectrogram", ((160,), "float32"), **spectrum)
    _add("STFTSpectrogram", "STFTSpectrogram", ((160, 1), "float32"), frame_length=32, frame_step=16, fft_length=32)


def _images() -> None:
    _add("CenterCrop", "CenterCrop", IMAGE, height=4, width=4)
    _add("Rescaling", "Rescaling", IMAGE, scale=1 / 255.0, offset=0.5)
    size = {"height": 5, "width": 7}
    for method in ("bilinear", "nearest", "bicubic"):
        _add(f"Resizing {method}", "Resizing", IMAGE, **size, interpolation=method)
    _add("Resizing cropped", "Resizing", IMAGE, **size, crop_to_aspect_ratio=True)
    _add("Resizing antialiased", "Resizing", IMAGE, **size, antialias=True)
    unit = {"value_range": (0, 1)}
    factor = {"factor": 0.2}
    jitter = {f"{name}_factor": 0.2 for name in ("brightness", "contrast", "saturation", "hue")}
    augmentations: dict[str, dict[str, Any]] = {
        "AugMix": {},
        "AutoContrast": {},
        "ContrastLimitedAdaptiveHistogramEqualization": {"value_range": (0, 255)},
        "CutMix": {},
        "MixUp": {},
        "RandAugment": {},
        "RandomBrightness": factor,
        "RandomColorDegeneration": factor | unit,
        "RandomColorJitter": jitter | unit,
        "RandomContrast": factor,
        "RandomCrop": {"height": 4, "width": 4},
        "RandomElasticTransform": {},
        "RandomErasing": {},
        "RandomFlip": {},
        "RandomGaussianBlur": {},
        "RandomGrayscale": {},
        "RandomHue": factor | unit,
        "RandomInvert": {},
        "RandomPerspective": {},
        "RandomPosterization": {"factor": 4} | unit,
        "RandomRotation": factor,
        "RandomSaturation": {"factor": 0.5} | unit,
        "RandomSharpness": factor | unit,
        "RandomShear": {"x_factor": 0.2},
        "RandomTranslation": {"height_factor": 0.2, "width_factor": 0.2},
        "RandomZoom": {"height_factor": 0.2},
        "Solarization": {},
    }
    for kind, arguments in augmentations.items():
        _add(kind, kind, IMAGE, **arguments)
        if kind not in ("AutoContrast", "ContrastLimitedAdaptiveHistogramEqualization", "Solarization"):
            _add(f"{kind} in training", kind, IMAGE, **arguments, seed=1, call={"training": True})


for _fill in (
    _activations,
    _by_rank,
    _merging_and_attention,
    _normalizing,
    _dense_and_shapes,
    _recurrent,
    _preprocessing,
    _images,
):
    _fill()

# Layers that must be refused because exactly these ops are missing. Remove a line when its op is added.
MISSING: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("TextVectorization tf_idf",),
        "RaggedBincount",
    ),
    **dict.fromkeys(
        ("TextVectorization",),
        "RaggedTensorToTensor",
    ),
}
