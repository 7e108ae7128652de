"""Maps from variables to the tensors of a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from aioflow.arguments import brief
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.ops.variables.variable import Variable


@dataclass(frozen=True)
class Transposed:
    """A name in a name map whose tensor is stored with its axes in another order than the variable's.

    Attributes:
        name: The tensor's name in the checkpoint.
        axes: The tensor's axis for each axis of the variable; by default reversed.
    """

    name: str
    axes: tuple[int, ...] | None = None


TensorName: TypeAlias = str | Transposed
Names: TypeAlias = (
    Mapping[Variable, TensorName]
    | Mapping[str, TensorName]
    | Callable[[str], TensorName | None]
    | Mapping[Variable | str, TensorName]
)


def places(variables: Iterable[Variable], names: Names | None) -> tuple[dict[Variable, TensorName | None], list[str]]:
    """Look up the place of each variable in the checkpoint, None if the map has no entry for it.

    Variables that keep their values are not in the result.

    Args:
        variables: The variables to look up.
        names: The name map; None maps each variable to its own name.

    Returns:
        The places, and the patterns that gave no variable its place.

    Raises:
        DTypeError: `names` is not a map, or a key or value of it is neither a name nor a variable.
        InvalidArgumentError: a pattern is not a regular expression.
    """
    if names is None:
        return {variable: variable.op.name for variable in variables}, []
    if isinstance(names, Mapping):
        return _mapped(variables, names)
    if not callable(names):
        raise DTypeError("not a name map", expected="a dictionary or a function", actual=brief(names))
    found: dict[Variable, TensorName | None] = {}
    for variable in variables:
        place = names(variable.op.name)
        if place is not None:  # otherwise the variable keeps its value
            found[variable] = _checked(place)
    return found, []


def _mapped(
    variables: Iterable[Variable], names: Mapping[Any, TensorName]
) -> tuple[dict[Variable, TensorName | None], list[str]]:
    found: dict[Variable, TensorName | None] = {}
    used: set[str] = set()
    patterns: list[tuple[re.Pattern[str], TensorName]] = []
    for key, place in names.items():
        if isinstance(key, Variable):
            found[key] = _checked(place)
        elif isinstance(key, str):
            patterns.append((_pattern(key), _checked(place)))
        else:
            raise DTypeError("a key of a name map", expected="a variable or a pattern", actual=brief(key))
    # With only variables as keys, the other variables keep their values.
    if patterns:
        for variable in variables:
            if variable not in found:
                found[variable] = _by_pattern(variable.op.name, patterns, used)
    return found, [pattern.pattern for pattern, _ in patterns if pattern.pattern not in used]


def _by_pattern(name: str, patterns: Sequence[tuple[re.Pattern[str], TensorName]], used: set[str]) -> TensorName | None:
    """Return the place of the first pattern that matches the whole name, and add the pattern to `used`."""
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


def _checked(place: object) -> TensorName:
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
    """Return the names that a pattern matches as a whole. Raise InvalidArgumentError for an invalid pattern."""
    compiled = [_pattern(p) for p in ([patterns] if isinstance(patterns, str) else patterns)]
    return {name for name in names if any(p.fullmatch(name) for p in compiled)}
