"""The command line: what the engine offers (`ops`), how it stands on this machine (`doctor`), and a `demo`.

Each command is a module that adds its own parser; a command returns its exit status. Only these modules print.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from aioflow.cli import calibrate, demo, devices, doctor, explain, ops

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. `argv` is by default the process's own."""
    parser = argparse.ArgumentParser(prog="aioflow", description="An asyncio-native dataflow engine.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (ops, doctor, devices, calibrate, explain, demo):
        command.add_parser(commands)
    arguments, rest = parser.parse_known_args(argv)
    if rest and arguments.command != "demo":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    arguments.rest = rest
    status: int = arguments.run(arguments)
    return status
