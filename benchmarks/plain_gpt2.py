"""The transformer of `examples/gpt2` in plain NumPy: the oracle of its tests and the baseline of its benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from examples.gpt2.model import Config

__all__ = ["PlainModel"]

Array = np.ndarray[Any, Any]


class PlainModel:
    """A model with its cache, which each call extends.

    Args:
        config: Sizes of the model.
        weights: Weights by the names of the published checkpoints ("h.0.attn.c_attn.weight").
        rows: Number of streams.
    """

    def __init__(self, config: Config, weights: Mapping[str, Array], rows: int = 1) -> None:
        self.config = config
        self.weights = weights
        self.lengths = np.zeros(rows, np.int64)
        self.cache = np.zeros(
            (config.n_layer, 2, rows, config.n_head, config.n_positions, config.head_size), np.float32
        )

    def logits(self, tokens: Array) -> Array:
        """Return logits [B, N, V] for new tokens [B, N]. If B > 1, N must be 1 or all streams have the same length."""
        w, count = self.weights, tokens.shape[1]
        places = self.lengths[:, None] + np.arange(count)
        x = w["wte.weight"][tokens] + w["wpe.weight"][places]
        # A token attends to itself and to earlier tokens.
        hidden = np.where(np.arange(places.max() + 1) <= places[:, None, :, None], np.float32(0), np.float32(-1e9))
        seen = hidden if hidden.any() else None
        for layer in range(self.config.n_layer):
            x = x + self._attention(layer, self._norm(f"h.{layer}.ln_1", x), places, seen)
            x = x + self._perceptron(f"h.{layer}.mlp", self._norm(f"h.{layer}.ln_2", x))
        self.lengths = self.lengths + count
        logits = self._norm("ln_f", x).reshape(-1, self.config.n_embd) @ w["wte.weight"].T
        return logits.reshape(*tokens.shape, -1)

    def _norm(self, name: str, x: Array) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        variance = np.square(centred).mean(-1, keepdims=True)
        result: Array = centred / np.sqrt(variance + np.float32(self.config.layer_norm_epsilon))
        return result * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def _dense(self, name: str, x: Array) -> Array:
        # Flattened to a single product: with three axes, NumPy runs one product per stream.
        flat = x.reshape(-1, x.shape[-1]) @ self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        result: Array = flat.reshape(*x.shape[:-1], -1)
        return result

    def _attention(self, layer: int, x: Array, places: Array, hidden: Array | None) -> Array:
        rows, count, width = x.shape
        mixed = self._dense(f"h.{layer}.attn.c_attn", x)
        query, key, value = (
            part.reshape(rows, count, self.config.n_head, -1).transpose(0, 2, 1, 3) for part in np.split(mixed, 3, -1)
        )
        keys, values = self.cache[layer]
        for row, place in enumerate(places):
            keys[row, :, place[0] : place[-1] + 1] = key[row]
            values[row, :, place[0] : place[-1] + 1] = value[row]
        longest = places.max() + 1
        scores = query @ keys[:, :, :longest].swapaxes(-1, -2) * np.float32(self.config.head_size**-0.5)
        if hidden is not None:
            scores += hidden
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        found = shares @ values[:, :, :longest]
        return self._dense(f"h.{layer}.attn.c_proj", found.transpose(0, 2, 1, 3).reshape(rows, count, width))

    def _perceptron(self, name: str, x: Array) -> Array:
        x = self._dense(f"{name}.c_fc", x)
        x = 0.5 * x * (1.0 + np.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
        return self._dense(f"{name}.c_proj", x)
