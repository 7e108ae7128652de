"""`aioflow ops`: every registered op with the dtypes and devices of its kernels, its gradient, and its traits."""

from __future__ import annotations

import dataclasses
import json
from enum import Enum
from typing import TYPE_CHECKING, Literal

# The whole package, since importing it registers the ops and the portable kernels.
import aioflow  # noqa: F401  # imported for its effect
from aioflow.cli.arguments import Commands, add_imports
from aioflow.cli.backends import load_backends
from aioflow.graph.costs import Cost
from aioflow.graph.gradient_registry import GRADIENTS
from aioflow.graph.opdef import OPS
from aioflow.graph.traits import UNSTATED
from aioflow.kernels.registry import ANY_DEVICE, KERNELS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from aioflow.graph.dtypes import DType
    from aioflow.graph.opdef import OpDef
    from aioflow.graph.traits import Traits
    from aioflow.kernels.registry import KernelDef


@dataclasses.dataclass(frozen=True, slots=True)
class OpRow:
    """One row of the listing.

    Attributes:
        op: Name of the op.
        dtypes: For each type attribute the dtypes that some kernel accepts; an empty list means any.
        devices: Device types with a kernel; "any" is a portable one.
        gradient: "none" if the op is declared not differentiable.
        traits: The op's traits as text: the kind first, then those that differ from the default.
    """

    op: str
    dtypes: dict[str, list[str]]
    devices: list[str]
    gradient: Literal["yes", "none", "missing"]
    traits: dict[str, str]


def list_ops() -> list[OpRow]:
    """Return all registered ops by name, with the kernels of every backend that loads."""
    load_backends()
    return [_row(op_def) for op_def in sorted(OPS, key=lambda op_def: op_def.name)]


def _row(op_def: OpDef) -> OpRow:
    kernels = KERNELS.for_op(op_def.name)
    types = [attr for attr in op_def.attrs.values() if attr.kind in ("type", "list(type)")]
    devices = {"any" if k.device_type == ANY_DEVICE else k.device_type for k in kernels}
    return OpRow(
        op_def.name,
        {attr.name: _dtypes(attr.name, attr.allowed, kernels) for attr in types},
        sorted(devices),
        "missing" if op_def.name not in GRADIENTS else "none" if GRADIENTS[op_def.name] is None else "yes",
        dict(_stated(op_def.traits)),
    )


def _stated(traits: Traits) -> Iterator[tuple[str, str]]:
    """Yield the traits that differ from the default, as text."""
    for field in dataclasses.fields(traits):
        value = getattr(traits, field.name)
        if value != getattr(UNSTATED, field.name):
            yield field.name, _shown(value)


def _shown(value: object) -> str:
    if isinstance(value, Cost):
        return "free" if value.is_free else f"{value.factor:g} x {value.rate} ({value.work.__name__.strip('_')})"
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, frozenset):
        return " ".join(sorted(value))
    if dataclasses.is_dataclass(value):
        return ", ".join(f"{f.name}={v}" for f in dataclasses.fields(value) if (v := getattr(value, f.name)))
    return str(value)


def _dtypes(attr: str, allowed: Sequence[DType] | None, kernels: Sequence[KernelDef]) -> list[str]:
    """Return the names of the dtypes that the op allows and a kernel accepts; empty if neither restricts them."""
    limits = [kernel.dtypes.get(attr) for kernel in kernels]
    # A kernel without a limit accepts every dtype.
    taken = None if None in limits else {dtype for limit in limits if limit is not None for dtype in limit}
    if allowed is None:
        return sorted(dtype.name for dtype in taken or ())
    return [dtype.name for dtype in allowed if taken is None or dtype in taken]


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "ops",
        help="list the ops with their dtypes, devices and gradients",
        description="List all registered ops with the dtypes and device types of their kernels, and whether they have "
        "gradients. With --import, also those of your own modules.",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON array")
    parser.add_argument("--traits", action="store_true", help="show the traits that the compiler and placement use")
    add_imports(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    rows = list_ops()
    if arguments.json:
        print(json.dumps([dataclasses.asdict(row) for row in rows], indent=2))
        return 0
    width = max((len(row.op) for row in rows), default=0)
    if arguments.traits:
        for row in rows:
            rest = "; ".join(f"{name}: {text}" for name, text in row.traits.items() if name != "kind")
            print(f"{row.op:<{width}}  {row.traits.get('kind', '-'):<16} {rest}".rstrip())
        return 0
    print(f"{'op':<{width}}  gradient  devices   dtypes")
    for row in rows:
        dtypes = "; ".join(f"{name}: {' '.join(names) or 'any'}" for name, names in row.dtypes.items())
        print(f"{row.op:<{width}}  {row.gradient:<8}  {' '.join(row.devices) or '-':<8}  {dtypes}".rstrip())
    counts = {kind: sum(row.gradient == kind for row in rows) for kind in ("yes", "none", "missing")}
    without = sum(not row.devices for row in rows)
    print(
        f"{len(rows)} ops: {counts['yes']} with a gradient, {counts['none']} not differentiable, "
        f"{counts['missing']} without one; {without} without a kernel"
    )
    return 0
