"""Settings from the environment: TensorFlow's `TF_CONFIG`, and process indices of Kubernetes and Slurm."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from aioflow.arguments import brief
from aioflow.errors import InvalidArgumentError
from aioflow.net.cluster_sources.sources import SettingsSource

TF_CONFIG: Final = "TF_CONFIG"
_MOST_TEXT: Final = 4 << 20  # characters
_NUMBER: Final = re.compile(r"[0-9]{1,9}")

# The launchers that number their processes, and the variables that hold the number.
_NUMBERED_BY: Final[Mapping[str, str]] = {
    "a Kubernetes indexed Job": "JOB_COMPLETION_INDEX",
    "Slurm": "SLURM_PROCID",
}


def tf_config(environment: Mapping[str, str]) -> SettingsSource | None:
    """Parse `TF_CONFIG`, TensorFlow's JSON; return None if it is not set.

    Reads `cluster` (addresses by job, as a list or by index), and `task` with its `type` and `index`. Other keys, such
    as `environment` and `rpc_layer`, are ignored.

    Raises:
        InvalidArgumentError: it is malformed.
    """
    text = environment.get(TF_CONFIG, "").strip()
    if not text:
        return None
    if len(text) > _MOST_TEXT:
        raise InvalidArgumentError(f"{TF_CONFIG} is too long", expected=f"{_MOST_TEXT} letters", actual=len(text))
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{TF_CONFIG} is not JSON: {error}", actual=brief(text)) from error
    if not isinstance(document, dict):
        raise InvalidArgumentError(f"{TF_CONFIG} is not an object", expected='{"cluster": …}', actual=brief(document))
    job, task = _job_and_task(document.get("task") or {})
    return SettingsSource(lambda _: TF_CONFIG, document.get("cluster") or None, job, task)


def _job_and_task(task: object) -> tuple[str | None, int | None]:
    if not isinstance(task, dict):
        raise InvalidArgumentError(f"{TF_CONFIG}: not a task", expected='{"type": …, "index": …}', actual=brief(task))
    job, index = task.get("type"), task.get("index")
    # TensorFlow accepts the index as text, too.
    if isinstance(index, str) and _NUMBER.fullmatch(index):
        index = int(index)
    if not (job is None or isinstance(job, str)) or not (index is None or (type(index) is int and index >= 0)):
        raise InvalidArgumentError(
            f"{TF_CONFIG}: not a task", expected="the name of a job as type, and a number as index", actual=brief(task)
        )
    return job, index


def numbered_task(environment: Mapping[str, str]) -> tuple[int, str]:
    """Return the index of this process among those of its launcher, and the name of the variable that holds it.

    Raises:
        InvalidArgumentError: no such variable is set, or more than one.
    """
    there = [name for name in _NUMBERED_BY.values() if environment.get(name)]
    if len(there) != 1:
        raise InvalidArgumentError(
            "the number of this task is to be taken from the environment",
            expected=" or ".join(f"{name} (of {who})" for who, name in _NUMBERED_BY.items()),
            actual=" and ".join(there) or "neither is set",
        )
    return environment_number(environment, there[0]), there[0]


def environment_number(environment: Mapping[str, str], name: str) -> int:
    """Return the number in a variable. Raises InvalidArgumentError."""
    text = environment.get(name, "").strip()
    if not _NUMBER.fullmatch(text):
        raise InvalidArgumentError(f"{name} is not a number", expected="such as 0", actual=brief(text))
    return int(text)
