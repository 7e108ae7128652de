"""Op definitions: an op is a name with a signature, and everything else is a rule in a table beside it.

`define_op` declares the signature in the notation of TensorFlow's op registry ("x: T", "values: N*T", "T: {float32,
int32}"), with the shape function; `gradient` attaches the gradient. Kernels are a registry of their own, in
`aioflow.kernels`, since an op has one definition and any number of implementations.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import numpy as np

from aioflow.errors import AlreadyRegisteredError, InvalidArgumentError, NotFoundError
from aioflow.graph.costs import Cost
from aioflow.graph.rows import RowRule
from aioflow.graph.shapes import Dims, format_dims, merge_dims, num_elements
from aioflow.graph.signature.arguments import ArgDef
from aioflow.graph.signature.attributes import AttrDef
from aioflow.graph.signature.reading import read_signature
from aioflow.graph.static_value import StaticValue, constant_value, partial_shape, partial_value
from aioflow.graph.suggestions import did_you_mean, near_names
from aioflow.graph.traits import UNSTATED, Effect, Traits
from aioflow.work.forking import not_forked
from aioflow.work.importing import Namespace, gives_way, importing
from aioflow.work.stopping import claim

if TYPE_CHECKING:
    from aioflow.graph.indexed_slices import IndexedSlices
    from aioflow.graph.tensor import Tensor

__all__ = [
    "GRADIENTS",
    "LOADING",
    "OPS",
    "REGISTERING",
    "TAKES_SLICES",
    "OpDef",
    "ShapeContext",
    "ShapeFn",
    "both_merged",
    "define_op",
    "gradient",
    "not_differentiable",
    "traits_of",
]


LOADING: Final = 0.1  # seconds that the modules of a family may take: on an event loop, a thread loads them
# Held by the thread that loads definitions or kernels of aioflow's: whoever comes meanwhile waits for it. What others
# have is never loaded under it, since a module of theirs that another thread is importing may ask for it.
REGISTERING: Final = threading.RLock()
_OWN: Final = ("_", "Aioflow")  # how the names of ops begin that TensorFlow lacks


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


def both_merged(ctx: ShapeContext) -> Dims:
    """Shape function of ops whose two inputs and output have one shape."""
    merged: Dims = merge_dims(ctx.tensors[0].dims, ctx.tensors[1].dims)
    return merged


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
        published: TensorFlow has it, too.
        shape_fn: Maps a ShapeContext to the dims of the outputs: one `Dims` for a single output, otherwise a list.
        value: What it gives where its inputs are known while the graph is built.
        rows: Where the rows of a batch are in its outputs; None for what is usual for its kind, or is not known.
    """

    name: str
    inputs: tuple[ArgDef, ...]
    outputs: tuple[ArgDef, ...]
    attrs: Mapping[str, AttrDef] = field(default_factory=dict)
    traits: Traits = UNSTATED
    commutative: bool = False
    made_by: str = "user"
    published: bool = True
    shape_fn: ShapeFn | None = None
    value: StaticValue | None = None
    rows: RowRule | None = None

    @property
    def stateful(self) -> bool:
        """Whether its nodes are never merged, folded or run twice: it reads or changes something outside the graph."""
        return self.traits.effect.is_stateful

    @property
    def is_of_one_shape(self) -> bool:
        """Whether its two inputs have one shape: nothing is broadcast."""
        return self.shape_fn is both_merged

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
    """All op definitions, by name.

    Args:
        package: The package that defines those of aioflow; its `modules()` are what there is to import. They are
            imported when somebody needs them: one after the other where an op is asked for that is not there yet, and
            all of them before anybody else defines one.
    """

    def __init__(self, package: str = "") -> None:
        self._package = package
        self._waiting: deque[str] | None = None  # the modules that nobody has needed yet
        self._is_loading = False
        self._is_complete = not package
        self._ops: dict[str, OpDef] = {}
        self._origins: dict[str, Namespace] = {}  # of each, the module that defined it

    def register(self, op_def: OpDef) -> OpDef:
        """Add a definition, in the place of one that an import that was cut off has left.

        Raises:
            AlreadyRegisteredError: the name is taken.
        """
        name, origin = op_def.name, importing()
        if not self.is_own(origin):
            self.load()
        if name in self._ops and not gives_way(self._origins.get(name, {}), origin):
            raise AlreadyRegisteredError(f"op {name!r} is already registered", op_type=name)
        self._origins[name] = origin
        self._ops[name] = op_def
        return op_def

    def is_own(self, module: Namespace) -> bool:
        """Whether it is a module of the package."""
        name: str = module.get("__name__", "")
        return name.startswith(f"{self._package}.")

    def get(self, name: str) -> OpDef:
        """The definition of that name. Raises NotFoundError with the nearest names."""
        found = self.find(name)
        if found is None:
            near = near_names(name, self._ops)
            raise NotFoundError(
                f"no op {name!r} is registered{did_you_mean(near)}",
                op_type=name,
                expected=f"one of {len(self._ops)} ops, or one whose module is imported first (in a command: --import)",
                actual=name,
            )
        return found

    def find(self, name: str) -> OpDef | None:
        """The definition of that name, or None."""
        found = self._ops.get(name)
        if found is None and not self._is_complete and name.isidentifier():
            self._import(until=name)
            found = self._ops.get(name)
        return found

    def home(self, name: str) -> str:
        """The module that defined an op; "" where there is no such op."""
        return self._origins[name].get("__name__", "") if name in self else ""

    def load(self) -> None:
        """Have all ops that come with aioflow defined, if they are not yet."""
        if not self._is_complete:
            self._import()

    def _import(self, until: str = "") -> None:
        with not_forked(), REGISTERING:
            if self._is_loading:
                return  # a module that is being imported asks: it has imported itself what it needs
            claim(0, LOADING)
            self._is_loading = True
            try:
                if self._waiting is None:
                    self._waiting = deque(import_module(self._package).modules())
                while self._waiting and until not in self._ops:
                    import_module(self._waiting[0])
                    self._waiting.popleft()
                self._is_complete = not self._waiting
            finally:
                self._is_loading = False

    def __contains__(self, name: str) -> bool:
        return self.find(name) is not None

    def __iter__(self) -> Iterator[OpDef]:
        self.load()
        return iter(self._ops.values())

    def __len__(self) -> int:
        self.load()
        return len(self._ops)


OPS: Final = OpRegistry("aioflow.ops")


def traits_of(op: str) -> Traits:
    """The traits of an op; of one that is not registered (a loop that was made one node) nothing is known."""
    found = OPS.find(op)
    return UNSTATED if found is None else found.traits


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
    rows: RowRule | None = None,
    traits: Traits = UNSTATED,
    stateful: bool = False,
    commutative: bool = False,
    made_by: str = "user",
    published: bool | None = None,
) -> OpDef:
    """Define an op and register it.

    Args:
        inputs, outputs: Comma-separated "name: kind", where kind is a dtype ("int32"), a type attribute ("T"), a
            sequence "N*T" or "N*int32", or "list:Tin" for a list(type) attribute.
        attrs: One string per attribute: "keep_dims: bool = False", "T: {floats}", "T: {int32, int64} = int32",
            "N: int >= 1", "padding: {'SAME', 'VALID'}", "strides: list(int)", "dtype: type". Groups of dtypes are
            named in `signature.reading.GROUPS`.
        shape: The shape function; without one the outputs' shapes are unknown.
        value: What it gives where its inputs are known while the graph is built; see `static_value`.
        rows: Where the rows of a batch are in its outputs, given where they are in its inputs; see `graph.rows`. An
            elementwise op need not say so; of others without it, nothing is known.
        traits: A kind with what is unusual about this op, such as `elementwise(cost=transcendental())`.
        stateful: Short for an effect: it changes what others see. Traits that say more about it are not contradicted.
        commutative, made_by: As of `OpDef`.
        published: Whether TensorFlow has it, too: usually the ops that come with aioflow. What begins with "_" or
            "Aioflow" it has not.

    Raises:
        AlreadyRegisteredError: the name is taken.
        InvalidArgumentError: it cannot be read, or a part of it does not fit the others.
    """
    try:
        _check_rules(name, shape, traits)
        signature = read_signature(inputs, outputs, attrs)
    except InvalidArgumentError as error:
        raise type(error)(
            f"op {name!r} cannot be defined so: {error.message}",
            op_type=str(name),
            expected=error.expected,
            actual=error.actual,
        ) from error
    if published is None:
        published = OPS.is_own(importing())
    op_def = OpDef(
        name,
        *signature,
        _with_state(traits) if stateful else traits,
        commutative,
        made_by,
        published and not name.startswith(_OWN),
        shape,
        value,
        rows,
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
    if not origin.get("__name__", "").startswith("aioflow.ops."):
        OPS.find(op_type)  # its own stands beside it
    if op_type in GRADIENTS and not gives_way(_GRADIENT_ORIGINS.get(op_type, {}), origin):
        raise AlreadyRegisteredError(f"op {op_type!r} already has a gradient", op_type=op_type)
    _GRADIENT_ORIGINS[op_type] = origin
    GRADIENTS[op_type] = fn
