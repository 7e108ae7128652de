"""Options for serving models, and of the sockets at which a service listens."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from aioflow.arguments import check_kind, check_number, check_seconds, check_whole
from aioflow.config import AUTO, SessionConfig
from aioflow.errors import InvalidArgumentError
from aioflow.net.addresses import is_loopback
from aioflow.sync.batches import check_batch_sizes

_BY_ENGINE: Final = SessionConfig(delegate=AUTO)
Batch: TypeAlias = Literal["never", "proven", "auto", "always"]
BATCH: Final = get_args(Batch)
Readiness: TypeAlias = Literal["all", "any"]
READINESS: Final = get_args(Readiness)


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Options for serving a model.

    Attributes:
        batch: Whether concurrent requests may share a step. Requires a signature whose inputs and outputs all have an
            unknown first size. "proven": only if the ops prove that rows are independent. "auto": also if nothing is
            proven, but steps with random rows show no dependence before the model is ready (`warmup`). "always": in
            any case. "never": not at all.
        max_batch_size, batch_timeout, max_enqueued_batches, max_concurrent_batches, allowed_batch_sizes: As in
            `Session.batched`. Without batching, `max_concurrent_batches` steps run at once, and
            `max_batch_size * max_enqueued_batches` requests may wait.
        pad: By input name, as in `Session.batched`, for rows of different lengths.
        timeout: Time limit of a request in seconds, and the maximum for requests that state a limit. None for no limit.
        warmup: Whether to run steps with zeros before a model is ready.
        json_nan: The JSON form of NaN and infinities, which JSON lacks. "error" fails the request with a hint to
            request tensors as bytes; "null" writes null.
        config: Settings of the model's session. By default, another engine computes parts of its steps if one is
            installed (`SessionConfig.delegate`).
        memory_budget: Bytes for the weights of the versions of the model, in addition to the budget of all models. If
            they are larger, the model is not loaded. None for no limit.
        response_cache: Bytes for responses of each version, which answer equal requests without a step. A model that
            changes state, draws random numbers or reads files is not loaded with it. None or 0 for no cache.
        labels: A file with the labels of classes, one on each line, for requests of classes (Triton's classification
            extension). None for the labels that the model states, if any.

    Raises:
        InvalidArgumentError: an option is unknown or out of range.
        DTypeError: a number, or a size in `allowed_batch_sizes`, has the wrong type.
    """

    batch: Batch = "auto"
    max_batch_size: int = 64
    batch_timeout: float = 0.0
    max_enqueued_batches: int = 16
    max_concurrent_batches: int = 1
    allowed_batch_sizes: tuple[int, ...] = ()
    pad: Mapping[str, object] = field(default_factory=dict)
    timeout: float | None = None
    warmup: bool = True
    json_nan: Literal["error", "null"] = "error"
    config: SessionConfig | None = _BY_ENGINE
    memory_budget: int | None = None
    response_cache: int | None = None
    labels: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.batch not in BATCH:
            raise InvalidArgumentError("ModelOptions.batch is unknown", expected=f"one of {BATCH}", actual=self.batch)
        for name in ("max_batch_size", "max_enqueued_batches", "max_concurrent_batches"):
            check_whole(getattr(self, name), f"ModelOptions.{name}", 1)
        check_kind(self.allowed_batch_sizes, (list, tuple), "ModelOptions.allowed_batch_sizes", "a tuple of ints")
        check_batch_sizes(self.allowed_batch_sizes, self.max_batch_size)
        if self.json_nan not in ("error", "null"):
            raise InvalidArgumentError(
                "ModelOptions.json_nan is unknown", expected="'error' or 'null'", actual=self.json_nan
            )
        check_number(self.batch_timeout, "ModelOptions.batch_timeout", "a number of seconds")
        check_seconds(self.timeout, "ModelOptions.timeout")
        for name in ("memory_budget", "response_cache"):
            if getattr(self, name) is not None:
                check_whole(getattr(self, name), f"ModelOptions.{name}", 0)

    def limited(self, timeout: float | None) -> float | None:
        """Return the effective time limit of a request with this `timeout`."""
        if timeout is None or self.timeout is None:
            return self.timeout if timeout is None else timeout
        return min(timeout, self.timeout)


_DEFAULTS: Final = ModelOptions()


def options_by_model(
    names: Iterable[str], options: ModelOptions | Mapping[str | None, ModelOptions] | None
) -> dict[str | None, ModelOptions]:
    """Return the options of each model. A mapping has those of all other models at None."""
    each: Mapping[str | None, ModelOptions] = options if isinstance(options, Mapping) else {None: options or _DEFAULTS}
    return {name: each.get(name) or each.get(None) or _DEFAULTS for name in names}


# ── the server: addresses, allowed hosts, TLS, draining, readiness ────────────────────────────────────────────────────


_LOG: Final = logging.getLogger("aioflow.serve")
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1", "[::1]")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Settings of a service: its listening sockets, and its readiness.

    Attributes:
        host, port: Address to listen on; port 0 picks a free port.
        grpc_port: Port for gRPC on that host; None disables gRPC.
        token, admin_token, hosts: See `create_app`. If neither `token` nor `hosts` is set and the service listens on a
            loopback address, it accepts only loopback host names. This prevents a web page from reaching it under
            another name (DNS rebinding).
        tls_cert, tls_key: Files with the certificate chain and its key (PEM), for TLS. The key file must not be
            readable by other users.
        drain_seconds: Seconds that running requests may take to finish when the service shuts down.
        strict: Whether the service fails if one model cannot be loaded at its start. Otherwise it serves the others,
            and fails only if none can be loaded.
        readiness: Whether the service is ready if all of its models are loaded, as the protocol defines it, or also if
            some have failed ("any").
        access_log: Whether each answered request is logged to the logger `aioflow.access`, at level INFO.

    Raises:
        InvalidArgumentError: a certificate is given without its key, both tokens are the same, or `drain_seconds` or
            `readiness` is out of range.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = field(default=None, repr=False)
    hosts: Collection[str] | None = None
    tls_cert: str | os.PathLike[str] | None = None
    tls_key: str | os.PathLike[str] | None = None
    drain_seconds: float = 30.0
    grpc_port: int | None = None
    strict: bool = True
    readiness: Readiness = "all"
    access_log: bool = False
    admin_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_seconds(self.drain_seconds, "ServerOptions.drain_seconds")
        if self.readiness not in READINESS:
            raise InvalidArgumentError(
                "ServerOptions.readiness is unknown", expected=f"one of {READINESS}", actual=self.readiness
            )
        if self.token is not None and self.token == self.admin_token:
            raise InvalidArgumentError("both tokens are the same", expected="another token for the administrator")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidArgumentError(
                "a TLS certificate needs its key, and a key its certificate", expected="both, or neither"
            )

    def warn_if_open(self, port: int) -> None:
        """Log a warning if the service listens beyond the loopback address and requires no token."""
        if warning := self.open_warning(port):
            _LOG.warning("%s", warning)

    def open_warning(self, port: int) -> str:
        """Return a warning if the service would listen beyond the loopback and requires no token; "" otherwise."""
        if self.token is not None or self.host in _LOOPBACK or is_loopback(self.host):
            return ""
        allowed = "use, load and unload" if self.admin_token is None else "use"
        return (
            f"anyone who can reach {self.host} port {port} may {allowed} the models, since there is no token: give one"
            " (--token-file, ServerOptions.token), or listen on 127.0.0.1 behind a proxy that asks for one"
        )

    def allowed(self) -> Collection[str] | None:
        """Return the accepted host names, or None if any name is accepted."""
        # With a token, a page of another name could not authenticate anyway.
        is_local = self.host in _LOOPBACK and self.token is None
        return _LOOPBACK if self.hosts is None and is_local else self.hosts
