"""The registry of translations into ONNX. Each op has at most one, a function in the module of its family.

    @exporter("Square")
    def square(node: ExportedNode, x: ModelValue) -> ModelValue:
        return node.make("Mul", x, x)

A translation receives the node and its inputs, and returns the outputs. Outputs are cast if their dtype differs from
the node's. With `any_layout` it also accepts inputs with the channels first. All others receive their inputs in the
graph's own layout.

Subgraphs of several ops that are one op in ONNX are declared by their pattern (`patterns`). The function receives the
captured values by their names in the pattern. A match counts only if `where` returns True for it:

    @composed("HardSwish", "x * Minimum(Maximum(x * 0.16666667 + 0.5, 0), 1)")
    def hard_swish(node: ExportedNode, x: ModelValue) -> ModelValue:
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
from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.patterns import Found, Pattern, parsed
from aioflow.interop.onnx.exporting.values import ModelValue

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ExportRule:
    """The translation of an op."""

    make: Callable[..., Any]
    any_layout: bool = False


_RULES: Final[dict[str, ExportRule]] = {}


@dataclass(frozen=True, slots=True)
class Composed:
    """The translation of a pattern as a node of the op `op`, which occurs only in fused graphs.

    Attributes:
        op: Name of the op.
        where: Predicate of a match and the opset: whether the op can replace the match.
    """

    op: str
    where: Callable[[Found, int], bool]


_PATTERNS: Final[dict[str, list[tuple[Composed, Pattern]]]] = {}  # by the op of the pattern's root


def exporter(*ops: str, any_layout: bool = False) -> Callable[[_Function], _Function]:
    """Register a translation of ops.

    Args:
        *ops: Names of the ops.
        any_layout: Whether the function accepts values with their channels first.

    Raises:
        AlreadyRegisteredError: an op already has a translation.
    """

    def register(function: _Function) -> _Function:
        for op in ops:
            if op in _RULES:
                raise AlreadyRegisteredError(f"op {op!r} has a translation into ONNX already", op_type=op)
            _RULES[op] = ExportRule(function, any_layout)
        return function

    return register


def _anywhere(found: Found, opset: int) -> bool:
    return True


def composed(
    op: str, *texts: str, where: Callable[[Found, int], bool] = _anywhere, any_layout: bool = False
) -> Callable[[_Function], _Function]:
    """Register a translation of subgraphs.

    Args:
        op: A unique name for the subgraphs, as a rule that of the ONNX op that they become.
        *texts: Patterns of the subgraphs.
        where: Predicate of a match and the opset: whether the op can replace the match.
        any_layout: Whether the function accepts values with their channels first.

    Raises:
        AlreadyRegisteredError: other subgraphs have that name.
        ValueError: a text is not a pattern.
    """

    def register(function: _Function) -> _Function:
        def make(node: ExportedNode, *values: ModelValue) -> Any:
            return function(node, **dict(zip(node.attr("inputs"), values, strict=True)))

        rule = Composed(f"ONNX.{op}", where)
        exporter(rule.op, any_layout=any_layout)(make)
        for text in texts:
            pattern = parsed(text)
            for root in pattern.ops:
                _PATTERNS.setdefault(root, []).append((rule, pattern))
                # Sorting is stable: of patterns of equal size, the one registered first is tried first.
                _PATTERNS[root].sort(key=lambda each: -each[1].size)
        return function

    return register


def patterns_of(op: str) -> list[tuple[Composed, Pattern]]:
    """Return the patterns that have this op at their root, the largest first."""
    return _PATTERNS.get(op, [])


def rule_for(op: str) -> ExportRule | None:
    """Return the translation of an op, if there is one."""
    return _RULES.get(op)


def load_families() -> None:
    """Import all modules of translations."""
    for module in iter_modules(families.__path__):
        import_module(f"{families.__name__}.{module.name}")
