"""Convolutions of one shape, ready to run: all that does not depend on the image is prepared in advance.

Small networks consist of fifty or more convolutions of 20 to 100 µs each, so overhead per convolution is noticeable.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np

from aioflow.memory.values import Array
from aioflow_numpy.conv_scratch import scratch
from aioflow_numpy.conv_shapes import Windows
from aioflow_numpy.threads import for_each, thread_count
from aioflow_onednn import conv_blocks, convolutions
from aioflow_onednn.conv_blocks import ConvBlock, blocks
from aioflow_onednn.convolutions import Prepared, adds_as_well
from aioflow_onednn.filters import Filters, PackedFilter, packing, packings
from aioflow_onednn.library import PostOps, library
from aioflow_onednn.magnitudes import FAR, sum_of_squares
from aioflow_onednn.primitives import Finish, Placed, address
from aioflow_onednn.team import TEAM

_FOR_A_TEAM: Final = 2**18  # multiplications for which several threads of OpenMP pay off
SAMPLES: Final = 8  # from this number on, blocks are ranges of samples, which are independent
_KEPT: Final = 1024  # plans
_FLOAT: Final = np.dtype(np.float32)

Kernel: TypeAlias = Array | PackedFilter


class Method(enum.Enum):
    """The way in which a convolution is computed."""

    ALONE = "this thread, in one go"
    TEAM = "the team"
    BLOCKS = "our own threads, each some of the blocks"


def choose_method(g: Windows, filters: Filters, prepared: Callable[[int], Prepared]) -> Method:
    """Choose the way in which a convolution is computed.

    Args:
        g: The windows.
        filters: The filters.
        prepared: Returns the convolution for a number of threads.
    """
    # The number of multiplications.
    work = g.rows * filters.size(g)
    if g.n < SAMPLES and work >= _FOR_A_TEAM and library().has_team and not prepared(1).primitive.is_by_products:
        return Method.TEAM
    return Method.BLOCKS if work >= 2 * conv_blocks.LEAST else Method.ALONE


class Activated:
    """An activation that oneDNN may apply itself, for images where no result of the convolution can be NaN.

    oneDNN treats NaN as zero. Without `kernel` the activation keeps NaN, and is suitable for every image.

    By the Cauchy-Schwarz inequality, no sum in a convolution is larger than the L2 norm of the image times that of the
    filter, plus the bias. Where this is far from infinity, nothing overflows, so no result is NaN.

    Args:
        activation: The activation.
        kernel: Filter of the convolution; None for an activation that keeps NaN.
        bias: Bias of the convolution, if it has one.
    """

    def __init__(self, activation: PostOps, kernel: PackedFilter | None = None, bias: Array | None = None) -> None:
        self.activation, self._kernel, self._bias = activation, kernel, bias
        self._bound: float | None = None  # computed by the first step, in its thread

    @property
    def keeps_nan(self) -> bool:
        """True if the activation is suitable for all images."""
        return self._kernel is None

    def holds_for(self, x: Array, *others: Array) -> bool:
        """Return True if oneDNN may apply the activation with this image and these added arrays; all are contiguous."""
        if self._kernel is None:
            return True
        if self._bound is None:
            self._bound = self._found_bound(self._kernel)
        # No number of an added array is larger than the array's own norm.
        return sum_of_squares(x) < self._bound and all(sum_of_squares(each) < FAR for each in others)

    def _found_bound(self, kernel: PackedFilter) -> float:
        """Return the exclusive upper bound of the sum of squares of an image; 0 if a constant is not finite."""
        bias, norm = 0.0 if self._bias is None else np.abs(self._bias).max(initial=0.0), kernel.norm()
        if not math.isfinite(bias + norm) or bias > FAR:
            return 0.0
        # From |image| * |filter| + |bias| < FAR. The divisor is at least 1, which also covers a filter of zeros.
        return float((FAR - bias) / max(norm, 1.0)) ** 2


class Forward:
    """The convolution of images [n, h, w, c] of one shape.

    Args:
        g: The windows.
        filters: The filters.
        has_bias: Whether there is a bias.
        finish: Epilogue, applied to each block while it is in the cache.
        activated: The epilogue as a part of the primitive, for images for which that is correct.

    Attributes:
        shape: Shape of the result, [n, oh, ow, outputs].
        of: The windows and the filters, and whether there is a bias.
        finish: As the argument.
        activated: As the argument; None where it would make the primitive slower.
    """

    def __init__(
        self,
        g: Windows,
        filters: Filters,
        has_bias: bool = False,
        finish: Finish | None = None,
        activated: Activated | None = None,
    ) -> None:
        self.shape, self.of = (g.n, g.oh, g.ow, filters.outputs), (g, filters, has_bias)
        activation = None if activated is None else activated.activation
        if activation is not None and activation.adds and not adds_as_well(g, filters, has_bias, activation):
            activated = activation = None
        self.finish, self.activated = finish, activated
        self._plain = _computation(g, filters, has_bias, None)
        self._active = self._plain if activation is None else _computation(g, filters, has_bias, activation)

    def __call__(self, x: Array, kernel: Kernel, bias: Placed | None = None, *others: Array) -> Array:
        """Return the convolution of an image.

        Args:
            x: The image. All arrays are contiguous.
            kernel: The filter.
            bias: Bias [outputs].
            *others: Arrays of the result's shape that the epilogue reads.
        """
        job = _Job(x, kernel, bias, others, np.empty(self.shape, _FLOAT))
        if self.activated is not None and self.activated.holds_for(x, *others):
            self._active(job, None)
        else:
            self._plain(job, self.finish)
        return job.out


class _Job(NamedTuple):
    """The arrays of a convolution, like the arguments of `Forward`, and the array for its result."""

    x: Array
    kernel: Kernel
    bias: Placed | None
    others: Sequence[Array]
    out: Array

    def addresses(self, packed: Placed, adds: bool) -> list[int]:
        """Return the addresses with which a primitive is run.

        Args:
            packed: The filter.
            adds: Whether the primitive adds the residual.
        """
        found = [address(self.x), packed.at, address(self.out)]
        if self.bias is not None:
            found.append(self.bias.at)
        if adds:
            found.extend(map(address, self.others))
        return found


class _Computation(Protocol):
    """A way in which a convolution is computed."""

    def __call__(self, job: _Job, finish: Finish | None) -> None:
        """Compute the result and apply the epilogue."""


def _computation(g: Windows, filters: Filters, has_bias: bool, activation: PostOps | None) -> _Computation:
    def prepared(threads: int) -> Prepared:
        return convolutions.forward(g, filters, has_bias, activation, threads)

    adds = activation is not None and activation.adds
    match choose_method(g, filters, prepared):
        case Method.TEAM:
            return _ByTeam(prepared, adds)
        case Method.BLOCKS:
            return _InBlocks(g, filters, has_bias, activation)
    return _Alone(prepared(1), adds)


class _Alone:
    """A convolution in this thread, in one call.

    Args:
        prepared: The convolution.
        adds: Whether the primitive adds the residual.
    """

    def __init__(self, prepared: Prepared, adds: bool) -> None:
        self._user, self._adds = (prepared, 0), adds

    def __call__(self, job: _Job, finish: Finish | None) -> None:
        user = self._user
        packed = packing(job.kernel, user)  # kept alive until the primitive has run, like all operands
        user[0].run(*job.addresses(packed, self._adds))
        if finish is not None:
            finish(job.out, *job.others)


class _ByTeam:
    """A convolution by the team, or by this thread while the team is unavailable; both result in the same bits.

    Args:
        prepared: Returns the convolution for a number of threads.
        adds: As for `_Alone`.
    """

    def __init__(self, prepared: Callable[[int], Prepared], adds: bool) -> None:
        self._prepared, self._alone, self._adds = prepared, prepared(1).primitive, adds
        self._users: dict[int, tuple[Prepared, int]] = {}  # by the number of threads

    def __call__(self, job: _Job, finish: Finish | None) -> None:
        alone = self._alone
        # The usual time in one thread must be known, to compare the team with it.
        threads = 1 if TEAM.is_for_one(alone) else TEAM.reserve()
        try:
            user = self._users.get(threads)
            if user is None:
                user = self._users[threads] = self._prepared(threads), 0
            packed = packing(job.kernel, user)
            TEAM.run(user[0].primitive, alone, *job.addresses(packed, self._adds))
        finally:
            if threads > 1:
                TEAM.back()
        if finish is not None:
            finish(job.out, *job.others)


class _InBlocks:
    """A convolution in blocks, shared by aioflow's own threads."""

    def __init__(self, g: Windows, filters: Filters, has_bias: bool, activation: PostOps | None) -> None:
        self._of, self._outputs = (g, filters, has_bias, activation), filters.outputs
        self._adds = activation is not None and activation.adds

    def __call__(self, job: _Job, finish: Finish | None) -> None:
        plan = _plan(*self._of, thread_count(), conv_blocks.LEAST)
        packed = packings(job.kernel, ((prepared, block.outputs.start) for block, prepared in plan))

        def convolve(number: int) -> None:
            block, prepared = plan[number]
            part, target = self._part(job, block)
            prepared.run(*part.addresses(packed[prepared, block.outputs.start], self._adds))
            if finish is not None:
                finish(part.out, *part.others)
            # The channels of this block were computed in memory of their own.
            if part.out is not target:
                target[..., block.outputs] = part.out

        for_each(convolve, range(len(plan)))

    def _part(self, job: _Job, block: ConvBlock) -> tuple[_Job, Array]:
        """Return the arrays of a block, and the final target of its part of the result."""
        image, target = job.x[block.samples, block.source], job.out[block.samples, block.lines]
        bias = None if job.bias is None else Placed(job.bias.array[block.outputs])
        others = [each[block.samples, block.lines] for each in job.others]
        made = target
        # oneDNN is slow with gaps between the pixels of a result, so some channels get contiguous memory first.
        if block.filters.outputs != self._outputs:
            made = scratch("channels", (*target.shape[:3], block.filters.outputs), _FLOAT)
            others = [np.ascontiguousarray(each[..., block.outputs]) for each in others]
        return _Job(image, job.kernel, bias, others, made), target


@lru_cache(maxsize=_KEPT)
def _plan(
    g: Windows, filters: Filters, has_bias: bool, activation: PostOps | None, threads: int, least: int
) -> list[tuple[ConvBlock, Prepared]]:
    parts = blocks(g, filters, threads, least)
    return [(each, convolutions.forward(each.windows, each.filters, has_bias, activation)) for each in parts]
