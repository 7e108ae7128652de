"""Tables of a TOML file that hold options of a command line, by their names without "--"."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from aioflow.arguments import brief
from aioflow.errors import InvalidArgumentError
from aioflow.formats.toml import TomlTable, require_known


def parse_table(
    name: str, table: TomlTable, add_options: Callable[[argparse.ArgumentParser], object]
) -> dict[str, Any]:
    """Return the values of a table by the destinations of the options, with the types and checks of the command line.

    Args:
        name: The file and the table, for messages.
        table: The values.
        add_options: Adds the options that the table may have to a parser.

    Raises:
        InvalidArgumentError: a key is unknown, or its value is wrong.
    """
    parser = _FileParser(prog=name, argument_default=argparse.SUPPRESS, allow_abbrev=False, add_help=False)
    add_options(parser)
    require_known(name, table, parser.keys())
    return vars(parser.parse_args([text for key, value in table.items() for text in parser.words(key, value)]))


class _FileParser(argparse.ArgumentParser):
    """A parser of the options in a file; it raises an error instead of exiting."""

    def error(self, message: str) -> NoReturn:
        # argparse writes "argument --port: …"; the file has the key "port".
        raise InvalidArgumentError(f"{self.prog}: {message.removeprefix('argument --')}")

    def keys(self) -> list[str]:
        """Return the keys of a table with these options."""
        # Not the second name of a switch, "--no-warmup": the file has "warmup = false".
        return [action.option_strings[0][2:] for action in self._actions if action.option_strings]

    def words(self, key: str, value: object) -> Iterator[str]:
        """Yield a setting in the form of command-line options."""
        if any(isinstance(each, argparse.BooleanOptionalAction) for each in self._named(key)):
            if not isinstance(value, bool):
                raise InvalidArgumentError(f"{self.prog}: {key}", expected="true or false", actual=brief(value))
            yield f"--{key}" if value else f"--no-{key}"
            return
        for one in value if isinstance(value, list) else [value]:
            # A bool is an int in Python.
            if isinstance(one, bool) or not isinstance(one, str | int | float):
                raise InvalidArgumentError(
                    f"{self.prog}: {key}", expected="a text, a number, or a list", actual=brief(value)
                )
            # In one word, so that a value that begins with "-" is no option.
            yield f"--{key}={one}"

    def _named(self, key: str) -> Iterator[argparse.Action]:
        return (action for action in self._actions if f"--{key}" in action.option_strings)
