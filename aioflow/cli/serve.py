"""`aioflow serve`: serve models of any format by the Open Inference Protocol, until a signal."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Final, TypeVar

import aioflow.serve as service
from aioflow.cli import program
from aioflow.cli.arguments import (
    Commands,
    ParserOrGroup,
    add_delegate,
    add_imports,
    file,
    patience,
    port,
    positive,
    seconds,
    size,
)
from aioflow.cli.model_inputs import input_shape
from aioflow.config import SessionConfig
from aioflow.errors import InvalidArgumentError, OpError
from aioflow.formats.files import check_private, file_errors
from aioflow.serve.memory_limits import keep_within
from aioflow.serve.options import BATCH
from aioflow.serve.quiet import log_changes, log_no_garbage
from aioflow.serve.sources import parse_source

T = TypeVar("T")

_DRAIN_SECONDS: Final = 30.0
_STUCK_SECONDS: Final = 30.0
_END_SECONDS: Final = 10.0  # after the drain time; longer than `Processes` takes to kill a stuck process
_MOST_TOKEN: Final = 4096


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "serve",
        help="serve models over HTTP and gRPC by the Open Inference Protocol",
        description="Serve models over HTTP, and over gRPC with --grpc-port, by the Open Inference Protocol, version 2."
        " Formats: ONNX, SavedModels, graph definitions, and folders of aioflow.saved. Numbered folders in FOLDER are "
        "versions: the newest is served by default, others with :1,2 or :all.",
    )
    _add_models(parser)
    where = parser.add_argument_group("addresses and access")
    where.add_argument("--host", default="127.0.0.1", help="address (127.0.0.1); beyond the loopback, needs a token")
    where.add_argument("--port", type=port, default=8000, help="port to listen on (8000); 0: any free port")
    where.add_argument("--grpc-port", type=port, metavar="PORT", help="port for gRPC (none); 0: any free port")
    where.add_argument(
        "--allow-host",
        action="append",
        metavar="NAME",
        help="host name that requests may use, such as a proxy's; may be repeated. Default: local names on "
        "127.0.0.1 without a token, otherwise any",
    )
    where.add_argument("--token-file", type=file, metavar="FILE", help="file with the required token (mode 600)")
    where.add_argument("--tls-cert", type=file, metavar="FILE", help="serve TLS with this certificate (PEM)")
    where.add_argument("--tls-key", type=file, metavar="FILE", help="private key of the certificate (PEM)")
    how = parser.add_argument_group("batching and execution")
    _add_batches(how)
    add_delegate(how)
    how.add_argument("--no-warmup", action="store_true", help="run no steps before a model is ready")
    how.add_argument(
        "--json-nan",
        choices=("error", "null"),
        default="error",
        help="NaN and infinities in JSON responses: an error that suggests binary data, or null (error)",
    )
    how.add_argument("--timeout", type=seconds, metavar="SECONDS", help="maximum duration of a request")
    how.add_argument(
        "--limit",
        action="append",
        type=_limit,
        default=[],
        metavar="NAME=NUMBER",
        help=f"limit on requests: {', '.join(each.name for each in fields(service.Limits))}",
    )
    parser.add_argument(
        "--memory-budget",
        type=size,
        metavar="SIZE",
        help="memory of each process for model weights and requests, such as 2GiB; models beyond it are not loaded",
    )
    parser.add_argument(
        "--drain-seconds",
        type=patience,
        default=_DRAIN_SECONDS,
        metavar="SECONDS",
        help=f"time for running requests to finish after SIGTERM ({_DRAIN_SECONDS:g})",
    )
    _add_processes(parser.add_argument_group("multiple processes"))
    add_imports(parser)
    parser.set_defaults(run=_run)


def _add_batches(how: ParserOrGroup) -> None:
    how.add_argument(
        "--max-batch-size", type=positive, default=64, metavar="N", help="maximum number of rows in a step (64)"
    )
    how.add_argument(
        "--batch-timeout", type=patience, default=0.0, metavar="SECONDS", help="time to wait for more rows (0)"
    )
    how.add_argument(
        "--max-enqueued-batches", type=positive, default=16, metavar="N", help="maximum number of waiting batches (16)"
    )
    how.add_argument(
        "--max-concurrent-batches", type=positive, default=1, metavar="N", help="number of batches computed at once (1)"
    )
    how.add_argument(
        "--batch",
        choices=BATCH,
        default="auto",
        help="whether requests share steps: only if rows are proven independent (proven), also if trial steps "
        "at startup find no dependence (auto), always, or never",
    )


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="+", type=_model, metavar="NAME=FOLDER[:VERSION]", help="one or more models")
    parser.add_argument(
        "--shape",
        action="append",
        type=input_shape,
        default=[],
        metavar="[NAME:]INPUT=SIZES",
        help="shape of an input that an ONNX file leaves open, such as x=?,3; may be repeated. NAME: is "
        "optional if only one model is served",
    )


def _add_processes(many: ParserOrGroup) -> None:
    many.add_argument(
        "--processes", type=positive, default=1, metavar="N", help="number of processes that share the port (1)"
    )
    many.add_argument(
        "--quorum", type=positive, metavar="N", help="number of ready processes that make the service ready (all)"
    )
    many.add_argument(
        "--stuck-seconds",
        type=patience,
        default=_STUCK_SECONDS,
        metavar="SECONDS",
        help=f"kill and replace a process whose event loop is blocked for this time ({_STUCK_SECONDS:g}); 0: never",
    )


def _model(text: str) -> tuple[str, service.ModelSource]:
    return _checked(parse_source, text)


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


def _run(arguments: argparse.Namespace) -> int:
    return program.run(_serve(arguments, stop := _Stop()), stop, arguments.drain_seconds + _END_SECONDS)


class _Stop:
    """The callback of SIGTERM, which stops the service. Before the service has started, it records the request."""

    def __init__(self) -> None:
        self.is_wanted = False
        self.action: Callable[[], None] | None = None

    def __call__(self) -> None:
        self.is_wanted = True
        if self.action is not None:
            self.action()


async def _serve(arguments: argparse.Namespace, stop: _Stop) -> int:
    models = given_models(arguments)
    where = service.ServerOptions(
        arguments.host,
        arguments.port,
        None if arguments.token_file is None else _token(arguments.token_file),
        arguments.allow_host,
        arguments.tls_cert,
        arguments.tls_key,
        arguments.drain_seconds,
        arguments.grpc_port,
    )
    log_no_garbage()
    # Imported objects stay. Without this, each full collection would traverse them and block the event loop for longer.
    gc.freeze()
    async with _service(arguments, models, where) as server:
        # From here on, SIGTERM ends the wait in `_until`.
        stop.action = server.stop
        if stop.is_wanted:  # SIGTERM arrived while the service was starting
            server.stop()
        print(f"listening at {server.url}", flush=True)
        if isinstance(server, service.Server) and server.grpc_address:
            print(f"listening for gRPC at {server.grpc_address}", flush=True)
        await server.ready()
        for entry in server.index():
            print(f"{entry.name} version {entry.version} is {entry.state.value.lower()}", flush=True)
        log_changes()  # only from here on: the initial states have just been printed
        interrupted = await _until(server)
    if interrupted is not None:
        raise interrupted
    return 0


def given_models(arguments: argparse.Namespace) -> dict[str, service.ModelSource]:
    """Return the models of a command line by name, with the shapes of their inputs.

    Raises:
        InvalidArgumentError: a name is used twice, or a shape does not belong to one of the models.
    """
    models: dict[str, service.ModelSource] = {}
    for name, source in arguments.models:
        if name in models:
            raise InvalidArgumentError(f"model {name!r} is given twice", expected="once; FOLDER:1,2 for two versions")
        models[name] = source
    for name, sizes in arguments.shape:
        model, found = _shaped(models, name)
        models[model] = replace(models[model], shapes={**models[model].shapes, found: sizes})
    return models


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


def _service(
    arguments: argparse.Namespace, models: Mapping[str, service.ModelSource], where: service.ServerOptions
) -> service.Server | service.Processes:
    options, limits = _options(arguments), replace(service.Limits(), **dict(arguments.limit))
    budget = arguments.memory_budget
    if arguments.processes == 1:
        if budget is not None:
            # With several processes, each one limits itself.
            keep_within(budget)
            limits = limits.within(budget)
        return service.Server(models, options, where, limits=limits, memory_budget=budget)
    found = service.Processes(
        models,
        options,
        where,
        processes=arguments.processes,
        limits=limits,
        memory_budget=budget,
        quorum=arguments.quorum,
        imports=tuple(module.__name__ for module in arguments.imports or ()),
        stuck_seconds=arguments.stuck_seconds,
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, found.reload)
    return found


async def _until(server: service.Server | service.Processes) -> asyncio.CancelledError | None:
    """Wait for the end. Return the cancellation that SIGINT causes, so that the caller closes the service first."""
    try:
        await server.stopped()
    except asyncio.CancelledError as error:
        return error
    return None


def _options(arguments: argparse.Namespace) -> service.ModelOptions:
    return service.ModelOptions(
        batch=arguments.batch,
        max_batch_size=arguments.max_batch_size,
        batch_timeout=arguments.batch_timeout,
        max_enqueued_batches=arguments.max_enqueued_batches,
        max_concurrent_batches=arguments.max_concurrent_batches,
        timeout=arguments.timeout,
        warmup=not arguments.no_warmup,
        json_nan=arguments.json_nan,
        config=SessionConfig(delegate=arguments.delegate),
    )


def _token(path: Path) -> str:
    with file_errors(path), path.open("rb") as file:
        # The open file is checked, not the path, which could be replaced in between.
        check_private(path, os.fstat(file.fileno()))
        # Two bytes more, for a line end, or to notice a token that is too long.
        found = file.read(_MOST_TOKEN + 2).strip()
    # Headers carry visible ASCII only.
    if not found or len(found) > _MOST_TOKEN or not found.isascii() or any(byte <= 32 for byte in found):
        raise InvalidArgumentError(f"{path} has no token", expected="printable ASCII without spaces, on one line")
    return found.decode()
