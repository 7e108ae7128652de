"""The graph of a GPT-2-shaped transformer (Radford et al. 2019), which continues from cached keys and values.

A call reads new tokens of each stream, after past tokens whose keys and values it is fed. It returns the keys and
values of the new tokens and keeps no state: the caller has the cache, so any number of streams can use one session.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import aioflow as af

__all__ = ["Config", "Model", "Step"]


@dataclass(frozen=True)
class Config:
    """Sizes, under Hugging Face's names.

    Attributes:
        n_layer: Number of blocks.
        n_head: Number of attention heads per block.
        n_embd: Width.
        n_positions: Maximum number of tokens of a stream.
        vocab_size: Number of tokens in the vocabulary.
        layer_norm_epsilon: Constant added to variances.
    """

    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 128
    n_positions: int = 256
    vocab_size: int = 256
    layer_norm_epsilon: float = 1e-5

    @property
    def head_size(self) -> int:
        """Number of features of a head."""
        return self.n_embd // self.n_head


@dataclass(frozen=True)
class Step:
    """Inputs and outputs of one call; L layers, B streams, H heads of D features, N new tokens, T past tokens.

    Attributes:
        tokens: int32 [B, N].
        lengths: int32 [B], the number of past tokens of each stream; the rest of its cache is ignored.
        past: float32 [L, 2, B, H, T, D], keys and values.
        new: float32 [L, 2, B, H, N, D], keys and values of the new tokens.
        logits: float32 [B, N, V], logits of the token after each new token.
        last_logits: float32 [B, V], logits of the token after the last.
        likeliest: int32 [B], the likeliest next token.
        temperature, top_k, seed: Sampling settings: scalars, and int32 [2].
        next_tokens: int32 [B], sampled from the `top_k` likeliest.
    """

    tokens: af.Tensor
    lengths: af.Tensor
    past: af.Tensor
    new: af.Tensor
    logits: af.Tensor
    last_logits: af.Tensor
    likeliest: af.Tensor
    temperature: af.Tensor
    top_k: af.Tensor
    seed: af.Tensor
    next_tokens: af.Tensor


@dataclass(frozen=True)
class _Masks:
    """Masks added to scores: for past tokens that a stream does not have, and for later new tokens."""

    behind: af.Tensor | None
    after: af.Tensor | None


class Model:
    """A model with its own graph.

    Attributes:
        graph: The graph.
        config: Sizes.
        prompt: Step that reads a prompt: one stream, any number of new tokens.
        one: Step that reads one token of one stream.
        many: Step that reads one token of each of several streams, with pasts of different lengths.
    """

    def __init__(self, config: Config, seed: int = 0) -> None:
        self.config = config
        with af.Graph().as_default() as self.graph:
            af.set_random_seed(seed)
            self.prompt = self._step(1, None, equal=True)
            self.one = self._step(1, 1, equal=True)
            self.many = self._step(None, 1, equal=False)
            self.initializer = af.global_variables_initializer()

    def _step(self, rows: int | None, count: int | None, equal: bool) -> Step:
        """Build a step of `rows` streams and `count` new tokens.

        `equal` states that the cache has nothing beyond the past tokens, so no mask is needed.
        """
        c = self.config
        tokens = af.placeholder(af.int32, [rows, count], name="tokens")
        lengths = af.placeholder(af.int32, [rows], name="lengths")
        past = af.placeholder(af.float32, [c.n_layer, 2, rows, c.n_head, None, c.head_size], name="past")
        masks = _Masks(
            behind=None if equal else _behind(lengths, af.shape(past)[4]),
            after=None if count == 1 else _after(af.shape(tokens)[1]),
        )
        split = [-1 if rows is None else rows, -1 if count is None else count, 3, c.n_head, c.head_size]

        offsets = [0] if count == 1 else af.range(af.shape(tokens)[1])
        embedding = self._variable("wte/weight", [c.vocab_size, c.n_embd])
        places = self._variable("wpe/weight", [c.n_positions, c.n_embd])
        x = af.gather(embedding, tokens) + af.gather(places, af.expand_dims(lengths, 1) + offsets)
        x = af.reshape(x, [-1, c.n_embd])
        kept = []
        for layer in range(c.n_layer):
            with af.variable_scope(f"h/{layer}", reuse=af.AUTO_REUSE):
                attended, new = self._attention(self._norm("ln_1", x), past[layer], masks, split)
                x += attended
                x += self._perceptron(self._norm("ln_2", x))
            kept.append(new)
        x = af.reshape(self._norm("ln_f", x), [*split[:2], c.n_embd])
        last = af.matmul(x[:, -1], embedding, transpose_b=True)
        flat = af.matmul(af.reshape(x, [-1, c.n_embd]), embedding, transpose_b=True)
        logits = af.reshape(flat, [*split[:2], c.vocab_size])
        likeliest = af.argmax(last, -1, output_type=af.int32)
        return Step(tokens, lengths, past, af.stack(kept), logits, last, likeliest, *_draw(last))

    def _variable(self, name: str, shape: list[int], initializer: Any = None) -> af.Variable:
        with af.variable_scope(af.get_variable_scope(), reuse=af.AUTO_REUSE):
            return af.get_variable(name, shape, initializer=initializer or af.random_normal_initializer(stddev=0.02))

    def _norm(self, name: str, x: af.Tensor) -> af.Tensor:
        scale = self._variable(f"{name}/weight", [self.config.n_embd], af.ones_initializer())
        shift = self._variable(f"{name}/bias", [self.config.n_embd], af.zeros_initializer())
        centred = x - af.reduce_mean(x, -1, keepdims=True)
        variance = af.reduce_mean(af.square(centred), -1, keepdims=True)
        return centred * af.rsqrt(variance + self.config.layer_norm_epsilon) * scale + shift

    def _dense(self, name: str, x: af.Tensor, size_in: int, size_out: int) -> af.Tensor:
        weight = self._variable(f"{name}/weight", [size_in, size_out])
        return af.matmul(x, weight) + self._variable(f"{name}/bias", [size_out], af.zeros_initializer())

    def _attention(self, x: af.Tensor, past: af.Tensor, masks: _Masks, split: list[int]) -> tuple[af.Tensor, af.Tensor]:
        """Return the attention output of the new tokens, and their keys and values."""
        width = self.config.n_embd
        mixed = af.reshape(self._dense("attn/c_attn", x, width, 3 * width), split)
        mixed = af.transpose(mixed, [2, 0, 3, 1, 4])
        query, new = mixed[0] * (1 / math.sqrt(self.config.head_size)), mixed[1:]
        # Past and new are not concatenated, which would copy the past. New tokens come first: their number is known.
        to_new = af.matmul(query, new[0], transpose_b=True)
        to_past = af.matmul(query, past[0], transpose_b=True)
        if masks.after is not None:
            to_new += masks.after
        if masks.behind is not None:
            to_past += masks.behind
        shares = af.nn.softmax(af.concat([to_new, to_past], -1))
        count = split[1] if split[1] > 0 else af.shape(to_new)[-1]
        found = af.matmul(shares[..., :count], new[1]) + af.matmul(shares[..., count:], past[1])
        merged = af.reshape(af.transpose(found, [0, 2, 1, 3]), [-1, width])
        return self._dense("attn/c_proj", merged, width, width), new

    def _perceptron(self, x: af.Tensor) -> af.Tensor:
        width = self.config.n_embd
        x = self._dense("mlp/c_fc", x, width, 4 * width)
        x = 0.5 * x * (1.0 + af.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
        return self._dense("mlp/c_proj", x, 4 * width, width)


def _behind(lengths: af.Tensor, width: af.Tensor) -> af.Tensor:
    """Return the mask [B, 1, 1, T] that hides everything beyond the past tokens of a stream."""
    return _hiding(af.expand_dims(af.expand_dims(af.sequence_mask(lengths, width), 1), 1))


def _after(count: af.Tensor) -> af.Tensor:
    """Return the mask [N, N] that hides later tokens from each new token."""
    return _hiding(af.sequence_mask(af.range(1, count + 1), count))


def _hiding(seen: af.Tensor) -> af.Tensor:
    return (af.cast(seen, af.float32) - 1.0) * 1e9


def _draw(logits: af.Tensor) -> tuple[af.Tensor, af.Tensor, af.Tensor, af.Tensor]:
    """Return (temperature, top_k, seed, tokens): a token for each row, the maximum of the logits with Gumbel noise."""
    temperature = af.placeholder_with_default(af.constant(1.0), [], name="temperature")
    top_k = af.placeholder_with_default(af.constant(1), [], name="top_k")
    seed = af.placeholder_with_default(af.constant([0, 0]), [2], name="seed")
    likeliest, tokens = af.nn.top_k(logits, top_k)
    tiny = 1e-20
    noise = -af.log(-af.log(af.random.stateless_uniform(af.shape(likeliest), seed) + tiny) + tiny)
    chosen = af.argmax(likeliest / temperature + noise, -1, output_type=af.int32)
    return temperature, top_k, seed, af.reshape(af.batch_gather(tokens, af.expand_dims(chosen, 1)), [-1])
