"""Builders generated from op definitions, with signature and docstring, for `aioflow.raw_ops`."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable
from typing import Any, Final

from aioflow.arguments import did_you_mean, near_names
from aioflow.graph.dtypes import DType
from aioflow.graph.opdef import OPS, OpDef
from aioflow.graph.signature.arguments import ArgDef
from aioflow.graph.signature.attributes import AttrDef
from aioflow.ops.apply import apply_op

_BUILDERS: Final[dict[str, Callable[..., object]]] = {}


def public_ops() -> list[str]:
    """Return the sorted names of the registered public ops."""
    return sorted(op_def.name for op_def in OPS if not op_def.name.startswith("_"))


def builder_of(name: str, module: str) -> Callable[..., object]:
    """Return the builder of an op, creating it on first use. `module` becomes the builder's `__module__`.

    Raises:
        AttributeError: no such op exists; the message lists similar names.
    """
    if name not in OPS or OPS.get(name).made_by != "user":
        hint = "" if name.startswith("__") else did_you_mean(near_names(name, public_ops()))
        raise AttributeError(f"no op {name!r} among the {len(OPS)} that are registered{hint}")
    builder = _BUILDERS.get(name)
    if builder is None:
        builder = _BUILDERS[name] = _make_builder(OPS.get(name), module)
    return builder


def _make_builder(op_def: OpDef, module: str) -> Callable[..., object]:
    signature, attrs = _signature(op_def)
    inputs = [_parameter_name(arg.name) for arg in op_def.inputs]

    def builder(**given: Any) -> Any:
        try:
            given = signature.bind(**given).arguments
        except TypeError as error:
            raise TypeError(f"{op_def.name}{signature}: {error}") from None
        values = {attr.name: given[key] for key, attr in attrs.items() if key in given}
        return apply_op(op_def.name, *(given[key] for key in inputs), name=given.get("name"), **values)

    builder.__name__ = builder.__qualname__ = op_def.name
    builder.__module__ = module
    builder.__doc__ = _docstring(op_def, list(attrs.values()))
    builder.__signature__ = signature  # type: ignore[attr-defined]  # read by `inspect.signature`
    return builder


def _parameter_name(name: str) -> str:
    return name + "_" if keyword.iskeyword(name) else name


def _signature(op_def: OpDef) -> tuple[inspect.Signature, dict[str, AttrDef]]:
    """Return the signature of a builder, and its attributes by parameter name.

    The parameters are the inputs, the attributes without a default, the attributes with a default, and the name.
    """
    # The inputs determine these attributes.
    implied = {a for arg in op_def.inputs for a in (arg.type_attr, arg.list_attr, arg.number_attr) if a is not None}
    # False sorts before True: attributes without a default come first.
    free = sorted((a for a in op_def.attrs.values() if a.name not in implied), key=lambda attr: attr.has_default)
    attrs = {_parameter_name(attr.name): attr for attr in free}
    parameters = [_parameter(_parameter_name(arg.name)) for arg in op_def.inputs]
    parameters += [
        _parameter(key, attr.default) if attr.has_default else _parameter(key) for key, attr in attrs.items()
    ]
    return inspect.Signature([*parameters, _parameter("name", None)]), attrs


def _parameter(name: str, default: object = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)


def _docstring(op_def: OpDef, attrs: list[AttrDef]) -> str:
    lines = [f"A node of op {op_def.name}.", "", "Args:"]
    lines += [f"    {_parameter_name(arg.name)}: {_kind(op_def, arg)}" for arg in op_def.inputs]
    lines += [f"    {_parameter_name(attr.name)}: {_attribute(attr)}" for attr in attrs]
    lines += ["    name: The node's name.", "", "Returns:"]
    if op_def.outputs:
        lines += [f"    {arg.name}: {_kind(op_def, arg)}" for arg in op_def.outputs]
    else:
        lines.append("    The operation.")
    return "\n".join(lines)


def _kind(op_def: OpDef, arg: ArgDef) -> str:
    if arg.list_attr is not None:
        return f"tensors of the dtypes {arg.list_attr}."
    what = "tensors" if arg.number_attr is not None else "a tensor"
    if arg.type_attr is None:
        return f"{what} of {arg.dtype}."
    allowed = op_def.attrs[arg.type_attr].allowed
    return f"{what} of dtype {arg.type_attr}{_choice(allowed)}."


def _attribute(attr: AttrDef) -> str:
    limit = "" if attr.minimum is None else f", at least {attr.minimum}"
    default = f"; {_shown(attr.default)} by default" if attr.has_default else ""
    return f"{attr.kind}{limit}{_choice(attr.allowed)}{default}."


def _choice(allowed: tuple[object, ...] | None) -> str:
    return "" if allowed is None else f", one of {', '.join(_shown(value) for value in allowed)}"


def _shown(value: object) -> str:
    return value.name if isinstance(value, DType) else repr(value)
