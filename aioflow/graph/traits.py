"""The properties of an op, beside its signature, that the compiler, the placement and the backends use.

A pass queries the traits, like the traits and interfaces of MLIR's op definitions; no pass has a list of op names. An
op states a *kind*, which sets most traits, and overrides the unusual ones:

    define_op("Digamma", …, traits=elementwise(cost=transcendental(5)))
    define_op("Sum", …, traits=reduction(rounded_by="reduction_indices"))

Properties of an implementation belong to the kernel (`kernels.registry.KernelDef`). `python -m aioflow ops --traits`
prints the whole table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, Concatenate, Final, ParamSpec

from aioflow.graph.costs import FREE, LIGHT, MULTIPLYING_RATES, PER_ELEMENT, Cost, moved, read, written


class Effect(Enum):
    """The effect of an op besides computing its outputs."""

    NONE = "no effect: may be merged, folded, repeated, or removed if unused"
    FAILS = "a check that may fail: never removed, and without state"
    KEEPS = "private state that persists between runs, such as a generator or a handle"
    READS = "reads shared state: never moved across a change of that state"
    CHANGES = "changes shared state, or waits for other nodes"
    STEERS = "control flow, which the runtime interprets"

    @property
    def is_stateful(self) -> bool:
        """True if nodes may never be merged, folded or run twice."""
        return self in (Effect.KEEPS, Effect.READS, Effect.CHANGES)


class Half(Enum):
    """The behavior of an op whose float32 operands are rounded to 16 bits: bfloat16, or float16."""

    WIDE = "needs the precision or range of float32: sums, cancels, or overflows"
    FOLLOWS = "as accurate as its inputs: moves, compares, or combines a few elements"
    GAINS = "gains from 16 bits: products, summed in float32 and rounded once"


class Role(IntEnum):
    """The role of a node in the runtime: a kernel to call, or one of the ops that the runtime interprets."""

    KERNEL = 0
    SWITCH = 1
    MERGE = 2
    ENTER = 3
    EXIT = 4
    NEXT = 5
    LOOP_CONDITION = 6
    TRIGGER = 7
    CONSTANT = 8
    FETCH = 9
    SEND = 10
    RECV = 11
    FEED = 12


class Memory(Enum):
    """The memory of an op's outputs. A kernel may still allocate new memory; `fresh` on a kernel guarantees it."""

    OWN = "separate memory"
    VIEW = "memory of one input, in a different order"
    SAME_ORDER = "memory of one input, in the same order"
    PASSED = "each output is the input at the same position"
    RESIDENT = "exists independently of steps"


@dataclass(frozen=True, slots=True)
class Neutral:
    """The neutral constant at some input positions; None if dtypes of that kind have no such constant.

    Attributes:
        positions: Positions of the inputs.
        whole: The constant for integers and bools.
        floating: The constant for floats, sign of zero included.
    """

    positions: tuple[int, ...]
    whole: Any = None
    floating: float | None = None


@dataclass(frozen=True, slots=True)
class Laws:
    """The algebraic laws of an op, as far as they hold to the last bit.

    Attributes:
        neutral: Its neutral element.
        undoes_itself: f(f(x)) is x.
        idempotent: f(f(x)) is f(x).
        of_equals: f(x, x) is x.
        opposite: The comparison that is false exactly if this one is true, for dtypes with a total order.
        total: `opposite` holds for all dtypes.
    """

    neutral: Neutral | None = None
    undoes_itself: bool = False
    idempotent: bool = False
    of_equals: bool = False
    opposite: str = ""
    total: bool = False


_NO_LAWS: Final = Laws()

# Dtypes of elementwise chains. Kernels compute 16-bit floats and complex numbers in other types.
FLOATS: Final = frozenset({"float32", "float64"})
NUMBERS: Final = FLOATS | {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
BOOLS: Final = frozenset({"bool"})
ANY: Final = NUMBERS | BOOLS
NOTHING: Final[frozenset[str]] = frozenset()

# Kinds whose result elements depend on few input elements.
_FOLLOWING: Final = frozenset({"elementwise", "movement", "view", "reshapes", "passes_on"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The traits of an op.

    Attributes:
        kind: The name of the preset; "" for an op that states nothing.
        effect: The effect besides computing the outputs.
        cost: The cost estimate.
        memory: The memory of the outputs.
        shares: The position of the input whose memory the outputs share, if `memory` is VIEW or SAME_ORDER.
        row_major: The outputs are in row-major order without gaps for all inputs.
        keeps_row_major: The outputs are in row-major order without gaps if all inputs are.
        never_larger: The outputs are no larger than the inputs after broadcasting.
        broadcasts: The operands are broadcast to one shape by NumPy's rules. False if one has a shape of its own, such
            as a vector with one number per channel.
        only_shapes: The outputs depend on the shapes of the inputs only, not on their values.
        rounded_by: The input (of a floating result) whose constant value determines how a kernel rounds. If it is not
            constant in the user's graph, no pass may make it constant.
        fuses: The input dtypes with which the op may be a member of an elementwise chain. Its kernels always allocate a
            new array, and fail only on incompatible shapes.
        laws: Its algebraic laws.
        in_c: An element of the result as a C expression, for generated kernels. {0} and {1} are the elements of the
            operands; T is their dtype.
        is_replicated: Each device that reads the outputs has its own copy: they are never sent.
        is_shared: The resource belongs to all replicas of a model, so it is placed on a parameter server.
        role: Its role in the runtime, if the runtime interprets it.
        on_host: Why the op runs on the host only, in a few words; "" if another device may have a kernel.
        is_numeric: The op computes on numbers in tensors.
        stays_home: Why only the process that built the graph can run the op, as the end of a sentence ("calls a Python
            function of this process"); "" if any process can.
        half: The behavior in 16 bits; None for the default of its kind: see `in_16_bits`.
        must_be_fed: The outputs are a value of each step's feeds; running the op is an error.
        tells_step: The kernel changes nothing while it waits, and notifies the step when it stops waiting
            (`StepAccount`).
        takes_away: The op removes something, and its kernel can restore it.
    """

    kind: str = ""
    effect: Effect = Effect.NONE
    cost: Cost = PER_ELEMENT
    memory: Memory = Memory.OWN
    shares: int = 0
    row_major: bool = False
    keeps_row_major: bool = False
    never_larger: bool = False
    broadcasts: bool = True
    only_shapes: bool = False
    rounded_by: str = ""
    fuses: frozenset[str] = NOTHING
    laws: Laws = _NO_LAWS
    in_c: str = ""
    is_replicated: bool = False
    is_shared: bool = False
    role: Role = Role.KERNEL
    on_host: str = ""
    is_numeric: bool = True
    stays_home: str = ""
    half: Half | None = None
    must_be_fed: bool = False
    tells_step: bool = False
    takes_away: bool = False

    @property
    def in_16_bits(self) -> Half:
        """The behavior in 16 bits. Functions with many instructions per element are WIDE: few of them are bounded."""
        if self.half is not None:
            return self.half
        follows = self.kind in _FOLLOWING and self.cost.rate != "transcendental"
        return Half.FOLLOWS if follows else Half.WIDE

    @property
    def multiplies(self) -> bool:
        """True if the op is a sum of products, whose rounding may depend on whether two operands share one buffer."""
        return self.cost.rate in MULTIPLYING_RATES

    @property
    def draws(self) -> bool:
        """True if the op advances the state of a generator."""
        return self.kind == "random" and self.effect is Effect.KEEPS

    @property
    def is_resident(self) -> bool:
        """True if the outputs exist independently of a running step."""
        return self.memory is Memory.RESIDENT

    @property
    def is_variable(self) -> bool:
        """True if the output is the handle of a variable."""
        return self.kind == "handle" and self.is_resident

    @property
    def is_control_flow(self) -> bool:
        """True if the op is control flow."""
        return self.effect is Effect.STEERS

    def origin(self, port: int) -> int | None:
        """Return the position of the input whose memory an output shares, or None if it has its own memory."""
        if self.memory is Memory.PASSED:
            return port
        return self.shares if self.memory in (Memory.VIEW, Memory.SAME_ORDER) else None


UNSTATED: Final = Traits()  # an op that states nothing: no effect, and the cost of one pass over its data


# ── costs shared by several kinds ─────────────────────────────────────────────────────────────────────────────────────


def transcendental(factor: float = 1.0) -> Cost:
    """Return the cost of some tens of instructions per element; `factor` is relative to an exponential."""
    return Cost("transcendental", moved, factor)


def reading(factor: float = 1.0) -> Cost:
    """Return the cost of reading each element; `factor` is the work per element relative to a sum."""
    return Cost("reduction", read, factor)


WRITING: Final = Cost("movement", written)


# ── kinds: presets; keyword arguments override single traits ──────────────────────────────────────────────────────────


_P = ParamSpec("_P")


def _presets(_: Callable[_P, Traits]) -> Callable[Concatenate[str, str, _P], Callable[_P, Traits]]:
    """Return the function that makes presets. They accept the keyword arguments of `Traits` as overrides."""

    def preset(name: str, meaning: str, /, *_: _P.args, **usual: _P.kwargs) -> Callable[_P, Traits]:
        given: dict[str, Any] = {"kind": name, **usual}
        common = Traits(**given)

        def kind(*positional: _P.args, **unusual: _P.kwargs) -> Traits:
            if positional:
                raise TypeError(f"{name}() takes traits as keyword arguments only")
            # Without overrides the preset itself is shared by all ops of the kind.
            return Traits(**{**given, **unusual}) if unusual else common

        kind.__name__ = kind.__qualname__ = name
        kind.__doc__ = meaning
        return kind

    return preset


_kind = _presets(Traits)

# On arrays: elements at the same position; all elements of an axis; elements at other positions; sums of products.
elementwise = _kind("elementwise", "Each output element depends on the input elements at the same position.")
reduction = _kind(
    "reduction", "Reduces the elements along some axes, or reads them once for a count or an order.", cost=reading()
)
movement = _kind("movement", "Moves elements to other positions.", cost=WRITING)
product = _kind("product", "Multiplies and sums its inputs; state the cost.")
opaque = _kind("opaque", "Any other computation.")

# Without work on arrays: no time, only the time of a call, or values that exist before the step.
instant = _kind("instant", "Known without a computation or a call.", cost=FREE)
bookkeeping = _kind("bookkeeping", "Takes the time of a call, regardless of the size.", cost=LIGHT)
source = _kind(
    "source", "Exists before a step begins, on every device.", cost=FREE, memory=Memory.RESIDENT, is_replicated=True
)

# An input in another form.
passes_on = _kind("passes_on", "Returns each input unchanged, at the same position.", cost=FREE, memory=Memory.PASSED)
reshapes = _kind("reshapes", "Returns the first input in another shape.", cost=FREE, memory=Memory.SAME_ORDER)
view = _kind(
    "view", "Returns a part of the first input, or its elements in another order.", cost=LIGHT, memory=Memory.VIEW
)

# State and control flow.
handle = _kind("handle", "Names an object that outlives a step.", effect=Effect.KEEPS, cost=FREE)
random = _kind("random", "Draws numbers.", effect=Effect.KEEPS, cost=Cost("transcendental", written))
state_read = _kind("state_read", "Reads shared state.", effect=Effect.READS)
state_change = _kind("state_change", "Changes shared state.", effect=Effect.CHANGES)
control_flow = _kind(
    "control_flow", "Controls which nodes run.", effect=Effect.STEERS, cost=FREE, memory=Memory.SAME_ORDER
)

# Ops on data that a device's memory cannot hold, or that wait on the host.
text = _kind("text", "Works on strings.", on_host="strings", is_numeric=False)
encoded = _kind(
    "encoded",
    "Works on records, image files or serialised tensors.",
    on_host="records, image files and serialised tensors are strings",
    is_numeric=False,
)
files = _kind("files", "Reads or writes files.", on_host="files", is_numeric=False)
python_function = _kind(
    "python_function",
    "Calls a user's Python function.",
    on_host="Python functions",
    is_numeric=False,
    stays_home="calls a Python function of this process",
)
waiting = _kind(
    "waiting",
    "Waits on the event loop for other nodes.",
    effect=Effect.CHANGES,
    cost=LIGHT,
    on_host="it waits on the event loop",
    is_numeric=False,
)
sparse = _kind(
    "sparse",
    "Works on entries of sparse tensors.",
    on_host="the host sorts entries into row-major order, and result sizes depend on values",
)
