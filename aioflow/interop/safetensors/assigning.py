"""Variables get the values of a checkpoint: all of them, or none if anything does not fit."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from aioflow.errors import InvalidArgumentError, UnimplementedError
from aioflow.graph.arrays import Array
from aioflow.graph.default_session import check_session
from aioflow.graph.dtypes import DType, as_dtype
from aioflow.graph.graph import GraphKeys
from aioflow.graph.shapes import format_dims, is_compatible
from aioflow.interop.safetensors.naming import Names, Place, Transposed, ignored, places
from aioflow.interop.safetensors.weights import Weights
from aioflow.interop.safetensors.weights import open as open_weights
from aioflow.ops.variables.variable import Variable
from aioflow.session.session import Session
from aioflow.work.copying import copy_into
from aioflow.work.frozen import freeze, is_frozen
from aioflow.work.threads import in_thread

__all__ = ["Leftover", "Misfit", "WeightsError", "assign"]

_BATCH: Final = 64 << 20  # bytes that are converted before variables take them over
_SHOWN: Final = 20  # names of a kind


Source: TypeAlias = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Misfit:
    """A tensor that its variable cannot have.

    Attributes:
        variable, name: The names of both.
        expected, actual: Dtype and shape, of the variable and of the tensor as it would be.
    """

    variable: str
    name: str
    expected: str
    actual: str

    def __str__(self) -> str:
        return f"{self.name}: {self.actual} for {self.variable}: {self.expected}"


class Leftover(NamedTuple):
    """What a map and a checkpoint have left over.

    Attributes:
        missing: Of variables that there is no value for: the name that was looked for, or that of the variable where
            the map has none.
        unexpected: Tensors that no variable takes.
        unused: Patterns of the map that gave no variable its name: none fits, or earlier ones do.
    """

    missing: list[str]
    unexpected: list[str]
    unused: list[str]


class WeightsError(InvalidArgumentError):
    """A checkpoint does not fit the variables.

    Attributes:
        missing, unexpected, unused: As of `Leftover`.
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
        self.args = (left, self.misfits, dict(wanted))  # with which a copy is made


def _listed(found: list[str]) -> str:
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more


@dataclass(frozen=True, slots=True)
class _Move:
    """One variable and the tensor that it gets."""

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
    """Give variables the values of a checkpoint. Where anything does not fit, no variable has changed.

    A variable in this process takes the mapped memory of the file as its value, without a copy, until its first update.
    Tensors that are to be cast or transposed, or that are not aligned in the file, are copied, one after the other.

    Args:
        session: Of the graph of the variables.
        weights: What `open` returned, or takes; or arrays by name, which are copied unless they come from there.
        names: Where the values are. Each key is a variable, or a regular expression that fits the whole of a variable's
            name, and each value the tensor's name, with the expression's groups in it (`\\1`); or a function from the
            variable's name to that, or to None where the variable is to keep what it has. The name is `Transposed`
            where the tensor's axes are in another order. By default they have equal names.
        variables: Which variables; by default those that are keys, or else all global variables of the graph.
        ignore: Regular expressions that fit the whole names of tensors that nobody needs to take.
        cast: Whether floating point values may become the variable's floating point dtype; float16 or bfloat16 are
            float32 then. A value beyond its range is infinite.
        strict: Whether it is an error that a variable, a tensor or a pattern is left over. Otherwise the variables keep
            what they have.

    Returns:
        What is left over: nothing, but for `strict=False`.

    Raises:
        WeightsError: names are missing or left over, or tensors do not fit. All of them are listed.
        NotFoundError, DataLossError, AbortedError: the files cannot be read; see `open`.
    """
    check_session(session)
    if isinstance(weights, str | os.PathLike):
        weights = await in_thread(open_weights, weights, effects=False)
    if variables is None:
        variables = session.graph.get_collection(GraphKeys.GLOBAL_VARIABLES)
    wanted, unused = places(list(variables), names)
    moves, left = _checked(weights, wanted, unused, ignore, cast, strict)
    for batch in _batches(weights, moves):
        values = await in_thread(_values, weights, batch, effects=False)
        feeds = {move.variable.initializer.inputs[1]: value for move, value in zip(batch, values, strict=True)}
        await session.run([move.variable.initializer for move in batch], feeds)
    return left


def _checked(
    weights: Source,
    wanted: Mapping[Variable, Place | None],
    unused: list[str],
    ignore: str | Iterable[str],
    cast: bool,
    strict: bool,
) -> tuple[list[_Move], Leftover]:
    missing: dict[str, str] = {}  # the names of the variables, by the names that were looked for
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
    others = set(weights).difference(move.name for move in moves).difference(misfit.name for misfit in misfits)
    left = Leftover(sorted(missing), sorted(others - ignored(others, ignore)), unused)
    if misfits or (strict and any(left)):
        raise WeightsError(left, misfits, missing)
    return moves, left


def _axes(place: Transposed, variable: Variable) -> tuple[int, ...]:
    return place.axes if place.axes is not None else tuple(reversed(range(len(variable.dims or ()))))


def _misfit(variable: Variable, name: str, weights: Source, axes: tuple[int, ...] | None, cast: bool) -> Misfit | None:
    expected = f"{variable.dtype.name} {format_dims(variable.dims)}"
    try:
        dtype, stored = _spec(weights, name)
    except UnimplementedError as error:
        return Misfit(variable.op.name, name, expected, str(error.actual))
    shape, turned = stored, ""
    if axes is not None:
        turned = f" by axes {list(axes)}"
        if sorted(axes) != list(range(len(stored))):
            return Misfit(variable.op.name, name, expected, f"{dtype.name} {format_dims(stored)}{turned}")
        shape = tuple(stored[axis] for axis in axes)
    castable = cast and dtype.is_floating and variable.dtype.is_floating
    if is_compatible(variable.dims, shape) and (dtype is variable.dtype or castable):
        return None
    return Misfit(variable.op.name, name, expected, f"{dtype.name} {format_dims(stored)}{turned}")


def _spec(weights: Source, name: str) -> tuple[DType, tuple[int, ...]]:
    if isinstance(weights, Weights):
        entry = weights.entry(name)
        return entry.dtype, entry.shape
    array = np.asarray(weights[name])
    return as_dtype(array.dtype), array.shape


def _batches(weights: Source, moves: Iterable[_Move]) -> Iterator[list[_Move]]:
    """Moves that go together: of distinct tensors that are fed, and of so many bytes at a time that are copied."""
    batch: list[_Move] = []
    fed: set[Any] = set()
    size = 0
    for move in moves:
        target = move.variable.initializer.inputs[1]
        if batch and (size > _BATCH or target in fed):
            yield batch
            batch, fed, size = [], set(), 0
        batch.append(move)
        fed.add(target)
        dtype, shape = _spec(weights, move.name)
        if move.axes is not None or dtype is not move.variable.dtype:
            size += math.prod(shape) * move.variable.dtype.size
    if batch:
        yield batch


def _values(weights: Source, batch: Iterable[_Move]) -> list[Array]:
    return [_value(weights, move) for move in batch]


def _value(weights: Source, move: _Move) -> Array:
    """What the variable is to have, in memory that nobody writes to, where the array is ours."""
    dtype = move.variable.dtype.np_dtype
    as_stored = move.axes is None and _spec(weights, move.name)[0] is move.variable.dtype
    if as_stored:
        value = np.asarray(weights[move.name])
        if is_frozen(value) or not isinstance(weights, Weights) or dtype.hasobject:
            return value
    # Not by way of the mapped memory, which would count as the program's beside the copy.
    value = weights.read(move.name) if isinstance(weights, Weights) else np.asarray(weights[move.name])
    if not as_stored:
        turned = value if move.axes is None else value.transpose(move.axes)
        value = np.empty(turned.shape, dtype)
        with np.errstate(all="ignore"):
            copy_into(value, turned)
    return freeze(value.reshape(-1).view(np.uint8)).view(dtype).reshape(value.shape)
