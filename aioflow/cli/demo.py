"""`aioflow demo`: hands over to `aioflow.demo`, or says what to install for it.

The demo's options are its own: it reads the rest of the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioflow.cli.program import run_demo

if TYPE_CHECKING:
    import argparse

__all__ = ["add_parser"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "demo", help="train on handwritten digits and serve predictions in one event loop", add_help=False
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    return run_demo("aioflow.demo.main", arguments.rest, "aioflow demo")
