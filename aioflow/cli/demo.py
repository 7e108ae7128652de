"""`aioflow demo`: hands over to `aioflow.demo`, or says what to install for it.

The demo's options are its own: it reads the rest of the command line.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

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
    try:
        # Here and not at the top: the demo's packages are an extra, which the other commands do without.
        status: int = importlib.import_module("aioflow.demo.main").main(arguments.rest)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "aioflow":
            raise
        print(f"The demo needs {error.name}, which is not installed: pip install 'aioflow[demo]'", file=sys.stderr)
        return 2
    return status
