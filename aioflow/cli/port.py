"""`aioflow port`: rewrite a TensorFlow 1 program's calls to `async` and `await`, and list what is missing."""

from __future__ import annotations

import argparse
import sys
import tokenize
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aioflow.cli.arguments import Commands, file, output_file
from aioflow.cli.tables import plural
from aioflow.errors import InvalidArgumentError
from aioflow.formats.files import file_errors
from aioflow.loading.later import not_installed

if TYPE_CHECKING:
    from aioflow.cli.porting.rewriting import PortedProgram

_LEFT: Final = 1  # the status if something is left to do by hand


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "port",
        help="rewrite a TensorFlow 1 program to async and await",
        description="Rewrite a program for TensorFlow 1 to aioflow: imports, async and await. The port goes to stdout, "
        "unless an option says otherwise. The report on stderr lists missing names and places to check, with their "
        "lines in FILE; the exit status is 1 if there are any.",
    )
    parser.add_argument("file", type=file, metavar="FILE", help="program to port")
    target = parser.add_mutually_exclusive_group()
    target.add_argument("-o", "--output", type=output_file, metavar="FILE", help="file to write instead of stdout")
    target.add_argument("--in-place", action="store_true", help="overwrite the program")
    target.add_argument("--diff", action="store_true", help="print the changes as a unified diff")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    path: Path = arguments.file
    source, encoding = _read(path)
    try:
        from aioflow.cli.porting.rewriting import difference, port
    except ModuleNotFoundError as error:
        if error.name != "libcst":
            raise
        raise not_installed("aioflow port", "libcst", error, "port") from error
    made = port(source, str(path))
    output = path if arguments.in_place else arguments.output
    if output is not None:
        with file_errors(output):
            output.write_bytes(made.source.encode(encoding))
    else:
        sys.stdout.write(difference(source, made.source, str(path)) if arguments.diff else made.source)
    for line in _report(made, path):
        print(line, file=sys.stderr)
    return 0 if made.is_complete else _LEFT


def _read(path: Path) -> tuple[str, str]:
    """Return the text of a program and its encoding."""
    if path.suffix == ".ipynb":
        raise InvalidArgumentError(
            f"{path} is a notebook", expected="a program: jupyter nbconvert --to script", actual=".ipynb"
        )
    with file_errors(path):
        data = path.read_bytes()
    try:
        encoding, _ = tokenize.detect_encoding(BytesIO(data).readline)
        return data.decode(encoding), encoding
    except (SyntaxError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"{path} is not a text in its encoding", actual=str(error)) from error


def _report(made: PortedProgram, path: Path) -> list[str]:
    lines = [f"{path}:{each.line}:{each.column}: {each.level}: {each.text}" for each in made.findings]
    changes = f"{plural(made.awaited, 'call')} awaited"
    if made.functions:
        changes += f"; coroutine functions now: {', '.join(made.functions)}"
    return [*lines, f"{path}: {changes}"]
