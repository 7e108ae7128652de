"""`python -m benchmarks [case …]`: time the cases against tensorflow-cpu; all of them are written to RESULTS.md."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import aioflow  # before TensorFlow, so that its backends may prepare NumPy's libraries
from benchmarks.cases import CASES
from benchmarks.checkpointing import CHECKPOINT_ROWS
from benchmarks.compiling import COMPILING_ROWS
from benchmarks.devices import DEVICE_ROWS
from benchmarks.fusion import FUSION_ROWS
from benchmarks.harness import measure
from benchmarks.import_order import IMPORT_ORDER_ROWS
from benchmarks.network import NETWORK_ROWS
from benchmarks.records import RECORD_ROWS
from benchmarks.resources import RESOURCE_ROWS


def _machine() -> str:
    model = next(
        (line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), platform.processor()
    )
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


async def _main(names: list[str], rounds: int) -> list[str]:
    import tensorflow.compat.v1 as tf  # heavy, and only this function needs it

    tf.disable_eager_execution()
    tf.disable_control_flow_v2()  # loops in the form that both have
    rows = []
    for name in names:
        measured = await measure(CASES[name], tf, aioflow, rounds)
        rows.append(measured.row())
        print(rows[-1], flush=True)
    return rows


def main() -> int:
    """Run the chosen cases; without any, all of them and the table is written."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="cases to time; all without any")
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    rows = asyncio.run(_main(arguments.cases or list(CASES), arguments.rounds))
    if arguments.cases:
        return 0
    head = ["| case | TensorFlow 2.21 | aioflow | ratio | target | reached |", "|---|---|---|---|---|---|"]
    groups = (
        RECORD_ROWS,
        RESOURCE_ROWS,
        IMPORT_ORDER_ROWS,
        COMPILING_ROWS,
        DEVICE_ROWS,
        FUSION_ROWS,
        NETWORK_ROWS,
        CHECKPOINT_ROWS,
    )
    more = [row() for rows in groups for row in rows]
    print("\n".join(more))
    text = f"# Benchmarks\n\nMedians of {arguments.rounds} alternating rounds in one process. {_machine()}.\n\n"
    Path(__file__).with_name("RESULTS.md").write_text(text + "\n".join([*head, *rows, *more]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
