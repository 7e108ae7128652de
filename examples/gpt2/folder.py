"""Model folders in Hugging Face's layout: sizes, names of weights, and vocabulary."""

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

# Settings that the graph does not support other values of.
_FIXED = {
    "activation_function": "gelu_new",
    "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
    "n_inner": None,
}
# Masks in older files, and a second copy of the embedding.
_LEFT_OUT = [r".*\.attn\.(masked_)?bias", r"lm_head\.weight"]


def config_of(folder: Path) -> Config:
    """Return the sizes of `config.json`. Raise ValueError if the model has unsupported settings."""
    given: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for key, value in _FIXED.items():
        if given.get(key, value) != value:
            raise ValueError(f"{folder} has {key}={given[key]!r}, and this model has {value!r}")
    return Config(**{f.name: given[f.name] for f in dataclasses.fields(Config) if f.name in given})


def tokenizer_of(folder: Path | None) -> Tokenizer:
    """Return the tokenizer of the folder, or one of bytes if there is no vocabulary."""
    return BytePairs.of(folder) if folder is not None and (folder / "vocab.json").exists() else Bytes()


async def load(session: af.Session, model: Model, folder: Path) -> None:
    """Assign the memory-mapped weights of a folder to the variables. Half-precision weights become float32."""
    weights = safetensors.open(folder)
    prefix = "transformer." if any(name.startswith("transformer.") for name in weights) else ""
    await safetensors.assign(
        session, weights, lambda name: prefix + name.replace("/", "."), ignore=_LEFT_OUT, cast=True
    )
