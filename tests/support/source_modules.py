"""The modules of aioflow and of its backends, parsed, for the rules and the measures of the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Module:
    """One source file, parsed.

    Attributes:
        nodes: All nodes of `tree`, collected once for the many rules that iterate over them.
    """

    name: str
    source: str
    tree: ast.Module
    nodes: Sequence[ast.AST]

    @property
    def area(self) -> str:
        """The key of the module in RANKS."""
        return self.name.split(".")[1] if "." in self.name else ""

    @property
    def in_core(self) -> bool:
        return self.name.partition(".")[0] == "aioflow"

    def at(self, node: ast.expr | ast.stmt, message: str) -> str:
        return f"{self.name}:{node.lineno}: {message}"


Modules: TypeAlias = Mapping[str, Module]


def read_tree() -> Modules:
    files = [(root, path) for root in (ROOT, ROOT / "backends") for path in sorted(root.glob("aioflow*/**/*.py"))]
    return parse({module_name(path.relative_to(root)): path.read_text(encoding="utf-8") for root, path in files})


def module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def parse(sources: Mapping[str, str]) -> Modules:
    return {name: parsed(name, source) for name, source in sources.items()}


def parsed(name: str, source: str) -> Module:
    tree = ast.parse(source)
    return Module(name, source, tree, list(ast.walk(tree)))


def imported(node: ast.Import | ast.ImportFrom, modules: Mapping[str, object]) -> Iterator[str]:
    """Yield the module that each name of an import statement names or is taken from."""
    for alias in node.names:
        base = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        inner = f"{base}.{alias.name}"
        yield alias.name if isinstance(node, ast.Import) else inner if inner in modules else base
