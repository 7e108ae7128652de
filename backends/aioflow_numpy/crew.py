"""The helpers that stay awake for a moment, to take parts of the products that come next (`compiled/crew.py` has how).

A part is what the BLAS is asked for in any case, so results do not show who has computed it. As with chains
(`compiled_blocks`), the code is made in the background, once products have taken about as long as compiling takes, and
is used where it gives NumPy's results.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from ctypes import addressof, c_int64
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from time import perf_counter
from typing import Any, Final

import numpy as np

from aioflow.errors import OpError
from aioflow.work.forking import renew_in_child
from aioflow.work.threads import is_loops_thread
from aioflow_numpy.account import Account
from aioflow_numpy.addresses import address
from aioflow_numpy.blas_products import Gemm, Parts, find_products, inner_parts, product_parts
from aioflow_numpy.blas_threads import alone
from aioflow_numpy.compiled.code import Function, programs
from aioflow_numpy.compiled.crew import AWAKE, BOARD, FIELDS, LOOP, MOST_PARTS, crew_program
from aioflow_numpy.compiled.wanted import Wanted
from aioflow_numpy.conv_scratch import aligned
from aioflow_numpy.conv_shapes import Array
from aioflow_numpy.placing import let_roam, processor_number, wake_elsewhere

__all__ = ["CREW", "Crew", "Sums"]

_log = logging.getLogger("aioflow.compiled")

_PATIENCE: Final = 1_500_000  # nanoseconds that a helper waits awake: some times what it takes to wake it
_WORTH: Final = 1 << 32  # multiplications of all products: the BLAS takes 0.1 s for them
_NANO: Final = 1e-9
_Took: Final = c_int64 * 4
_STUCK: Final = 1_000_000  # nanoseconds that one waits for a helper who does not run
_NOBODY: Final = np.zeros((0, BOARD // 4), np.int32)
_TRIED: Final = (  # rows, inner elements, columns
    *((24, 40, 56), (5, 300, 6), (129, 64, 33), (9, 130, 517), (64, 192, 256)),
)


@dataclass(frozen=True, slots=True)
class _Code:
    """What is there once it is compiled.

    Attributes:
        stay, share: `piece0` and `piece1`.
        products: The BLAS's function for each dtype.
    """

    stay: Function
    share: Function
    products: Mapping[np.dtype[Any], Gemm]


class Crew:
    """The helpers of this process and their boards.

    Args:
        clock: Gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._code: _Code | None = None
        self._wanted = Wanted()
        self._begin()
        renew_in_child(self)

    def _begin(self) -> None:
        self._account = Account(self._clock)
        self._wakes = False
        self.gather(0)

    def after_fork(self) -> None:
        """As `Forks`: the child has no helpers yet."""
        self._begin()

    def gather(self, helpers: int) -> None:
        """There are so many helpers from now on."""
        boards = aligned(helpers * BOARD).view(np.int32).reshape(helpers, BOARD // 4)
        boards.fill(0)
        self._boards, self._states, self._called = boards, boards[:, 0], boards[:, 1]
        self._ids: dict[int, int] = {}
        self._away_from: int | None = None

    def stay(self, helper: int, is_wanted: Callable[[], bool]) -> None:
        """Wait awake for parts, in a helper's thread, until none has come for a moment or somebody calls.

        Args:
            is_wanted: Whether there is something else for helpers to do.
        """
        self._wakes = False
        code, boards = self._code, self._boards
        if code is None or not self._account.is_open(self._clock()):
            return
        boards[helper, 1] = 0
        if is_wanted():  # who wants something later calls
            return
        self._ids[helper], self._away_from = threading.get_native_id(), None
        done, begun = c_int64(), self._clock()
        code.stay(_PATIENCE, 0, address(boards) + helper * BOARD, addressof(done))
        if not done.value:  # however often it is called: there may be no products at all
            self._account.enter(begun - self._clock())
        elif not boards[helper, 1]:
            self._account.enter(-_PATIENCE * _NANO)

    def call(self) -> None:
        """Have the helpers stop waiting."""
        self._called.fill(1)

    def multiply(
        self,
        a: Array,
        b: Array,
        out: Array,
        bounds: tuple[int, ...],
        by_rows: bool,
        fewest: int,
        wake: Callable[[int], bool],
        gemm: Gemm | None = None,
    ) -> bool:
        """Compute a product part by part, in this thread and those who wait awake; False where too few do, or the
        library says that it has failed.

        Args:
            a, b, out: Matrices of one dtype.
            bounds: Of the parts, along the rows or the columns of `out`.
            fewest: Helpers who must be awake.
            wake: Wakes so many, who are there for the next product then; False where that cannot be.
            gemm: By which function, for this dtype; None for the BLAS's.
        """
        code, function = self._function(a, b, gemm)
        if code is None or function is None or not self._is_there(len(bounds) - 1, fewest, wake):
            return False
        parts = product_parts(function, a, b, out, bounds, by_rows)
        return parts is not None and self._share(code, parts, address(a), address(b), address(out))

    def sums(
        self, a: Array, b: Array, out: Array, bounds: tuple[int, ...], pieces: int, gemm: Gemm | None = None
    ) -> Sums | None:
        """A product in parts along the inner elements; None where there is no code for it.

        Args:
            out: The products [parts, rows, columns].
            bounds: Of the parts.
            pieces: In how many pieces each is summed up; those of `b` are in the cache when they are multiplied.
            a, b, gemm: As of `multiply`.
        """
        code, function = self._function(a, b, gemm)
        parts = None if function is None else inner_parts(function, a, b, out, bounds, pieces)
        return None if code is None or parts is None else Sums(self, code, parts, (a, b, out))

    def _function(self, a: Array, b: Array, gemm: Gemm | None) -> tuple[_Code | None, Gemm | None]:
        """The code, and by what function these are multiplied."""
        code = self._code
        if code is None:
            self._wanted.worked(a.size * b.shape[1], _WORTH, self.prepare, _program)
            return None, None
        return code, gemm or code.products.get(a.dtype)

    def loop(self, function: int, operands: int, bounds: tuple[int, ...], wake: Callable[[int], bool]) -> bool:
        """Compute elements part by part, with whoever waits awake; False where nobody does.

        Args:
            function: The address of a function as of the parts whose kind is `LOOP`.
            operands: The address that it is given. What is there is held by the caller.
            bounds: Of the parts.
            wake: As of `multiply`.
        """
        code = self._code
        if code is None or not self._is_there(len(bounds) - 1, 1, wake):
            return False
        return self._share(code, _loop_parts(function, bounds), operands, 0, 0)

    def _is_there(self, count: int, fewest: int, wake: Callable[[int], bool]) -> bool:
        """Whether so many helpers are awake for work of `count` parts."""
        if count > MOST_PARTS or not self._account.is_open(self._clock()) or is_loops_thread():
            return False
        awake = self._states.tolist().count(AWAKE)
        if awake >= fewest:
            return True
        if not self._wakes:
            self._wake(wake, count - 1 - awake)
        return False

    def _share(self, code: _Code, parts: Parts, *places: int) -> bool:
        here = processor_number()
        if here != self._away_from:  # two threads that never sleep share a processor until the scheduler's next tick
            self._away_from = here
            wake_elsewhere(list(self._ids.values()))
        taken, own, waited, status = _shared(code, parts, self._boards, *places)
        if waited > _STUCK:  # another program is where the helpers were sent to
            let_roam(list(self._ids.values()))
        if taken:
            self._account.enter((own - waited) * _NANO)
        return status == 0

    def _wake(self, wake: Callable[[int], bool], count: int) -> None:
        self._wakes, woken = True, False  # before: a helper that is quick says that it is awake
        try:
            woken = wake(count)
        finally:
            if not woken:
                self._wakes = False

    def prepare(self) -> None:
        """Have it compiled, now and here. Where that fails it stays as it is, and the log says why."""
        found = find_products()
        if found is None:
            return
        try:
            stay, share = programs().functions(crew_program(found.integer), [2, 6])
        except OpError as error:
            _log.info("products are not shared in machine code: %s", error)
            return
        code = _Code(stay, share, found.functions)
        if _agrees(code):
            self._code = code
        else:
            _log.warning("the BLAS gives other products than through NumPy, and is not called without it")


def _program() -> str | None:
    found = find_products()
    return None if found is None else crew_program(found.integer)


class Sums:
    """The parts of a product, each the sum over some of the inner elements."""

    def __init__(self, crew: Crew, code: _Code, parts: Parts, arrays: tuple[Array, Array, Array]) -> None:
        self._crew, self._code, self._parts = crew, code, parts
        self._held, self._places = arrays, tuple(map(address, arrays))

    def share(self, wake: Callable[[int], bool]) -> bool:
        """Compute them all, with whoever waits awake; False where nobody does, or the library says that it has failed.

        Args:
            wake: As of `Crew.multiply`.
        """
        crew, parts = self._crew, self._parts
        return crew._is_there(parts.count, 1, wake) and crew._share(self._code, parts, *self._places)

    def compute(self, number: int) -> bool:
        """Compute one of them in this thread; False where the library says that it has failed."""
        return _shared(self._code, self._parts.one(number), _NOBODY, *self._places)[-1] == 0


def _shared(code: _Code, parts: Parts, boards: Array, *places: int) -> list[int]:
    """Compute parts, and say how many the helpers have done, how many nanoseconds the own one took, how many this
    thread waited for theirs, and a status that is 0 if all are done.

    Args:
        places: The addresses of the matrices, which the caller holds.
    """
    took = _Took()
    alone(code.share, parts.count, len(boards), address(boards), parts.where, *places, addressof(took))
    return took[:]


@lru_cache(maxsize=256)
def _loop_parts(function: int, bounds: tuple[int, ...]) -> Parts:
    fields: list[int] = []
    for start, stop in pairwise(bounds):
        part = {"function": function, "kind": LOOP, "m": start, "n": stop}
        fields += (part.get(name, 0) for name in FIELDS)
    return Parts.of(fields, len(bounds) - 1)


def _agrees(code: _Code) -> bool:
    """Whether parts are to the last bit what NumPy has the BLAS make of them, also summed up in pieces."""
    rng = np.random.default_rng(0)
    for (dtype, gemm), (rows, inner, columns), orders in product(
        code.products.items(), _TRIED, product("CF", repeat=2)
    ):
        a = np.asarray(rng.standard_normal((rows, inner)), dtype, orders[0])
        b = np.asarray(rng.standard_normal((inner, columns)), dtype, orders[1])
        by_rows = rows >= columns
        bounds = 0, max(rows, columns) // 2, max(rows, columns)
        cut = [slice(*each) for each in pairwise(bounds)]
        found, wanted = np.empty((2, rows, columns), dtype)
        for part in cut:
            if by_rows:
                alone(np.matmul, a[part], b, wanted[part])
            else:
                alone(np.matmul, a, b[:, part], wanted[:, part])
        if not _gives(code, product_parts(gemm, a, b, found, bounds, by_rows), a, b, found, wanted):
            return False
        if orders[1] != "C":
            continue
        half = inner // 2
        alone(np.matmul, a[:, :half], b[:half], wanted)
        wanted += alone(np.matmul, a[:, half:], b[half:])
        if not _gives(code, inner_parts(gemm, a, b, found[None], (0, inner), 2), a, b, found, wanted):
            return False
    return True


def _gives(code: _Code, parts: Parts | None, a: Array, b: Array, found: Array, wanted: Array) -> bool:
    """Whether the parts of a product make what is wanted."""
    if parts is None:
        return False
    found.fill(np.nan)
    _shared(code, parts, _NOBODY, address(a), address(b), address(found))
    return found.tobytes() == wanted.tobytes()


CREW: Final = Crew()
