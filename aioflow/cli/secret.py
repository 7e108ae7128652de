"""`aioflow secret`: a new secret for a cluster, or of one that there is, that of its clients."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from aioflow.cli.arguments import file

if TYPE_CHECKING:
    import argparse

__all__ = ["add_parser"]

_BYTES: Final = 32


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser("secret", help="make a secret for a cluster, or of one that of its clients")
    parser.add_argument(
        "--client-of",
        type=file,
        metavar="FILE",
        help="holds the secret of a cluster: print what lets a process be its client, and no task of it",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from aioflow.net.credentials import Credentials, read_secret  # which the other commands do without

    if arguments.client_of is None:
        print(secrets.token_hex(_BYTES))
    else:
        print((Credentials(read_secret(arguments.client_of)).client().secret or b"").decode())
    return 0
