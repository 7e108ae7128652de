"""The cluster in a TOML file.

    job = "worker"
    task = "auto"

    [cluster]
    ps = ["ps.example:2222"]
    worker = "worker-{0..3}.example:2222"

Instead of `[cluster]`, a file may have `[slurm]` with `jobs = {ps = 1, worker = 3}` and `port`. `[worker]` holds
options of `python -m aioflow.worker`. `[limits]` holds limits on clients and peers, by the names in `Limits` and
`CommOptions`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from aioflow.arguments import brief, check_whole
from aioflow.errors import InvalidArgumentError, NotFoundError
from aioflow.net.cluster_sources.slurm import FIRST_PORT
from aioflow.net.cluster_sources.sources import AUTO, GivenSettings

_KEYS: Final = ("cluster", "job", "task", "slurm", "worker", "limits")
_SLURM: Final = ("jobs", "port")
_MOST_BYTES: Final = 4 << 20


TomlTable: TypeAlias = Mapping[str, Any]  # a table of TOML


class ClusterFile(NamedTuple):
    """The contents of a file.

    Attributes:
        given: The cluster and the task.
        worker: Options of the worker.
        limits: Limits by name.
    """

    given: GivenSettings
    worker: TomlTable
    limits: TomlTable


def read_toml(path: Path) -> ClusterFile:
    """Read and parse a file.

    Raises:
        NotFoundError: the file cannot be read.
        InvalidArgumentError: as `parse_toml`.
    """
    try:
        with path.open("rb") as file:
            # One byte more than allowed, to detect a file that is too long.
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise NotFoundError(f"{path} cannot be read: {error.strerror}") from error
    return parse_toml(str(path), data)


def parse_toml(name: str, data: bytes) -> ClusterFile:
    """Parse the bytes of a file. Raises InvalidArgumentError, which names the file and the key."""
    if len(data) > _MOST_BYTES:
        raise InvalidArgumentError(f"{name} is too long", expected=f"at most {_MOST_BYTES} bytes", actual=len(data))
    try:
        document = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:  # errors of Unicode and TOML are subclasses of ValueError
        raise InvalidArgumentError(f"{name} is not TOML: {error}") from error
    _require_known(name, document, _KEYS)
    cluster, slurm, worker, limits = (_table(name, document, key) for key in ("cluster", "slurm", "worker", "limits"))
    _require_known(f"{name}: [slurm]", slurm or {}, _SLURM)
    jobs = None if slurm is None else _table(f"{name}: [slurm]", {"jobs": {}, **slurm}, "jobs")
    port = (slurm or {}).get("port", FIRST_PORT)
    check_whole(port, f"{name}: [slurm]: port", 1)
    job, task = document.get("job"), document.get("task")
    if job is not None and not isinstance(job, str):
        raise InvalidArgumentError(f"{name}: job", expected="the name of a job", actual=brief(job))
    if task not in (None, AUTO):
        check_whole(task, f"{name}: task", 0)
    return ClusterFile(GivenSettings(lambda _: name, cluster, job, task, jobs, port), worker or {}, limits or {})


def _table(name: str, document: TomlTable, key: str) -> TomlTable | None:
    found = document.get(key)
    if found is not None and not isinstance(found, dict):
        raise InvalidArgumentError(f"{name}: {key}", expected="a table", actual=brief(found))
    return found


def _require_known(name: str, document: TomlTable, keys: tuple[str, ...]) -> None:
    for key in document:
        if key not in keys:
            raise InvalidArgumentError(f"{name} has an unknown key", expected=" or ".join(keys), actual=brief(key))
