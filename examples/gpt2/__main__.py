"""The command line; see the package."""

from __future__ import annotations

import argparse
import asyncio
import codecs
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import aioflow as af
from examples.gpt2.folder import config_of, load, tokenizer_of
from examples.gpt2.generation import generate
from examples.gpt2.model import Config, Model


async def write(options: argparse.Namespace) -> str:
    """Generate a text, print it incrementally, and return it."""
    folder: Path | None = options.folder
    tokenizer = tokenizer_of(folder)
    model = Model(Config() if folder is None else config_of(folder), options.seed)
    written, decoder = [options.prompt], codecs.getincrementaldecoder("utf-8")("replace")
    started, count = time.perf_counter(), 0
    async with af.Session(graph=model.graph) as session:
        if folder is None:
            await session.run(model.initializer)
        else:
            await load(session, model, folder)
        print(options.prompt, end="", flush=True)
        tokens = generate(
            session,
            model,
            tokenizer.encode(options.prompt),
            most=options.tokens,
            temperature=options.temperature,
            top_k=options.top_k,
            seed=options.seed,
        )
        async for token in tokens:
            count += 1
            written.append(decoder.decode(tokenizer.decode([token])))
            print(written[-1], end="", flush=True)
    print(f"\n{count / (time.perf_counter() - started):.0f} tokens a second", file=sys.stderr)
    return "".join(written)


def main(arguments: Sequence[str] | None = None) -> str:
    """Generate a text according to the command line, and return it."""
    parser = argparse.ArgumentParser(description="Write a text, token by token.")
    parser.add_argument("--folder", type=Path, help="config.json, model.safetensors, and perhaps a vocabulary")
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--tokens", type=int, default=100, help="how many")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 for the likeliest token, always")
    parser.add_argument("--top-k", type=int, default=40, help="how many of the likeliest tokens to draw from")
    parser.add_argument("--seed", type=int, default=0)
    return asyncio.run(write(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
