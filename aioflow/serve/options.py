"""How models are served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

from aioflow.checks.numbers import check_number, check_seconds, check_whole
from aioflow.config import AUTO, SessionConfig
from aioflow.errors import InvalidArgumentError

__all__ = ["BATCH", "Batch", "ModelOptions"]

_BY_ENGINE: Final = SessionConfig(delegate=AUTO)
Batch: TypeAlias = Literal["never", "proven", "auto", "always"]
BATCH: Final = get_args(Batch)


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How a model is served.

    Attributes:
        batch: Whether concurrent requests may share a step, of signatures whose inputs and outputs all have an open
            first size: "proven", where it follows from the ops that rows do not depend on one another; "auto", also
            where that is not known, and steps with random rows before the model is ready (`warmup`) show nothing else;
            "always", whatever is known; "never".
        max_batch_size, batch_timeout, max_enqueued_batches, max_concurrent_batches, allowed_batch_sizes: As of
            `Session.batched`. Of what cannot be batched, `max_concurrent_batches` steps run at once, and
            `max_batch_size * max_enqueued_batches` requests may wait.
        pad: By the name of an input, as of `Session.batched`, for rows that differ in length.
        timeout: Seconds, after which a request is given up that has no limit of its own; a longer one of its own
            is cut to it. None for no limit.
        warmup: Whether steps are run with zeros before a model is ready.
        json_nan: What an answer in JSON has in the place of NaN and infinities, which JSON has not: "error" refuses to
            answer so, and says that tensors may be asked for as bytes; "null" is what it says.
        config: Settings of the model's session. By default, parts of its steps are computed by another engine where one
            is installed (`SessionConfig.delegate`).
    """

    batch: Batch = "auto"
    max_batch_size: int = 64
    batch_timeout: float = 0.0
    max_enqueued_batches: int = 16
    max_concurrent_batches: int = 1
    allowed_batch_sizes: tuple[int, ...] = ()
    pad: Mapping[str, Any] = field(default_factory=dict)
    timeout: float | None = None
    warmup: bool = True
    json_nan: Literal["error", "null"] = "error"
    config: SessionConfig | None = _BY_ENGINE

    def __post_init__(self) -> None:
        if self.batch not in BATCH:
            raise InvalidArgumentError("ModelOptions.batch is unknown", expected=f"one of {BATCH}", actual=self.batch)
        for name in ("max_batch_size", "max_enqueued_batches", "max_concurrent_batches"):
            check_whole(getattr(self, name), f"ModelOptions.{name}", 1)
        if self.json_nan not in ("error", "null"):
            raise InvalidArgumentError(
                "ModelOptions.json_nan is unknown", expected="'error' or 'null'", actual=self.json_nan
            )
        check_number(self.batch_timeout, "ModelOptions.batch_timeout", "a number of seconds")
        check_seconds(self.timeout, "ModelOptions.timeout")

    def limited(self, timeout: float | None) -> float | None:
        """The time limit of a request that asks for this one."""
        if timeout is None or self.timeout is None:
            return self.timeout if timeout is None else timeout
        return min(timeout, self.timeout)
