"""Clusters and the credentials of their processes, in the notation and options of a command line."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Final

from aioflow.cli.arguments import file
from aioflow.errors import InvalidArgumentError
from aioflow.net.credentials import Credentials, read_secret
from aioflow.net.tls import Tls


def parse_cluster(jobs: Sequence[str]) -> dict[str, list[str]]:
    """Return the addresses of each job, from texts such as "ps=host:port,host:port". Raises InvalidArgumentError."""
    found: dict[str, list[str]] = {}
    for text in jobs:
        job, equals, addresses = text.partition("=")
        if not equals or not job or not all(addresses.split(",")):
            raise InvalidArgumentError("--cluster", expected="JOB=HOST:PORT[,…], once per job", actual=text)
        if job in found:
            raise InvalidArgumentError(
                f"--cluster has the job {job!r} twice",
                expected=f"all of its tasks in one option, as {job}=HOST:PORT,HOST:PORT",
                actual=text,
            )
        found[job] = addresses.split(",")
    return found


# ── credentials: files only, since other users can read command lines ─────────────────────────────────────────────────


CREDENTIALS: Final = ("secret_file", "tls_cert", "tls_key", "tls_ca")


def add_credentials(parser: argparse.ArgumentParser) -> None:
    """Add the options. If none of them is used, the environment supplies the credentials."""
    group = parser.add_argument_group(
        "access from other machines",
        "Addresses beyond the loopback need a secret or certificates, the same for all processes of the cluster and its"
        " clients. Also: AIOFLOW_SECRET, AIOFLOW_SECRET_FILE, AIOFLOW_TLS_CERT, AIOFLOW_TLS_KEY, AIOFLOW_TLS_CA.",
    )
    group.add_argument("--secret-file", type=file, metavar="FILE", help="file with the cluster's secret")
    group.add_argument("--tls-cert", type=file, metavar="FILE", help="certificate of this process (PEM)")
    group.add_argument("--tls-key", type=file, metavar="FILE", help="private key of the certificate (PEM)")
    group.add_argument(
        "--tls-ca", type=file, metavar="FILE", help="CA certificate that signs the cluster's certificates (PEM)"
    )


def given_credentials(options: argparse.Namespace, environment: Mapping[str, str] | None = None) -> Credentials:
    """Return the credentials that the options name, or else those of the environment.

    Args:
        options: The options of `add_credentials`.
        environment: Environment variables; `os.environ` by default.

    Raises:
        InvalidArgumentError: other users may read a file, its content is wrong, or only some of the TLS files are
            named.
        NotFoundError: a file cannot be read.
    """
    files = [options.tls_cert, options.tls_key, options.tls_ca]
    if options.secret_file is None and not any(files):
        return Credentials.from_environment(environment)
    # A certificate alone would leave the process without a way to verify others.
    if any(files) and not all(files):
        raise InvalidArgumentError("TLS needs three files", expected="--tls-cert, --tls-key and --tls-ca")
    secret = None if options.secret_file is None else read_secret(options.secret_file)
    return Credentials(secret, Tls(*files) if all(files) else None)
