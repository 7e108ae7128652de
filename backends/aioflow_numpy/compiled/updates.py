"""Updates of variables in C: the passes of a rule are recorded, and become the lines of one loop.

A rule (`optimizer_rules`) calls functions of the namespace that it receives, and looks at no value. With a namespace
that records the calls, one run of the rule describes the update of an element for all sizes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from aioflow.kernels.math.elementwise import EXACT_C
from aioflow.kernels.variables.optimizer_rules import Scalars, UpdateRule
from aioflow.memory.values import NpDType
from aioflow_numpy.compiled.pieces import HEAD

TYPES: Final[Mapping[np.dtype[Any], str]] = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}
_OPERAND: Final = re.compile(r"{(\d+)}")
_TEXT: Final = """\
typedef __PTRDIFF_TYPE__ Index;
void piece0(Index first, Index last, T *const *at)
{
READS
INDEPENDENT
for (Index i = first; i < last; i++) {
LINES
}
}
"""


@dataclass(frozen=True, slots=True)
class WrittenUpdate:
    """The text of `piece0`, which updates the elements from `first` up to `last`.

    Attributes:
        text: The program. It takes the addresses of the present values, the new ones, the gradient, and the scalars.
        scalars: The names of the scalars, in order.
        passes: The number of NumPy calls that it replaces.
    """

    text: str
    scalars: tuple[str, ...]
    passes: int


@dataclass(slots=True)
class _Place:
    """A stand-in for an array: the C expression of its element."""

    value: str

    def __setitem__(self, where: object, other: _Place) -> None:
        self.value = other.value


class _Writer:
    """A namespace whose functions record their calls."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., _Place]:
        expression = EXACT_C[name]
        count = len(set(_OPERAND.findall(expression)))

        def call(*operands: _Place, out: _Place | None = None) -> _Place:
            # As in NumPy, the array for the result is the last positional argument, or `out`.
            given, where = operands[:count], (*operands[count:], out)[0]
            made = f"t{len(self.lines)}"
            self.lines.append(f"const T {made} = {expression.format(*(each.value for each in given))};")
            if where is None:
                return _Place(made)
            where.value = made
            return where

        return call

    def zeros_like(self, like: _Place) -> _Place:
        """Return zeros, as NumPy's `zeros_like`."""
        return _Place("(T)0")


def written(rule: UpdateRule, variables: int, h: Scalars, dtype: NpDType) -> WrittenUpdate:
    """Return the update by a rule that looks at no value.

    Args:
        rule: The rule.
        variables: The number of variables.
        h: The prepared scalars; bools among them are the same in every call.
        dtype: The dtype of the variables.
    """
    scalars = tuple(name for name, value in h.items() if not isinstance(value, bool))
    places = {name: _Place(f"h{k}") for k, name in enumerate(scalars)}
    reads = [f"const T *v{k} = at[{k}];" for k in range(variables)]
    reads += [f"T *o{k} = at[{variables + k}];" for k in range(variables)]
    reads.append(f"const T *g = at[{2 * variables}];")
    reads += [f"const T h{k} = at[{2 * variables + 1}][{k}];" for k in range(len(scalars))]
    writer = _Writer()
    v, o = [_Place(f"v{k}[i]") for k in range(variables)], [_Place("") for _ in range(variables)]
    # The values of results are expressions, so they are written to memory only after all lines have read the old ones.
    record: Callable[..., None] = rule.update  # given stand-ins for the namespace and the arrays
    record(writer, v, o, _Place("g[i]"), [_Place("") for _ in range(rule.scratch)], {**h, **places})
    passes = len(writer.lines)
    lines = [*writer.lines, *(f"o{k}[i] = {place.value};" for k, place in enumerate(o))]
    text = _TEXT.replace("READS", "\n".join(reads)).replace("LINES", "\n".join(lines))
    return WrittenUpdate(f"{HEAD}typedef {TYPES[dtype]} T;\n{text}", scalars, passes)
