"""`aioflow demo`: run `aioflow.demo`, or print which packages it needs.

The demo parses the rest of the command line itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioflow.cli.program import run_demo

if TYPE_CHECKING:
    import argparse

    from aioflow.cli.arguments import Commands


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "demo", help="train on handwritten digits and serve predictions in one event loop", add_help=False
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    return run_demo("aioflow.demo.main", arguments.rest, "aioflow demo")
