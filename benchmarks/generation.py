"""Token rates of `examples/gpt2` and of a NumPy loop, and the cost of a large checkpoint.

    python -m benchmarks.generation

Both sides generate the same tokens greedily, with a cache of the same layout, in alternating rounds. A round is a
stream from its first token on. The median times per token are compared. `OPENBLAS_NUM_THREADS` sets the number of
threads of NumPy's BLAS; on a loaded machine one thread is faster. `--skip` leaves parts out:

    python -m benchmarks.generation --rounds 7 --skip weights
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import aioflow as af
from aioflow.interop import safetensors
from benchmarks.plain_gpt2 import PlainModel
from benchmarks.tables import Printer, Quantity, Row
from examples.gpt2.generation import generate_many
from examples.gpt2.model import Config, Model

Array = np.ndarray[Any, Any]

SHAPES = {
    "4 layers of 128": Config(vocab_size=1024),
    "6 layers of 384": Config(n_layer=6, n_head=6, n_embd=384, vocab_size=8192),
    "12 layers of 768, as GPT-2": Config(n_layer=12, n_head=12, n_embd=768, n_positions=1024, vocab_size=50257),
}
STREAMS = (1, 16)
PROMPT = 8
LARGE = 1 << 30  # bytes


async def our_stream(session: af.Session, model: Model, prompts: Array, count: int) -> tuple[list[list[int]], Array]:
    """Return the tokens of all streams, and the time per token after the first: wall and processor time."""
    found: list[list[int]] = []
    async for tokens in generate_many(session, model, prompts.tolist(), most=count + 1, temperature=0.0):
        if not found:
            began = _now()
        found.append(tokens)
    return found, (_now() - began) / count


def plain_stream(
    config: Config, weights: Mapping[str, Array], prompts: Array, count: int
) -> tuple[list[list[int]], Array]:
    """Return the same for the NumPy model."""
    model = PlainModel(config, weights, len(prompts))
    tokens = model.logits(prompts)[:, -1].argmax(-1)[:, None]
    found = [tokens[:, 0].tolist()]
    began = _now()
    for _ in range(count):
        tokens = model.logits(tokens)[:, -1].argmax(-1)[:, None]
        found.append(tokens[:, 0].tolist())
    return found, (_now() - began) / count


async def measure(config: Config, rows: int, count: int, rounds: int) -> Array:
    """Return the seconds per token of all streams together.

    The array is [[ours, theirs] by wall time, [ours, theirs] by processor time].
    """
    prompts = np.random.default_rng(rows).integers(0, config.vocab_size, (rows, PROMPT))
    model = Model(config, seed=1)
    async with af.Session(graph=model.graph) as session:
        await session.run(model.initializer)
        variables = model.graph.get_collection(af.GraphKeys.GLOBAL_VARIABLES)
        weights = {v.op.name.replace("/", "."): await session.run(v) for v in variables}
        times: list[Array] = []
        for _ in range(rounds + 1):
            ours, our_times = await our_stream(session, model, prompts, count)
            theirs, their_times = plain_stream(config, weights, prompts, count)
            if ours != theirs:  # two logits that differ only by rounding
                print(f"the streams differ from token {_first_difference(ours, theirs)} on", file=sys.stderr)
            times.append(np.stack([our_times, their_times], 1))
    median_times: Array = np.median(times[1:], axis=0)
    return median_times


def _now() -> Array:
    return np.array([time.perf_counter(), time.process_time()])


def _first_difference(ours: list[list[int]], theirs: list[list[int]]) -> int:
    return next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)


async def speeds(rounds: int, count: int, printer: Printer) -> None:
    """Print the table of tokens per second. On a loaded machine, processor time is the better measure."""
    for name, config in SHAPES.items():
        for rows in STREAMS:
            (ours, theirs), (busy, their_busy) = await measure(config, rows, count, rounds)
            cells = {
                "NumPy": Quantity(rows / theirs, "tokens/s"),
                "aioflow": Quantity(rows / ours, "tokens/s"),
                "ratio": Quantity(ours / theirs),
                "of processor time": Quantity(busy / their_busy),
            }
            printer.row(Row(f"{name}, streams: {rows}", cells))


# -- a large checkpoint -----------------------------------------------------------------------


async def weights(rounds: int, printer: Printer) -> None:
    """Print the table of a checkpoint of 1 GiB."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        await safetensors.save(path, {f"h.{i}.weight": np.full([4096, 4096], i, np.float32) for i in range(16)})
        for what in ("mapped", "transposed"):
            rows = [_child(path, what) for _ in range(rounds)]
            ready, first, peak = (median(row[key] for row in rows) for key in ("ready", "first", "peak"))
            cells = {
                "graph ready": Quantity(ready, "s"),
                "first step": Quantity(first, "s"),
                "peak memory / size of the file": Quantity(peak / LARGE),
            }
            printer.row(Row(f"weights of 1 GiB, {what}", cells))


def _child(path: Path, what: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.generation", "--child", str(path), what]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(output)
    return found


async def child(path: str, what: str) -> None:
    """Assign the weights, run a step that uses all of them, and print the costs. Runs in a separate process."""
    before = _memory("VmRSS")
    started = time.perf_counter()
    with af.Graph().as_default() as graph:
        opened = safetensors.open(path)
        variables = {n: af.get_variable(n, opened.entry(n).shape) for n in opened}
        x = af.placeholder(af.float32, [1, 4096])
        y = x
        for variable in variables.values():
            y = af.matmul(y, variable)
        ready = time.perf_counter() - started
        async with af.Session(graph=graph) as session:
            names = {v: safetensors.Transposed(n) if what == "transposed" else n for n, v in variables.items()}
            await safetensors.assign(session, opened, names)
            await session.run(y, {x: np.ones([1, 4096], np.float32)})
            first = time.perf_counter() - started
    print(json.dumps({"ready": ready, "first": first, "peak": _memory("VmHWM") - before}))


def _memory(of: str) -> int:
    """Return this process's resident bytes, including mapped files: "VmRSS" now, "VmHWM" the peak (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(of)) * 1024


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="only the first ones")
    parser.add_argument("--skip", choices=["speeds", "weights"])
    parser.add_argument("--child", nargs=2)
    Printer.add_options(parser)
    options = parser.parse_args()
    printer = Printer(options)
    if options.child:
        await child(*options.child)
        return
    for name in list(SHAPES)[options.shapes :]:
        del SHAPES[name]
    if options.skip != "speeds":
        await speeds(options.rounds, options.tokens, printer)
    if options.skip != "weights":
        await weights(options.rounds, printer)


if __name__ == "__main__":
    asyncio.run(main())
