"""Op definitions: an op is a name with a signature, and everything else is a rule in a table beside it.

`define_op` declares the signature in the notation of TensorFlow's op registry ("x: T", "values: N*T", "T: {float32,
int32}"), with the shape function; `gradient` attaches the gradient. Kernels are a registry of their own, in
`aioflow.kernels`, since an op has one definition and any number of implementations.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import numpy as np

from aioflow.errors import (
    AlreadyRegisteredError,
    DTypeError,
    InvalidArgumentError,
    NotFoundError,
)
from aioflow.graph.costs import Cost
from aioflow.graph.dtypes import DType, as_dtype
from aioflow.graph.graphdef import FunctionRef
from aioflow.graph.shapes import Dims, dims_of, format_dims, num_elements
from aioflow.graph.static_value import StaticValue, constant_value, partial_shape, partial_value
from aioflow.graph.suggestions import did_you_mean, near_names
from aioflow.graph.traits import UNSTATED, Effect, Traits
from aioflow.work.importing import Namespace, gives_way, importing

if TYPE_CHECKING:
    from aioflow.graph.indexed_slices import IndexedSlices
    from aioflow.graph.tensor import Tensor

__all__ = [
    "GRADIENTS",
    "OPS",
    "TAKES_SLICES",
    "ArgDef",
    "AttrDef",
    "OpDef",
    "ShapeContext",
    "ShapeFn",
    "define_op",
    "gradient",
    "not_differentiable",
    "per_argument",
    "places",
    "traits_of",
]

# Named groups of dtypes for the allowed lists, in the notation "{numeric}".
_FLOATS = ("bfloat16", "float16", "float32", "float64")
_COMPLEX = ("complex64", "complex128")
_INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_QUANTIZED = ("qint8", "quint8", "qint16", "quint16", "qint32")
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "floats": _FLOATS,
    "complexes": _COMPLEX,
    "ints": _INTS,
    "reals": _FLOATS + _INTS,
    "quantized": _QUANTIZED,
    "numbers": _FLOATS + _INTS + _COMPLEX,
    "numbertype": _FLOATS + _INTS + _COMPLEX + _QUANTIZED,
    "index": ("int32", "int64"),
}


_Flat = TypeVar("_Flat")  # what the inputs or outputs of a node are given as
_Split: TypeAlias = "tuple[ArgDef, Sequence[_Flat]]"


@dataclass(frozen=True, slots=True)
class ArgDef:
    """One input or output of a signature.

    Exactly one of `dtype` (fixed), `type_attr` (an attribute of kind type) and `list_attr` (of kind list(type)) says
    the dtype; with `number_attr` the argument is a sequence of that many tensors.
    """

    name: str
    dtype: DType | None = None
    type_attr: str | None = None
    list_attr: str | None = None
    number_attr: str | None = None

    @property
    def is_sequence(self) -> bool:
        """Whether the argument takes a sequence of tensors."""
        return self.number_attr is not None or self.list_attr is not None

    def count(self, attrs: Mapping[str, Any]) -> int:
        """How many tensors it is, for a node with these attributes."""
        if self.number_attr is not None:
            number: int = attrs[self.number_attr]
            return number
        return 1 if self.list_attr is None else len(attrs[self.list_attr])


def per_argument(args: Sequence[ArgDef], attrs: Mapping[str, Any], flat: Sequence[_Flat]) -> Iterator[_Split[_Flat]]:
    """The flat inputs or outputs of a node with these attributes, argument by argument of its signature."""
    yield from zip(args, (flat[place] for place in places(arg.count(attrs) for arg in args)), strict=True)


def places(counts: Iterable[int]) -> list[slice]:
    """Where each argument lies in a flat list, from how many values each of them is."""
    ends = accumulate(counts := list(counts))
    return [slice(end - count, end) for count, end in zip(counts, ends, strict=True)]


@dataclass(frozen=True, slots=True)
class AttrDef:
    """One attribute: its kind ("int", "type", "list(shape)", …), default, allowed values and minimum."""

    name: str
    kind: str
    default: Any = None
    has_default: bool = False
    allowed: tuple[Any, ...] | None = None
    minimum: int | None = None

    def check(self, value: Any) -> Any:
        """The value in its canonical form.

        Raises:
            DTypeError: it is of a different kind, or a dtype that is not allowed.
            InvalidArgumentError: it is out of range.
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
            value = [value]
        items = tuple(self._canonical(self.kind[5:-1], item) for item in value)
        for item in items:
            self._check_allowed(item)
        if self.minimum is not None and len(items) < self.minimum:
            raise InvalidArgumentError(
                f"attribute {self.name!r} has too few items", expected=f">= {self.minimum} items", actual=list(items)
            )
        return items

    def _check_allowed(self, value: Any) -> None:
        if self.allowed is not None and value not in self.allowed:
            names = ", ".join(str(a) for a in self.allowed)
            kind = DTypeError if isinstance(value, DType) else InvalidArgumentError
            raise kind(f"attribute {self.name!r} is out of range", expected=f"one of {names}", actual=value)

    def _canonical(self, kind: str, value: Any) -> Any:
        try:
            return _CANONICAL[kind](value)
        except (TypeError, ValueError, OverflowError) as error:
            error_type = DTypeError if isinstance(error, TypeError) else InvalidArgumentError
            raise error_type(
                f"attribute {self.name!r} has the wrong type", expected=kind, actual=repr(value)
            ) from error


def _integer(value: Any) -> int:
    if isinstance(value, bool | np.bool_):
        raise TypeError("a bool is not an int")
    number = int(value.__index__()) if hasattr(value, "__index__") else _reject(value)
    if not -(2**63) <= number < 2**63:
        raise ValueError("an int has 64 bits")
    return number


def _float(value: Any) -> float:
    return _reject(value) if isinstance(value, str | bytes) else float(value)


def _boolean(value: Any) -> bool:
    return bool(value) if isinstance(value, bool | np.bool_ | int) else _reject(value)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    return value if isinstance(value, str) else _reject(value)


def _array(value: Any) -> np.ndarray[Any, Any]:
    array = value if isinstance(value, np.ndarray) else np.asarray(value)
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


_CANONICAL: Final[Mapping[str, Callable[[Any], Any]]] = {
    "int": _integer,
    "float": _float,
    "bool": _boolean,
    "string": _text,
    "type": as_dtype,
    "shape": dims_of,
    "tensor": _array,
    "func": _function,
}


class ShapeContext:
    """What a shape function may look at: input shapes, attributes, and the inputs' values where they are constants.

    Inputs are addressed by flat position, or by name with `dims`, `dims_list` and `value`.
    """

    __slots__ = ("_inputs", "attrs", "op_def", "tensors")

    def __init__(
        self,
        op_def: OpDef,
        attrs: Mapping[str, Any],
        inputs: Mapping[str, Any],
    ) -> None:
        self.op_def = op_def
        self.attrs = attrs
        self._inputs = inputs
        self.tensors: list[Any] = []
        for arg in op_def.inputs:
            self.tensors.extend(inputs[arg.name] if arg.is_sequence else [inputs[arg.name]])

    def dims(self, name: str) -> Dims:
        """Static shape of the input of that name."""
        result: Dims = self._inputs[name].dims
        return result

    def dims_list(self, name: str) -> list[Dims]:
        """Static shapes of the tensors of a sequence input."""
        return [t.dims for t in self._inputs[name]]

    def value(self, name: str) -> np.ndarray[Any, Any] | None:
        """The constant value of the input of that name, or None where it is known only at run time."""
        return constant_value(self._inputs[name])

    def scalar(self, name: str) -> int | None:
        """The constant value of an integer input that must have one element, or None where it is not known yet.

        Raises:
            InvalidArgumentError: it has none, or several.
        """
        dims, value = self.dims(name), self.value(name)
        count = num_elements(dims) if value is None else value.size
        if count not in (None, 1):
            raise InvalidArgumentError(
                f"input {name!r} must be a scalar", expected="shape ()", actual=format_dims(dims)
            )
        return None if value is None else int(value.reshape(-1)[0])

    def partial_shape(self, name: str) -> Dims:
        """The input of that name read as a shape vector, with None for each element that is not known yet."""
        return partial_shape(self._inputs[name])

    def partial_value(self, name: str) -> np.ndarray[Any, Any] | None:
        """The input of that name as far as its integers are known: see `static_value.partial_value`."""
        return partial_value(self._inputs[name])

    def rank(self, name: str) -> int | None:
        """Rank of the input of that name, or None."""
        dims = self.dims(name)
        return None if dims is None else len(dims)

    def require_rank(self, name: str, low: int, high: int | None = None) -> Dims:
        """The input's dims, its rank checked to be `low` (or between `low` and `high`; -1 means no upper bound)."""
        dims = self.dims(name)
        top = low if high is None else high
        if dims is not None and (len(dims) < low or (top >= 0 and len(dims) > top)):
            wanted = f"rank {low}" if top == low else f"rank >= {low}" if top < 0 else f"rank {low}..{top}"
            raise InvalidArgumentError(f"input {name!r} has the wrong rank", expected=wanted, actual=format_dims(dims))
        return dims


ShapeFn: TypeAlias = Callable[[ShapeContext], Any]
GradientFn: TypeAlias = "Callable[..., Tensor | IndexedSlices | Sequence[Tensor | Any | None] | None]"
_Rule = TypeVar("_Rule", bound=GradientFn)


@dataclass(frozen=True, slots=True)
class OpDef:
    """The definition of an op: signature, flags and shape function.

    Attributes:
        traits: What passes, placement and backends must know of it.
        commutative: The order of the inputs does not matter.
        made_by: Who makes nodes of it: "user" (builders, and definitions that are imported); "compiler", whose passes
            do: plans have such nodes, and graphs have none; "worker": nothing that was sent to it has them either.
        shape_fn: Maps a ShapeContext to the dims of the outputs: one `Dims` for a single output, otherwise a list.
        value: What it gives where its inputs are known while the graph is built.
    """

    name: str
    inputs: tuple[ArgDef, ...]
    outputs: tuple[ArgDef, ...]
    attrs: Mapping[str, AttrDef] = field(default_factory=dict)
    traits: Traits = UNSTATED
    commutative: bool = False
    made_by: str = "user"
    shape_fn: ShapeFn | None = None
    value: StaticValue | None = None

    @property
    def stateful(self) -> bool:
        """Whether its nodes are never merged, folded or run twice: it reads or changes something outside the graph."""
        return self.traits.effect.is_stateful

    def attr(self, name: str) -> AttrDef:
        """The definition of one attribute. Raises NotFoundError."""
        found = self.attrs.get(name)
        if found is None:
            raise NotFoundError(
                f"op {self.name} has no attribute {name!r}",
                op_type=self.name,
                expected=f"one of {sorted(self.attrs)}",
                actual=name,
            )
        return found


class OpRegistry:
    """All op definitions, by name."""

    def __init__(self) -> None:
        self._ops: dict[str, OpDef] = {}
        self._origins: dict[str, Namespace] = {}  # of each, the module that defined it

    def register(self, op_def: OpDef) -> OpDef:
        """Add a definition, in the place of one that an import that was cut off has left.

        Raises:
            AlreadyRegisteredError: the name is taken.
        """
        name, origin = op_def.name, importing()
        if name in self._ops and not gives_way(self._origins.get(name, {}), origin):
            raise AlreadyRegisteredError(f"op {name!r} is already registered", op_type=name)
        self._origins[name] = origin
        self._ops[name] = op_def
        return op_def

    def get(self, name: str) -> OpDef:
        """The definition of that name. Raises NotFoundError with the nearest names."""
        found = self._ops.get(name)
        if found is None:
            near = near_names(name, self._ops)
            raise NotFoundError(
                f"no op {name!r} is registered{did_you_mean(near)}",
                op_type=name,
                expected=f"one of {len(self._ops)} ops, or one whose module is imported first (in a command: --import)",
                actual=name,
            )
        return found

    def __contains__(self, name: str) -> bool:
        return name in self._ops

    def __iter__(self) -> Iterator[OpDef]:
        return iter(self._ops.values())

    def __len__(self) -> int:
        return len(self._ops)


OPS: Final = OpRegistry()


def traits_of(op: str) -> Traits:
    """The traits of an op; of one that is not registered (a loop that was made one node) nothing is known."""
    return OPS.get(op).traits if op in OPS else UNSTATED


GRADIENTS: Final[dict[str, GradientFn | None]] = {}
_GRADIENT_ORIGINS: Final[dict[str, Namespace]] = {}  # of each of these, the module that registered it
TAKES_SLICES: Final[set[str]] = set()  # the ops whose gradient functions take IndexedSlices as they are


def define_op(
    name: str,
    inputs: str = "",
    outputs: str = "",
    attrs: Sequence[str] = (),
    *,
    shape: ShapeFn | None = None,
    value: StaticValue | None = None,
    traits: Traits = UNSTATED,
    stateful: bool = False,
    commutative: bool = False,
    made_by: str = "user",
) -> OpDef:
    """Define an op and register it.

    Args:
        inputs, outputs: Comma-separated "name: kind", where kind is a dtype ("int32"), a type attribute ("T"), a
            sequence "N*T" or "N*int32", or "list:Tin" for a list(type) attribute.
        attrs: One string per attribute: "keep_dims: bool = False", "T: {floats}", "T: {int32, int64} = int32",
            "N: int >= 1", "padding: {'SAME', 'VALID'}", "strides: list(int)", "dtype: type". Groups of dtypes are
            named in `GROUPS`.
        shape: The shape function; without one the outputs' shapes are unknown.
        value: What it gives where its inputs are known while the graph is built; see `static_value`.
        traits: A kind with what is unusual about this op, such as `elementwise(cost=transcendental())`.
        stateful: Short for an effect: it changes what others see. Traits that say more about it are not contradicted.
        commutative, made_by: As of `OpDef`.

    Raises:
        AlreadyRegisteredError: the name is taken.
        InvalidArgumentError: it cannot be read, or a part of it does not fit the others.
    """
    try:
        _check_rules(name, shape, traits)
        parsed = _parse_attrs(attrs)
        taken, given = (tuple(_parse_args(text, parsed)) for text in (inputs, outputs))
        _check_distinct([*parsed, *(arg.name for arg in taken)], "attributes and inputs")
        _check_distinct([arg.name for arg in given], "outputs")
    except InvalidArgumentError as error:
        raise type(error)(
            f"op {name!r} cannot be defined so: {error.message}",
            op_type=str(name),
            expected=error.expected,
            actual=error.actual,
        ) from error
    op_def = OpDef(
        name,
        taken,
        given,
        parsed,
        _with_state(traits) if stateful else traits,
        commutative,
        made_by,
        shape,
        value,
    )
    return OPS.register(op_def)


def _with_state(traits: Traits) -> Traits:
    return traits if traits.effect.is_stateful else replace(traits, effect=Effect.CHANGES)


def _check_rules(name: Any, shape: Any, traits: Any) -> None:
    if not isinstance(name, str) or not name.isidentifier():
        raise InvalidArgumentError("its name is no identifier", expected="a name such as 'ScaledTanh'", actual=name)
    if shape is not None and not callable(shape):
        raise InvalidArgumentError(
            "its shape function is none", expected="a function of a ShapeContext, as `lambda ctx: (2,)`", actual=shape
        )
    if not isinstance(traits, Traits):
        raise InvalidArgumentError(
            "its traits are none", expected="a kind that is called, such as `traits.elementwise()`", actual=traits
        )
    if not isinstance(traits.cost, Cost):
        raise InvalidArgumentError(
            "its cost is none", expected="a Cost, such as `traits.transcendental(3)`", actual=traits.cost
        )


def _check_distinct(names: Sequence[str], about: str) -> None:
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise InvalidArgumentError(f"two of its {about} have one name", expected="different names", actual=twice[0])


def _parse_args(text: str, attrs: Mapping[str, AttrDef]) -> Iterator[ArgDef]:
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, colon, kind = (s.strip() for s in part.partition(":"))
        if not (colon and name.isidentifier() and kind):
            raise InvalidArgumentError("an input or output cannot be read", expected='"name: kind"', actual=repr(part))
        if kind.startswith("list:"):
            yield ArgDef(name, list_attr=_attr_of(kind[5:], "list(type)", attrs))
            continue
        number, _, element = kind.rpartition("*")
        number_attr = _attr_of(number, "int", attrs) if number else None
        if element in attrs:
            yield ArgDef(name, type_attr=_attr_of(element, "type", attrs), number_attr=number_attr)
        else:
            yield ArgDef(name, dtype=_dtype_of(element, attrs), number_attr=number_attr)


def _attr_of(name: str, kind: str, attrs: Mapping[str, AttrDef]) -> str:
    """The name, if that is an attribute of that kind."""
    if name not in attrs or attrs[name].kind != kind:
        raise InvalidArgumentError(
            f"{name!r} is not an attribute of kind {kind}",
            expected=f'"{name}: {kind}" among the attributes',
            actual=attrs[name].kind if name in attrs else sorted(attrs),
        )
    return name


def _dtype_of(name: str, attrs: Mapping[str, AttrDef]) -> DType:
    try:
        return as_dtype(name)
    except (DTypeError, TypeError) as error:  # NumPy reads some letters as dtypes, and fails in its own way
        raise DTypeError(
            f"{name!r} is neither a dtype nor an attribute",
            expected=f'a dtype such as "float32", or "{name}: type" among the attributes',
            actual=sorted(attrs),
        ) from error


def _parse_attrs(texts: Sequence[str]) -> dict[str, AttrDef]:
    if isinstance(texts, str):
        raise InvalidArgumentError("its attributes are one string", expected="a string for each", actual=repr(texts))
    parsed = [_parse_attr(text) for text in texts]
    _check_distinct([name for name, _ in parsed], "attributes")
    return dict(parsed)


_ATTR: Final = re.compile(
    r"(?P<name>\w+)\s*:\s*(?P<kind>\{[^}]*\}|list\(\w+\)|list\(\{[^}]*\}\)|\w+)\s*(?:>=\s*(?P<min>-?\d+))?\s*(?:=\s*(?P<default>.*))?$"
)


@cache  # hundreds of ops share a few dozen attributes
def _parse_attr(text: str) -> tuple[str, AttrDef]:
    match = _ATTR.match(text.strip())
    if match is None:
        raise InvalidArgumentError(
            "an attribute cannot be read",
            expected='"name: kind", "name: kind >= 1" or "name: kind = default"',
            actual=repr(text),
        )
    name, kind, minimum, default = match["name"], match["kind"], match["min"], match["default"]
    is_list = kind.startswith("list({")
    if is_list:
        kind = kind[5:-1]
    allowed: tuple[Any, ...] | None = None
    if kind.startswith("{"):
        kind, allowed = _parse_allowed(kind[1:-1])
    attr = AttrDef(
        name, f"list({kind})" if is_list else kind, None, False, allowed, None if minimum is None else int(minimum)
    )
    if _item_kind(attr.kind) not in _CANONICAL:
        raise InvalidArgumentError(
            f"attribute {name!r} is of no kind that there is",
            expected=f"one of {', '.join(_CANONICAL)}, or a list(…) of one",
            actual=attr.kind,
        )
    if default is None:
        return name, attr
    value = attr.check(_parse_default(attr.kind, default.strip()))
    return name, AttrDef(name, attr.kind, value, True, allowed, attr.minimum)


def _parse_allowed(text: str) -> tuple[str, tuple[Any, ...]]:
    items = [i.strip() for i in text.split(",")]
    if items[0][:1] in "'\"":
        return "string", tuple(i[1:-1] for i in items)
    names = [n for i in items for n in GROUPS.get(i, (i,))]
    return "type", tuple(dict.fromkeys(as_dtype(n) for n in names))


def _parse_default(kind: str, text: str) -> Any:
    if kind in ("type", "list(type)") and not text.startswith("["):
        return text
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:
        raise InvalidArgumentError(
            "a default cannot be read", expected=f"a literal of kind {kind}", actual=text
        ) from error


def _item_kind(kind: str) -> str:
    return kind[5:-1] if kind.startswith("list(") else kind


def gradient(*op_types: str, takes_slices: bool = False) -> Callable[[_Rule], _Rule]:
    """Attach a gradient function to ops.

    The function gets the `Operation` and one gradient per output (a Tensor, or None where nothing flows back) and
    returns one gradient per input: a Tensor, an IndexedSlices, or None. With a single input it may return it bare.

    Args:
        takes_slices: Whether it knows what to do with an IndexedSlices that flows back. It gets a dense tensor if not.

    Raises:
        AlreadyRegisteredError: the op already has a gradient.
    """

    if not op_types or not all(isinstance(op_type, str) for op_type in op_types):
        raise InvalidArgumentError(
            "a gradient needs its ops", expected='names of ops: `@gradient("Tanh")`', actual=op_types
        )

    def attach(fn: _Rule) -> _Rule:
        for op_type in op_types:
            _register_gradient(op_type, fn)
            if takes_slices:
                TAKES_SLICES.add(op_type)
        return fn

    return attach


def not_differentiable(*op_types: str) -> None:
    """Declare that nothing flows back through these ops: their inputs get no gradient."""
    for op_type in op_types:
        _register_gradient(op_type, None)


def _register_gradient(op_type: str, fn: GradientFn | None) -> None:
    origin = importing()
    if op_type in GRADIENTS and not gives_way(_GRADIENT_ORIGINS.get(op_type, {}), origin):
        raise AlreadyRegisteredError(f"op {op_type!r} already has a gradient", op_type=op_type)
    _GRADIENT_ORIGINS[op_type] = origin
    GRADIENTS[op_type] = fn
