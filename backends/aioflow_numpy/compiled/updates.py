"""Updates of variables in machine code, with the checks that decide when to compile and use it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from ctypes import addressof, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np

from aioflow.concurrency.stopping import doing
from aioflow.errors import OpError
from aioflow.kernels.math.elementwise import EXACT_C
from aioflow.kernels.registry import Binding
from aioflow.kernels.variables.optimizer_rules import RULES, Scalars, UpdateRule
from aioflow.kernels.variables.optimizer_updates import in_passes, register_updates
from aioflow.memory.values import Array, Namespace, NpDType
from aioflow_numpy.addresses import address, address_of
from aioflow_numpy.compiled.code import MachineFunction, programs
from aioflow_numpy.compiled.crew import MOST_PARTS
from aioflow_numpy.compiled.pieces import HEAD
from aioflow_numpy.compiled.wanted import CodeRequest, numbers, same
from aioflow_numpy.crew import CREW
from aioflow_numpy.threads import for_each, thread_count, wake_helpers

# ── the program in C: the passes of a rule are recorded, and become the lines of one loop ─────────────────────────────
#
# A rule (`optimizer_rules`) calls functions of the namespace that it receives, and looks at no value. With a namespace
# that records the calls, one run of the rule describes the update of an element for all sizes.


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


# ── its use ───────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# As with chains (`compiled.blocks`), NumPy runs the passes of a rule until it has spent about as long as compiling
# takes. The compiled code is used only if it matches NumPy's results on numbers of every kind. It reads and writes each
# element once, where NumPy does so in every pass. Helper threads that spin (`crew`) share the work on large variables.


_log = logging.getLogger("aioflow.compiled")
# Bytes written by all passes together: NumPy takes 0.1 to 0.2 s for that many, which is what compiling takes.
_WORTH: Final = 1 << 30
_CALL: Final = 1 << 13  # fixed cost of a pass, expressed in bytes
_LEAST: Final = 1 << 15  # elements times passes from which on a call of the code is faster
_PART: Final = 1 << 20  # bytes read and written from which on another thread that is awake pays off
_WAKES: Final = 1 << 24  # the same for a thread that must be woken
_LINE: Final = 64  # elements: parts begin at a cache line if the array does
_TRIALS: Final = 8
_TRIED: Final = 3 * 1031  # elements; not a multiple of the vector length


@dataclass(frozen=True, slots=True)
class _Code:
    """A compiled update and its address."""

    function: MachineFunction
    where: int  # address of `function`


class CompiledUpdate:
    """The update by one rule, with one choice of its options, in machine code once it is compiled.

    Args:
        rule: The rule.
        variables: Number of variables that the rule updates.
        h: Prepared scalars of any call; their names and boolean values select the code.
        dtype: Dtype of the variables.
    """

    def __init__(self, rule: UpdateRule, variables: int, h: Scalars, dtype: NpDType) -> None:
        self._rule, self._variables, self._dtype = rule, variables, dtype
        self._written: WrittenUpdate = written(rule, variables, h, dtype)
        self._options = {name: value for name, value in h.items() if isinstance(value, bool)}
        self._code: _Code | None = None
        self._wanted = CodeRequest()

    def run(self, h: Scalars, gradient: Array, values: Sequence[Array], news: Sequence[Array]) -> bool:
        """Update the variables by machine code; return False where NumPy must do it.

        That is the case if the code is not compiled yet, the arrays are too small for it to pay, or an array has
        another dtype, is not C-contiguous and aligned, or cannot be written.
        """
        size, passes = gradient.size, self._written.passes
        if size * passes < _LEAST:
            return False
        code = self._code
        if code is None:
            self._wanted.worked(passes * (gradient.nbytes + _CALL), _WORTH, self.prepare, lambda: self._written.text)
            return False
        arrays = (*values, *news, gradient)
        if not all(a.dtype == self._dtype and a.flags.c_contiguous and a.flags.aligned for a in arrays):
            return False
        # Machine code would write to read-only memory, where NumPy raises an error.
        if not all(new.flags.writeable for new in news):
            return False
        self._call(code, h, size, arrays)
        return True

    def _call(self, code: _Code, h: Scalars, size: int, arrays: Sequence[Array]) -> None:
        """Run the code, in several threads if the arrays are large. The caller must keep the arrays alive."""
        scalars = np.array([h[name] for name in self._written.scalars], self._dtype)
        table = (c_void_p * (len(arrays) + 1))(*map(address, arrays), address(scalars))
        moved = size * self._dtype.itemsize * len(arrays)
        count = moved // _PART
        if count > 1 and (count := min(count, thread_count(), MOST_PARTS)) > 1:
            bounds = (*(size * number // count // _LINE * _LINE for number in range(count)), size)
            if CREW.loop(code.where, addressof(table), bounds, wake_helpers):
                return
            if moved >= _WAKES:
                parts = list(pairwise(bounds))
                # A cancellation must not leave some parts updated and others not.
                doing(None, for_each, lambda part: code.function(*part, addressof(table)), parts)
                return
        code.function(0, size, addressof(table))

    def prepare(self) -> None:
        """Compile the code now, in this thread. On failure, log the reason and keep using NumPy."""
        try:
            (function,) = programs().functions(self._written.text, [1])
        except OpError as error:
            _log.info("not compiling a variable update: %s", error)
            return
        code = _Code(function, address_of(function))
        if self._agrees(code):
            self._code = code
        else:
            _log.warning("not using a compiled variable update: its results differ from NumPy's")

    def _agrees(self, code: _Code) -> bool:
        rng = np.random.default_rng(0)
        with np.errstate(all="ignore"):
            for k in range(_TRIALS):
                names = self._written.scalars
                h = self._options | dict(zip(names, numbers(rng, self._dtype, (len(names),)), strict=True))
                gradient, *values = (numbers(rng, self._dtype, (_TRIED,)) for _ in range(self._variables + 1))
                wanted, found = ([value.copy() for value in values] for _ in range(2))
                in_passes(np, self._rule, h, gradient, values, wanted)
                present = found if k % 2 else values  # every second trial updates in place
                self._call(code, h, _TRIED, (*present, *found, gradient))
                if not all(same(*each) for each in zip(wanted, found, strict=True)):
                    return False
        return True


_compiled = lru_cache(maxsize=256)(lambda rule, variables, h, dtype: CompiledUpdate(rule, variables, dict(h), dtype))


class _Passes:
    """The function that runs the passes of one node."""

    def __init__(self, binding: Binding) -> None:
        self._compiled: CompiledUpdate | None = None

    def __call__(
        self,
        xp: Namespace,
        rule: UpdateRule,
        h: Scalars,
        gradient: Array,
        values: Sequence[Array],
        news: Sequence[Array],
    ) -> None:
        if self._compiled is None:
            # Bools select the code. Numbers are passed with each call, and must not lead to other code.
            kinds = tuple((name, value if isinstance(value, bool) else None) for name, value in h.items())
            self._compiled = _compiled(rule, len(values), kinds, gradient.dtype)
        if not self._compiled.run(h, gradient, values, news):
            in_passes(xp, rule, h, gradient, values, news)


register_updates(
    _Passes,
    {name: rule for name, rule in RULES.items() if not rule.looks},
    device="CPU",
    dtypes={"T": [dtype.name for dtype in TYPES]},
    synchronises=False,
)
