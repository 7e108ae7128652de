"""The settings of a process that are found in texts: lists of addresses, and its cluster, job and task.

Lists are shell ranges, "worker-{0..3}.svc:2222", and Slurm hostlists, "node[1-3,07]". The number of names is computed
and bounded before any name is made. The other parts are the settings of one source, their precedence (`believed`),
`TF_CONFIG`, and the process indices of Kubernetes and Slurm.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from aioflow.arguments import brief
from aioflow.errors import InvalidArgumentError
from aioflow.net.cluster_spec import ClusterSpec

_MOST: Final = 1 << 16  # names: the maximum number of tasks of a job
_MOST_TEXT: Final = 1 << 20  # characters
_MOST_NAME: Final = 512  # characters of one address without its ranges
_BRACES: Final = re.compile(r"\{([0-9]{1,9})\.\.([0-9]{1,9})\}")
_BRACKETS: Final = re.compile(r"\[([^][]*)\]")
_RANGE: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def expand_addresses(text: str) -> list[str]:
    """Expand "host:port,…", where "{0..3}" stands for the numbers 0 to 3 and "{00..10}" for numbers of two digits.

    Of several ranges in one address, the last one varies fastest.

    Raises:
        InvalidArgumentError: a part is empty, a range is malformed, the text or an address is too long, or there are
            more than 65,536 addresses.
    """
    _require_short(text)
    found: list[str] = []
    for part in text.split(","):
        if not part:
            raise InvalidArgumentError("an address is missing", expected="HOST:PORT[,…]", actual=brief(text))
        # With two groups in the pattern, `split` returns literal, low, high, literal, and so on.
        literals = _BRACES.split(part)
        if any(letter in literal for literal in literals[::3] for letter in "{}"):
            raise InvalidArgumentError("not a range of addresses", expected="such as job-{0..3}", actual=brief(part))
        ranges = (_range(low, high) for low, high in zip(literals[1::3], literals[2::3], strict=True))
        found += _product(literals[::3], ranges, text, _MOST - len(found))
    return found


def _range(low: str, high: str) -> list[str]:
    """Return the numbers of a range, padded with zeros if one of its ends is."""
    if int(low) > int(high):
        raise InvalidArgumentError("a range runs backwards", expected=f"{{{high}..{low}}}", actual=f"{{{low}..{high}}}")
    # Checked before the numbers are made: a range may have a billion of them.
    _require_few(int(high) - int(low) + 1, f"{low}..{high}", _MOST)
    padded = any(end.startswith("0") and len(end) > 1 for end in (low, high))
    width = max(len(low), len(high)) if padded else 0
    return [f"{number:0{width}}" for number in range(int(low), int(high) + 1)]


def expand_hostlist(text: str) -> list[str]:
    """Expand a Slurm hostlist, "login,node[1-3,07],rack[0-1]n[1-2]".

    Numbers are zero-padded to the width of the lower end of their range.

    Raises:
        InvalidArgumentError: the list is malformed or too long, or names more than 65,536 hosts.
    """
    _require_short(text)
    found: list[str] = []
    for part in _parts(text):
        # With one group in the pattern, `split` returns literal, inside, literal, and so on.
        literals = _BRACKETS.split(part)
        malformed = any(letter in literal for literal in literals[::2] for letter in "[]")
        if malformed or not part:
            raise InvalidArgumentError("not a list of hosts", expected="such as node[1-3],login", actual=brief(text))
        ranges = (_numbers(inside, text) for inside in literals[1::2])
        found += _product(literals[::2], ranges, text, _MOST - len(found))
    return found


def _parts(text: str) -> Iterator[str]:
    """Yield the parts between commas outside of brackets."""
    depth = start = 0
    for place, letter in enumerate(text):
        if letter in "[]":
            depth += 1 if letter == "[" else -1
        elif letter == "," and not depth:
            yield text[start:place]
            start = place + 1
    yield text[start:]


def _numbers(inside: str, text: str) -> list[str]:
    found: list[str] = []
    for part in inside.split(","):
        match = _RANGE.fullmatch(part)
        if match is None or int(match[1]) > int(match[2] or match[1]):
            raise InvalidArgumentError("not a list of hosts", expected="numbers, as in [1-3,7]", actual=brief(text))
        low, high = int(match[1]), int(match[2] or match[1])
        _require_few(high - low + 1, text, _MOST - len(found))
        found += [f"{number:0{len(match[1])}}" for number in range(low, high + 1)]
    return found


def _product(literals: Sequence[str], ranges: Iterable[Sequence[str]], text: str, most: int) -> list[str]:
    """Return all combinations of the literals with one number of each range between them."""
    if sum(map(len, literals)) > _MOST_NAME:
        raise InvalidArgumentError(
            "too long an address", expected=f"at most {_MOST_NAME} characters", actual=brief(text)
        )
    made: list[Sequence[str]] = []
    count = 1
    _require_few(count, text, most)
    for numbers in ranges:  # a lazy iterable: no range is expanded after the limit is exceeded
        count *= len(numbers)
        _require_few(count, text, most)
        made.append(numbers)
    first, *rest = literals
    return [
        first + "".join(number + literal for number, literal in zip(numbers, rest, strict=True))
        for numbers in itertools.product(*made)
    ]


def _require_few(count: int, text: str, most: int) -> None:
    if count > most:
        raise InvalidArgumentError("too many addresses", expected=f"at most {_MOST}", actual=brief(text))


def _require_short(text: str) -> None:
    if len(text) > _MOST_TEXT:
        raise InvalidArgumentError("too long a list", expected=f"at most {_MOST_TEXT} characters", actual=len(text))


# ── settings of one source, and the precedence between several ────────────────────────────────────────────────────────


CLUSTER, JOB, TASK = "cluster", "job", "task"
AUTO: Final = "auto"
_ALONE: Final = "the cluster"  # origin of a setting that follows because only one task fits
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True)
class SettingsSource:
    """The settings from one place. A setting that the place lacks is None.

    Attributes:
        origin: Returns the origin of a setting ("cluster", "job", "task"), for messages.
        cluster: A cluster as `ClusterSpec` accepts it. Addresses may have ranges, and lists may be given as one text.
        job: Name of the job.
        task: Index of the task.
    """

    origin: Callable[[str], str]
    cluster: Any = None
    job: str | None = None
    task: int | None = None


@dataclass(frozen=True, slots=True)
class GivenSettings:
    """The settings from a caller or a file. A setting that is not given is None.

    Attributes:
        origin: As for `SettingsSource`.
        cluster: As for `SettingsSource`.
        job: As for `SettingsSource`.
        task: A number, or "auto" to read it from the environment.
        slurm_jobs: Number of tasks of each job, if the cluster is the current Slurm job.
        slurm_port: Port of the first task of each host under Slurm; never None.
    """

    origin: Callable[[str], str]
    cluster: Any = None
    job: str | None = None
    task: int | str | None = None
    slurm_jobs: Mapping[str, int] | None = None
    slurm_port: int = 0


class ClusterTask(NamedTuple):
    """A task of a cluster, with the origin of each setting.

    Attributes:
        cluster: The cluster.
        job_name: Name of the job.
        task_index: Index of the task.
        came_from: Origin of "cluster", "job" and "task"; "the cluster" if only one task fits.
    """

    cluster: ClusterSpec
    job_name: str
    task_index: int
    came_from: Mapping[str, str]

    def comes_from(self, prefix: str) -> bool:
        """Return True if all settings come from sources whose names start with `prefix`, or follow from those."""
        return all(source == _ALONE or source.startswith(prefix) for source in self.came_from.values())

    def __str__(self) -> str:
        origins = ", ".join(f"{setting} from {source}" for setting, source in self.came_from.items())
        return f"job {self.job_name}, task {self.task_index} ({origins})"


def combine_sources(sources: Sequence[SettingsSource]) -> ClusterTask:
    """Combine the sources into one task. The first source that defines a setting takes precedence.

    If a source names a job, its task index counts only for that job.

    Raises:
        InvalidArgumentError: the cluster or task is not defined or malformed, or the cluster has no such task.
    """
    of_cluster = next((source for source in sources if source.cluster is not None), None)
    if of_cluster is None:
        raise InvalidArgumentError(
            "no cluster is given",
            expected="--cluster, --config or --slurm (or the argument of cluster_task), or TF_CONFIG",
        )
    spec = _spec(of_cluster)
    of_job = next((source for source in sources if source.job is not None), None)
    job = None if of_job is None else of_job.job
    # An index in a source with another job belongs to that job.
    fitting = (source for source in sources if source.task is not None and job in (None, source.job or job))
    of_task = next(fitting, None)
    index = None if of_task is None else of_task.task
    came_from = {
        CLUSTER: of_cluster.origin(CLUSTER),
        JOB: _ALONE if of_job is None else of_job.origin(JOB),
        TASK: _ALONE if of_task is None else of_task.origin(TASK),
    }
    found = [task for task in spec.tasks() if job in (None, task.job) and index in (None, task.number)]
    if len(found) != 1:
        raise InvalidArgumentError(
            "the job and task do not identify one task of the cluster",
            expected=f"a job and task of {_brief(spec)} ({CLUSTER} from {came_from[CLUSTER]})",
            actual=f"{_describe('job', job, came_from[JOB])}, {_describe('task', index, came_from[TASK])}",
        )
    return ClusterTask(spec, found[0].job, found[0].number, came_from)


def _spec(source: SettingsSource) -> ClusterSpec:
    try:
        cluster = source.cluster
        if isinstance(cluster, Mapping):
            cluster = {job: _expanded(tasks) for job, tasks in cluster.items()}
        return ClusterSpec(cluster)
    except InvalidArgumentError as error:
        where = source.origin(CLUSTER)
        raise type(error)(f"{where}: {error.message}", expected=error.expected, actual=error.actual) from error


def _expanded(tasks: object) -> object:
    if isinstance(tasks, str):
        return expand_addresses(tasks)
    if isinstance(tasks, list | tuple) and all(isinstance(address, str) for address in tasks):
        return [found for address in tasks for found in expand_addresses(address)]
    if isinstance(tasks, Mapping) and all(isinstance(key, str) and _NUMBER.fullmatch(key) for key in tasks):
        return {int(key): address for key, address in tasks.items()}  # JSON and TOML keys are always strings
    return tasks


def _describe(setting: str, value: object, source: str) -> str:
    return f"no {setting}" if value is None else f"{setting} {value} ({source})"


def _brief(spec: ClusterSpec) -> str:
    return ", ".join(f"{job} (0 to {max(spec.task_indices(job), default=-1)})" for job in spec.jobs) or "no jobs"


# ── the environment: TensorFlow's `TF_CONFIG`, and process indices of Kubernetes and Slurm ────────────────────────────


TF_CONFIG: Final = "TF_CONFIG"
_LONGEST_VARIABLE: Final = 4 << 20  # characters
_ORDINAL: Final = re.compile(r"[0-9]{1,9}")

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
    if len(text) > _LONGEST_VARIABLE:
        raise InvalidArgumentError(
            f"{TF_CONFIG} is too long", expected=f"{_LONGEST_VARIABLE} characters", actual=len(text)
        )
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
    if isinstance(index, str) and _ORDINAL.fullmatch(index):
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
    if not _ORDINAL.fullmatch(text):
        raise InvalidArgumentError(f"{name} is not a number", expected="such as 0", actual=brief(text))
    return int(text)
