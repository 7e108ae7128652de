"""The options of `aioflow serve`, from the command line, from a file, and from the environment."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import aioflow.serve as service
from aioflow.cli.arguments import (
    ParserOrGroup,
    add_delegate,
    add_imports,
    add_logs,
    file,
    given_logs,
    patience,
    port,
    positive,
    seconds,
    size,
)
from aioflow.cli.model_inputs import input_shape
from aioflow.cli.option_files import parse_table
from aioflow.config import SessionConfig
from aioflow.errors import DTypeError, InvalidArgumentError, OpError
from aioflow.formats.files import check_private, file_errors
from aioflow.formats.toml import TomlTable, read_document, require_known, table_of
from aioflow.observe.logs import ACCESS_FORMATS, LogOptions
from aioflow.serve.options import BATCH, READINESS
from aioflow.serve.sources import NAME, parse_source, parse_versions

T = TypeVar("T")

DRAIN_SECONDS: Final = 30.0
_STUCK_SECONDS: Final = 30.0
_MOST_TOKEN: Final = 4096
_TOKEN: Final = "AIOFLOW_TOKEN"
_ADMIN_TOKEN: Final = "AIOFLOW_ADMIN_TOKEN"
_TABLES: Final = ("serve", "limits", "models")  # of the file
# Options of models that have the names of fields of `ModelOptions`.
_PASSED: Final = (
    "max_batch_size",
    "batch_timeout",
    "max_enqueued_batches",
    "max_concurrent_batches",
    "batch",
    "warmup",
    "json_nan",
    "response_cache",
    "labels",
    "timeout",
)


class ServeOptions(NamedTuple):
    """The options of a service.

    Attributes:
        models: The sources of the models, by name.
        options: The options of each model.
        where: Addresses, access, and readiness.
        limits: Limits on requests.
        memory_budget: Bytes for each process; None for no limit.
        processes: Number of processes.
        quorum: As in `Processes`.
        stuck_seconds: As in `Processes`.
        imports: Names of the modules that register ops.
        logs: The form of the logs.
    """

    models: Mapping[str, service.ModelSource]
    options: Mapping[str | None, service.ModelOptions]
    where: service.ServerOptions
    limits: service.Limits
    memory_budget: int | None
    processes: int
    quorum: int | None
    stuck_seconds: float
    imports: tuple[str, ...]
    logs: LogOptions


# ── the options ───────────────────────────────────────────────────────────────────────────────────────────────────────
#
# None has a default in the parser: an option that is not used must not override the file.


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add all options of the command line. Options that are not used have no attribute in its result."""
    parser.add_argument(
        "models",
        nargs="*",
        type=_model,
        metavar="NAME=MODEL[:VERSION]",
        help="a name, and the path of a model or of a folder of versions; may be repeated",
    )
    parser.add_argument(
        "--config", type=file, metavar="FILE", help="TOML file with models and options; the other options override it"
    )
    parser.add_argument("--check", action="store_true", help="check the options, find the models, and exit")
    parser.add_argument(
        "--limit",
        action="append",
        type=_limit,
        metavar="NAME=NUMBER",
        help=f"limit on requests: {', '.join(each.name for each in fields(service.Limits))}",
    )
    add_settings(parser)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the options that the `[serve]` table of a file may also have."""
    _add_shape(parser, "[NAME:]", "; NAME: is optional if only one model is served")
    where = parser.add_argument_group("addresses and access")
    where.add_argument(
        "--host",
        help="address (127.0.0.1); beyond the loopback, anyone who can reach it may use the models unless there is a "
        "token, so the service then warns",
    )
    where.add_argument("--port", type=port, help="port to listen on (8000); 0: any free port")
    where.add_argument("--grpc-port", type=port, metavar="PORT", help="port for gRPC (none); 0: any free port")
    where.add_argument(
        "--allow-host",
        action="append",
        metavar="NAME",
        help="host name that requests may use, such as a proxy's; may be repeated. Default: local names on "
        "127.0.0.1 without a token, otherwise any",
    )
    where.add_argument(
        "--token-file",
        type=file,
        metavar="FILE",
        help=f"file with the required token (mode 600); also: {_TOKEN}, {_TOKEN}_FILE",
    )
    where.add_argument(
        "--admin-token-file",
        type=file,
        metavar="FILE",
        help="file with the token required to load and unload models, which the other then does not permit; also: "
        f"{_ADMIN_TOKEN}, {_ADMIN_TOKEN}_FILE",
    )
    where.add_argument("--tls-cert", type=file, metavar="FILE", help="serve TLS with this certificate (PEM)")
    where.add_argument("--tls-key", type=file, metavar="FILE", help="private key of the certificate (PEM)")
    add_model_options(parser.add_argument_group("batching and execution"))
    parser.add_argument(
        "--memory-budget",
        type=size,
        metavar="SIZE",
        help="memory of each process for model weights and requests, such as 2GiB; models beyond it are not loaded",
    )
    _add_lifecycle(parser.add_argument_group("start and shutdown"))
    _add_processes(parser.add_argument_group("multiple processes"))
    logs = add_logs(parser)
    logs.add_argument(
        "--access-log", choices=ACCESS_FORMATS, help="whether and in which format to log each request (off)"
    )
    add_imports(parser)


def add_model_options(how: ParserOrGroup) -> None:
    """Add the options that the table of a model in a file may also have, for this model alone."""
    how.add_argument("--max-batch-size", type=positive, metavar="N", help="maximum number of rows in a step (64)")
    how.add_argument("--batch-timeout", type=patience, metavar="SECONDS", help="time to wait for more rows (0)")
    how.add_argument(
        "--max-enqueued-batches", type=positive, metavar="N", help="maximum number of waiting batches (16)"
    )
    how.add_argument(
        "--max-concurrent-batches", type=positive, metavar="N", help="number of batches computed at once (1)"
    )
    how.add_argument(
        "--batch",
        choices=BATCH,
        help="whether requests share steps: only if rows are proven independent (proven), also if trial steps "
        "at startup find no dependence (auto, the default), always, or never",
    )
    add_delegate(how, default=argparse.SUPPRESS)
    how.add_argument("--warmup", action=argparse.BooleanOptionalAction, help="run steps before a model is ready (yes)")
    how.add_argument(
        "--json-nan",
        choices=("error", "null"),
        help="NaN and infinities in JSON responses: an error that suggests binary data, or null (error)",
    )
    how.add_argument(
        "--response-cache",
        type=size,
        metavar="SIZE",
        help="memory for responses of each version, such as 64MiB, which answer equal requests without computation (0)",
    )
    how.add_argument("--timeout", type=seconds, metavar="SECONDS", help="maximum duration of a request")


def _add_model_table(parser: argparse.ArgumentParser) -> None:
    """Add the options of the table of a model in a file."""
    parser.add_argument("--path", type=_path)
    parser.add_argument("--versions", action="append", type=_some_versions)
    parser.add_argument("--memory-budget", type=size)
    parser.add_argument("--labels", type=file)
    _add_shape(parser, "", "")
    add_model_options(parser)


def _add_shape(parser: argparse.ArgumentParser, prefix: str, note: str) -> None:
    parser.add_argument(
        "--shape",
        action="append",
        type=input_shape,
        metavar=f"{prefix}INPUT=SIZES",
        help=f"shape of an input that an ONNX file leaves open, such as x=?,3; may be repeated{note}",
    )


def _add_lifecycle(group: ParserOrGroup) -> None:
    group.add_argument(
        "--strict",
        action=argparse.BooleanOptionalAction,
        help="end if one model cannot be loaded at the start; by default, only if none can be loaded",
    )
    group.add_argument(
        "--readiness",
        choices=READINESS,
        help="whether /v2/health/ready requires all models (the default), or ignores those that failed (any)",
    )
    group.add_argument(
        "--drain-seconds",
        type=patience,
        metavar="SECONDS",
        help=f"time for running requests to finish after SIGTERM ({DRAIN_SECONDS:g})",
    )


def _add_processes(many: ParserOrGroup) -> None:
    many.add_argument("--processes", type=positive, metavar="N", help="number of processes that share the port (1)")
    many.add_argument(
        "--quorum", type=positive, metavar="N", help="number of ready processes that make the service ready (all)"
    )
    many.add_argument(
        "--stuck-seconds",
        type=patience,
        metavar="SECONDS",
        help=f"kill and replace a process whose event loop is blocked for this time ({_STUCK_SECONDS:g}); 0: never",
    )


def _model(text: str) -> tuple[str, service.ModelSource]:
    return _checked(parse_source, text)


def _some_versions(text: str) -> tuple[int, ...] | None:
    return _checked(parse_versions, text)


def _path(text: str) -> str:
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not a name")
    return text


def _limit(text: str) -> tuple[str, float]:
    return _checked(_parsed_limit, text)


def _checked(parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except OpError as error:
        raise argparse.ArgumentTypeError(f"{error.message}: expected {error.expected}, not {error.actual}") from error


def _parsed_limit(text: str) -> tuple[str, float]:
    known = {each.name: each.type for each in fields(service.Limits)}
    name, _, number = text.partition("=")
    try:
        # Annotations are texts here, because of `from __future__ import annotations`.
        value = {"int": int, "float": float}[str(known[name])](number)
        # Checks the range at parsing, where argparse names the option.
        service.Limits(**{name: value})
    except (KeyError, ValueError) as error:
        raise InvalidArgumentError(
            "--limit", expected=f"NAME=NUMBER, with one of {', '.join(known)}", actual=text
        ) from error
    return name, value


# ── precedence: the command line, then the table of a model, then the other tables of the file, then the environment ──


class _File(NamedTuple):
    """The contents of a file, parsed."""

    name: str
    settings: Mapping[str, Any]
    limits: Mapping[str, Any]
    models: Mapping[str, Mapping[str, Any]]


def given_options(arguments: argparse.Namespace, environment: Mapping[str, str]) -> ServeOptions:
    """Return the options of the command line; those that it leaves out come from its file and the environment.

    Raises:
        InvalidArgumentError: an option is wrong, or there is no model. Names the file and the key if it is in a file.
        NotFoundError: the file, or that of the token, cannot be read.
    """
    flags = vars(arguments)
    found = _read(flags["config"]) if "config" in flags else _File("", {}, {}, {})
    settings = {**found.settings, **flags}
    models = _models(flags, found)
    options: dict[str | None, service.ModelOptions] = {}
    for name in models:
        table = found.models.get(name, {})
        # In order of precedence, the last first. A memory budget outside of the table is that of the process.
        options[name] = _model_options({**found.settings, **table, **flags}, table.get("memory_budget"))
    return ServeOptions(
        models,
        options,
        _where(settings, environment),
        service.Limits(**{**found.limits, **dict(flags.get("limit", ()))}),
        settings.get("memory_budget"),
        settings.get("processes", 1),
        settings.get("quorum"),
        settings.get("stuck_seconds", _STUCK_SECONDS),
        tuple(module.__name__ for module in settings.get("imports", ())),
        given_logs(settings),
    )


def _read(path: Path) -> _File:
    name = str(path)
    document = read_document(path)
    require_known(name, document, _TABLES)
    settings, limits, models = (table_of(name, document, key) or {} for key in _TABLES)
    try:
        require_known(f"{name}: [limits]", limits, [each.name for each in fields(service.Limits)])
        service.Limits(**limits)
    except (InvalidArgumentError, DTypeError) as error:
        if not error.message.startswith(name):
            error.message = f"{name}: [limits]: {error.message}"
        raise
    for model in models:
        if not NAME.fullmatch(model):
            raise InvalidArgumentError(
                f"{name}: [models]: invalid model name", expected="letters, digits, _ . -", actual=repr(model)
            )
    return _File(
        name,
        parse_table(f"{name}: [serve]", settings, add_settings),
        limits,
        {model: _model_table(name, models, model) for model in models},
    )


def _model_table(name: str, models: TomlTable, model: str) -> Mapping[str, Any]:
    table = table_of(f"{name}: [models]", models, model) or {}
    return parse_table(f"{name}: [models.{model}]", table, _add_model_table)


def _models(flags: Mapping[str, Any], found: _File) -> dict[str, service.ModelSource]:
    """Return the sources of all models, with the shapes of their inputs."""
    given: dict[str, service.ModelSource] = {}
    for name, source in flags.get("models", ()):
        if name in given:
            raise InvalidArgumentError(f"model {name!r} is given twice", expected="once; MODEL:1,2 for two versions")
        given[name] = source
    models: dict[str, service.ModelSource] = {}
    for name, table in found.models.items():
        # The command line replaces path and versions of a model; its options and shapes stay.
        if name not in given and "path" not in table:
            raise InvalidArgumentError(f"{found.name}: [models.{name}]: path", expected="the path of the model")
        source = given.get(name) or service.ModelSource(table["path"], _versions(table.get("versions")))
        models[name] = replace(source, shapes=dict(table.get("shape", ())))
    models = {**models, **{name: source for name, source in given.items() if name not in models}}
    if not models:
        raise InvalidArgumentError("a model is required", expected="NAME=MODEL, or [models.NAME] in --config FILE")
    for name, sizes in (*found.settings.get("shape", ()), *flags.get("shape", ())):
        model, tensor = _shaped(models, name)
        models[model] = replace(models[model], shapes={**models[model].shapes, tensor: sizes})
    return models


def _versions(given: Sequence[tuple[int, ...] | None] | None) -> tuple[int, ...] | None:
    if given is None:
        return ()
    return None if None in given else tuple(version for each in given if each is not None for version in each)


def _shaped(models: Mapping[str, service.ModelSource], text: str) -> tuple[str, str]:
    """Return the model and the input that NAME:INPUT names; names of inputs may contain colons, too."""
    name, colon, found = text.partition(":")
    if colon and found and name in models:
        return name, found
    if len(models) > 1:
        raise InvalidArgumentError(
            "--shape does not name a model",
            expected=f"NAME:INPUT=SIZES, NAME one of {', '.join(models)}",
            actual=text,
        )
    return next(iter(models)), text


def _model_options(chosen: Mapping[str, Any], memory_budget: int | None) -> service.ModelOptions:
    named = {name: chosen[name] for name in _PASSED if name in chosen}
    if "delegate" in chosen:
        named["config"] = SessionConfig(delegate=chosen["delegate"])
    return service.ModelOptions(**named, memory_budget=memory_budget)


def _where(settings: Mapping[str, Any], environment: Mapping[str, str]) -> service.ServerOptions:
    names = ("host", "port", "grpc_port", "tls_cert", "tls_key", "readiness")
    return service.ServerOptions(
        **{name: settings[name] for name in names if name in settings},
        token=_token(settings.get("token_file"), environment, _TOKEN),
        admin_token=_token(settings.get("admin_token_file"), environment, _ADMIN_TOKEN),
        hosts=settings.get("allow_host"),
        drain_seconds=settings.get("drain_seconds", DRAIN_SECONDS),
        strict=settings.get("strict", False),
        access_log=settings.get("access_log", "off") != "off",
    )


# ── the tokens: from a file or the environment, since other users can read command lines ──────────────────────────────


def _token(path: Path | None, environment: Mapping[str, str], variable: str) -> str | None:
    """Return the token in a file, or else that of an environment variable; None without both."""
    text, named = environment.get(variable), environment.get(f"{variable}_FILE")
    if path is None and text is not None and named is not None:
        raise InvalidArgumentError(f"{variable} and {variable}_FILE are both set", expected="one of them")
    if path is None and text is not None:
        return _checked_token(variable, text.encode(errors="surrogateescape").strip())
    if path is None and named is not None:
        path = Path(named)
    return None if path is None else _token_of_file(path)


def _token_of_file(path: Path) -> str:
    with file_errors(path), path.open("rb") as file:
        # The open file is checked, not the path, which could be replaced in between.
        check_private(path, os.fstat(file.fileno()))
        # Two bytes more, for a line end, or to notice a token that is too long.
        found = file.read(_MOST_TOKEN + 2).strip()
    return _checked_token(str(path), found)


def _checked_token(where: str, token: bytes) -> str:
    # Headers carry visible ASCII only.
    if not token or len(token) > _MOST_TOKEN or not token.isascii() or any(byte <= 32 for byte in token):
        raise InvalidArgumentError(f"{where} has no token", expected="printable ASCII without spaces, on one line")
    return token.decode()
