"""Handles of the kind that an op works on: made by the ops whose kernels declare that class, and filled."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any

import numpy as np

import aioflow as af
from aioflow.errors import OpError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import OPS, OpDef
from aioflow.graph.signature.arguments import ArgDef
from aioflow.graph.signature.attributes import AttrDef
from aioflow.kernels.registry import KERNELS
from aioflow.ops.apply import apply_op
from tests.sweep.hostile import values

__all__ = ["Resource", "fill", "make", "other", "resource_for", "some"]


@dataclass(frozen=True, slots=True)
class Resource:
    """The resource or variant that a handle refers to.

    Attributes:
        maker: Name of the op that makes it.
        dtypes: Dtypes of its elements.
        dims: Shape of its elements.
    """

    maker: str
    dtypes: tuple[DType, ...]
    dims: tuple[int, ...]


def resource_for(op_def: OpDef, arg: str, kind: DType, attrs: Mapping[str, Any], base: tuple[int, ...]) -> Resource:
    """Return the resource that an input of an op should refer to, for a call with these attributes."""
    fitting = _fitting(op_def.name, arg, kind)
    # The choice depends only on the shape, so that all handles of a call refer to the same kind of resource.
    return Resource(fitting[sum(base) % len(fitting)], _element_dtypes(attrs), base)


def some(kind: DType, rng: Random) -> Resource:
    """Return any resource of this dtype, with small elements."""
    return Resource(rng.choice(_makers(kind)), (dtypes.float32,), (2,))


def other(like: Resource, rng: Random) -> Resource:
    """Return a resource of another kind, or with other elements."""
    if rng.random() < 0.5:
        return replace(like, maker=rng.choice(_makers(_kind(like.maker))))
    if rng.random() < 0.5:
        return replace(like, dims=values.shape(rng))
    return replace(like, dtypes=(values.dtype(rng),))


def make(like: Resource) -> Tensor:
    """Make the handle in the default graph. Raise OpError if the ops cannot make it."""
    maker = OPS.get(like.maker)
    attrs = {attr.name: _own_attribute(attr, like) for attr in maker.attrs.values()}
    implied = {n for arg in maker.inputs for n in (arg.type_attr, arg.list_attr, arg.number_attr)}
    inputs = [_own_input(maker, arg, attrs, like) for arg in maker.inputs]
    before = af.get_default_graph().version
    apply_op(maker.name, *inputs, **{k: v for k, v in attrs.items() if k not in implied})
    made = next(op for op in af.get_default_graph().get_operations()[before:] if op.type == maker.name)
    return next(t for t in made.outputs if t.dtype is _kind(like.maker))


def fill(like: Resource, handle: Tensor, rng: Random) -> list[Operation]:
    """Add nodes that put values into the resource; the call runs after them."""
    made: list[Operation] = []
    for user in rng.choices(_users(like.maker), k=rng.choice((1, 1, 2))) if _users(like.maker) else ():
        op_def = OPS.get(user)
        implied = {n for arg in op_def.inputs for n in (arg.type_attr, arg.list_attr, arg.number_attr)}
        all_attrs = {a.name: _own_attribute(a, like) for a in op_def.attrs.values()}
        attrs = {name: value for name, value in all_attrs.items() if name not in implied}
        before = af.get_default_graph().version
        try:
            inputs = [_own_input(op_def, arg, all_attrs, like) for arg in op_def.inputs[1:]]
            apply_op(user, handle, *inputs, **attrs)
        except OpError:
            continue
        made += [op for op in af.get_default_graph().get_operations()[before:] if op.type == user]
    return made


# ── makers and users ─────────────────────────────────────────────────────────────────────────────────────────────────


@cache
def _fitting(op: str, arg: str, kind: DType) -> list[str]:
    """Return the ops that make the resource which the op's kernel takes.

    Variants have no classes, so their makers are chosen by words that the names of the two ops share.
    """
    makers = _makers(kind)
    takes = [kernel.takes[arg] for kernel in KERNELS.for_op(op) if arg in kernel.takes]
    if takes:
        return [
            m for m in makers if any(k.makes and issubclass(k.makes, takes[0]) for k in KERNELS.for_op(m))
        ] or makers
    alike = [maker for maker in makers if _words(maker) & _words(op)]
    return alike or makers


@cache
def _makers(kind: DType) -> list[str]:
    """Return the ops that make a handle of this dtype from inputs that have another dtype."""
    return [
        o.name
        for o in OPS
        if any(a.dtype is kind for a in o.outputs) and not any(a.dtype is kind or a.list_attr for a in o.inputs)
    ]


@cache
def _kind(maker: str) -> DType:
    kinds = [a.dtype for a in OPS.get(maker).outputs]
    return next(kind for kind in (dtypes.resource, dtypes.variant) if kind in kinds)


@cache
def _users(maker: str) -> list[str]:
    """Return the ops that put values into the maker's resource; for variables, only `AssignVariableOp`."""
    if _kind(maker) is not dtypes.resource:
        return []
    found = [
        o.name
        for o in OPS
        if len(o.inputs) > 1
        and o.inputs[0].dtype is dtypes.resource
        and maker in _fitting(o.name, o.inputs[0].name, dtypes.resource)
    ]
    return [name for name in found if name == "AssignVariableOp"] or found


def _words(name: str) -> set[str]:
    return set(re.findall(r"[A-Z][a-z]+", name)) - {"Resource", "Op", "Get", "From"}


# ── elements ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _element_dtypes(attrs: Mapping[str, Any]) -> tuple[DType, ...]:
    """Return the dtypes of the elements.

    These are an attribute that is a list of dtypes, or else the first dtype, which all signatures use for the values.
    """
    for value in attrs.values():
        if isinstance(value, list | tuple) and value and all(isinstance(each, DType) for each in value):
            return tuple(value)
    ours = [attrs[n] for n in ("dtype", "T", "element_dtype", "elem_type") if isinstance(attrs.get(n), DType)]
    return tuple(ours[:1] or [v for v in attrs.values() if isinstance(v, DType)][:1]) or (dtypes.float32,)


def _own_attribute(attr: AttrDef, like: Resource) -> Any:
    first = like.dtypes[0]
    if attr.kind == "type":
        return first if attr.allowed is None or first in attr.allowed else attr.allowed[0]
    if attr.kind == "list(type)":
        return list(like.dtypes)
    if attr.kind == "list(shape)":
        return [like.dims] * len(like.dtypes)
    if attr.kind == "shape":
        return like.dims
    if attr.has_default:
        return attr.default
    return attr.allowed[0] if attr.allowed else {"int": 1, "string": "a"}.get(attr.kind, 0)


def _own_input(op_def: OpDef, arg: ArgDef, attrs: Mapping[str, Any], like: Resource) -> Any:
    if arg.dtype is not None and arg.dtype in (dtypes.resource, dtypes.variant):
        return make(replace(like, maker=_fitting(op_def.name, arg.name, arg.dtype)[0]))
    if arg.list_attr is not None:
        return [_constant(kind, like.dims) for kind in like.dtypes]
    if arg.type_attr is None:
        made = _constant(arg.dtype or like.dtypes[0], ())
    elif op_def.attrs[arg.type_attr].allowed == (dtypes.int32, dtypes.int64):
        made = af.constant(np.array(like.dims), attrs[arg.type_attr])
    else:
        made = _constant(attrs[arg.type_attr], like.dims)
    return [made] if arg.is_sequence else made


def _constant(kind: DType, dims: tuple[int, ...]) -> Tensor:
    element: Any = b"a" if kind is dtypes.string else 1
    return af.constant(np.full(dims, element, kind.np_dtype), kind)
