"""The `aioflow` command line.

Each command is a module that adds its own parser, and a command returns its exit status. Only these modules print.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Final

import aioflow
from aioflow.cli import (
    calibrate,
    demo,
    devices,
    doctor,
    explain,
    graph,
    inspect,
    ops,
    port,
    profile,
    run,
    secret,
    serve,
    top,
)
from aioflow.cli.arguments import Parser
from aioflow.cli.program import run_command

__all__ = ["main"]

_WORKER: Final = "python -m aioflow.worker"
_COMMANDS: Final = (
    *(ops, doctor, devices, calibrate, explain, run, serve),
    *(inspect, graph, port, profile, top, secret, demo),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. `argv` defaults to the arguments of the process."""
    return run_command("aioflow", partial(_run, argv))


def _run(argv: Sequence[str] | None) -> int:
    parser = Parser(
        prog="aioflow",
        description="An asyncio-native dataflow engine.",
        epilog=f"A task of a cluster is a program of its own: {_WORKER} --help",
    )
    parser.add_argument("--version", action="version", version=f"aioflow {aioflow.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add_parser(commands)
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["worker"]:
        parser.error(f"no such command: worker; a task of a cluster is started by {_WORKER}")
    arguments, rest = parser.parse_known_args(argv)
    if rest and arguments.command != "demo":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    arguments.rest = rest
    status: int = arguments.run(arguments)
    return status
