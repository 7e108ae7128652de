"""Errors about dtypes that do not match: they name each operand with its dtype and suggest a cast."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.arguments import brief
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Tensor
from aioflow.graph.opdef import OpDef
from aioflow.graph.signature.arguments import ArgDef
from aioflow.graph.signature.attributes import AttrDef

# The inputs of a node by the names of the arguments: a tensor, or a list of them for a sequence.
ByName: TypeAlias = Mapping[str, Any]

_CAST: Final = "convert it with aioflow.cast"
_CAST_ONE: Final = "convert one of them with aioflow.cast"


def another_dtype(tensor: Tensor, wanted: DType) -> DTypeError:
    """Return the error for a tensor that does not have the dtype `wanted`."""
    return DTypeError(
        f"tensor {tensor.name!r} has the wrong dtype, {tensor.dtype.name}; {_CAST}",
        expected=wanted.name,
        actual=repr(tensor),
    )


def mixed_dtypes(what: str, first: Any, other: object) -> DTypeError:
    """Return the error for two operands that must have one dtype.

    Args:
        what: The operands in words, such as "the inputs of Mul".
        first: A tensor or variable, whose dtype is the expected one.
        other: Another tensor or variable, or a value that cannot be converted to that dtype.
    """
    return DTypeError(
        f"{what} have different dtypes: {_described(first)}, {_described(other)}; {_CAST_ONE}",
        expected=first.dtype.name,
        actual=_dtype_name(other),
    )


def wrong_input(op_def: OpDef, arg: ArgDef, tensor: Tensor) -> DTypeError:
    """Return the error for an input whose dtype is fixed by the op."""
    return DTypeError(
        f"input {arg.name!r} of {op_def.name} has the wrong dtype: {_described(tensor)}; {_CAST}",
        expected=arg.dtype,
        actual=repr(tensor),
    )


def disagreeing_inputs(
    op_def: OpDef, attr: str, inputs: ByName, arg: ArgDef, tensor: Tensor, wanted: DType
) -> DTypeError:
    """Return the error for a tensor whose dtype is not the one that another input, or the caller, set for `attr`."""
    for other in op_def.inputs:
        for candidate in _listed(inputs[other.name]) if other.type_attr == attr else ():
            if candidate.dtype is wanted:
                return mixed_dtypes(f"the inputs of {op_def.name}", candidate, tensor)
    return DTypeError(
        f"input {arg.name!r} of {op_def.name} does not match {attr}: {_described(tensor)}; {_CAST}",
        expected=wanted,
        actual=tensor.dtype,
    )


def refused_dtype(op_def: OpDef, attr: AttrDef, inputs: ByName, error: InvalidArgumentError) -> DTypeError | None:
    """Return the error for an input whose dtype `attr` does not allow; None without such an input.

    `error` is the error about the attribute.
    """
    for arg in op_def.inputs:
        if attr.name in (arg.type_attr, arg.list_attr):
            tensors = [t for t in _listed(inputs[arg.name]) if attr.allowed is not None and t.dtype not in attr.allowed]
            if tensors:
                return DTypeError(
                    f"input {arg.name!r} of {op_def.name} cannot have this dtype: {_described(tensors[0])}; {_CAST}",
                    expected=error.expected,
                    actual=tensors[0].dtype.name,
                )
    return None


def offending(value: object, wanted: DType, is_symbolic: Callable[[Any], bool]) -> Any:
    """Return the first symbolic leaf of `value` whose dtype is not `wanted`; without one, `value`."""
    return next((leaf for leaf in _leaves(value) if is_symbolic(leaf) and leaf.dtype is not wanted), value)


def _leaves(value: object) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _listed(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _described(value: object) -> str:
    name = getattr(value, "name", None)
    if isinstance(name, str):
        return f"{name!r} is {_dtype_name(value)}"
    if isinstance(value, np.ndarray) and value.ndim:
        return f"an array of shape {value.shape} is {_dtype_name(value)}"
    return f"{brief(value, 60)} is {_dtype_name(value)}"


def _dtype_name(value: object) -> str:
    return str(getattr(value, "dtype", None) or f"a {type(value).__name__}")
