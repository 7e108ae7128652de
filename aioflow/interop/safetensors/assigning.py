"""Assignment of a checkpoint's tensors to variables: of all of them, or of none if any does not fit."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from aioflow.arguments import brief
from aioflow.concurrency.threads import in_thread
from aioflow.errors import DTypeError, InvalidArgumentError, UnimplementedError
from aioflow.graph.default_session import check_session
from aioflow.graph.dtypes import DType, as_dtype
from aioflow.graph.graph import GraphKeys, Tensor
from aioflow.graph.shapes import format_dims, is_compatible
from aioflow.interop.safetensors.weights import Weights
from aioflow.interop.safetensors.weights import open as open_weights
from aioflow.memory.copying import copy_into
from aioflow.memory.frozen import freeze, is_frozen
from aioflow.memory.values import Array
from aioflow.ops.variables.variable import Variable
from aioflow.session.session import Session

# ── maps from variables to the tensors of a checkpoint ────────────────────────────────────────────────────────────────


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
            found[variable] = _checked_name(place)
    return found, []


def _mapped(
    variables: Iterable[Variable], names: Mapping[Any, TensorName]
) -> tuple[dict[Variable, TensorName | None], list[str]]:
    found: dict[Variable, TensorName | None] = {}
    used: set[str] = set()
    patterns: list[tuple[re.Pattern[str], TensorName]] = []
    for key, place in names.items():
        if isinstance(key, Variable):
            found[key] = _checked_name(place)
        elif isinstance(key, str):
            patterns.append((_pattern(key), _checked_name(place)))
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


def _checked_name(place: object) -> TensorName:
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


# ── the assignment ────────────────────────────────────────────────────────────────────────────────────────────────────


_BATCH: Final = 64 << 20  # bytes that are converted before they are assigned
_SHOWN: Final = 20  # names of each kind that the error lists


NamedArrays: TypeAlias = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Misfit:
    """A tensor whose dtype or shape its variable cannot have.

    Attributes:
        variable: Name of the variable.
        name: Name of the tensor.
        expected: Dtype and shape of the variable.
        actual: Dtype and stored shape of the tensor, and the order of its axes if it is transposed.
    """

    variable: str
    name: str
    expected: str
    actual: str

    def __str__(self) -> str:
        return f"{self.name}: {self.actual} for {self.variable}: {self.expected}"


class Leftover(NamedTuple):
    """Variables, tensors and patterns without a counterpart.

    Attributes:
        missing: Variables without a tensor: the tensor name that was looked up, or the variable's name if the map has
            no entry for it.
        unexpected: Tensors that no variable uses.
        unused: Patterns of the map that named no variable's tensor, because none or only earlier ones match.
    """

    missing: list[str]
    unexpected: list[str]
    unused: list[str]


class WeightsError(InvalidArgumentError):
    """The error of a checkpoint that does not fit the variables.

    Attributes:
        missing: As in `Leftover`.
        unexpected: As in `Leftover`.
        unused: As in `Leftover`.
        misfits: Tensors of a shape or dtype that their variables cannot have.
    """

    def __init__(self, left: Leftover, misfits: Iterable[Misfit], wanted: Mapping[str, str]) -> None:
        self.missing, self.unexpected, self.unused = left
        self.misfits = list(misfits)
        parts = {
            "missing": [name if wanted[name] == name else f"{name} for {wanted[name]}" for name in self.missing],
            "unexpected": self.unexpected,
            "misfitting": [str(misfit) for misfit in self.misfits],
            "patterns without a variable": self.unused,
        }
        lines = ["the weights do not fit the variables"]
        lines += [f"  {what}: {_listed(found)}" for what, found in parts.items() if found]
        super().__init__("\n".join(lines))
        self.args = (left, self.misfits, dict(wanted))  # the arguments of `__init__`, for copy and pickle


def _listed(found: list[str]) -> str:
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more


@dataclass(frozen=True, slots=True)
class _Move:
    """A variable and the tensor that is assigned to it."""

    variable: Variable
    name: str
    axes: tuple[int, ...] | None


async def assign(
    session: Session,
    weights: Weights | str | os.PathLike[str] | Mapping[str, Array],
    names: Names | None = None,
    *,
    variables: Iterable[Variable] | None = None,
    ignore: str | Iterable[str] = (),
    cast: bool = False,
    strict: bool = True,
) -> Leftover:
    r"""Assign the values of a checkpoint to variables. If anything does not fit, no variable changes.

    A variable in this process uses the mapped memory of the file as its value, without a copy, until its first update.
    Tensors that are cast, transposed or not aligned in the file are copied, one after the other.

    Args:
        session: A session of the variables' graph.
        weights: The result of `open` or its argument; or arrays by name, which are copied unless they come from `open`.
        names: A map from variables to tensors. Each key is a variable, or a regular expression that matches a
            variable's whole name. Each value is the tensor's name, with the expression's groups in it (`\1`). Or a
            function from the variable's name to the tensor's name, or to None for a variable that keeps its value.
            A name is `Transposed` if the tensor's axes are in another order. By default the names are equal.
        variables: The variables to assign; by default the keys of the map, or else all global variables of the graph.
        ignore: Regular expressions that match the whole names of tensors that may remain unused.
        cast: Whether floating-point values may be cast to the variable's floating-point dtype, for example float16 or
            bfloat16 to float32. A value beyond the variable's range becomes infinite.
        strict: Whether a leftover variable, tensor or pattern is an error. Otherwise such variables keep their values.

    Returns:
        The leftovers, which are empty if `strict`.

    Raises:
        WeightsError: names are missing or left over, or tensors do not fit. The error lists all of them.
        DTypeError, InvalidArgumentError: `names` or `ignore` is malformed.
        NotFoundError, DataLossError, AbortedError: the files cannot be read; see `open`. Some variables may already
            have their new values.
    """
    check_session(session)
    if isinstance(weights, str | os.PathLike):
        weights = await in_thread(open_weights, weights, effects=False)
    if variables is None:
        variables = session.graph.get_collection(GraphKeys.GLOBAL_VARIABLES)
    wanted, unused = places(list(variables), names)
    # Everything is checked before the first assignment.
    moves, left = _checked(weights, wanted, unused, ignore, cast, strict)
    for batch in _batches(weights, moves):
        values = await in_thread(_values, weights, batch, effects=False)
        # Feeding the initial value lets the variable's own initializer assign it, wherever the variable is.
        feeds = {move.variable.initializer.inputs[1]: value for move, value in zip(batch, values, strict=True)}
        await session.run([move.variable.initializer for move in batch], feeds)
    return left


def _checked(
    weights: NamedArrays,
    wanted: Mapping[Variable, TensorName | None],
    unused: list[str],
    ignore: str | Iterable[str],
    cast: bool,
    strict: bool,
) -> tuple[list[_Move], Leftover]:
    missing: dict[str, str] = {}  # variable names by the tensor names that were looked up
    misfits: list[Misfit] = []
    moves: list[_Move] = []
    for variable, place in wanted.items():
        name, axes = (place.name, _axes(place, variable)) if isinstance(place, Transposed) else (place, None)
        if name is None or name not in weights:
            missing[variable.op.name if name is None else name] = variable.op.name
            continue
        misfit = _misfit(variable, name, weights, axes, cast)
        if misfit is None:
            moves.append(_Move(variable, name, axes))
        else:
            misfits.append(misfit)
    # A misfit is reported as such, and not as unexpected, too.
    others = set(weights).difference(move.name for move in moves).difference(misfit.name for misfit in misfits)
    left = Leftover(sorted(missing), sorted(others - ignored(others, ignore)), unused)
    if misfits or (strict and any(left)):
        raise WeightsError(left, misfits, missing)
    return moves, left


def _axes(place: Transposed, variable: Variable) -> tuple[int, ...]:
    return place.axes if place.axes is not None else tuple(reversed(range(len(variable.dims or ()))))


def _misfit(
    variable: Variable, name: str, weights: NamedArrays, axes: tuple[int, ...] | None, cast: bool
) -> Misfit | None:
    expected = f"{variable.dtype.name} {format_dims(variable.dims)}"
    try:
        dtype, stored = _spec(weights, name)
    except UnimplementedError as error:
        return Misfit(variable.op.name, name, expected, str(error.actual))
    shape, turned = stored, ""
    if axes is not None:
        turned = f" by axes {list(axes)}"
        # `transpose` would fail later, after other variables have changed.
        if sorted(axes) != list(range(len(stored))):
            return Misfit(variable.op.name, name, expected, f"{dtype.name} {format_dims(stored)}{turned}")
        shape = tuple(stored[axis] for axis in axes)
    castable = cast and dtype.is_floating and variable.dtype.is_floating
    if is_compatible(variable.dims, shape) and (dtype is variable.dtype or castable):
        return None
    return Misfit(variable.op.name, name, expected, f"{dtype.name} {format_dims(stored)}{turned}")


def _spec(weights: NamedArrays, name: str) -> tuple[DType, tuple[int, ...]]:
    if isinstance(weights, Weights):
        entry = weights.entry(name)
        return entry.dtype, entry.shape
    array = np.asarray(weights[name])
    return as_dtype(array.dtype), array.shape


def _batches(weights: NamedArrays, moves: Iterable[_Move]) -> Iterator[list[_Move]]:
    """Split the moves into batches that feed distinct tensors and copy about `_BATCH` bytes each."""
    batch: list[_Move] = []
    fed: set[Tensor] = set()
    size = 0
    for move in moves:
        # Initializers may share one initial value, and a step can feed a tensor only once.
        target = move.variable.initializer.inputs[1]
        if batch and (size > _BATCH or target in fed):
            yield batch
            batch, fed, size = [], set(), 0
        batch.append(move)
        fed.add(target)
        dtype, shape = _spec(weights, move.name)
        if move.axes is not None or dtype is not move.variable.dtype:
            # Only copies count: mapped values take no memory of their own.
            size += math.prod(shape) * move.variable.dtype.size
    if batch:
        yield batch


def _values(weights: NamedArrays, batch: Iterable[_Move]) -> list[Array]:
    return [_value(weights, move) for move in batch]


def _value(weights: NamedArrays, move: _Move) -> Array:
    """Return the value for the variable, frozen unless the array belongs to the caller."""
    dtype = move.variable.dtype.np_dtype
    as_stored = move.axes is None and _spec(weights, move.name)[0] is move.variable.dtype
    if as_stored:
        value = np.asarray(weights[move.name])
        # An array of the caller is copied by the session, as any fed value.
        if is_frozen(value) or not isinstance(weights, Weights) or dtype.hasobject:
            return value
    # Read rather than map: mapped pages would add to the process's memory beside the copy.
    value = weights.read(move.name) if isinstance(weights, Weights) else np.asarray(weights[move.name])
    if not as_stored:
        turned = value if move.axes is None else value.transpose(move.axes)
        value = np.empty(turned.shape, dtype)
        with np.errstate(all="ignore"):
            copy_into(value, turned)
    # As bytes, because NumPy has no buffers of bfloat16, which `freeze` would need.
    return freeze(value.reshape(-1).view(np.uint8)).view(dtype).reshape(value.shape)
