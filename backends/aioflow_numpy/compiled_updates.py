"""Updates of variables in machine code: when it is worth having it, and whether it may be used.

As with chains (`compiled_blocks`), NumPy does the passes of a rule until they have taken about as long as compiling
takes, and the code is used where it gives NumPy's results on numbers of every kind. It reads and writes an element once
in all, where NumPy does so in each pass; and helpers that wait awake (`crew`) take a part of large variables.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from ctypes import addressof, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np

from aioflow.errors import OpError
from aioflow.kernels.registry import Binding
from aioflow.kernels.variables.optimizer_rules import RULES, Rule
from aioflow.kernels.variables.optimizer_updates import in_passes, register_updates
from aioflow.work.stopping import doing
from aioflow_numpy.addresses import address, address_of
from aioflow_numpy.compiled.code import Function, programs
from aioflow_numpy.compiled.crew import MOST_PARTS
from aioflow_numpy.compiled.trials import numbers, same
from aioflow_numpy.compiled.updates import TYPES, WrittenUpdate, written
from aioflow_numpy.compiled.wanted import Wanted
from aioflow_numpy.conv_shapes import Array
from aioflow_numpy.crew import CREW
from aioflow_numpy.threads import for_each, thread_count, wake_helpers

__all__ = ["CompiledUpdate"]

_log = logging.getLogger("aioflow.compiled")
# Bytes that all passes together have written: NumPy takes 0.1 to 0.2 s for them, which is what compiling takes.
_WORTH: Final = 1 << 30
_CALL: Final = 1 << 13  # what a pass costs besides, in bytes
_LEAST: Final = 1 << 15  # elements times passes, from which on a call of the code is the faster one
_PART: Final = 1 << 20  # bytes read and written, for which another thread that is awake pays
_WAKES: Final = 1 << 24  # and one that has to be woken
_LINE: Final = 64  # elements: parts begin with a line of the cache where the array does
_TRIALS: Final = 8
_TRIED: Final = 3 * 1031  # elements; no multiple of the length of a vector


@dataclass(frozen=True, slots=True)
class _Code:
    function: Function
    where: int  # its address


class CompiledUpdate:
    """The update by one rule, with one choice of its options, in machine code once it is there.

    Args:
        rule: The rule.
        variables: How many it has.
        h: Its prepared scalars, of any call.
        dtype: Of the variables.
    """

    def __init__(self, rule: Rule, variables: int, h: Mapping[str, Any], dtype: np.dtype[Any]) -> None:
        self._rule, self._variables, self._dtype = rule, variables, dtype
        self._written: WrittenUpdate = written(rule, variables, h, dtype)
        self._options = {name: value for name, value in h.items() if isinstance(value, bool)}
        self._code: _Code | None = None
        self._wanted = Wanted()

    def run(self, h: Mapping[str, Any], gradient: Array, values: Sequence[Array], news: Sequence[Array]) -> bool:
        """Update by the code; False where there is none, or NumPy is as good, or the arrays do not lie well."""
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
        if not all(new.flags.writeable for new in news):
            return False
        self._call(code, h, size, arrays)
        return True

    def _call(self, code: _Code, h: Mapping[str, Any], size: int, arrays: Sequence[Array]) -> None:
        """The arrays are held by the caller, and the table of their addresses here, until the code has returned."""
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
                doing(None, for_each, lambda part: code.function(*part, addressof(table)), parts)  # all of it, or none
                return
        code.function(0, size, addressof(table))

    def prepare(self) -> None:
        """Have it compiled, now and here. Where that fails it stays as it is, and the log says why."""
        try:
            (function,) = programs().functions(self._written.text, [1])
        except OpError as error:
            _log.info("an update of variables is not compiled: %s", error)
            return
        code = _Code(function, address_of(function))
        if self._agrees(code):
            self._code = code
        else:
            _log.warning("a compiled update of variables gives other results than NumPy, and is not used")

    def _agrees(self, code: _Code) -> bool:
        rng = np.random.default_rng(0)
        with np.errstate(all="ignore"):
            for k in range(_TRIALS):
                names = self._written.scalars
                h = self._options | dict(zip(names, numbers(rng, self._dtype, (len(names),)), strict=True))
                gradient, *values = (numbers(rng, self._dtype, (_TRIED,)) for _ in range(self._variables + 1))
                wanted, found = ([value.copy() for value in values] for _ in range(2))
                in_passes(np, self._rule, h, gradient, values, wanted)
                present = found if k % 2 else values  # in place, or not
                self._call(code, h, _TRIED, (*present, *found, gradient))
                if not all(same(*each) for each in zip(wanted, found, strict=True)):
                    return False
        return True


_compiled = lru_cache(maxsize=256)(lambda rule, variables, h, dtype: CompiledUpdate(rule, variables, dict(h), dtype))


class _Passes:
    """What does the passes of one node."""

    def __init__(self, binding: Binding) -> None:
        self._compiled: CompiledUpdate | None = None

    def __call__(
        self, xp: Any, rule: Rule, h: Any, gradient: Array, values: Sequence[Array], news: Sequence[Array]
    ) -> None:
        if self._compiled is None:
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
