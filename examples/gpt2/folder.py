"""A folder in Hugging Face's layout: the sizes, the names of the weights, and the vocabulary."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import aioflow as af
from aioflow.interop import safetensors
from examples.gpt2.model import Config, Model
from examples.gpt2.tokenizer import BytePairs, Bytes, Tokenizer

__all__ = ["config_of", "load", "tokenizer_of"]

# What the graph has fixed, and how a file may say otherwise.
_FIXED = {
    "activation_function": "gelu_new",
    "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
    "n_inner": None,
}
# Masks that older files have, and the embedding once more.
_LEFT_OUT = [r".*\.attn\.(masked_)?bias", r"lm_head\.weight"]


def config_of(folder: Path) -> Config:
    """The sizes by `config.json`. Raises ValueError: the model is of another kind."""
    given: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for key, value in _FIXED.items():
        if given.get(key, value) != value:
            raise ValueError(f"{folder} has {key}={given[key]!r}, and this model has {value!r}")
    return Config(**{f.name: given[f.name] for f in dataclasses.fields(Config) if f.name in given})


def tokenizer_of(folder: Path | None) -> Tokenizer:
    """That of the folder, or bytes where there is none."""
    return BytePairs.of(folder) if folder is not None and (folder / "vocab.json").exists() else Bytes()


async def load(session: af.Session, model: Model, folder: Path) -> None:
    """Give the variables the weights of a folder, which are mapped. Half-precision weights become float32."""
    weights = safetensors.open(folder)
    prefix = "transformer." if any(name.startswith("transformer.") for name in weights) else ""
    await safetensors.assign(
        session, weights, lambda name: prefix + name.replace("/", "."), ignore=_LEFT_OUT, cast=True
    )
