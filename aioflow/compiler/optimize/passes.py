"""The optimization passes in the order in which they run, each with its switch (`SessionConfig.optimizations`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from aioflow.compiler.ir import ClientGraph
from aioflow.compiler.optimize.arithmetic import arithmetic
from aioflow.compiler.optimize.common_subexpressions import common_subexpressions
from aioflow.compiler.optimize.constant_folding import constant_folding, folding_but_widened
from aioflow.compiler.optimize.dead_code import dead_code
from aioflow.compiler.optimize.fold_batch_norm import fold_batch_norm
from aioflow.compiler.optimize.fuse_bias import fuse_bias
from aioflow.compiler.optimize.fuse_elementwise import fuse_elementwise
from aioflow.compiler.optimize.fuse_integers import fuse_integers
from aioflow.compiler.optimize.fuse_layer_norm import fuse_layer_norm
from aioflow.compiler.optimize.mixed_precision import in_bfloat16, in_float16
from aioflow.compiler.optimize.rewrite import Evaluate
from aioflow.compiler.optimize.shapes import shapes
from aioflow.compiler.optimize.transposes import transposes
from aioflow.errors import InvalidArgumentError

__all__ = [
    "MIXED_PRECISION",
    "ORDER_MEMORY",
    "PACK_SENDS",
    "PASSES",
    "RECOMPUTE",
    "SCHEDULE_RECEIVES",
    "Evaluate",
    "Pass",
    "around_delegation",
    "chosen_passes",
    "is_on",
]


@dataclass(frozen=True, slots=True)
class Pass:
    """One optimization.

    Attributes:
        name: The name of its switch.
        run: Maps a graph to one with the same results.
        exact: True if results stay bit-identical. Other passes are off by default.
        fuses: True if it makes nodes that no other engine computes. It then runs after parts are delegated.
        before: The variant to run before parts are delegated; `run` then follows after delegation. None if `run` needs
            no variant.
    """

    name: str
    run: Callable[[ClientGraph, Evaluate], ClientGraph]
    exact: bool = True
    fuses: bool = False
    before: Callable[[ClientGraph, Evaluate], ClientGraph] | None = None


# The pass for each dtype.
MIXED_PRECISION: Final[Mapping[str, str]] = {
    "bfloat16": "auto_mixed_precision_bfloat16",
    "float16": "auto_mixed_precision",
}

# Each pass helps the next: shapes make constants, constants make neutral elements, simpler nodes are more often equal.
# Dead code is removed before the passes that look for nodes with a single reader.
PASSES: Final[tuple[Pass, ...]] = (
    Pass("shapes", shapes),
    Pass("constant_folding", constant_folding, before=folding_but_widened),
    Pass("arithmetic", arithmetic),
    Pass("transposes", transposes),
    Pass("common_subexpressions", common_subexpressions),
    Pass("dead_code", dead_code),
    Pass("fold_batch_norm", fold_batch_norm, exact=False),
    Pass(MIXED_PRECISION["bfloat16"], in_bfloat16, exact=False),
    Pass(MIXED_PRECISION["float16"], in_float16, exact=False),
    Pass("fuse_integers", fuse_integers, fuses=True),
    Pass("fuse_layer_norm", fuse_layer_norm, fuses=True),
    Pass("fuse_bias", fuse_bias, fuses=True),
    Pass("fuse_elementwise", fuse_elementwise, fuses=True),
)

# Optimizations of later stages that are switched like passes: compute a cheap value again instead of sending it, send
# several small values in one message, request large values of other devices late, and order each device's nodes.
RECOMPUTE: Final = "recompute"
PACK_SENDS: Final = "pack_sends"
SCHEDULE_RECEIVES: Final = "schedule_receives"
ORDER_MEMORY: Final = "order_memory"
_LATER: Final = (RECOMPUTE, PACK_SENDS, SCHEDULE_RECEIVES, ORDER_MEMORY)


def chosen_passes(switches: bool | Mapping[str, bool]) -> tuple[Pass, ...]:
    """Return the passes that the switches leave on, in order.

    Raises:
        InvalidArgumentError: a switch does not name an optimization.
    """
    return tuple(p for p in PASSES if is_on(p.name, switches, p.exact))


def around_delegation(passes: Iterable[Pass]) -> tuple[tuple[Pass, ...], tuple[Pass, ...]]:
    """Return the passes to run before parts are delegated, and the passes to run after that."""
    passes = tuple(passes)
    first = tuple(replace(each, run=each.before or each.run) for each in passes if not each.fuses)
    return first, tuple(each for each in passes if each.fuses or each.before is not None)


def is_on(name: str, switches: bool | Mapping[str, bool], default: bool = True) -> bool:
    """Return whether an optimization is switched on.

    Raises:
        InvalidArgumentError: a switch does not name an optimization.
    """
    if isinstance(switches, bool):
        return switches and default
    names = [*(p.name for p in PASSES), *_LATER]
    unknown = sorted(switches.keys() - set(names))
    if unknown:
        raise InvalidArgumentError("unknown optimization", expected=f"names among {names}", actual=unknown)
    return switches.get(name, default)
