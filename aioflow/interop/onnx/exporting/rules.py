"""The registry of translations into ONNX: each op of ours has at most one, a function beside others of its family.

    @exporter("Square")
    def square(node: Node, x: Value) -> Value:
        return node.make("Mul", x, x)

It gets the node and its inputs, and returns its outputs. What it returns in another dtype than the node gives is cast.
A translation that takes channels in either place says so (`any_layout`); all others get their inputs as our graph has
them.

What is one op in ONNX and several here is declared by how it looks here (`patterns`). Its function gets the values by
the names in the pattern, and is asked only where `where` holds:

    @composed("HardSwish", "x * Minimum(Maximum(x * 0.16666667 + 0.5, 0), 1)")
    def hard_swish(node: Node, x: Value) -> Value:
        return node.make("HardSwish", x)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Final, TypeVar

from aioflow.errors import AlreadyRegisteredError
from aioflow.interop.onnx.exporting import families
from aioflow.interop.onnx.exporting.patterns import Found, Pattern, parsed

__all__ = ["Composed", "Rule", "composed", "exporter", "load_families", "patterns_of", "rule_for", "translated_ops"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Rule:
    """How an op is translated."""

    make: Callable[..., Any]
    any_layout: bool = False


_RULES: Final[dict[str, Rule]] = {}


@dataclass(frozen=True, slots=True)
class Composed:
    """What stands for a pattern: a node of `op`, which no graph of ours has otherwise.

    Attributes:
        where: Whether it can, for what was found and an opset.
    """

    op: str
    where: Callable[[Found, int], bool]


_PATTERNS: Final[dict[str, list[tuple[Composed, Pattern]]]] = {}  # by the ops that give their results


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


def _anywhere(found: Found, opset: int) -> bool:
    return True


def composed(
    op: str, *texts: str, where: Callable[[Found, int], bool] = _anywhere, any_layout: bool = False
) -> Callable[[_Function], _Function]:
    """Register a translation of subgraphs."""

    def register(function: _Function) -> _Function:
        def make(node: Any, *values: Any) -> Any:
            return function(node, **dict(zip(node.attr("inputs"), values, strict=True)))

        rule = Composed(f"ONNX.{op}", where)
        exporter(rule.op, any_layout=any_layout)(make)
        for text in texts:
            pattern = parsed(text)
            for root in pattern.ops:
                _PATTERNS.setdefault(root, []).append((rule, pattern))
                _PATTERNS[root].sort(key=lambda each: -each[1].size)
        return function

    return register


def patterns_of(op: str) -> list[tuple[Composed, Pattern]]:
    """The patterns whose results nodes of an op give, the largest first."""
    return _PATTERNS.get(op, [])


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
