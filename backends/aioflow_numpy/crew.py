"""Helper threads that spin for a moment, to compute parts of the products that come next (see `compiled/crew.py`).

A part is a product that the BLAS is called for in any case, so results do not depend on which thread has computed it.
As with chains (`compiled.blocks`), the code is compiled in the background, once products have taken about as long as
compiling takes, and is used only if it matches NumPy's results.
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

from aioflow.concurrency.forking import renew_in_child
from aioflow.concurrency.threads import is_loops_thread
from aioflow.errors import OpError
from aioflow.memory.values import Array
from aioflow_numpy.account import Account
from aioflow_numpy.addresses import address
from aioflow_numpy.blas_products import Gemm, ProductParts, find_products, inner_parts, product_parts
from aioflow_numpy.blas_threads import alone
from aioflow_numpy.compiled.code import MachineFunction, programs
from aioflow_numpy.compiled.crew import AWAKE, BOARD, FIELDS, LOOP, MOST_PARTS, crew_program
from aioflow_numpy.compiled.wanted import CodeRequest
from aioflow_numpy.conv_scratch import aligned
from aioflow_numpy.placing import let_roam, processor_number, wake_elsewhere

_log = logging.getLogger("aioflow.compiled")

_PATIENCE: Final = 1_500_000  # nanoseconds that a helper spins: several times the cost of waking it
_WORTH: Final = 1 << 32  # multiplications of all products: the BLAS takes 0.1 s for that many
_NANO: Final = 1e-9
_Took: Final = c_int64 * 4
_STUCK: Final = 1_000_000  # nanoseconds of waiting that indicate a helper without a processor
_NOBODY: Final = np.zeros((0, BOARD // 4), np.int32)
_TRIED: Final = (  # rows, inner elements, columns
    *((24, 40, 56), (5, 300, 6), (129, 64, 33), (9, 130, 517), (64, 192, 256)),
)


@dataclass(frozen=True, slots=True)
class _Code:
    """The compiled code and the BLAS functions that it calls.

    Attributes:
        stay, share: The functions `piece0` and `piece1`.
        products: The BLAS's function for each dtype.
    """

    stay: MachineFunction
    share: MachineFunction
    products: Mapping[np.dtype[Any], Gemm]


class Crew:
    """The helpers of this process and their boards: one cache line per helper, with its state.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._code: _Code | None = None
        self._wanted = CodeRequest()
        self._begin()
        renew_in_child(self)

    def _begin(self) -> None:
        # The code is kept: a forked child has the libraries that its parent has loaded.
        self._account = Account(self._clock)
        self._wakes = False
        self.gather(0)

    def after_fork(self) -> None:
        """Discard all helpers, which do not exist in the child."""
        self._begin()

    def gather(self, helpers: int) -> None:
        """Allocate boards for this number of helpers."""
        boards = aligned(helpers * BOARD).view(np.int32).reshape(helpers, BOARD // 4)
        boards.fill(0)
        self._boards, self._states, self._called = boards, boards[:, 0], boards[:, 1]
        self._ids: dict[int, int] = {}
        self._away_from: int | None = None

    def stay(self, helper: int, is_wanted: Callable[[], bool]) -> None:
        """Spin in a helper's thread until no part has come for a moment or `call` is called.

        Args:
            helper: Number of the helper.
            is_wanted: Returns True if helpers have other work.
        """
        # A helper that was woken has arrived, so callers may wake others again.
        self._wakes = False
        code, boards = self._code, self._boards
        if code is None or not self._account.is_open(self._clock()):
            return
        boards[helper, 1] = 0
        if is_wanted():  # work that is queued after this line is announced by `call`
            return
        self._ids[helper], self._away_from = threading.get_native_id(), None
        done, begun = c_int64(), self._clock()
        code.stay(_PATIENCE, 0, address(boards) + helper * BOARD, addressof(done))
        # Time without any part is lost even if `call` ended it: there may be no products at all.
        if not done.value:
            self._account.enter(begun - self._clock())
        elif not boards[helper, 1]:
            self._account.enter(-_PATIENCE * _NANO)

    def call(self) -> None:
        """Make the helpers stop spinning."""
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
        """Compute a product part by part, in this thread and spinning helpers.

        Args:
            a: Left matrix.
            b: Right matrix, of the same dtype.
            out: Result, of the same dtype.
            bounds: Bounds of the parts, along the rows or the columns of `out`.
            by_rows: Whether the parts are along the rows of `out`.
            fewest: Number of helpers that must be awake.
            wake: Wakes this number of helpers, for the next product; returns False where that is not possible.
            gemm: Function that multiplies, for this dtype; None for the BLAS's.

        Returns:
            False if too few helpers are awake or the library reports a failure.
        """
        code, function = self._function(a, b, gemm)
        if code is None or function is None or not self.is_there(len(bounds) - 1, fewest, wake):
            return False
        parts = product_parts(function, a, b, out, bounds, by_rows)
        return parts is not None and self.share(code, parts, address(a), address(b), address(out))

    def sums(
        self, a: Array, b: Array, out: Array, bounds: tuple[int, ...], pieces: int, gemm: Gemm | None = None
    ) -> Sums | None:
        """Return a product in parts along the inner elements; None if there is no code for it.

        Args:
            a: As for `multiply`.
            b: As for `multiply`.
            out: The products [parts, rows, columns].
            bounds: Bounds of the parts.
            pieces: Number of pieces in which each part is summed; a piece of `b` is in the cache when it is
                multiplied.
            gemm: As for `multiply`.
        """
        code, function = self._function(a, b, gemm)
        parts = None if function is None else inner_parts(function, a, b, out, bounds, pieces)
        return None if code is None or parts is None else Sums(self, code, parts, (a, b, out))

    def _function(self, a: Array, b: Array, gemm: Gemm | None) -> tuple[_Code | None, Gemm | None]:
        """Return the code and the function that multiplies `a` and `b`; (None, None) until the code is compiled."""
        code = self._code
        if code is None:
            self._wanted.worked(a.size * b.shape[1], _WORTH, self.prepare, _program)
            return None, None
        return code, gemm or code.products.get(a.dtype)

    def loop(self, function: int, operands: int, bounds: tuple[int, ...], wake: Callable[[int], bool]) -> bool:
        """Compute elements part by part with spinning helpers; return False if none is awake.

        Args:
            function: Address of a function for parts of the kind `LOOP`.
            operands: Address that is passed to the function. The caller must keep the memory alive.
            bounds: Bounds of the parts.
            wake: As for `multiply`.
        """
        code = self._code
        if code is None or not self.is_there(len(bounds) - 1, 1, wake):
            return False
        return self.share(code, _loop_parts(function, bounds), operands, 0, 0)

    def is_there(self, count: int, fewest: int, wake: Callable[[int], bool]) -> bool:
        """Return True if `fewest` helpers are awake for work of `count` parts, else wake some for the next time."""
        # In the thread of an event loop, waiting for a helper would block the loop.
        if count > MOST_PARTS or not self._account.is_open(self._clock()) or is_loops_thread():
            return False
        awake = self._states.tolist().count(AWAKE)
        if awake >= fewest:
            return True
        if not self._wakes:
            self._wake(wake, count - 1 - awake)
        return False

    def share(self, code: _Code, parts: ProductParts, *places: int) -> bool:
        """Compute the parts together with awake helpers. Return False if the result is unusable.

        Args:
            code: The code of the helpers and of the parts.
            parts: The parts.
            places: Addresses of the operands.
        """
        here = processor_number()
        if here != self._away_from:  # two spinning threads would share a processor until the scheduler's next tick
            self._away_from = here
            wake_elsewhere(list(self._ids.values()))
        taken, own, waited, status = _shared(code, parts, self._boards, *places)
        if waited > _STUCK:  # another program runs on the processors that the helpers were moved to
            let_roam(list(self._ids.values()))
        # Parts are alike: a helper saves about the time of this thread's own part, less the wait for it.
        if taken:
            self._account.enter((own - waited) * _NANO)
        return status == 0

    def _wake(self, wake: Callable[[int], bool], count: int) -> None:
        self._wakes, woken = True, False  # set before waking: a helper may reset it in `stay` right away
        try:
            woken = wake(count)
        finally:
            if not woken:
                self._wakes = False

    def prepare(self) -> None:
        """Compile the code now, in this thread. On failure, log the reason and keep using NumPy."""
        found = find_products()
        if found is None:
            return
        try:
            # The numbers of addresses that `piece0` and `piece1` take.
            stay, share = programs().functions(crew_program(found.integer), [2, 6])
        except OpError as error:
            _log.info("not compiling the sharing of matrix products: %s", error)
            return
        code = _Code(stay, share, found.functions)
        if _agrees(code):
            self._code = code
        else:
            _log.warning("not calling the BLAS directly: its products differ from NumPy's")


def _program() -> str | None:
    found = find_products()
    return None if found is None else crew_program(found.integer)


class Sums:
    """The parts of a product, each the sum over some of the inner elements."""

    def __init__(self, crew: Crew, code: _Code, parts: ProductParts, arrays: tuple[Array, Array, Array]) -> None:
        self._crew, self._code, self._parts = crew, code, parts
        self._held, self._places = arrays, tuple(map(address, arrays))

    def share(self, wake: Callable[[int], bool]) -> bool:
        """Compute all parts with spinning helpers; return False if none is awake or the library reports a failure.

        Args:
            wake: As for `Crew.multiply`.
        """
        crew, parts = self._crew, self._parts
        return crew.is_there(parts.count, 1, wake) and crew.share(self._code, parts, *self._places)

    def compute(self, number: int) -> bool:
        """Compute one part in this thread; return False if the library reports a failure."""
        return _shared(self._code, self._parts.one(number), _NOBODY, *self._places)[-1] == 0


def _shared(code: _Code, parts: ProductParts, boards: Array, *places: int) -> list[int]:
    """Compute parts in this thread and in the helpers of `boards`.

    Args:
        code: The compiled code.
        parts: The parts.
        boards: Boards of the helpers.
        places: Addresses of the matrices, which the caller keeps alive.

    Returns:
        The number of parts that helpers have computed, the nanoseconds of this thread's first part, the nanoseconds of
        its wait for helpers, and a status that is 0 if all parts are done.
    """
    took = _Took()
    alone(code.share, parts.count, len(boards), address(boards), parts.where, *places, addressof(took))
    return took[:]


@lru_cache(maxsize=256)
def _loop_parts(function: int, bounds: tuple[int, ...]) -> ProductParts:
    fields: list[int] = []
    for start, stop in pairwise(bounds):
        part = {"function": function, "kind": LOOP, "m": start, "n": stop}
        fields += (part.get(name, 0) for name in FIELDS)
    return ProductParts.of(fields, len(bounds) - 1)


def _agrees(code: _Code) -> bool:
    """Return True if parts match NumPy's products to the last bit, also if summed in pieces."""
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
        if not _matches(code, product_parts(gemm, a, b, found, bounds, by_rows), a, b, found, wanted):
            return False
        # Only a matrix `b` with contiguous rows can be cut into pieces.
        if orders[1] != "C":
            continue
        half = inner // 2
        alone(np.matmul, a[:, :half], b[:half], wanted)
        wanted += alone(np.matmul, a[:, half:], b[half:])
        if not _matches(code, inner_parts(gemm, a, b, found[None], (0, inner), 2), a, b, found, wanted):
            return False
    return True


def _matches(code: _Code, parts: ProductParts | None, a: Array, b: Array, found: Array, wanted: Array) -> bool:
    """Return True if computing the parts of a product results in `wanted`."""
    if parts is None:
        return False
    found.fill(np.nan)
    _shared(code, parts, _NOBODY, address(a), address(b), address(found))
    return found.tobytes() == wanted.tobytes()


CREW: Final = Crew()
