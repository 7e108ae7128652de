"""Clusters in the notation of a command line."""

from __future__ import annotations

from collections.abc import Sequence

from aioflow.errors import InvalidArgumentError


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
