"""Chains in C: the choice of members that become one loop, and the text of that loop.

The C form of a kernel (`KernelDef.exact_c`) reproduces its bits, so such members are joined to *pieces*. The others
(exponentials, which NumPy vectorizes in its own way) remain NumPy calls between the pieces. A piece starts when all its
inputs exist: members are in alternating stages of NumPy and C, each as early as its operands allow.

The text consists of the C forms of registered kernels, types from a table and numbers of values. It contains nothing
from a graph, not even constants, which are operands.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.kernels.fused import Chain, FusedMember

_WORTHWHILE: Final = 2  # members of a piece; a single one is as fast as a ufunc
TYPES: Final[Mapping[DType, str]] = {
    dtypes.bool_: "unsigned char",
    dtypes.float32: "float",
    dtypes.float64: "double",
    dtypes.int8: "__INT8_TYPE__",
    dtypes.int16: "__INT16_TYPE__",
    dtypes.int32: "__INT32_TYPE__",
    dtypes.int64: "__INT64_TYPE__",
    dtypes.uint8: "__UINT8_TYPE__",
    dtypes.uint16: "__UINT16_TYPE__",
    dtypes.uint32: "__UINT32_TYPE__",
    dtypes.uint64: "__UINT64_TYPE__",
}
# Methods 0 and 16 both compute floats and doubles in their own type. Compilers report 16 if halves are computed in
# their own type, too (AVX512-FP16).
EXACT_FLOATS: Final = """\
#if (__FLT_EVAL_METHOD__ != 0 && __FLT_EVAL_METHOD__ != 16) || defined(__FAST_MATH__)
#error "floats are not computed as NumPy computes them"
#endif
"""
# No headers: a compiler may be installed without those of the C library. `INDEPENDENT` declares that no iteration
# reads what another one writes; a result may share the memory of an operand, element for element.
HEAD: Final = (
    EXACT_FLOATS
    + """\
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif
static inline __INT64_TYPE__ whole_abs(__INT64_TYPE__ x) { return x < 0 ? -x : x; }
#define sqrt(x) _Generic((x), float: __builtin_sqrtf, default: __builtin_sqrt)(x)
#define floor(x) _Generic((x), float: __builtin_floorf, default: __builtin_floor)(x)
#define ceil(x) _Generic((x), float: __builtin_ceilf, default: __builtin_ceil)(x)
#define rint(x) _Generic((x), float: __builtin_rintf, default: __builtin_rint)(x)
#define fabs(x) _Generic((x), float: __builtin_fabsf, double: __builtin_fabs, default: whole_abs)(x)
"""
)


class OperandExtent(Enum):
    """The part of a row of the result that an operand covers."""

    ALL = "of every row its own"
    ROW = "one row, the same for all"
    ONE = "one number"


@dataclass(frozen=True, slots=True)
class ChainPiece:
    """Members that one loop computes.

    Attributes:
        members: Their positions in the chain.
        reads: The values that it reads from memory.
        makes: The values that it writes to memory, because others read them.
    """

    members: tuple[int, ...]
    reads: tuple[int, ...]
    makes: tuple[int, ...]


def pieces_of(chain: Chain, early: Collection[int]) -> list[int | ChainPiece]:
    """Return the members in an order in which they can run, each by its position, or in a piece.

    The members that are computed beforehand are left out.
    """
    known = [*chain.dtypes, *(member.dtype for member in chain.members)]
    stages: dict[int, int] = {}  # even stages are NumPy's
    for at, member in enumerate(chain.members):
        if at in early:
            continue
        # The operands' last stage, or the next one if that is of the other kind.
        reached = max((stages.get(value - chain.inputs, 0) for value in member.operands), default=0)
        stages[at] = reached + (reached % 2 != _has_c(member, known))
    found: list[int | ChainPiece] = []
    for stage in sorted(set(stages.values())):
        members = tuple(at for at in stages if stages[at] == stage)
        if stage % 2 and len(members) >= _WORTHWHILE:
            piece = _piece(chain, members)
            found += [piece] if piece.makes else []  # empty for members whose results are not read
        else:
            found += members
    return found


def _has_c(member: FusedMember, known: Sequence[DType]) -> bool:
    return bool(member.kernel.exact_c) and all(t in TYPES for t in (member.dtype, *(known[i] for i in member.operands)))


def _piece(chain: Chain, members: tuple[int, ...]) -> ChainPiece:
    made = {chain.inputs + at for at in members}
    reads = dict.fromkeys(i for at in members for i in chain.members[at].operands if i not in made)
    needed = {i for at, member in enumerate(chain.members) if at not in members for i in member.operands}
    # The last value is the result of the chain, which no member reads.
    needed.add(chain.inputs + len(chain.members) - 1)
    return ChainPiece(members, tuple(reads), tuple(sorted(made & needed)))


def program(chain: Chain, pieces: Sequence[ChainPiece], extents: Mapping[int, OperandExtent]) -> str:
    """Return the text of a function for each piece: piece0, piece1 and so on.

    Their parameters are the number of rows, the elements of a row, and the addresses of the values that they read and
    make.

    Args:
        chain: The chain.
        pieces: The pieces.
        extents: The extents of the values read from memory that are not `ALL`.
    """
    known = [*chain.dtypes, *(member.dtype for member in chain.members)]
    return HEAD + "".join(_function(f"piece{i}", chain, known, piece, extents) for i, piece in enumerate(pieces))


def _function(
    name: str, chain: Chain, known: Sequence[DType], piece: ChainPiece, extents: Mapping[int, OperandExtent]
) -> str:
    kinds = {i: extents.get(i, OperandExtent.ALL) for i in piece.reads}
    parameters = ["__PTRDIFF_TYPE__ rows", "__PTRDIFF_TYPE__ width"]
    parameters += [f"const {TYPES[known[i]]} *a{i}" for i in piece.reads]
    parameters += [f"{TYPES[known[i]]} *o{i}" for i in piece.makes]
    once = [f"const {TYPES[known[i]]} v{i} = *a{i};" for i, kind in kinds.items() if kind is OperandExtent.ONE]
    places = {OperandExtent.ALL: "row + i", OperandExtent.ROW: "i"}
    lines = [f"const {TYPES[known[i]]} v{i} = a{i}[{places[k]}];" for i, k in kinds.items() if k in places]
    for at in piece.members:
        member = chain.members[at]
        # In a C form, `(T)` stands for the dtype of the first operand.
        kind = f"({TYPES[known[member.operands[0]]]})"
        text = member.kernel.exact_c.format(*(f"v{i}" for i in member.operands)).replace("(T)", kind)
        lines.append(f"const {TYPES[member.dtype]} v{chain.inputs + at} = {text};")
    lines += [f"o{i}[row + i] = v{i};" for i in piece.makes]
    return "\n".join(
        [
            f"void {name}({', '.join(parameters)}) {{",
            *once,
            "for (__PTRDIFF_TYPE__ row = 0; row < rows * width; row += width) {",
            "INDEPENDENT",
            "for (__PTRDIFF_TYPE__ i = 0; i < width; i++) {",
            *lines,
            "} } }\n",
        ]
    )
