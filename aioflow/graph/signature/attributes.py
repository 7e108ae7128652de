"""The attributes of a signature: their kinds and the canonical form of their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.definitions import FunctionRef
from aioflow.graph.dtypes import DType, as_dtype
from aioflow.graph.shapes import TensorShape, dims_of

# The attributes of a node by name. The op's signature gives the type of each; `AttrDef.check` has checked it.
Attrs: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AttrDef:
    """One attribute: its kind ("int", "type", "list(shape)", …), default, allowed values and minimum.

    The minimum of a list is that of its length.
    """

    name: str
    kind: str
    default: Any = None
    has_default: bool = False
    allowed: tuple[Any, ...] | None = None
    minimum: int | None = None

    def check(self, value: Any) -> Any:
        """Return the value in its canonical form. A single value for a list stands for a list of one item.

        Raises:
            DTypeError: the value has another kind, or is a dtype that is not allowed.
            InvalidArgumentError: the value is out of range.
        """
        if self.kind.startswith("list("):
            return self._check_list(value)
        canonical = self._canonical(self.kind, value)
        self._check_allowed(canonical)
        if self.minimum is not None and canonical < self.minimum:
            raise InvalidArgumentError(
                f"attribute {self.name!r} is out of range", expected=f">= {self.minimum}", actual=canonical
            )
        return canonical

    def _check_list(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            # TensorFlow accepts one value for a list of one.
            value = [value]
        items = tuple(self._canonical(item_kind(self.kind), item) for item in value)
        for item in items:
            self._check_allowed(item)
        if self.minimum is not None and len(items) < self.minimum:
            raise InvalidArgumentError(
                f"attribute {self.name!r} has too few items", expected=f">= {self.minimum} items", actual=list(items)
            )
        return items

    def _check_allowed(self, value: Any) -> None:
        if self.allowed is not None and value not in self.allowed:
            # A dtype out of range is a matter of types, for which callers catch DTypeError.
            names = ", ".join(str(a) for a in self.allowed)
            kind = DTypeError if isinstance(value, DType) else InvalidArgumentError
            raise kind(f"attribute {self.name!r} is out of range", expected=f"one of {names}", actual=value)

    def _canonical(self, kind: str, value: Any) -> Any:
        try:
            return KINDS[kind](value)
        except (TypeError, ValueError, OverflowError) as error:
            # Conversions raise Python's errors; the attribute's name is known only here.
            error_type = DTypeError if isinstance(error, TypeError) else InvalidArgumentError
            raise error_type(
                f"attribute {self.name!r} has the wrong type", expected=kind, actual=repr(value)
            ) from error


def public_value(value: Any, kind: str) -> Any:
    """Return the public form of an attribute's value; internal values are hashable."""
    if kind == "shape":
        return TensorShape(value)
    if isinstance(value, tuple):
        # The items of "list(shape)" are shapes. Without the kind, a shape could not be told from a list of integers.
        return [public_value(item, kind.removeprefix("list(").removesuffix(")")) for item in value]
    # In the TensorFlow 1 API attributes of kind "string" are bytes.
    return value.encode() if isinstance(value, str) else value


def _integer(value: Any) -> int:
    # True would pass as 1, which is nearly always a mistake of the caller.
    if isinstance(value, bool | np.bool_):
        raise TypeError("a bool is not an int")
    number = int(value.__index__()) if hasattr(value, "__index__") else _reject(value)
    # Attributes are int64 in the published form.
    if not -(2**63) <= number < 2**63:
        raise ValueError("an int has 64 bits")
    return number


def _float(value: Any) -> float:
    return _reject(value) if isinstance(value, str | bytes) else float(value)


def _boolean(value: Any) -> bool:
    # Ints pass, since TensorFlow 1 programs write 0 and 1.
    return bool(value) if isinstance(value, bool | np.bool_ | int) else _reject(value)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    return value if isinstance(value, str) else _reject(value)


def _array(value: Any) -> np.ndarray[Any, Any]:
    array = value if isinstance(value, np.ndarray) else np.asarray(value)
    # Strings are the only objects in tensors; others could not be saved or sent.
    if array.dtype.hasobject and not all(isinstance(item, bytes) for item in array.reshape(-1)):
        raise TypeError("an array of objects other than strings")
    return array


def _function(value: Any) -> FunctionRef:
    if isinstance(value, FunctionRef):
        return value
    name = value if isinstance(value, str) else getattr(value, "name", None)
    return FunctionRef(name) if isinstance(name, str) else _reject(value)


def _reject(value: Any) -> Any:
    raise TypeError(repr(value))


KINDS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "int": _integer,
    "float": _float,
    "bool": _boolean,
    "string": _text,
    "type": as_dtype,
    "shape": dims_of,
    "tensor": _array,
    "func": _function,
}


def item_kind(kind: str) -> str:
    """Return the kind of the items of a list, or the kind itself."""
    return kind[5:-1] if kind.startswith("list(") else kind
