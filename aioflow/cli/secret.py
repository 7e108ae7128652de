"""`aioflow secret`: print a new secret for a cluster or a service, or derive the secret of a cluster's clients."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from aioflow.cli.arguments import Commands, file

if TYPE_CHECKING:
    import argparse

_BYTES: Final = 32


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "secret",
        help="print a new secret for a cluster, a new token for a service, or the client secret of a cluster",
        description="Print a new random secret: 64 hexadecimal digits, the shared secret of a cluster's tasks, or the "
        "token of a service (`aioflow serve --token-file`). With --client-of, print the secret of a cluster's clients.",
    )
    parser.add_argument(
        "--client-of",
        type=file,
        metavar="FILE",
        help="file with a cluster's secret; print the client secret derived from it, which does not authenticate tasks",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from aioflow.net.credentials import Credentials, read_secret  # not needed by the other commands

    if arguments.client_of is None:
        print(secrets.token_hex(_BYTES))
    else:
        print((Credentials(read_secret(arguments.client_of)).client().secret or b"").decode())
    return 0
