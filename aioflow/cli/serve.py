"""`aioflow serve`: serve models of any format by the Open Inference Protocol, until a signal."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable
from typing import Final

import aioflow.serve as service
from aioflow.cli import program
from aioflow.cli.arguments import Commands
from aioflow.cli.serve_options import ServeOptions, add_options, given_options
from aioflow.errors import OpError
from aioflow.observe.logs import log_to
from aioflow.serve.memory_limits import keep_within
from aioflow.serve.quiet import log_no_garbage

_LOG: Final = logging.getLogger("aioflow.serve")
_END_SECONDS: Final = 10.0  # after the drain time; longer than `Processes` takes to kill a stuck process
_WRONG: Final = 2  # also argparse's status


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "serve",
        help="serve models over HTTP and gRPC by the Open Inference Protocol",
        description="Serve models over HTTP, and over gRPC with --grpc-port, by the Open Inference Protocol, version 2."
        " Formats: ONNX, SavedModels, graph definitions, and folders of aioflow.saved. Numbered entries of a folder "
        "are versions: the newest is served by default, others with :1,2 or :all.",
        # The default of an option that is not used must not override the setting of the file.
        argument_default=argparse.SUPPRESS,
    )
    add_options(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    options = given_options(arguments, os.environ)
    if "check" in arguments:
        return _check(options)
    with log_to(options.logs):
        return program.run(_serve(options, stop := _Stop()), stop, options.where.drain_seconds + _END_SECONDS)


def _check(options: ServeOptions) -> int:
    """Check the options, and that the files they name exist. Print the models."""
    from aioflow.serve.server import web_server  # an optional dependency

    made = _service(options)
    if isinstance(made, service.Server):
        web_server(made.app, options.where)  # loads the certificate
    if warning := options.where.open_warning(options.where.port):
        program.say("aioflow", warning)
    status = 0
    for name, source in options.models.items():
        try:
            for version, path in source.find().items():
                print(f"{name} version {version}: {path}")
        except OpError as error:
            program.say("aioflow", f"model {name!r}: {program.in_one_line(error)}")
            status = _WRONG
    return status


class _Stop:
    """The callback of SIGTERM, which stops the service. Before the service has started, it records the request."""

    def __init__(self) -> None:
        self.is_wanted = False
        self.action: Callable[[], None] | None = None

    def __call__(self) -> None:
        self.is_wanted = True
        if self.action is not None:
            self.action()


async def _serve(options: ServeOptions, stop: _Stop) -> int:
    log_no_garbage()
    # Imported objects stay. Without this, each full collection would traverse them and block the event loop for longer.
    gc.freeze()
    if options.processes == 1 and options.memory_budget is not None:
        # With several processes, each one limits itself.
        keep_within(options.memory_budget)
    async with _service(options) as server:
        # From here on, SIGTERM ends the wait in `_until`.
        stop.action = server.stop
        if stop.is_wanted:  # SIGTERM arrived while the service was starting
            server.stop()
        if isinstance(server, service.Processes):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, server.reload)
        _LOG.info("health checks are answered at %s; loading %s", server.url, ", ".join(options.models))
        await server.ready()
        program.print_line(f"listening at {server.url}")
        if isinstance(server, service.Server) and server.grpc_address:
            program.print_line(f"listening for gRPC at {server.grpc_address}")
        for entry in server.index():
            version = f" version {entry.version}" if entry.version else ""
            reason = f": {entry.reason}" if entry.reason else ""
            program.print_line(f"{entry.name}{version} is {entry.state.value.lower()}{reason}")
        interrupted = await _until(server)
    if interrupted is not None:
        raise interrupted
    return 0


def _service(options: ServeOptions) -> service.Server | service.Processes:
    limits, budget = options.limits, options.memory_budget
    if options.processes == 1:
        if budget is not None:
            limits = limits.within(budget)
        return service.Server(options.models, options.options, options.where, limits=limits, memory_budget=budget)
    return service.Processes(
        options.models,
        options.options,
        options.where,
        processes=options.processes,
        limits=limits,
        memory_budget=budget,
        quorum=options.quorum,
        imports=options.imports,
        logs=options.logs,
        stuck_seconds=options.stuck_seconds,
    )


async def _until(server: service.Server | service.Processes) -> asyncio.CancelledError | None:
    """Wait for the end. Return the cancellation that SIGINT causes, so that the caller closes the service first."""
    try:
        await server.stopped()
    except asyncio.CancelledError as error:
        return error
    return None
