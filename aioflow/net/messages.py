"""The messages of the worker service. Received messages are checked by the types of their fields.

hello        the client's sessions that have ended → description: task, cluster, devices, settings
register     a part of a plan, with the settings that it needs → a handle
deregister   a part to forget
run          one step of a part, with its feeds → its fetches, and times if it was traced. The number of the request
             is that of the step
wanted       to a client, about a step that arrived late → whether the client still waits for it
clock        → the time at the worker
report       a step → its current waits: seconds, and rows of node and reason
abort        a step to stop → once nothing of it runs any more: whether it had started
deliver      a push from worker to worker: a value for the rendezvous of a step, whose number is that of the push
settle       to the coordinator of the resource directory: rows of container, name, request and device → devices
holds        to the other tasks: rows of container and name → their resources and reservations, rows as in settle
claim        to the tasks that are to own resources: rows as in settle
state        → the state of the worker
status       → the status of the server, with running steps and their waits, as the one string of `pack_status`
understands  → the names of optional fields that the worker accepts; workers of earlier releases lack this kind
reset        resources to drop
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np

from aioflow.arguments import brief
from aioflow.config import SessionConfig
from aioflow.errors import DataLossError, InvalidArgumentError
from aioflow.memory.values import Array, Value
from aioflow.net.framing import Document
from aioflow.runtime.stats import NodeStats, StepStats

HELLO: Final = "hello"
REGISTER: Final = "register"
DEREGISTER: Final = "deregister"
RUN: Final = "run"
WANTED: Final = "wanted"
CLOCK: Final = "clock"
REPORT: Final = "report"
ABORT: Final = "abort"
DELIVER: Final = "deliver"
SETTLE: Final = "settle"
HOLDS: Final = "holds"
CLAIM: Final = "claim"
STATE: Final = "state"
STATUS: Final = "status"
RESET: Final = "reset"
UNDERSTANDS: Final = "understands"

TRACEPARENT: Final = "traceparent"

_REMEMBERED: Final = 32  # parsed headers per kind
_TRACEPARENT_LETTERS: Final = 128  # maximum characters; version 0 has 55

STATS_TENSORS: Final = 4  # number of tensors that `pack_stats` returns


class Greeting(NamedTuple):
    """A client's description of itself, sent only if it is not empty.

    Attributes:
        ended: Numbers of earlier sessions of its process whose end the worker may not have noticed.
    """

    ended: list[int]


class Hello(NamedTuple):
    """A worker's description of itself.

    Attributes:
        task: Full name of its task.
        cluster: The cluster, as `ClusterSpec.as_dict`, but with tasks as [index, address].
        devices: Full names of its devices.
        settings: Settings, as from `settings_document`.
        files: Whether graphs may open files on it.
    """

    task: str
    cluster: dict[str, list[Any]]
    devices: list[str]
    settings: Document
    files: bool


class Register(NamedTuple):
    """A part to prepare; the tensors are those of `encode_part`.

    Attributes:
        part: The header from `encode_part`.
        config: Settings, as from `config_document`.
        peers: Incarnation of each task that the part sends to.
    """

    part: Document
    config: Document
    peers: dict[str, int]


class Handle(NamedTuple):
    """The handle of a registered part."""

    handle: int


class Run(NamedTuple):
    """One step of a part; the tensors are its feeds in order.

    The fields are equal for similar steps, so that a header is encoded and parsed once for many of them. The step's
    number is that of the request.

    Attributes:
        handle: Handle of the part.
        trace: Whether to return the times of nodes.
        beat: Number of the last heartbeat of the worker that the client had received when it sent this.
        patience: Seconds; if that heartbeat is older, the worker asks whether the step is still wanted.
        seconds: Time limit of the client, in seconds; None for no limit.
        answered: Whether to report the end of the step; otherwise only a failure is reported.
        traceparent: Span of the client, as in the W3C header of that name; sent only to workers that accept it.
    """

    handle: int
    trace: bool
    beat: int
    patience: float
    seconds: float | None
    answered: bool
    traceparent: str | None = None

    def document(self) -> Document:
        """Return the body of a request. Without a span it omits the field, which earlier releases reject."""
        fields = self._asdict()
        if self.traceparent is None:
            del fields[TRACEPARENT]
        return fields


class Ran(NamedTuple):
    """The end of a step; the tensors are its fetches in order, followed by times if `devices` is not None.

    Attributes:
        devices: Names of the devices that times are for.
        origin: Start time by the worker's clock; 0 without times.
    """

    devices: list[str] | None
    origin: float


class Clock(NamedTuple):
    """The time of the worker's clock, in seconds from an arbitrary moment."""

    now: float


class Wanted(NamedTuple):
    """A step that its client may have given up."""

    step: int


class WhetherWanted(NamedTuple):
    """The client's answer to `Wanted`."""

    wanted: bool


class Abort(NamedTuple):
    """A step to stop.

    Attributes:
        step: Number of the step.
        error: The reason, as from `encode_error`.
    """

    step: int
    error: Document


class Aborted(NamedTuple):
    """A step that was stopped.

    Attributes:
        begun: Whether any of it had run.
    """

    begun: bool


class Deliver(NamedTuple):
    """A value for the step whose number the push has. The tensor is the value, and is absent if it is dead."""

    edge: str
    tag: str
    dead: bool


class State(NamedTuple):
    """The fields of `WorkerState`."""

    devices: list[str]
    registered: int
    running: int


class Understands(NamedTuple):
    """The names of optional fields."""

    fields: list[str]


class Reset(NamedTuple):
    """The containers to drop; None for all."""

    containers: list[str] | None


def _is_int(value: object) -> bool:
    # `type(...) is`, since bool is a subclass of int.
    return type(value) is int and 0 <= value < 2**64


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_bool(value: object) -> bool:
    return type(value) is bool


def _is_seconds(value: Any) -> bool:
    # False for NaN, too.
    return type(value) in (int, float) and value >= 0


def _is_traceparent(value: object) -> bool:
    return type(value) is str and len(value) <= _TRACEPARENT_LETTERS


def _is_map(value: object) -> bool:
    return type(value) is dict


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_ints(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_int, value))


def _is_numbers(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_int, value.values()))


# Checks of fields by the type of the field in its message.
_ACCEPTS: Final[Mapping[object, Callable[[Any], bool]]] = {
    int: _is_int,
    bool: _is_bool,
    float: _is_seconds,
    float | None: lambda value: value is None or _is_seconds(value),
    str: _is_text,
    str | None: _is_traceparent,  # a span, which is absent instead of None
    list[int]: _is_ints,
    list[str]: _is_texts,
    list[str] | None: lambda value: value is None or _is_texts(value),
    Document: _is_map,
    dict[str, int]: _is_numbers,
    dict[str, list[Any]]: _is_map,
}

_T = TypeVar("_T", bound=tuple[Any, ...])


class Parsed(Generic[_T]):
    """A parser of the headers of one kind, with a cache. Headers of similar steps are the same object."""

    __slots__ = ("_kind", "_known")

    def __init__(self, kind: type[_T]) -> None:
        self._kind = kind
        self._known: dict[int, tuple[Document, _T]] = {}

    def __call__(self, header: Document) -> _T:
        """Parse a header; see `parse`."""
        known = self._known.get(id(header))
        # By identity, which suffices: the decoder returns one object for equal short headers.
        if known is not None and known[0] is header:
            return known[1]
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        found = parse(self._kind, header)
        # The entry keeps the header alive, so that its id is not reused.
        self._known[id(header)] = header, found
        return found


@cache
def _fields(kind: Any) -> tuple[Mapping[str, Callable[[Any], bool]], Sequence[str]]:
    """Return the checks of a message's fields, and the fields that may be missing: the last ones, with defaults."""
    parameters = inspect.signature(kind).parameters.values()
    optional = [each.name for each in parameters if each.default is not each.empty]
    return {name: _ACCEPTS[hint] for name, hint in typing.get_type_hints(kind).items()}, optional


def parse(kind: type[_T], header: Document) -> _T:
    """Parse the header of a message.

    Raises:
        DataLossError: a field is missing, has the wrong type, or is unknown.
    """
    fields, optional = _fields(kind)
    missing = [name for name in optional if name not in header]
    if missing:
        fields = {name: accepts for name, accepts in fields.items() if name not in missing}
    for name, accepts in fields.items():
        if name not in header or not accepts(header[name]):
            raise DataLossError(
                f"a malformed message {kind.__name__!r}: field {name!r}", actual=brief(header.get(name, "missing"))
            )
    # A newer peer sends new fields only if this end has declared that it understands them.
    if len(header) != len(fields):
        raise DataLossError(
            f"a malformed message {kind.__name__!r}", expected=sorted(fields), actual=brief(sorted(header))
        )
    return kind(*(header[name] for name in fields))


# ── settings ──────────────────────────────────────────────────────────────────────────────────────────────────────────

# The settings of a session that affect the worker that runs its parts. The worker's own settings decide all others.
_SETTINGS: Final[Mapping[str, type]] = {
    "inline_budget": float,
    "executor": str,
    "check_finite": bool,
    "reproducible": bool,
}


def config_document(config: SessionConfig) -> Document:
    """Return the settings that are sent to workers."""
    return {name: getattr(config, name) for name in _SETTINGS}


def config_of(document: Document) -> SessionConfig:
    """Return the settings in a document, with defaults for all others. Raises DataLossError."""
    for name, kind in _SETTINGS.items():
        if not _fits(document.get(name), kind):
            raise DataLossError(
                f"a malformed setting {name!r}", expected=kind.__name__, actual=brief(document.get(name))
            )
    if len(document) != len(_SETTINGS):
        raise DataLossError("malformed settings", expected=sorted(_SETTINGS), actual=brief(sorted(document)))
    return _settings(document)


_OF_CLIENTS: Final = frozenset({"partial_runs", "partial_run_timeout"})  # settings without effect on workers


def settings_document(config: SessionConfig) -> Document:
    """Return the settings of a server, for the sessions that use it."""
    names = [field.name for field in dataclasses.fields(config) if field.name not in _OF_CLIENTS]
    values = {name: getattr(config, name) for name in names}
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}


def settings_of(document: Document) -> SessionConfig:
    """Return the settings in a document. Raises DataLossError."""
    hints = {name: hint for name, hint in typing.get_type_hints(SessionConfig).items() if name not in _OF_CLIENTS}
    for name, hint in hints.items():
        if name not in document or not _fits(document[name], hint):
            raise DataLossError(f"a malformed setting {name!r}", expected=hint, actual=brief(document.get(name)))
    if len(document) != len(hints):
        raise DataLossError("malformed settings", expected=sorted(hints), actual=brief(sorted(document)))
    return _settings(document)


def _settings(document: Document) -> SessionConfig:
    try:
        return SessionConfig(**document)
    except InvalidArgumentError as error:
        raise DataLossError(
            f"a malformed setting: {error.message}", expected=error.expected, actual=error.actual
        ) from error


def _fits(value: object, hint: object) -> bool:
    """Return True if the value has the type: a plain type, a mapping of plain types, or a union."""
    if isinstance(hint, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if typing.get_origin(hint) is Mapping:
        key, item = typing.get_args(hint)
        return type(value) is dict and all(_fits(k, key) and _fits(v, item) for k, v in value.items())
    # A user may write 1 for 1.0, and msgpack keeps the two apart.
    return type(value) is hint or (hint is float and type(value) is int)


# ── values ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def to_wire_value(value: Value) -> Value:
    """Convert a value of the engine for a message: the engine holds a scalar string as Python bytes."""
    if type(value) is bytes:
        # Not `np.asarray`, whose dtype for bytes drops zero bytes at the end.
        array = np.empty((), object)
        array[()] = value
        return array
    return value


def from_wire(array: Array) -> Value:
    """Convert a tensor of a message for the engine, which holds numbers of rank 0 as NumPy scalars."""
    return array if array.ndim or array.dtype == object else array[()]


# ── times ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def pack_stats(step_stats: Sequence[StepStats]) -> tuple[list[str], list[Array]]:
    """Return the devices for the header, and the tensors: device numbers, texts, times and sizes.

    A header has no room for all of it.
    """
    rows = [(number, node) for number, stats in enumerate(step_stats) for node in stats.nodes]
    texts = np.empty((len(rows), 3), object)
    for row, (_, node) in enumerate(rows):
        texts[row] = [node.node.encode(), node.op.encode(), node.thread.encode()]
    numbers = np.array([number for number, _ in rows], np.int64)
    times = np.array([(node.start, node.duration) for _, node in rows], np.float64).reshape(-1, 2)
    sizes = np.array([node.output_bytes for _, node in rows], np.int64)
    return [stats.device for stats in step_stats], [numbers, texts, times, sizes]


def unpack_stats(devices: Sequence[str], tensors: Sequence[Array]) -> list[StepStats]:
    """Return the times in a message. Raises DataLossError."""
    numbers, texts, times, sizes = tensors
    # -1 fits no shape below; `len` of an array of rank 0 would raise TypeError.
    count = len(numbers) if numbers.ndim == 1 else -1
    fits = (
        numbers.dtype == np.int64
        and sizes.dtype == np.int64
        and times.dtype == np.float64
        and texts.dtype == object
        and (texts.shape, times.shape, sizes.shape) == ((count, 3), (count, 2), (count,))
        and bool(np.all((numbers >= 0) & (numbers < len(devices))))
    )
    if not fits:
        raise DataLossError("malformed times of a step", expected="numbers, texts, times, sizes", actual=count)
    found: list[list[NodeStats]] = [[] for _ in devices]
    for number, text, (start, duration), size in zip(
        numbers.tolist(), texts.tolist(), times.tolist(), sizes.tolist(), strict=True
    ):
        node, op, thread = (item.decode("utf-8", "replace") for item in text)
        found[number].append(NodeStats(node, op, thread, start, duration, size))
    return [StepStats(device, tuple(nodes)) for device, nodes in zip(devices, found, strict=True)]
