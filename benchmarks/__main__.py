"""`python -m benchmarks [case …]`: time the cases against tensorflow-cpu; all of them are written to RESULTS.md.

`--keep` keeps the ratios with the commit, and `--compare` says what has become slower since they were kept.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import aioflow  # before TensorFlow, so that its backends may prepare NumPy's libraries
from benchmarks.cases import CASES
from benchmarks.checkpointing import CHECKPOINT_ROWS
from benchmarks.compiling import COMPILING_ROWS
from benchmarks.devices import DEVICE_ROWS
from benchmarks.fusion import FUSION_ROWS
from benchmarks.harness import Measured, measure
from benchmarks.history import add_options, machine, reported
from benchmarks.import_order import IMPORT_ORDER_ROWS
from benchmarks.network import NETWORK_ROWS
from benchmarks.records import RECORD_ROWS
from benchmarks.resources import RESOURCE_ROWS


async def _main(names: list[str], rounds: int) -> list[Measured]:
    import tensorflow.compat.v1 as tf  # heavy, and only this function needs it

    tf.disable_eager_execution()
    tf.disable_control_flow_v2()  # loops in the form that both have
    measured = []
    for name in names:
        measured.append(await measure(CASES[name], tf, aioflow, rounds))
        print(measured[-1].row(), flush=True)
    return measured


def main() -> int:
    """Run the chosen cases; without any, all of them and the table is written."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="cases to time; all without any")
    parser.add_argument("--rounds", type=int, default=11)
    add_options(parser)
    arguments = parser.parse_args()
    measured = asyncio.run(_main(arguments.cases or list(CASES), arguments.rounds))
    status = reported("cases", measured, arguments)
    if arguments.cases:
        return status
    rows = [each.row() for each in measured]
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
    text = f"# Benchmarks\n\nMedians of {arguments.rounds} alternating rounds in one process. {machine()}.\n\n"
    Path(__file__).with_name("RESULTS.md").write_text(text + "\n".join([*head, *rows, *more]) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
