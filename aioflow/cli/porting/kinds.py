"""Kinds of the values in a program, and facts about aioflow's public objects, read from their signatures."""

from __future__ import annotations

import builtins
import inspect
import sys
import types
import typing
from collections.abc import AsyncIterable, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, TypeAlias

import numpy as np

import aioflow as af
from aioflow.errors import UnimplementedError
from aioflow.loading.tensorflow_names import INNER_MODULES, MODULES, NAMES

# ── kinds ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class AioflowModule:
    """aioflow, or a public module of it: `path` has the names after `aioflow`."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """A name that aioflow does not have: the namespace that lacks it, and the names after that."""

    namespace: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Public:
    """A class, function or constant of aioflow."""

    value: Any


@dataclass(frozen=True, slots=True)
class Instance:
    """A value with this annotation."""

    hint: Any


@dataclass(frozen=True, slots=True)
class Foreign:
    """A module other than aioflow, a name of it, or a value of Python's own types."""

    name: str


@dataclass(frozen=True, slots=True)
class Local:
    """A function or class that the program defines (`ProgramFunction`, `ProgramClass`)."""

    definition: Any


@dataclass(frozen=True, slots=True)
class LocalInstance:
    """An instance of a class that the program defines."""

    definition: Any


Kind: TypeAlias = AioflowModule | Missing | Public | Instance | Foreign | Local | LocalInstance
Kinds: TypeAlias = frozenset[Kind]
UNKNOWN: Final[Kinds] = frozenset()
PLAIN: Final[Kinds] = frozenset({Foreign("builtins")})
TENSOR: Final[Kinds] = frozenset({Instance(af.Tensor)})

# Customary names of parameters and attributes, for values whose origin the file does not show.
CUSTOMARY: Final = {
    "sess": af.Session,
    "session": af.Session,
    "saver": af.train.Saver,
    "coord": af.train.Coordinator,
    "server": af.train.Server,
}
_TENSORS: Final = (af.Tensor, af.Variable, af.PartitionedVariable)


def origin(module: str) -> Kinds:
    """Return the kind of an imported module other than aioflow and TensorFlow."""
    return frozenset({Foreign(module)})


def is_tensor(kinds: Kinds) -> bool:
    """Return whether a value may be a tensor or variable."""
    return any(
        isinstance(kind, Instance) and inspect.isclass(h := kind.hint) and issubclass(h, _TENSORS) for kind in kinds
    )


# ── names ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def public_member(namespace: AioflowModule, name: str) -> Kind:
    """Return what `name` is in a namespace of aioflow."""
    path = ".".join(namespace.path)
    module = import_module(f"aioflow.{path}".rstrip("."))
    inner = (INNER_MODULES.get(path, "") if path else MODULES).split()
    # Modules that are not public are attributes, too, once they are imported.
    if name in module.__all__:
        try:
            value = getattr(module, name)
        except UnimplementedError:  # the name needs an extra that is not installed
            return Foreign(name)
        return AioflowModule((*namespace.path, name)) if isinstance(value, types.ModuleType) else Public(value)
    if name.startswith("__"):
        return Foreign(name) if hasattr(module, name) else Missing(namespace.path, (name,))
    found = getattr(module, name, None) if path and name in inner else None
    if isinstance(found, types.ModuleType):
        return AioflowModule(tuple(found.__name__.split(".")[1:]))  # `app.flags` is `flags`
    if not path and name not in inner and find_spec(f"aioflow.{name}") is not None:
        return Foreign(name)  # a module that is imported by its own name, such as aioflow.serve
    return Missing(namespace.path, (name,))


def resolved(names: Iterable[str]) -> Kind:
    """Return what a dotted name after `aioflow` or `tensorflow` is."""
    kind: Kind = AioflowModule(())
    for name in names:
        kind = next(iter(member(kind, name)), Missing((), (name,)))
    return kind


def member(kind: Kind, name: str) -> Kinds:
    """Return the kinds of the attribute `name`."""
    match kind:
        case AioflowModule():
            return frozenset({public_member(kind, name)})
        case Missing(namespace, names):
            # `tf.compat.v1` is another name of the package itself.
            whole = (namespace, names, name) == ((), ("compat",), "v1")
            return frozenset({AioflowModule(()) if whole else Missing(namespace, (*names, name))})
        case Foreign(base):
            return frozenset({Foreign(f"{base}.{name}")})
        case Public() | Instance():
            return _of_object(kind, name)
    return UNKNOWN


def _of_object(kind: Public | Instance, name: str) -> Kinds:
    owner = kind.value if isinstance(kind, Public) else _class_of(kind.hint)
    part = inspect.getattr_static(owner, name, None)
    if isinstance(part, property) and isinstance(kind, Instance):
        return instances(_hints(part.fget).get("return"))
    if isinstance(part, staticmethod | classmethod):
        part = part.__func__
    return UNKNOWN if part is None else frozenset({Public(part)})


def lacks(kind: Kind, name: str) -> bool:
    """Return whether instances have no such method, as far as their class shows."""
    if not isinstance(kind, Instance):
        return False
    owner = _class_of(kind.hint)
    open_ended = owner is None or hasattr(owner, "__getattr__")
    return not open_ended and not hasattr(owner, name) and name not in _annotated(owner)


def class_name(kind: Kind) -> str:
    """Return the name of an instance's class, for messages."""
    owner = _class_of(kind.hint) if isinstance(kind, Instance) else None
    return "" if owner is None else owner.__name__


def _annotated(owner: type) -> Collection[str]:
    return {name for each in owner.__mro__ for name in getattr(each, "__annotations__", ())}


def _class_of(hint: Any) -> Any:
    """Return the class of aioflow that an annotation names, or None."""
    found = typing.get_origin(hint) or hint
    return found if inspect.isclass(found) and found.__module__.startswith("aioflow") else None


# ── calls ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def called(kind: Kind) -> Kinds:
    """Return the kinds of the result of a call; of an awaited one, if it is a coroutine."""
    match kind:
        case Public(value) if inspect.isclass(value):
            return frozenset({Instance(value)})
        case Public(value):
            return instances(_awaited_hint(_hints(value).get("return")))
        case Instance(hint) if typing.get_origin(hint) is Callable or _is_callable(hint):
            return instances(_awaited_hint(typing.get_args(hint)[-1]))
        case Foreign(name):
            # Objects of other packages may hold sessions and tensors.
            root = name.partition(".")[0]
            return frozenset({kind}) if root in (*sys.stdlib_module_names, "builtins", np.__name__) else UNKNOWN
    return UNKNOWN


def owns_tasks(kind: Kind) -> bool:
    """Return whether a value is a coordinator, which can start tasks only in its block."""
    return isinstance(kind, Instance) and kind.hint is af.train.Coordinator


def must_be_awaited(kind: Kind) -> bool:
    """Return whether a call of a public function, method or callable is to be awaited."""
    if isinstance(kind, Instance) and _is_callable(kind.hint):
        return _is_awaitable(typing.get_args(kind.hint)[-1])
    if not isinstance(kind, Public) or inspect.isclass(kind.value):
        return False
    return inspect.iscoroutinefunction(inspect.unwrap(kind.value)) or _is_awaitable(_hints(kind.value).get("return"))


@cache
def awaited_methods() -> frozenset[str]:
    """Return the coroutine methods of all classes that TensorFlow has, too, without those of Python's containers."""
    found = set()
    for module, names in NAMES.items():
        for name in names.split():
            value = _value(module, name)
            if inspect.isclass(value) and value.__module__.startswith("aioflow"):
                found |= {n for n, part in inspect.getmembers(value, callable) if must_be_awaited(Public(part))}
    common = {name for kind in (str, dict, list, set) for name in dir(kind)}
    return frozenset(name for name in found - common if not name.startswith("_"))


def _value(module: str, name: str) -> object:
    kind = resolved([*filter(None, module.split(".")), name])
    return kind.value if isinstance(kind, Public) else None


def accepts_coroutine(kind: Kind, argument: int | str) -> bool:
    """Return whether a parameter of a public function, by index or name, accepts a coroutine function."""
    if not isinstance(kind, Public):
        return False
    function = kind.value.__init__ if inspect.isclass(kind.value) else kind.value
    names = [name for name in _parameters(function) if name != "self"]
    name = argument if isinstance(argument, str) else names[argument] if argument < len(names) else ""
    return "Awaitable" in str(_hints(function).get(name)) or "Coroutine" in str(_hints(function).get(name))


def unknown_keywords(kind: Kind, keywords: Sequence[str]) -> Iterator[str]:
    """Yield the keyword arguments that a public function or class does not have."""
    if isinstance(kind, Public) and callable(kind.value):
        parameters = _parameters(kind.value)
        if parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            yield from (keyword for keyword in keywords if keyword not in parameters)


@cache
def _parameters(function: Any) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a built-in function without a signature
        return {}


# ── blocks and loops ──────────────────────────────────────────────────────────────────────────────────────────────────


def entered(kind: Kind) -> tuple[bool, Kinds]:
    """Return whether a value is entered by `async with`, and the kinds of the target of `as`."""
    if isinstance(kind, Instance):
        hint = kind.hint
        if typing.get_origin(hint) in (AbstractAsyncContextManager, *_SYNC_BLOCKS):
            is_async = typing.get_origin(hint) is AbstractAsyncContextManager
            return is_async, instances(typing.get_args(hint)[0])
        owner = _class_of(hint)
        if owner is not None and hasattr(owner, "__aenter__"):
            return True, instances(_hints(owner.__aenter__).get("return"), owner)
        if owner is not None and hasattr(owner, "__enter__"):
            return False, instances(_hints(owner.__enter__).get("return"), owner)
    return False, UNKNOWN


_SYNC_BLOCKS: Final = (typing.get_origin(typing.ContextManager[int]),)


def iterated(kind: Kind) -> tuple[bool, Kinds]:
    """Return whether a value is iterated by `async for`, and the kinds of its elements."""
    if isinstance(kind, Foreign):
        return False, frozenset({kind})
    if not isinstance(kind, Instance):
        return False, UNKNOWN
    hint = kind.hint
    made = typing.get_origin(hint) or hint
    is_async = inspect.isclass(made) and issubclass(made, AsyncIterable) and not hasattr(made, "__iter__")
    return is_async, element(kind, None)


def element(kind: Kind, index: int | None) -> Kinds:
    """Return the kinds of an element: that at `index` of a tuple, any of a sequence, a slice of a tensor."""
    if isinstance(kind, Foreign):
        return frozenset({kind})
    if not isinstance(kind, Instance):
        return UNKNOWN
    if is_tensor(frozenset({kind})):
        return TENSOR
    arguments = typing.get_args(kind.hint)
    if typing.get_origin(kind.hint) is tuple and arguments and arguments[-1] is not Ellipsis:
        chosen = arguments if index is None else arguments[index : index + 1]
        return frozenset().union(*(instances(each) for each in chosen))
    return instances(arguments[0]) if len(arguments) == 1 or arguments[1:] == (Ellipsis,) else UNKNOWN


# ── annotations ───────────────────────────────────────────────────────────────────────────────────────────────────────


def instances(hint: Any, itself: Any = None) -> Kinds:
    """Return the kinds of a value with this annotation. `itself` stands for `Self`."""
    if hint in (None, type(None), Any, object) or isinstance(hint, typing.TypeVar | str):
        return UNKNOWN
    if hint is typing.Self:
        return instances(itself)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return frozenset().union(*(instances(each) for each in typing.get_args(hint)))
    if inspect.isclass(hint) and hint.__module__ in ("builtins", np.__name__):
        return PLAIN if typing.get_origin(hint) is None else frozenset({Instance(hint)})
    return frozenset({Instance(hint)})


def _awaited_hint(hint: Any) -> Any:
    return typing.get_args(hint)[-1] if _is_awaitable(hint) and typing.get_args(hint) else hint


def _is_awaitable(hint: Any) -> bool:
    """Return whether the annotation is Awaitable or Coroutine itself: a task may be awaited, and need not be."""
    return typing.get_origin(hint) in (Awaitable, typing.get_origin(typing.Coroutine[int, int, int]))


def _is_callable(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.get_origin(typing.Callable[[], int]) and bool(typing.get_args(hint))


@cache
def _hints(function: Any) -> dict[str, Any]:
    """Return the annotations of a function. A decorated generator that makes a block returns its context manager."""
    inner = inspect.unwrap(function)
    try:
        hints = typing.get_type_hints(inner)
    except (TypeError, NameError):  # not a function, or annotations for type checkers only
        return {}
    given = typing.get_args(hints.get("return"))
    if inner is not function and given and inspect.isasyncgenfunction(inner):
        hints["return"] = AbstractAsyncContextManager[given[0]]  # type: ignore[valid-type] # a value, at run time
    elif inner is not function and given and inspect.isgeneratorfunction(inner):
        hints["return"] = typing.ContextManager[given[0]]  # type: ignore[valid-type] # a value, at run time
    return hints


def builtin(name: str) -> Kinds:
    """Return the kinds of a name that the program does not bind."""
    # None stands for a value that comes later.
    return PLAIN if hasattr(builtins, name) and name != "None" else UNKNOWN
