"""Op definitions: an op is a name with a signature; everything else is a rule in a table beside it.

`define_op` declares the signature in the notation of TensorFlow's op registry ("x: T", "values: N*T", "T: {float32,
int32}"), with the shape function. Gradients have a registry in `graph.gradient_registry`, and kernels in
`aioflow.kernels`, since an op has one definition and any number of implementations.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.arguments import did_you_mean, near_names
from aioflow.concurrency.forking import not_forked
from aioflow.concurrency.stopping import reserve
from aioflow.errors import AlreadyRegisteredError, InvalidArgumentError, NotFoundError
from aioflow.graph.costs import Cost
from aioflow.graph.rows import RowRule
from aioflow.graph.shapes import Dims, format_dims, merge_dims, num_elements
from aioflow.graph.signature.arguments import ArgDef
from aioflow.graph.signature.attributes import AttrDef
from aioflow.graph.signature.reading import read_signature
from aioflow.graph.static_value import StaticValue, constant_value, partial_shape, partial_value
from aioflow.graph.traits import UNSTATED, Effect, Traits
from aioflow.loading.importing import Globals, gives_way, importing

# Expected time to load the modules of a family, in seconds. On an event loop, a thread loads them instead.
LOADING: Final = 0.1
# Held by the thread that loads definitions or kernels of aioflow; other threads wait for it. Third-party modules are
# never loaded under it: another thread that is importing one of them may itself wait for this lock.
REGISTERING: Final = threading.RLock()
# Prefixes of the names of ops that TensorFlow lacks.
_OWN: Final = ("_", "Aioflow")


class ShapeContext:
    """The arguments of a shape function: input shapes, attributes, and the values of constant inputs.

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
            # In the order of the signature, which is that of the node's inputs.
            self.tensors.extend(inputs[arg.name] if arg.is_sequence else [inputs[arg.name]])

    def dims(self, name: str) -> Dims:
        """Return the static shape of the input `name`."""
        result: Dims = self._inputs[name].dims
        return result

    def dims_list(self, name: str) -> list[Dims]:
        """Return the static shapes of the tensors of the sequence input `name`."""
        return [t.dims for t in self._inputs[name]]

    def value(self, name: str) -> np.ndarray[Any, Any] | None:
        """Return the constant value of the input `name`, or None if it is known only at run time."""
        return constant_value(self._inputs[name])

    def scalar(self, name: str) -> int | None:
        """Return the constant value of an integer input that must have one element, or None if it is not known yet.

        Raises:
            InvalidArgumentError: the input has no elements, or several.
        """
        dims, value = self.dims(name), self.value(name)
        count = num_elements(dims) if value is None else value.size
        # An unknown shape passes: the kernel checks again.
        if count not in (None, 1):
            raise InvalidArgumentError(
                f"input {name!r} must be a scalar", expected="shape ()", actual=format_dims(dims)
            )
        return None if value is None else int(value.reshape(-1)[0])

    def partial_shape(self, name: str) -> Dims:
        """Return the input `name` read as a shape vector, with None for each element that is not known yet."""
        return partial_shape(self._inputs[name])

    def partial_value(self, name: str) -> np.ndarray[Any, Any] | None:
        """Return the known integers of the input `name`; see `static_value.partial_value`."""
        return partial_value(self._inputs[name])

    def rank(self, name: str) -> int | None:
        """Return the rank of the input `name`, or None if it is unknown."""
        dims = self.dims(name)
        return None if dims is None else len(dims)

    def require_rank(self, name: str, low: int, high: int | None = None) -> Dims:
        """Return the dims of the input `name`, whose rank must be from `low` to `high`.

        `high` is `low` by default; -1 means no upper bound. An unknown rank passes.

        Raises:
            InvalidArgumentError: the rank is outside this range.
        """
        dims = self.dims(name)
        top = low if high is None else high
        if dims is not None and (len(dims) < low or (top >= 0 and len(dims) > top)):
            wanted = f"rank {low}" if top == low else f"rank >= {low}" if top < 0 else f"rank {low}..{top}"
            raise InvalidArgumentError(f"input {name!r} has the wrong rank", expected=wanted, actual=format_dims(dims))
        return dims


ShapeFn: TypeAlias = Callable[[ShapeContext], Any]


def both_merged(ctx: ShapeContext) -> Dims:
    """Return the output shape of an op whose two inputs and output have one shape."""
    merged: Dims = merge_dims(ctx.tensors[0].dims, ctx.tensors[1].dims)
    return merged


@dataclass(frozen=True, slots=True)
class OpDef:
    """The definition of an op: signature, flags and shape function.

    Attributes:
        traits: Properties of the op that passes, placement and backends use.
        commutative: True if the order of the inputs does not matter.
        made_by: The source of its nodes. "user": builders and imported definitions. "compiler": compiler passes;
            plans contain such nodes, graphs never do. "worker": the worker; plans that it receives never do.
        published: True if TensorFlow has the op, too.
        shape_fn: Maps a ShapeContext to the dims of the outputs: one `Dims` for a single output, otherwise a list.
        value: Computes the output if the inputs are known while the graph is built.
        rows: Maps the batch rows of the inputs to those of the outputs. None if the default of the op's kind applies,
            or if nothing is known.
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
        """True if nodes of the op use state outside the graph: they are never merged, folded or run twice."""
        return self.traits.effect.is_stateful

    @property
    def is_of_one_shape(self) -> bool:
        """True if the two inputs must have one shape, without broadcasting."""
        # By identity: two ops of one shape share this function.
        return self.shape_fn is both_merged

    def attr(self, name: str) -> AttrDef:
        """Return the definition of one attribute. Raise NotFoundError if there is no such attribute."""
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
        package: The package that defines aioflow's own ops; its `modules()` returns the modules to import. The registry
            imports them on demand: one after the other until a requested op is defined, or all of them before an op
            from outside the package is registered.
    """

    def __init__(self, package: str = "") -> None:
        self._package = package
        # Modules that have not been imported yet; None before the first import.
        self._waiting: deque[str] | None = None
        self._is_loading = False
        self._is_complete = not package
        self._ops: dict[str, OpDef] = {}
        # The module that defined each op.
        self._origins: dict[str, Globals] = {}

    def register(self, op_def: OpDef) -> OpDef:
        """Add a definition. It may replace one that an interrupted import of the same module left behind.

        Raises:
            AlreadyRegisteredError: the name is taken.
        """
        name, origin = op_def.name, importing()
        # With all ops of the package loaded, a name that one of them has is noticed.
        # An op of the package itself is registered while the package loads, so it must not wait for the rest.
        if not self.is_own(origin):
            self.load()
        # A second execution of a module whose import has failed replaces its ops.
        if name in self._ops and not gives_way(self._origins.get(name, {}), origin):
            raise AlreadyRegisteredError(f"op {name!r} is already registered", op_type=name)
        self._origins[name] = origin
        self._ops[name] = op_def
        return op_def

    def is_own(self, module: Globals) -> bool:
        """Return True if `module` belongs to the package."""
        name: str = module.get("__name__", "")
        return name.startswith(f"{self._package}.")

    def get(self, name: str) -> OpDef:
        """Return the definition of the op `name`. Raise NotFoundError, with similar names, if there is no such op."""
        found = self.find(name)
        if found is None:
            near = near_names(name, self._ops)
            raise NotFoundError(
                f"no op {name!r} is registered{did_you_mean(near)}",
                op_type=name,
                expected=f"one of {len(self._ops)} ops; first import the module that registers it (commands: --import)",
                actual=name,
            )
        return found

    def find(self, name: str) -> OpDef | None:
        """Return the definition of the op `name`, or None if there is no such op."""
        found = self._ops.get(name)
        # Names of ops are identifiers: for any other name, all modules would be imported in vain.
        if found is None and not self._is_complete and name.isidentifier():
            self._import(until=name)
            found = self._ops.get(name)
        return found

    def home(self, name: str) -> str:
        """Return the name of the module that defined an op, or "" if there is no such op."""
        return self._origins[name].get("__name__", "") if name in self else ""

    def load(self) -> None:
        """Import all modules of the package that are not imported yet."""
        if not self._is_complete:
            self._import()

    def _import(self, until: str = "") -> None:
        # In a child forked during an import, Python's lock of the half-imported module would stay locked.
        with not_forked(), REGISTERING:
            if self._is_loading:
                # Reached from a module that is being imported; it imports what it needs itself.
                return
            # On an event loop this raises `OffloadToThread`: importing takes longer than bounded work may.
            reserve(0, LOADING)
            self._is_loading = True
            try:
                if self._waiting is None:
                    self._waiting = deque(import_module(self._package).modules())
                # In the package's order, so that frequent ops are found after few imports.
                while self._waiting and until not in self._ops:
                    # Removed only afterwards, so that a module whose import failed is tried again.
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
    """Return the traits of an op, or `UNSTATED` if it is not registered, such as a loop fused into one node."""
    found = OPS.find(op)
    return UNSTATED if found is None else found.traits


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
        name: The name of the op, an identifier.
        inputs: Comma-separated "name: kind", where kind is a dtype ("int32"), a type attribute ("T"), a sequence
            "N*T" or "N*int32", or "list:Tin" for a list(type) attribute.
        outputs: As `inputs`.
        attrs: One string per attribute: "keep_dims: bool = False", "T: {floats}", "T: {int32, int64} = int32",
            "N: int >= 1", "padding: {'SAME', 'VALID'}", "strides: list(int)", "dtype: type". Groups of dtypes are
            named in `signature.reading.GROUPS`.
        shape: The shape function; without one the outputs' shapes are unknown.
        value: Computes the output if the inputs are known while the graph is built; see `static_value`.
        rows: Maps the batch rows of the inputs to those of the outputs; see `graph.rows`. Elementwise ops do not need
            it; for other ops without it, nothing is known.
        traits: A kind plus the unusual properties of this op, such as `elementwise(cost=transcendental())`.
        stateful: Short for the effect `Effect.CHANGES`: the op changes shared state. Ignored if `traits` states a
            stateful effect already.
        commutative: True if the order of the inputs does not matter.
        made_by: The source of its nodes; see `OpDef`.
        published: Whether TensorFlow has the op, too. By default True for the ops that come with aioflow. Always False
            for names that begin with "_" or "Aioflow".

    Raises:
        AlreadyRegisteredError: the name is taken.
        InvalidArgumentError: the definition is malformed, or its parts do not fit one another.
    """
    try:
        _check_rules(name, shape, traits)
        signature = read_signature(inputs, outputs, attrs)
    except InvalidArgumentError as error:
        # The same class again: a DTypeError is to stay one, with the op's name added.
        raise type(error)(
            f"cannot define op {name!r}: {error.message}",
            op_type=str(name),
            expected=error.expected,
            actual=error.actual,
        ) from error
    if published is None:
        # A third-party op is unknown to TensorFlow unless its author states otherwise.
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
        raise InvalidArgumentError("its name is not an identifier", expected="a name such as 'ScaledTanh'", actual=name)
    if shape is not None and not callable(shape):
        raise InvalidArgumentError(
            "shape= must be a function",
            expected="a function of a ShapeContext, such as `lambda ctx: (2,)`",
            actual=shape,
        )
    if not isinstance(traits, Traits):
        raise InvalidArgumentError(
            "traits= must be a Traits", expected="the result of a kind, such as `traits.elementwise()`", actual=traits
        )
    if not isinstance(traits.cost, Cost):
        raise InvalidArgumentError(
            "the cost of its traits must be a Cost",
            expected="a Cost, such as `traits.transcendental(3)`",
            actual=traits.cost,
        )
