"""`absl.flags` with what TensorFlow 1 adds: older names of arguments, and flags that are parsed on first use."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from absl import flags

__all__ = ["FLAGS", "DEFINE_bool", "DEFINE_boolean", "DEFINE_float", "DEFINE_integer", "DEFINE_string"]

# Flags belong to the module that defines them, which is not this one.
flags.disclaim_key_flags()

_NEWER: Final = {"flag_name": "name", "default_value": "default", "docstring": "help"}


def _with_older_names(define: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(define)
    def defining(*args: Any, **kwargs: Any) -> Any:
        return define(*args, **{_NEWER.get(name, name): value for name, value in kwargs.items()})

    return defining


DEFINE_string = _with_older_names(flags.DEFINE_string)
DEFINE_boolean = _with_older_names(flags.DEFINE_boolean)
DEFINE_bool = DEFINE_boolean
DEFINE_float = _with_older_names(flags.DEFINE_float)
DEFINE_integer = _with_older_names(flags.DEFINE_integer)


class _ParsedOnUse:
    """The flags of the process, like `absl.flags.FLAGS`; the first access to a flag parses the command line."""

    def __getattr__(self, name: str) -> Any:
        # Other attributes are methods, such as `is_parsed`.
        if name in flags.FLAGS and not flags.FLAGS.is_parsed():
            flags.FLAGS(sys.argv)
        return getattr(flags.FLAGS, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(flags.FLAGS, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(flags.FLAGS, name)

    def __dir__(self) -> list[str]:
        return list(dir(flags.FLAGS))

    def __contains__(self, name: str) -> bool:
        return name in flags.FLAGS

    def __getitem__(self, name: str) -> Any:
        return flags.FLAGS[name]

    def __setitem__(self, name: str, flag: Any) -> None:
        flags.FLAGS[name] = flag

    def __len__(self) -> int:
        return len(flags.FLAGS)

    def __iter__(self) -> Iterator[str]:
        return iter(flags.FLAGS)

    def __str__(self) -> str:
        return str(flags.FLAGS)

    def __call__(self, argv: Any, known_only: bool = False) -> list[str]:
        """Parse a command line and return what is left of it."""
        rest: list[str] = flags.FLAGS(argv, known_only=known_only)
        return rest


FLAGS: Final = _ParsedOnUse()
