"""What the compiler, the placement and the backends must know of an op beside its signature.

A pass asks a question, and the op answers (as the traits and interfaces of MLIR's op definitions): no pass keeps a list
of names. An op states a *kind*, which answers most questions, and overrides what is unusual about it:

    define_op("Digamma", …, traits=elementwise(cost=transcendental(5)))
    define_op("Sum", …, traits=reduction(rounded_by="reduction_indices"))

What depends on the implementation stands on the kernel (`kernels.registry.KernelDef`). `python -m aioflow ops --traits`
shows the whole table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import Any, Final, Protocol, TypedDict, Unpack

from aioflow.graph.costs import FREE, LIGHT, MULTIPLYING_RATES, PER_ELEMENT, Cost, moved, read, written

__all__ = [
    "ANY",
    "BOOLS",
    "FLOATS",
    "NOTHING",
    "NUMBERS",
    "UNSTATED",
    "WRITING",
    "Answers",
    "Effect",
    "Half",
    "Kind",
    "Laws",
    "Memory",
    "Neutral",
    "Role",
    "Traits",
    "bookkeeping",
    "control_flow",
    "elementwise",
    "encoded",
    "files",
    "handle",
    "instant",
    "movement",
    "opaque",
    "passes_on",
    "product",
    "python_function",
    "random",
    "reading",
    "reduction",
    "reshapes",
    "source",
    "sparse",
    "state_change",
    "state_read",
    "text",
    "transcendental",
    "view",
    "waiting",
]


class Effect(Enum):
    """What an op does besides computing its outputs."""

    NONE = "computes and does no more: it may be merged, folded, repeated, or left out if nobody reads it"
    FAILS = "exists in order to fail: it may not be left out, and has no state"
    KEEPS = "keeps something of its own from run to run that no other node sees changing: a generator, a handle"
    READS = "reads what others change: it may not move over a change of the same"
    CHANGES = "changes what others see, or waits for them"
    STEERS = "decides what runs: the runtime interprets it"

    @property
    def is_stateful(self) -> bool:
        """Whether nodes may never be merged, folded or run twice."""
        return self in (Effect.KEEPS, Effect.READS, Effect.CHANGES)


class Half(Enum):
    """What becomes of an op whose float32 operands are rounded to 16 bits: bfloat16, or float16."""

    WIDE = "it needs the digits or the range of float32: it sums, cancels, or runs out of range"
    FOLLOWS = "its result is as good as what it reads: it moves or compares, or makes each element of a few"
    GAINS = "it is what 16 bits are for: products, which are summed in float32 and rounded once"


class Role(IntEnum):
    """What a node is to the runtime: something to call, or one of the ops that it interprets."""

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
    """Where the outputs of an op are. A kernel may make them anew all the same; `fresh` on a kernel promises it."""

    OWN = "in memory of their own"
    VIEW = "in the memory of one input, in an order of their own"
    SAME_ORDER = "in the memory of one input, in its order"
    PASSED = "each is the input of the same position"
    RESIDENT = "there whether a step runs or not"


@dataclass(frozen=True, slots=True)
class Neutral:
    """The constant that changes nothing at some positions; None: there is none for dtypes of that kind.

    Attributes:
        positions: Of the inputs.
        whole: For integers and bools.
        floating: For floats, sign of zero included.
    """

    positions: tuple[int, ...]
    whole: Any = None
    floating: float | None = None


@dataclass(frozen=True, slots=True)
class Laws:
    """The algebra of an op, as far as it holds to the last bit.

    Attributes:
        neutral: Its neutral element.
        undoes_itself: f(f(x)) is x.
        idempotent: f(f(x)) is f(x).
        of_equals: f(x, x) is x.
        opposite: The comparison that is false just where this one is true, for dtypes with a total order.
        total: `opposite` holds for all dtypes.
    """

    neutral: Neutral | None = None
    undoes_itself: bool = False
    idempotent: bool = False
    of_equals: bool = False
    opposite: str = ""
    total: bool = False


_NO_LAWS: Final = Laws()

# Dtypes of elementwise chains. The 16-bit floats and complex numbers are computed in other types.
FLOATS: Final = frozenset({"float32", "float64"})
NUMBERS: Final = FLOATS | {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
BOOLS: Final = frozenset({"bool"})
ANY: Final = NUMBERS | BOOLS
NOTHING: Final[frozenset[str]] = frozenset()

# Kinds whose elements come from few others.
_FOLLOWING: Final = frozenset({"elementwise", "movement", "view", "reshapes", "passes_on"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The answers of an op.

    Attributes:
        kind: The preset that they began with; "" for an op that states nothing.
        effect: What it does besides computing its outputs.
        cost: What it costs.
        memory: Where its outputs are.
        shares: The position of the input whose memory they are in, if `memory` says that there is one.
        row_major: The outputs are in row-major order without gaps, whatever the inputs are.
        keeps_row_major: They are, if all the inputs are.
        never_larger: The outputs are no larger than the inputs are after broadcasting.
        broadcasts: Its operands are broadcast to one shape as NumPy does. False where one has a shape of its own, as a
            vector with one number per channel.
        only_shapes: The outputs follow from the shapes of the inputs, whatever their values are.
        rounded_by: The input (of a floating result) by whose value, if it is a constant, a kernel chooses how to round:
            what is not a constant in the user's graph may not become one there.
        fuses: The dtypes of its inputs with which it may be a member of an elementwise chain. Its kernels always make a
            new array, and fail on nothing but shapes that do not fit.
        laws: Its algebra.
        in_c: An element of the result in C, for generated kernels, given the elements {0}, {1}; T is the dtype of the
            operands.
        is_replicated: Every device that reads its outputs has its own: nothing is sent for them.
        is_shared: What it names belongs to all replicas of a model: a parameter server is the place for it.
        role: What it is to the runtime, where that interprets it.
        on_host: Why it runs on the host alone, in a few words; "" where another device may have a kernel.
        is_numeric: Its work is on numbers in tensors.
        stays_home: What it does that only the process may do that built the graph, as the end of a sentence ("calls a
            Python function of this process"); "" where any may.
        half: What becomes of it in 16 bits; None for what is usual for its kind: see `in_16_bits`.
        tells_step: Its kernel changes nothing before it has stopped waiting, and tells the step then (`StepAccount`).
        takes_away: It takes something away, and its kernel can give that back.
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
    tells_step: bool = False
    takes_away: bool = False

    @property
    def in_16_bits(self) -> Half:
        """What becomes of it in 16 bits. Functions that take many instructions for an element are seldom bounded."""
        if self.half is not None:
            return self.half
        follows = self.kind in _FOLLOWING and self.cost.rate != "transcendental"
        return Half.FOLLOWS if follows else Half.WIDE

    @property
    def multiplies(self) -> bool:
        """Whether it is a sum of products, of which it matters whether two operands are one buffer."""
        return self.cost.rate in MULTIPLYING_RATES

    @property
    def draws(self) -> bool:
        """Whether it takes the next numbers of a generator."""
        return self.kind == "random" and self.effect is Effect.KEEPS

    @property
    def is_resident(self) -> bool:
        """Whether its outputs are there whether a step runs or not."""
        return self.memory is Memory.RESIDENT

    @property
    def steers(self) -> bool:
        """Whether it is control flow."""
        return self.effect is Effect.STEERS

    def origin(self, port: int) -> int | None:
        """The position of the input in whose memory an output is; None where it has its own."""
        if self.memory is Memory.PASSED:
            return port
        return self.shares if self.memory in (Memory.VIEW, Memory.SAME_ORDER) else None


UNSTATED: Final = Traits()  # what is known of an op that states nothing: costs as a pass over its data, has no effect


# -- costs that several kinds share -----------------------------------------------------------------------------------


def transcendental(factor: float = 1.0) -> Cost:
    """A function that takes some tens of instructions per element; `factor` times as many as an exponential."""
    return Cost("transcendental", moved, factor)


def reading(factor: float = 1.0) -> Cost:
    """Each element is read, and `factor` times as much is done with it as in a sum."""
    return Cost("reduction", read, factor)


WRITING: Final = Cost("movement", written)


# -- kinds: presets that take what is unusual about an op as keyword arguments ----------------------------------------


class Answers(TypedDict, total=False):
    """The answers that a kind takes: see `Traits`."""

    effect: Effect
    cost: Cost
    memory: Memory
    shares: int
    row_major: bool
    keeps_row_major: bool
    never_larger: bool
    broadcasts: bool
    only_shapes: bool
    rounded_by: str
    fuses: frozenset[str]
    laws: Laws
    in_c: str
    is_replicated: bool
    is_shared: bool
    role: Role
    on_host: str
    is_numeric: bool
    stays_home: str
    half: Half | None
    tells_step: bool
    takes_away: bool


class Kind(Protocol):
    """A preset."""

    def __call__(self, **unusual: Unpack[Answers]) -> Traits:
        """The answers of the kind, and what is unusual about an op."""


def _kind(name: str, meaning: str, **usual: Unpack[Answers]) -> Kind:
    preset = Traits(kind=name, **usual)

    def kind(**unusual: Unpack[Answers]) -> Traits:
        return replace(preset, **unusual) if unusual else preset

    kind.__name__ = kind.__qualname__ = name
    kind.__doc__ = meaning
    return kind


# On arrays: one element from those at the same place; all of an axis; elements at other places; inputs multiplied.
elementwise = _kind("elementwise", "Each element of the result is made from those at the same place.")
reduction = _kind(
    "reduction", "All elements along some axes are made one, or read once for a count or an order.", cost=reading()
)
movement = _kind("movement", "Elements go to other places.", cost=WRITING)
product = _kind("product", "Inputs are multiplied and summed: state the cost.")
opaque = _kind("opaque", "Anything else that computes.")  # anything else that computes

# On no array: what takes no time, what is only counted or handed over, and what is there anyhow.
instant = _kind("instant", "Known without computing, and without the time of a call.", cost=FREE)
bookkeeping = _kind("bookkeeping", "What takes the time of a call, whatever the size.", cost=LIGHT)
source = _kind(
    "source", "There before a step begins, on every device.", cost=FREE, memory=Memory.RESIDENT, is_replicated=True
)

# An input in another form.
passes_on = _kind("passes_on", "Each output is the input of the same position.", cost=FREE, memory=Memory.PASSED)
reshapes = _kind("reshapes", "The first input in another shape.", cost=FREE, memory=Memory.SAME_ORDER)
view = _kind("view", "A part of the first input, or the same in another order.", cost=LIGHT, memory=Memory.VIEW)

# State, and what decides what runs.
handle = _kind("handle", "Names something that outlives a step.", effect=Effect.KEEPS, cost=FREE)
random = _kind("random", "Draws numbers.", effect=Effect.KEEPS, cost=Cost("transcendental", written))
state_read = _kind("state_read", "Reads what others change.", effect=Effect.READS)
state_change = _kind("state_change", "Changes what others see.", effect=Effect.CHANGES)
control_flow = _kind("control_flow", "Decides what runs.", effect=Effect.STEERS, cost=FREE, memory=Memory.SAME_ORDER)

# What a device's memory cannot hold, or its queue cannot wait for.
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
    "Waits on the event loop for others.",
    effect=Effect.CHANGES,
    cost=LIGHT,
    on_host="it waits on the event loop",
    is_numeric=False,
)
sparse = _kind(
    "sparse",
    "Works on entries of sparse tensors.",
    on_host="entries in row-major order, and results whose sizes depend on values: the host sorts them",
)
