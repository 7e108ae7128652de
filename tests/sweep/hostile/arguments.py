"""Arguments of one call, as data: random ones, ones that the op's shape function accepts, and ones with one flaw."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, TypeAlias

import numpy as np

import aioflow as af
from aioflow.errors import OpError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.opdef import OpDef
from aioflow.graph.signature.arguments import ArgDef
from aioflow.graph.signature.attributes import AttrDef
from aioflow.kernels.registry import KERNELS
from aioflow.ops.apply import apply_op, infer_attrs, output_specs
from tests.sweep.hostile import handles, values

__all__ = [
    "Arguments",
    "Array",
    "Held",
    "Item",
    "Junk",
    "accepted",
    "flawed",
    "implied_attrs",
    "items_of",
    "provide",
    "wild",
]

_TRIES: Final = 40  # proposals to try before giving up on accepted arguments
_HANDLES: Final = (dtypes.resource, dtypes.variant)


@dataclass(frozen=True, slots=True)
class Array:
    """An input of numbers, booleans or strings."""

    dtype: DType
    value: np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Held:
    """An input that is a resource or variant handle."""

    of: handles.Resource


@dataclass(frozen=True, slots=True)
class Junk:
    """An input that is not a tensor at all."""

    value: Any


Item: TypeAlias = "Array | Held | Junk"


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one call.

    Attributes:
        op_def: Definition of the op.
        base: Shape from which most of the arrays derive theirs.
        attrs: Attributes by the names of the signature.
        inputs: Inputs by the names of the signature; a list for a sequence.
        flaw: Name of the one argument that was damaged.
    """

    op_def: OpDef
    base: tuple[int, ...]
    attrs: dict[str, Any]
    inputs: dict[str, Any]
    flaw: str | None = None


def implied_attrs(op_def: OpDef) -> set[str]:
    """Return the names of the attributes that follow from the inputs."""
    return {n for arg in op_def.inputs for n in (arg.type_attr, arg.list_attr, arg.number_attr) if n is not None}


def items_of(value: Any) -> list[Item]:
    """Return the items of one input."""
    return value if isinstance(value, list) else [value]


# ── proposals ────────────────────────────────────────────────────────────────────────────────────────────────────────


def wild(op_def: OpDef, rng: Random) -> Arguments:
    """Return arguments each of which may be wrong."""
    attrs = {attr.name: values.attribute(rng, attr.kind, attr.allowed) for attr in op_def.attrs.values()}
    attrs |= {arg.number_attr: rng.choice((0, 1, 2, 2, 3)) for arg in op_def.inputs if arg.number_attr is not None}
    made = Arguments(op_def, values.shape(rng), attrs, {})
    return replace(made, inputs={arg.name: _wild_input(made, arg, rng) for arg in op_def.inputs})


def _wild_input(made: Arguments, arg: ArgDef, rng: Random) -> Any:
    if rng.random() < 0.03:
        return Junk(rng.choice(values.JUNK))
    items: list[Item] = []
    for kind in _dtypes(arg, made.attrs):
        drawn = values.dtype(rng) if rng.random() < 0.04 else kind
        dims = made.base if rng.random() < 0.5 else values.shape(rng)
        items.append(_item(made, arg, drawn, values.array(rng, drawn, dims)))
    return items if arg.is_sequence else items[0]


def accepted(op_def: OpDef, rng: Random) -> Arguments:
    """Return arguments that the shape function accepts and a kernel exists for, or the last of `_TRIES` proposals."""
    found = _proposal(op_def, rng)
    for _ in range(_TRIES):
        refusal = _refusal(found)
        if refusal is None:
            break
        found = _other(found, refusal, rng)
    return found


def _proposal(op_def: OpDef, rng: Random, rank: int | None = None) -> Arguments:
    base = values.usual_shape(rng, rank)
    made = Arguments(op_def, base, {attr.name: _valid(attr, base, rng) for attr in op_def.attrs.values()}, {})
    return replace(made, inputs={arg.name: _input(made, arg, rng) for arg in op_def.inputs})


def _valid(attr: AttrDef, base: tuple[int, ...], rng: Random) -> Any:
    return attr.default if attr.has_default and rng.random() < 0.6 else values.valid_attribute(rng, attr, base)


def _input(made: Arguments, arg: ArgDef, rng: Random, rank: int | None = None) -> Any:
    allowed = made.op_def.attrs[arg.type_attr].allowed if arg.type_attr is not None else (arg.dtype,)
    is_size = allowed is not None and all(kind is not None and kind.is_integer for kind in allowed)
    kinds = _dtypes(arg, made.attrs)
    items = [_item(made, arg, kind, values.fitting(rng, kind, made.base, is_size, rank)) for kind in kinds]
    return items if arg.is_sequence else items[0]


def _item(made: Arguments, arg: ArgDef, kind: DType, value: np.ndarray[Any, Any]) -> Item:
    if kind in _HANDLES:
        return Held(handles.resource_for(made.op_def, arg.name, kind, made.attrs, made.base))
    return Array(kind, value)


def _dtypes(arg: ArgDef, attrs: Mapping[str, Any]) -> list[DType]:
    """Return one dtype per item."""
    if arg.list_attr is not None:
        kinds = attrs[arg.list_attr]
        return [_dtype(kind) for kind in kinds] if isinstance(kinds, list | tuple) else [dtypes.float32]
    kind = _dtype(attrs[arg.type_attr] if arg.type_attr is not None else arg.dtype)
    count = 1 if arg.number_attr is None else attrs[arg.number_attr]
    return [kind] * (count if isinstance(count, int) and 0 <= count < 5 else 1)


def _dtype(value: Any) -> DType:
    return value if isinstance(value, DType) else dtypes.float32


def provide(op_def: OpDef) -> None:
    """Define the functions "f" and "p", which attributes of the op may name, in the default graph."""
    if any(attr.kind in ("func", "list(func)") for attr in op_def.attrs.values()):
        signature = [af.TensorSpec(None, af.float32)]
        af.function(lambda x: x * 2.0, signature, "f").get_concrete_function()
        af.function(lambda x: x > 1.0, signature, "p").get_concrete_function()


# ── the judge ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _refusal(made: Arguments) -> str | None:
    """Return why these arguments, as constants, are refused: the builder's error or "no kernel". None if accepted."""
    implied = implied_attrs(made.op_def)
    attrs = {name: value for name, value in made.attrs.items() if name not in implied}
    with af.Graph().as_default() as graph:
        provide(made.op_def)
        try:
            inputs = {name: _known(value) for name, value in made.inputs.items()}
            if made.op_def.made_by != "user":  # no graph has such nodes
                output_specs(made.op_def, inputs, infer_attrs(made.op_def, inputs, attrs))
                return None
            apply_op(made.op_def.name, *inputs.values(), name="call", **attrs)
        except OpError as error:
            return str(error)
        except Exception:  # a fault, which the call itself reports
            return None
        node = next(op for op in reversed(graph.get_operations()) if op.type == made.op_def.name)
    kernels = KERNELS.for_op(node.type)
    return "no kernel" if kernels and KERNELS.find(node.type, "CPU", node.attrs) is None else None


def _known(value: Any) -> Any:
    made = [_known_item(item) for item in items_of(value)]
    return made if isinstance(value, list) else made[0]


def _known_item(item: Item) -> Any:
    if isinstance(item, Junk):
        return item.value
    return handles.make(item.of) if isinstance(item, Held) else af.constant(item.value, item.dtype)


def _other(made: Arguments, refusal: str, rng: Random) -> Arguments:
    """Return another proposal.

    Draw anew an argument that the refusal names, with the rank that it expects, or any one argument, or all of them.
    """
    implied = implied_attrs(made.op_def)
    free = [name for name in (*made.attrs, *made.inputs) if name not in implied]
    named = [name for name in free if re.search(rf"\b{name}\b", refusal)]
    rank = _wanted_rank(refusal)
    if not free or rng.random() < 0.25:
        return _proposal(made.op_def, rng, None if named else rank)
    name = rng.choice(named if named and rng.random() < 0.8 else free)
    if name not in made.inputs:
        return replace(made, attrs={**made.attrs, name: _valid(made.op_def.attrs[name], made.base, rng)})
    arg = next(arg for arg in made.op_def.inputs if arg.name == name)
    return replace(made, inputs={**made.inputs, name: _input(made, arg, rng, rank if name in named else None)})


def _wanted_rank(refusal: str) -> int | None:
    if "must be a scalar" in refusal:
        return 0
    found = re.search(r"expected:.*rank (?:>= )?(\d)", refusal)
    return None if found is None else int(found[1])


# ── flaws ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def flawed(made: Arguments, rng: Random) -> Arguments:
    """Return the same arguments with exactly one damaged, an input more often than an attribute."""
    implied = implied_attrs(made.op_def)
    names = [*made.inputs] * 3 + [name for name in made.attrs if name not in implied]
    if not names:
        return made
    name = rng.choice(names)
    if name not in made.inputs:
        other = values.other_attribute(rng, made.op_def.attrs[name], made.attrs[name])
        return replace(made, attrs={**made.attrs, name: other}, flaw=name)
    value = made.inputs[name]
    damaged = _other_items(value, rng) if isinstance(value, list) else _other_item(value, rng)
    return replace(made, inputs={**made.inputs, name: damaged}, flaw=name)


def _other_items(items: Sequence[Item], rng: Random) -> list[Item]:
    if not items or rng.random() < 0.2:
        return [*items, *items[:1]] if rng.random() < 0.5 else list(items[1:])
    hit = rng.randrange(len(items))
    return [_other_item(item, rng) if i == hit else item for i, item in enumerate(items)]


def _other_item(item: Item, rng: Random) -> Item:
    if rng.random() < 0.04:
        return Junk(rng.choice(values.JUNK))
    if isinstance(item, Held):
        return Held(handles.other(item.of, rng)) if rng.random() < 0.9 else Array(dtypes.int32, np.zeros((), np.int32))
    if isinstance(item, Junk):
        return item
    if rng.random() < 0.08:
        kind = values.dtype(rng)
        if kind in _HANDLES:
            return Held(handles.some(kind, rng))
        return Array(kind, values.array(rng, kind, item.value.shape))
    return Array(item.dtype, values.damaged(rng, item.dtype, item.value))
