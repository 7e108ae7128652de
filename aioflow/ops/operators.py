"""Implementations of Python's operators on tensors: the arithmetic, comparison and logic entries of `OPERATORS`.

`&`, `|`, `^` and `~` are logical on bool tensors and bitwise on integer tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from aioflow.errors import DTypeError
from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.graph.operators import OPERATORS
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.math import arithmetic as _arithmetic  # noqa: F401  # these modules define the ops used here:
from aioflow.ops.math import bitwise as _bitwise  # noqa: F401
from aioflow.ops.math import comparison as _comparison  # noqa: F401
from aioflow.ops.math.broadcasting import same_dtype
from aioflow.ops.math.complex import abs as absolute
from aioflow.ops.math.division import truediv
from aioflow.ops.sparse.tensor import SparseTensor

Operator = Callable[..., Tensor]


def _of(op_type: str, name: str | None = None) -> Operator:
    def operator(*operands: TensorLike) -> Tensor:
        return make(op_type, *operands, name=name)

    return operator


def _add(x: TensorLike, y: TensorLike) -> Tensor:
    tensor = x if isinstance(x, Tensor) else y
    is_text = isinstance(tensor, Tensor) and tensor.dtype is dtypes.string
    # AddV2 is not defined for strings.
    return make("Add" if is_text else "AddV2", x, y, name="add")


def _mul(x: TensorLike, y: Any) -> Tensor:
    # The product with a SparseTensor is sparse: `SparseTensor.__rmul__`.
    return NotImplemented if isinstance(y, SparseTensor) else make("Mul", x, y, name="mul")


def _truediv(x: TensorLike, y: TensorLike) -> Tensor:
    return truediv(x, y, "truediv")


# Node name -> op for bool, op for integers.
_LOGIC: Final = {
    "and": ("LogicalAnd", "BitwiseAnd"),
    "or": ("LogicalOr", "BitwiseOr"),
    "xor": ("NotEqual", "BitwiseXor"),
    "invert": ("LogicalNot", "Invert"),
}


def _logic(symbol: str) -> Operator:
    on_bool, on_integers = _LOGIC[symbol]

    def operator(x: TensorLike, *others: TensorLike) -> Tensor:
        operands = same_dtype(x, *others) if others else (convert_to_tensor(x),)
        dtype = operands[0].dtype
        if not (dtype.is_bool or dtype.is_integer):
            raise DTypeError(
                f"`{symbol}` is for bools and integers", expected="a bool or integer dtype", actual=repr(operands[0])
            )
        return make(on_bool if dtype.is_bool else on_integers, *operands, name=symbol)

    return operator


OPERATORS.update(
    {
        "add": _add,
        "sub": _of("Sub", "sub"),
        "mul": _mul,
        "truediv": _truediv,
        "floordiv": _of("FloorDiv", "floordiv"),
        "mod": _of("FloorMod", "mod"),
        "pow": _of("Pow", "pow"),
        "lt": _of("Less"),
        "le": _of("LessEqual"),
        "gt": _of("Greater"),
        "ge": _of("GreaterEqual"),
        "neg": _of("Neg"),
        "abs": absolute,
        **{symbol: _logic(symbol) for symbol in _LOGIC},
    }
)
