"""Which tensor of a checkpoint a variable gets its value from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from aioflow.checks.brief import brief
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.ops.variables.variable import Variable

__all__ = ["Names", "Place", "Transposed", "ignored", "places"]


@dataclass(frozen=True)
class Transposed:
    """A name in a name map: the tensor is stored with other axes than the variable has.

    Attributes:
        name: In the checkpoint.
        axes: For each axis of the variable the one of the tensor; by default in reverse.
    """

    name: str
    axes: tuple[int, ...] | None = None


Place: TypeAlias = str | Transposed
Names: TypeAlias = (
    Mapping[Variable, Place] | Mapping[str, Place] | Callable[[str], Place | None] | Mapping[Variable | str, Place]
)


def places(variables: Iterable[Variable], names: Names | None) -> tuple[dict[Variable, Place | None], list[str]]:
    """For each variable that is to have a value its place in the checkpoint, None where the map knows none.

    Returns:
        That, and the patterns by which no variable has got its place.

    Raises:
        DTypeError: what is given is not a map, or has what is neither a name nor a variable.
        InvalidArgumentError: a pattern is not a regular expression.
    """
    if names is None:
        return {variable: variable.op.name for variable in variables}, []
    if isinstance(names, Mapping):
        return _mapped(variables, names)
    if not callable(names):
        raise DTypeError("not a name map", expected="a dictionary or a function", actual=brief(names))
    found: dict[Variable, Place | None] = {}
    for variable in variables:
        place = names(variable.op.name)
        if place is not None:  # the variable keeps what it has
            found[variable] = _checked(place)
    return found, []


def _mapped(
    variables: Iterable[Variable], names: Mapping[Any, Place]
) -> tuple[dict[Variable, Place | None], list[str]]:
    found: dict[Variable, Place | None] = {}
    used: set[str] = set()
    patterns: list[tuple[re.Pattern[str], Place]] = []
    for key, place in names.items():
        if isinstance(key, Variable):
            found[key] = _checked(place)
        elif isinstance(key, str):
            patterns.append((_pattern(key), _checked(place)))
        else:
            raise DTypeError("a key of a name map", expected="a variable or a pattern", actual=brief(key))
    if patterns:  # otherwise what is not mentioned keeps what it has
        for variable in variables:
            if variable not in found:
                found[variable] = _by_pattern(variable.op.name, patterns, used)
    return found, [pattern.pattern for pattern, _ in patterns if pattern.pattern not in used]


def _by_pattern(name: str, patterns: Sequence[tuple[re.Pattern[str], Place]], used: set[str]) -> Place | None:
    """The place by the first pattern that the whole name fits, which is used then."""
    for pattern, place in patterns:
        match = pattern.fullmatch(name)
        if match is None:
            continue
        used.add(pattern.pattern)
        try:
            if isinstance(place, Transposed):
                return replace(place, name=match.expand(place.name))
            return match.expand(place)
        except (re.error, IndexError) as error:
            raise InvalidArgumentError(
                f"the name for {pattern.pattern!r} cannot be made", expected="groups of the pattern", actual=str(error)
            ) from error
    return None


def _checked(place: Any) -> Place:
    if not isinstance(place, str | Transposed):
        raise DTypeError("a name map leads to names", expected="a str or Transposed", actual=brief(place))
    return place


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise InvalidArgumentError(
            "not a pattern", expected="a regular expression", actual=f"{text!r}: {error}"
        ) from error


def ignored(names: Iterable[str], patterns: str | Iterable[str]) -> set[str]:
    """Those of the names of which one of the patterns fits the whole. Raises InvalidArgumentError: one is none."""
    compiled = [_pattern(p) for p in ([patterns] if isinstance(patterns, str) else patterns)]
    return {name for name in names if any(p.fullmatch(name) for p in compiled)}
