"""Sentences as vectors, by a BERT-shaped encoder (Devlin et al. 2018) with weights in Hugging Face's layout.

    python examples/sentences.py --folder FOLDER "A man eats." "Somebody has lunch." "The sky is blue."

prints the similarity of the sentences. The folder has `config.json`, `model.safetensors` and `vocab.txt`. One such
model is all-MiniLM-L6-v2, which was trained for this purpose (Reimers & Gurevych 2019). The weights are memory-mapped,
not copied. Their layout is [out, in], which `transpose_b` uses without a copy.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import aioflow as af
from aioflow.interop import safetensors

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Config:
    """Sizes, under Hugging Face's names."""

    num_hidden_layers: int
    num_attention_heads: int
    hidden_size: int
    intermediate_size: int
    max_position_embeddings: int
    vocab_size: int
    layer_norm_eps: float = 1e-12

    @classmethod
    def of(cls, folder: Path) -> Config:
        """Return the sizes of the folder's `config.json`. Raise ValueError if the model has another activation."""
        given = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if given.get("hidden_act", "gelu") != "gelu":
            raise ValueError(f"{folder} has hidden_act={given['hidden_act']!r}, and this model has 'gelu'")
        return cls(**{f.name: given[f.name] for f in dataclasses.fields(cls) if f.name in given})


class WordPieces:
    """A tokenizer into the longest word pieces of the vocabulary (Wu et al. 2016), in lower case.

    Args:
        vocabulary: Pieces by number; pieces that continue a word begin with "##".
        most: Maximum number of pieces of a text.
    """

    def __init__(self, vocabulary: Sequence[str], most: int) -> None:
        self._numbers = {piece: number for number, piece in enumerate(vocabulary)}
        self._most = most

    def batch(self, texts: Sequence[str]) -> tuple[Array, Array]:
        """Return (ids, mask), both int32 [texts, length of the longest]; the mask is 0 beyond the end of a text."""
        rows = [self.encode(text) for text in texts]
        ids = np.zeros((len(rows), max(map(len, rows))), np.int32)
        mask = np.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
            mask[i, : len(row)] = 1
        return ids, mask

    def encode(self, text: str) -> list[int]:
        """Return the numbers of a text, between those of its start and end markers."""
        pieces = [piece for word in _words(text) for piece in self._pieces(word)]
        return [self._numbers[p] for p in ("[CLS]", *pieces[: self._most - 2], "[SEP]")]

    def _pieces(self, word: str) -> list[str]:
        found: list[str] = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((e for e in ends if prefix + word[start:e] in self._numbers), None)
            if end is None:
                return ["[UNK]"]
            found.append(prefix + word[start:end])
            start = end
        return found


def _words(text: str) -> Iterator[str]:
    """Yield words without accents, and punctuation signs individually."""
    plain = (c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
    spaced = "".join(f" {c} " if _is_alone(c) else c for c in plain)
    return iter(spaced.split())


def _is_alone(character: str) -> bool:
    is_ideograph = 0x4E00 <= ord(character) <= 0x9FFF or 0x3400 <= ord(character) <= 0x4DBF
    is_sign = character.isascii() and character.isprintable() and not character.isalnum() and character != " "
    return is_ideograph or is_sign or unicodedata.category(character).startswith("P")


class Encoder:
    """The graph of the encoder.

    Attributes:
        graph: The graph.
        ids, mask: Inputs, int32 [B, T].
        vectors: float32 [B, hidden_size], normalized mean over the pieces of each text.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        with af.Graph().as_default() as self.graph:
            self.ids = af.placeholder(af.int32, [None, None], name="ids")
            self.mask = af.placeholder(af.int32, [None, None], name="mask")
            seen = af.cast(self.mask, af.float32)
            hidden = (seen[:, None, None, :] - 1.0) * 1e9
            x = self._embedded()
            for layer in range(config.num_hidden_layers):
                x = self._layer(f"encoder/layer/{layer}", x, hidden)
            weights = af.expand_dims(seen, -1)
            mean = af.reduce_sum(x * weights, 1) / af.reduce_sum(weights, 1)
            self.vectors = af.nn.l2_normalize(mean, -1)

    async def load(self, session: af.Session, folder: Path) -> None:
        """Assign the weights of a folder to the variables."""
        left_out = [r"embeddings\.position_ids", r"pooler\..*"]
        await safetensors.assign(session, folder, lambda name: name.replace("/", "."), ignore=left_out, cast=True)

    def _embedded(self) -> af.Tensor:
        c = self._config
        words = af.get_variable("embeddings/word_embeddings/weight", [c.vocab_size, c.hidden_size])
        kinds = af.get_variable("embeddings/token_type_embeddings/weight", [2, c.hidden_size])
        shape = [c.max_position_embeddings, c.hidden_size]
        places = af.gather(
            af.get_variable("embeddings/position_embeddings/weight", shape), af.range(af.shape(self.ids)[1])
        )
        return self._norm("embeddings/LayerNorm", af.gather(words, self.ids) + af.gather(kinds, 0) + places)

    def _layer(self, name: str, x: af.Tensor, hidden: af.Tensor) -> af.Tensor:
        size, inner = self._config.hidden_size, self._config.intermediate_size
        attended = self._dense(f"{name}/attention/output/dense", self._attention(name, x, hidden), size, size)
        x = self._norm(f"{name}/attention/output/LayerNorm", x + attended)
        wide = self._dense(f"{name}/intermediate/dense", x, size, inner)
        wide = 0.5 * wide * (1.0 + af.erf(wide / math.sqrt(2)))
        return self._norm(f"{name}/output/LayerNorm", x + self._dense(f"{name}/output/dense", wide, inner, size))

    def _attention(self, name: str, x: af.Tensor, hidden: af.Tensor) -> af.Tensor:
        size, heads = self._config.hidden_size, self._config.num_attention_heads
        shape = af.shape(x)

        def part(of: str) -> af.Tensor:
            """Return one projection of `x`, [B, heads, T, features]."""
            flat = self._dense(f"{name}/attention/self/{of}", x, size, size)
            return af.transpose(af.reshape(flat, [shape[0], shape[1], heads, -1]), [0, 2, 1, 3])

        query, key, value = part("query"), part("key"), part("value")
        scores = af.matmul(query, key, transpose_b=True) * (heads / size) ** 0.5 + hidden
        found = af.matmul(af.nn.softmax(scores), value)
        return af.reshape(af.transpose(found, [0, 2, 1, 3]), shape)

    def _dense(self, name: str, x: af.Tensor, size_in: int, size_out: int) -> af.Tensor:
        """Map [B, T, in] to [B, T, out], by a single product of two matrices."""
        weight = af.get_variable(f"{name}/weight", [size_out, size_in])
        bias = af.get_variable(f"{name}/bias", [size_out])
        flat = af.matmul(af.reshape(x, [-1, size_in]), weight, transpose_b=True) + bias
        return af.reshape(flat, af.concat([af.shape(x)[:2], [size_out]], 0))

    def _norm(self, name: str, x: af.Tensor) -> af.Tensor:
        size = [self._config.hidden_size]
        centred = x - af.reduce_mean(x, -1, keepdims=True)
        variance = af.reduce_mean(af.square(centred), -1, keepdims=True)
        scale, shift = af.get_variable(f"{name}/weight", size), af.get_variable(f"{name}/bias", size)
        return centred * af.rsqrt(variance + self._config.layer_norm_eps) * scale + shift


async def embed(folder: Path, texts: Sequence[str]) -> Array:
    """Return a vector of length 1 for each text, float32 [texts, hidden_size]."""
    config = Config.of(folder)
    vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    encoder = Encoder(config)
    ids, mask = WordPieces(vocabulary, config.max_position_embeddings).batch(texts)
    async with af.Session(graph=encoder.graph) as session:
        await encoder.load(session, folder)
        vectors: Array = await session.run(encoder.vectors, {encoder.ids: ids, encoder.mask: mask})
    return vectors


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the similarity of each pair of sentences."""
    parser = argparse.ArgumentParser(description="How alike sentences are.")
    parser.add_argument("--folder", type=Path, required=True, help="config.json, model.safetensors and vocab.txt")
    parser.add_argument("sentences", nargs="+")
    options = parser.parse_args(arguments)
    vectors = asyncio.run(embed(options.folder, options.sentences))
    for row, sentence in zip(vectors @ vectors.T, options.sentences, strict=True):
        print(" ".join(f"{value:5.2f}" for value in row), sentence)


if __name__ == "__main__":
    main()
