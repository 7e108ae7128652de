"""Settings of sessions and of single runs, as dataclasses."""

from __future__ import annotations

import enum
import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any, ClassVar, Final, TypeAlias

from aioflow.arguments import check_number, check_seconds, check_whole, wrong_kind
from aioflow.errors import InvalidArgumentError

__all__ = ["AUTO", "RunOptions", "SessionConfig", "TraceLevel"]

AUTO: Final = "auto"  # a value of `SessionConfig.delegate`: the first installed engine, if any


class TraceLevel(enum.IntEnum):
    """The amount of detail that a run records in its `RunMetadata`: nothing, or the time of every node.

    TensorFlow's levels for the CPU (`SOFTWARE_TRACE`) or devices alone (`HARDWARE_TRACE`) record the same as `FULL`.
    """

    NO_TRACE = 0
    SOFTWARE_TRACE = 1
    HARDWARE_TRACE = 2
    FULL = 3
    FULL_TRACE = 3


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """The settings of a session.

    Attributes:
        allow_soft_placement: Place a node elsewhere if its requested device cannot run it.
        log_device_placement: Log the device of every node when a plan is made: at INFO to the logger
            "aioflow.placement"; or to stderr, as TensorFlow does, if logging is not configured at all.
        inline_budget: Seconds. A strand that is expected to take less runs on the event loop itself; a longer one runs
            in the device's threads.
        yield_every: Seconds of inline work after which a run yields to the event loop.
        threads: Threads of each CPU device's executor, and of each kernel that it runs; 0 means one per processor,
            shared by the devices of one process.
        switch_interval: Seconds. The interpreter's thread switch interval is lowered to this value, for the whole
            process and beyond the end of the session. A kernel's thread that runs Python blocks the event loop for up
            to this interval, which is 5 ms by default in Python. It is lowered once: if the program sets it afterwards,
            later sessions do not change it. `restore_switch_interval` undoes it. None leaves it unchanged.
        check_finite: Check every floating result of every node, and fail on the first that is NaN or infinite.
        plan_cache_size: Maximum number of compiled steps to keep; the oldest is evicted first.
        operation_timeout: Default of a run's `timeout`, in seconds; None for no limit.
        executor: "strands", or "reference" for the plain executor, which is slow: one coroutine per node, and in loops
            per iteration. The result of each kernel is compared with the declaration of its op; an InternalError names
            the node of a mismatch.
        device_count: Number of devices of each type in the process, such as {"CPU": 4}. The default is one CPU and the
            GPUs that are found. Devices of other types run only nodes that request them, unless they are listed here.
        optimizations: Whether steps are optimized; or switches by the name of the pass (`compiler/optimize/passes.py`),
            where passes that are not named keep their default.
        placement: Strategy for nodes that several devices could run: "auto", "greedy", "heft" or "first".
        replace_after: Number of steps after which a plan is placed again from measured costs; 0 for never.
        compression: Encoding of float32 values sent between devices: None for no change, "truncate" for the upper 16
            bits (whitepaper, 5.5), "bfloat16" or "float16" for rounding to that type.
        fetch_to_host: Whether fetched values of a GPU are returned as NumPy arrays. If not, they stay on the GPU and
            are returned as objects with `__dlpack__`, for `torch.from_dlpack` and the like.
        reproducible: Compute with NumPy's kernels alone, not with those of faster packages that round differently
            (docs/performance.md).
        delegate: Engine that computes the parts of a step that it supports, in place of kernels: "onnxruntime", or
            "onnxruntime:PROVIDER" for an execution provider other than the CPU's; "auto" for an installed engine, if
            there is one; None for kernels alone. Engines round differently: with `reproducible`, "auto" means None, and
            naming an engine is an error.
        max_value_bytes: Maximum size of one value, be it a kernel's result or a fetched value. A view counts as much as
            a copy of it. A larger value raises ResourceExhaustedError, before its memory is allocated if its size is
            known by then. None for half of the memory that the process may use.
        partial_runs: Maximum number of unfinished partial runs of the session: each is a step whose tasks and values
            stay until it ends. One more raises ResourceExhaustedError.
        partial_run_timeout: Seconds without a `partial_run` after which an unfinished one is stopped; the next call
            raises DeadlineExceededError. None for no limit.

    Raises:
        InvalidArgumentError: a value is out of range, or `delegate` names an engine and `reproducible` is set.
        DTypeError: a value has the wrong type.
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
        """Return these settings, with those at their default replaced by the settings of `others`."""
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
        check_whole(count, f"{what}[{name!r}]", 1 if name == "CPU" else 0)  # values in host memory need a CPU


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
# Checks that do not need the engine, which this low layer cannot import. The modules of the passes, strategies and
# compressions check their own names when the session is created.
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


@dataclass(slots=True, init=False)
class RunOptions:
    """The options of one run.

    Args:
        trace_level: As the attribute.
        timeout: As the attribute.
        output_partition_graphs: As the attribute.
        timeout_in_ms: The same in milliseconds, as TensorFlow has it: a whole number, and 0 for no limit.
        inter_op_thread_pool: Ignored and logged unless 0: the threads are those of the session.
        report_tensor_allocations_upon_oom: Ignored and logged if True.

    Attributes:
        trace_level: FULL records the time of every node in the `RunMetadata` of the run.
        timeout: Time limit in seconds, like the `timeout` argument of `run`.
        output_partition_graphs: Record the graph of every device, as it runs, in the `RunMetadata` of the run.

    Raises:
        DTypeError: a value has the wrong type.
        InvalidArgumentError: the time limit is NaN, or too large for a float; or both limits are given.
    """

    NO_TRACE: ClassVar[TraceLevel] = TraceLevel.NO_TRACE
    SOFTWARE_TRACE: ClassVar[TraceLevel] = TraceLevel.SOFTWARE_TRACE
    HARDWARE_TRACE: ClassVar[TraceLevel] = TraceLevel.HARDWARE_TRACE
    FULL_TRACE: ClassVar[TraceLevel] = TraceLevel.FULL_TRACE

    trace_level: TraceLevel
    timeout: float | None
    output_partition_graphs: bool

    def __init__(
        self,
        trace_level: TraceLevel | int = TraceLevel.NO_TRACE,
        timeout: float | None = None,
        output_partition_graphs: bool = False,
        *,
        timeout_in_ms: int = 0,
        inter_op_thread_pool: int = 0,
        report_tensor_allocations_upon_oom: bool = False,
    ) -> None:
        if timeout is not None and timeout_in_ms:
            raise InvalidArgumentError(
                "RunOptions has two time limits",
                expected="timeout or timeout_in_ms",
                actual=f"timeout={timeout!r}, timeout_in_ms={timeout_in_ms!r}",
            )
        self.trace_level = trace_level  # type: ignore[assignment]  # `__setattr__` converts the number
        self.timeout = timeout
        self.output_partition_graphs = output_partition_graphs
        if timeout_in_ms:
            self.timeout_in_ms = timeout_in_ms
        if inter_op_thread_pool:
            log_ignored("RunOptions.inter_op_thread_pool", "SessionConfig.threads")
        if report_tensor_allocations_upon_oom:
            log_ignored("RunOptions.report_tensor_allocations_upon_oom", "RunOptions.trace_level, for output sizes")

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an option. Raises like the constructor."""
        if name == "trace_level":
            value = _level(value)
        elif name == "timeout":
            check_seconds(value, "RunOptions.timeout")
        elif name == "output_partition_graphs":
            _switch(value, "RunOptions.output_partition_graphs")
        object.__setattr__(self, name, value)

    @property
    def timeout_in_ms(self) -> int:
        """The time limit in milliseconds, at least 1; 0 for no limit."""
        return 0 if self.timeout is None else max(1, round(self.timeout * 1000))

    @timeout_in_ms.setter
    def timeout_in_ms(self, milliseconds: int) -> None:
        check_whole(milliseconds, "RunOptions.timeout_in_ms", 0)
        self.timeout = milliseconds / 1000 if milliseconds else None


def _level(value: Any) -> TraceLevel:
    if not isinstance(value, int) or isinstance(value, bool) or value not in set(TraceLevel):
        raise wrong_kind(value, "RunOptions.trace_level", "a TraceLevel, such as RunOptions.FULL_TRACE")
    return TraceLevel(value)


_LOGGER: Final = logging.getLogger("aioflow.config")


@functools.cache
def log_ignored(name: str, instead: str) -> None:
    """Log, once for each process, that a setting of TensorFlow is ignored, and what replaces it."""
    _LOGGER.warning("%s is ignored: %s", name, instead)
