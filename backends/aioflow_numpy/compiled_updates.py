"""Updates of variables in machine code, with the checks that decide when to compile and use it.

As with chains (`compiled_blocks`), NumPy runs the passes of a rule until it has spent about as long as compiling
takes. The compiled code is used only if it matches NumPy's results on numbers of every kind. It reads and writes each
element once, where NumPy does so in every pass. Helper threads that spin (`crew`) share the work on large variables.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from ctypes import addressof, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np

from aioflow.concurrency.stopping import doing
from aioflow.errors import OpError
from aioflow.kernels.registry import Binding
from aioflow.kernels.variables.optimizer_rules import RULES, Scalars, UpdateRule
from aioflow.kernels.variables.optimizer_updates import in_passes, register_updates
from aioflow.memory.values import Array, Namespace, NpDType
from aioflow_numpy.addresses import address, address_of
from aioflow_numpy.compiled.code import MachineFunction, programs
from aioflow_numpy.compiled.crew import MOST_PARTS
from aioflow_numpy.compiled.trials import numbers, same
from aioflow_numpy.compiled.updates import TYPES, WrittenUpdate, written
from aioflow_numpy.compiled.wanted import CodeRequest
from aioflow_numpy.crew import CREW
from aioflow_numpy.threads import for_each, thread_count, wake_helpers

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
