"""Settings, as frozen dataclasses: what a session is opened with, and what one run may ask for."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any, ClassVar, Final, TypeAlias

from aioflow.checks.numbers import check_number, check_seconds, check_whole, wrong_kind
from aioflow.errors import InvalidArgumentError

__all__ = ["AUTO", "RunOptions", "SessionConfig", "TraceLevel"]

AUTO: Final = "auto"  # of `SessionConfig.delegate`: the first engine that is installed, if any


class TraceLevel(enum.Enum):
    """How much a run records in its `RunMetadata`."""

    NO_TRACE = 0
    FULL = 3


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """How a session runs its steps.

    Attributes:
        allow_soft_placement: Place a node elsewhere when its requested device cannot run it.
        log_device_placement: Log the device of every node when a plan is made: at INFO to the logger
            "aioflow.placement", or to the error output, as TensorFlow does, where logging is not configured at all.
        inline_budget: Seconds. A strand that is expected to take less runs on the event loop itself; a longer one runs
            in the device's threads.
        yield_every: Seconds of inline work after which a run lets the event loop serve others.
        threads: Threads of each CPU device's executor, and of each kernel that it runs; 0 means one per processor,
            which devices of one process then share.
        switch_interval: Seconds. The interpreter's thread switch interval is lowered to it, for the whole process and
            beyond the end of the session: a kernel's thread that runs Python keeps the event loop waiting for that
            long, which is 5 ms by Python's own setting. It is lowered once: where the program sets it afterwards, later
            sessions leave it alone. `restore_switch_interval` takes it back. None leaves it as it is.
        check_finite: Check every floating result of every node, and fail on the first that is NaN or infinite.
        plan_cache_size: How many compiled steps are kept; the oldest goes first.
        operation_timeout: Seconds that a run may take unless it is given its own `timeout`; None for no limit.
        executor: "strands", or "reference" for the plain executor, which is slow: one coroutine per node. With it
            branches and loops stay in their primitive form, and what each kernel returns is compared with what its op
            declares: an InternalError names the node where it is not that.
        device_count: How many devices of a type the process has, such as {"CPU": 4}. One CPU without it, and the GPUs
            that are found. Devices of other types compute only what asks for them, unless they are counted here.
        optimizations: Whether steps are optimized; or switches by the name of the pass (`compiler/optimize/passes.py`),
            where passes that are not named stay at their default.
        placement: The strategy for nodes that several devices could run: "auto", "greedy", "heft" or "first".
        replace_after: After how many steps a plan is placed again from measured costs; 0 for never.
        compression: How float32 values are sent between devices: None for as they are, "truncate" for the upper 16 bits
            (whitepaper, 5.5), "bfloat16" or "float16" for rounding to that type.
        fetch_to_host: Whether fetched values of a GPU come as NumPy arrays. If not, they stay where they are, and come
            as objects with `__dlpack__`, for `torch.from_dlpack` and the like.
        reproducible: Compute with NumPy's kernels alone, not with those of packages that are faster and round in
            another way (docs/performance.md).
        delegate: The engine that computes the parts of a step that it supports, in place of kernels: "onnxruntime", or
            "onnxruntime:PROVIDER" for an execution provider other than the CPU's; "auto" for an installed engine, if
            there is one; None for kernels alone. Engines round differently: with `reproducible`, "auto" means None, and
            naming an engine is an error.
        max_value_bytes: The most bytes that one value may take, be it what a kernel makes or what is fetched. A view
            counts as what a copy of it would take. A larger one is refused with ResourceExhaustedError before its
            memory is asked for, where its size is known by then. None for half of the memory that the process may use.
        partial_runs: How many partial runs of the session may be unfinished at a time: each is a step whose tasks and
            values stay until it ends. One more is refused with ResourceExhaustedError.
        partial_run_timeout: Seconds without a `partial_run` after which an unfinished one is stopped; the next call
            raises DeadlineExceededError. None for no limit.
    """

    allow_soft_placement: bool = False
    log_device_placement: bool = False
    inline_budget: float = 200e-6
    yield_every: float = 1e-3
    threads: int = 0
    switch_interval: float | None = 5e-4
    check_finite: bool = False
    plan_cache_size: int = 1024
    operation_timeout: float | None = None
    executor: str = "strands"
    device_count: Mapping[str, int] = field(default_factory=dict)
    optimizations: bool | Mapping[str, bool] = True
    placement: str = "auto"
    replace_after: int = 0
    compression: str | None = None
    fetch_to_host: bool = True
    reproducible: bool = False
    delegate: str | None = None
    max_value_bytes: int | None = None
    partial_runs: int = 1024
    partial_run_timeout: float | None = 3600.0

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            check(getattr(self, name), f"SessionConfig.{name}")
        if self.reproducible and self.delegate not in (None, AUTO):
            raise InvalidArgumentError(
                "reproducible results are those of the device's own kernels",
                expected="SessionConfig.delegate=None",
                actual=repr(self.delegate),
            )

    def over(self, others: SessionConfig) -> SessionConfig:
        """These settings, and where one is at its default that of `others`."""
        return replace(
            others, **{f.name: value for f in fields(self) if (value := getattr(self, f.name)) != _default(f)}
        )


def _switch(value: Any, what: str) -> None:
    if not isinstance(value, bool):
        raise wrong_kind(value, what, "True or False")


def _switches(value: Any, what: str) -> None:
    names = isinstance(value, Mapping) and all(isinstance(name, str) for name in value)
    if not (isinstance(value, bool) or (names and all(isinstance(on, bool) for on in value.values()))):
        raise wrong_kind(value, what, "True, False, or a dict such as {'fuse_elementwise': False}")


def _counts(value: Any, what: str) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise wrong_kind(value, what, "a dict such as {'CPU': 2}")
    for name, count in value.items():
        check_whole(count, f"{what}[{name!r}]", 0)


def _text(value: Any, what: str) -> None:
    if not isinstance(value, str):
        raise wrong_kind(value, what, "a str")


def _executor(value: Any, what: str) -> None:
    _text(value, what)
    if value not in _EXECUTORS:
        raise InvalidArgumentError(f"{what} is not known", expected=f"one of {_EXECUTORS}", actual=repr(value))


def _at_least(least: int) -> _Check:
    return lambda value, what: check_whole(value, what, least)


def _or_none(check: _Check) -> _Check:
    return lambda value, what: None if value is None else check(value, what)


_Check: TypeAlias = Callable[[Any, str], None]
_EXECUTORS: Final = ("strands", "reference")
# What a setting may be, as far as it can be told without the engine. The names of passes, of strategies and of
# compressions are their own modules' affair, which look at them when the session is made.
_CHECKS: Final[Mapping[str, _Check]] = {
    "allow_soft_placement": _switch,
    "log_device_placement": _switch,
    "inline_budget": check_number,
    "yield_every": check_number,
    "threads": _at_least(0),
    "switch_interval": _or_none(lambda value, what: check_number(value, what, above=0.0)),
    "check_finite": _switch,
    "reproducible": _switch,
    "delegate": _or_none(_text),
    "plan_cache_size": _at_least(1),
    "operation_timeout": check_seconds,
    "executor": _executor,
    "device_count": _counts,
    "optimizations": _switches,
    "placement": _text,
    "replace_after": _at_least(0),
    "compression": _or_none(_text),
    "fetch_to_host": _switch,
    "max_value_bytes": _or_none(_at_least(0)),
    "partial_runs": _at_least(1),
    "partial_run_timeout": check_seconds,
}


def _default(setting: Field[object]) -> object:
    return setting.default if setting.default_factory is MISSING else setting.default_factory()


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What one run asks for.

    Attributes:
        trace_level: FULL records the time of every node in the `RunMetadata` of the run.
        timeout: Seconds; as the `timeout` argument of `run`.
    """

    NO_TRACE: ClassVar[TraceLevel] = TraceLevel.NO_TRACE
    FULL_TRACE: ClassVar[TraceLevel] = TraceLevel.FULL

    trace_level: TraceLevel = TraceLevel.NO_TRACE
    timeout: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.trace_level, TraceLevel):
            raise wrong_kind(self.trace_level, "RunOptions.trace_level", "a TraceLevel, such as RunOptions.FULL_TRACE")
        check_seconds(self.timeout, "RunOptions.timeout")
