"""Save the model as a folder that `aioflow serve` generates tokens with.

python -m examples.gpt2.saving models/gpt2
aioflow serve gpt2=models/gpt2
curl -N http://127.0.0.1:8000/v2/models/gpt2/generate_stream -d '{"text_input": "Hello"}'
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

import aioflow as af
from aioflow.saved import Signature, TokenLoop, TokenState
from examples.gpt2.folder import config_of, load
from examples.gpt2.model import Config, Model, Step

__all__ = ["save"]


async def save(session: af.Session, model: Model, folder: Path, *, is_text: bool) -> None:
    """Save a model whose variables have values.

    Args:
        session: Session of the model's graph.
        model: The model.
        folder: A new folder.
        is_text: Whether its tokens are the bytes of a text.
    """
    loop = TokenLoop(
        "tokens",
        "logits",
        model.config.n_positions,
        (TokenState("past", "new", row_axis=2, length_axis=4),),
        lengths="lengths",
        prompt="prompt",
        encoding="utf-8" if is_text else None,
    )
    signatures = {"serving_default": _signature(model.many), "prompt": _signature(model.prompt)}
    await af.saved.save(session, folder, signatures, token_loop=loop)


def _signature(step: Step) -> Signature:
    inputs = {"tokens": step.tokens, "lengths": step.lengths, "past": step.past}
    return Signature(inputs, {"logits": step.last_logits, "new": step.new})


async def convert(source: Path | None, folder: Path, seed: int) -> None:
    """Save the weights of a folder in Hugging Face's layout, or random ones."""
    model = Model(Config() if source is None else config_of(source), seed)
    async with af.Session(graph=model.graph) as session:
        if source is None:
            await session.run(model.initializer)
        else:
            await load(session, model, source)
        is_bytes = source is None or not (source / "vocab.json").exists()
        await save(session, model, folder, is_text=is_bytes and model.config.vocab_size >= 256)


def main(arguments: Sequence[str] | None = None) -> None:
    """Save a model according to the command line."""
    parser = argparse.ArgumentParser(description="Save the model for aioflow serve.")
    parser.add_argument("into", type=Path, help="a new folder")
    parser.add_argument("--folder", type=Path, help="config.json, and model.safetensors")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    asyncio.run(convert(options.folder, options.into, options.seed))
    print(f"saved; serve it with: aioflow serve gpt2={options.into}")


if __name__ == "__main__":
    main()
