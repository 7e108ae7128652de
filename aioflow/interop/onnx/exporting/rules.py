"""The registry of translations into ONNX: each op of ours has at most one, a function beside others of its family.

    @exporter("Square")
    def square(node: Node, x: Value) -> Value:
        return node.make("Mul", x, x)

It gets the node and its inputs, and returns its outputs. What it returns in another dtype than the node gives is cast.
A translation that takes channels in either place says so (`any_layout`); all others get their inputs as our graph has
them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Final, TypeVar

from aioflow.errors import AlreadyRegisteredError
from aioflow.interop.onnx.exporting import families

__all__ = ["Rule", "exporter", "load_families", "rule_for", "translated_ops"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Rule:
    """How an op is translated."""

    make: Callable[..., Any]
    any_layout: bool = False


_RULES: Final[dict[str, Rule]] = {}


def exporter(*ops: str, any_layout: bool = False) -> Callable[[_Function], _Function]:
    """Register a translation of ops.

    Raises:
        AlreadyRegisteredError: an op has one.
    """

    def register(function: _Function) -> _Function:
        for op in ops:
            if op in _RULES:
                raise AlreadyRegisteredError(f"op {op!r} has a translation into ONNX already", op_type=op)
            _RULES[op] = Rule(function, any_layout)
        return function

    return register


def rule_for(op: str) -> Rule | None:
    """The translation of an op, if there is one."""
    return _RULES.get(op)


def load_families() -> None:
    """Import every file of translations."""
    for module in iter_modules(families.__path__):
        import_module(f"{families.__name__}.{module.name}")


def translated_ops() -> list[str]:
    """The ops that have a translation, by name."""
    load_families()
    return sorted(_RULES)
