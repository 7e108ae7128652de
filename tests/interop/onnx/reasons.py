"""Tests of onnx's backend suite that do not pass, with reasons. A test of `REASONS` that passes is a failure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["NOT_RUN", "REASONS"]

_SCALARS = "the suite cannot compare sequences of scalars: it asks each for its length"
_TIES = (
    "a layer's weights are all equal, so the softmax is of a thousand equal numbers of about 9.5e9, but how a product "
    "rounds depends on the column and on the library that computes it; onnxruntime's result is NumPy's"
)
_HALVES = "two of 192 values of float16 differ by one in the last place, which is more than the suite's 0.001"

REASONS: Final[Mapping[str, str]] = {
    "test_attention_4d_causal_fp16": _HALVES,
    "test_attention_4d_causal_fp16_expanded": _HALVES,
    "test_loop16_seq_none": _SCALARS,
}

_GENERATOR = "expects the numbers that NumPy's generator draws, and ONNX leaves the generator open"

# These tests are not run, because they could pass by chance.
NOT_RUN: Final[Mapping[str, str]] = {"test_squeezenet": _TIES} | dict.fromkeys(
    (
        "test_bernoulli",
        "test_bernoulli_double",
        "test_bernoulli_double_expanded",
        "test_bernoulli_expanded",
        "test_bernoulli_seed",
        "test_bernoulli_seed_expanded",
        "test_training_dropout",
        "test_training_dropout_default",
        "test_training_dropout_default_mask",
        "test_training_dropout_mask",
    ),
    _GENERATOR,
)
