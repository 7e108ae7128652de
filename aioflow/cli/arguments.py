"""Options and argument types that several commands share. A wrong argument is reported in one line."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn, TypeAlias

from aioflow.config import AUTO, SessionConfig
from aioflow.formats.stores import is_url
from aioflow.observe.logs import FORMATS, LEVELS, LogOptions

# argparse has no public names for these types. The first takes no parameter at run time.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
ParserOrGroup: TypeAlias = argparse.ArgumentParser | argparse._ArgumentGroup
_WRONG: Final = 2  # also argparse's status
_SIZE: Final = re.compile(r"([0-9]{1,18})(?:([KMGT])(i?)B)?")


class Parser(argparse.ArgumentParser):
    """A parser that reports a wrong command line in one line."""

    def error(self, message: str) -> NoReturn:
        """Print the problem and a reference to `--help`, and exit."""
        self.exit(_WRONG, f"{self.prog}: {message} (see {self.prog} --help)\n")


def add_computing(parser: argparse.ArgumentParser, note: str = "", default: str | None = AUTO) -> None:
    """Add the options of the commands on models for how a step is computed; the arguments are those of `add_delegate`.

    `computing` returns their values as the settings of a session.
    """
    group = parser.add_argument_group("how a step is computed")
    group.add_argument(
        "--fold-batch-norm",
        action="store_true",
        help="fold batch normalizations into the filters before them, which rounds differently",
    )
    add_delegate(group, note, default)


def computing(arguments: argparse.Namespace) -> SessionConfig:
    """Return the settings that the options of `add_computing` define."""
    return SessionConfig(
        delegate=arguments.delegate, optimizations={"fold_batch_norm": True} if arguments.fold_batch_norm else True
    )


def add_delegate(parser: ParserOrGroup, note: str = "", default: str | None = AUTO) -> None:
    """Add an option for the engine that computes parts of steps: `delegate`, as `SessionConfig.delegate` accepts it.

    Args:
        parser: The parser of a command, or a group of it.
        note: Text to append to the help.
        default: The default of the option; None for no engine.
    """
    parser.add_argument(
        "--delegate",
        type=_engine,
        default=default,
        metavar="ENGINE",
        help="engine for the parts of a step that it supports: onnxruntime, onnxruntime:PROVIDER, none, or auto, which "
        f"is the first that is installed. Default: {'none' if default is None else AUTO}{note}",
    )


def _engine(text: str) -> str | None:
    return None if text == "none" else text


def add_logs(parser: ParserOrGroup) -> argparse._ArgumentGroup:
    """Add the options of a log, in a group that is returned."""
    group = parser.add_argument_group("logs", "on standard error")
    group.add_argument("--log-level", choices=LEVELS, help="least severe level to log (info)")
    group.add_argument("--log-format", choices=FORMATS, help="lines of text, or one JSON object a line (text)")
    return group


def given_logs(settings: Mapping[str, Any]) -> LogOptions:
    """Return the options of a log, by the names that the parser gives them."""
    names = {"log_level": "level", "log_format": "format", "access_log": "access"}
    return LogOptions(**{field: settings[name] for name, field in names.items() if name in settings})


def add_imports(parser: argparse.ArgumentParser) -> None:
    """Add an option for modules that register the user's own ops. Parsing the command line imports them."""
    parser.add_argument(
        "--import",
        action="append",
        type=_imported,
        dest="imports",
        metavar="MODULE",
        help="module that registers ops, such as my_package.ops; may be repeated",
    )


def _imported(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise argparse.ArgumentTypeError(f"{error}; it must be installed, or in a folder of PYTHONPATH") from error
    except Exception as error:  # a user's module may raise anything
        raise argparse.ArgumentTypeError(f"{name} fails: {type(error).__name__}: {error}") from error


def count(text: str) -> int:
    """Parse an integer of at least zero."""
    return _number(text, 0, None)


def positive(text: str) -> int:
    """Parse an integer of at least one."""
    return _number(text, 1, None)


def up_to(most: int) -> Callable[[str], int]:
    """Return a parser of integers from one to `most`."""
    return lambda text: _number(text, 1, most)


def port(text: str) -> int:
    """Parse a TCP port; 0 stands for any free one."""
    return _number(text, 0, 65535)


def _number(text: str, least: int, most: int | None) -> int:
    limits = f"of at least {least}" if most is None else f"from {least} to {most}"
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least or (most is not None and value > most):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number {limits}")
    return value


def size(text: str) -> int:
    """Parse a number of bytes: 1000000, 512MiB, 2GB."""
    found = _SIZE.fullmatch(text)
    if found is None or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size, such as 2GiB")
    power = 1 + "KMGT".index(found[2]) if found[2] else 0
    unit: int = (1024 if found[3] else 1000) ** power
    return int(found[1]) * unit


def seconds(text: str) -> float:
    """Parse a positive, finite number of seconds."""
    value = _real(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value


def patience(text: str) -> float:
    """Parse a finite number of seconds of at least zero."""
    value = _real(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def _real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def file(text: str) -> Path:
    """Parse the path of a file or folder."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not a name")
    return Path(text)


def stored_file(text: str) -> str:
    """Parse the path of a file, or its URL in a store."""
    return text if is_url(text) else str(file(text))


def output_file(text: str) -> Path:
    """Parse the path of a file to write. A folder is rejected here, before the command does its work."""
    path = file(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder")
    return path
