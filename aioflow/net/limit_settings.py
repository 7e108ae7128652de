"""The limits of a worker as settings by name: those of `Limits`, and the connection limits of `CommOptions`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from aioflow.arguments import brief
from aioflow.errors import InvalidArgumentError
from aioflow.net.comm import CommOptions
from aioflow.net.limits import Limits

_OF_CONNECTIONS: Final = ("connections", "connections_per_host", "peers", "unauthenticated", "handshake_timeout")
_OF_MESSAGES: Final = tuple(field.name for field in dataclasses.fields(Limits))
LIMIT_NAMES: Final = (*_OF_CONNECTIONS, *_OF_MESSAGES)


def with_limits(options: CommOptions, settings: Mapping[str, Any]) -> CommOptions:
    """Return the options with these limits replaced.

    Raises:
        InvalidArgumentError: a limit does not exist, or its value is out of range.
        DTypeError: a value is not a number.
    """
    for name in settings:
        if name not in LIMIT_NAMES:
            raise InvalidArgumentError(
                "an unknown limit", expected=f"one of {', '.join(LIMIT_NAMES)}", actual=brief(name)
            )
    limits = replace(options.limits, **{name: settings[name] for name in _OF_MESSAGES if name in settings})
    others = {name: settings[name] for name in _OF_CONNECTIONS if name in settings}
    return replace(options, limits=limits, **others)


def parse_limit(text: str) -> tuple[str, int | float]:
    """Parse "NAME=NUMBER". Raises InvalidArgumentError."""
    name, _, value = text.partition("=")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    raise InvalidArgumentError("a limit", expected="NAME=NUMBER", actual=brief(text))
