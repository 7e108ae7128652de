"""`python -m tests.measures`: the size and style of the source, as one table.

Each row has a definition that a reader can check by hand; none of them is a limit. Limits are in
`tests/test_architecture.py` and in the linter's configuration.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tests.source_modules import ROOT, Modules, imported, read_tree
from tests.wording import findings

_OWN: Final = ("self", "cls", "super", "mcs")
_OF_NAMED_TUPLES: Final = ("_asdict", "_fields", "_make", "_replace")  # public in spite of their names


def lines_of(texts: Sequence[str]) -> int:
    """Return the number of lines."""
    return sum(text.count("\n") for text in texts)


def comments(texts: Sequence[str]) -> int:
    """Return the number of comments, without those that direct a tool."""
    directives = ("# noqa", "# type:", "# ruff:", "# pragma", "# mypy:")
    found = 0
    for text in texts:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            found += token.type == tokenize.COMMENT and not token.string.startswith(directives)
    return found


def uses_of_any(modules: Modules) -> int:
    """Return how often the name `Any` stands in the code, imports aside."""
    return sum(isinstance(n, ast.Name) and n.id == "Any" for module in modules.values() for n in module.nodes)


def private_accesses(modules: Modules) -> int:
    """Return how often code reads or writes a private attribute of something other than `self`, `cls` or `super()`."""
    found = 0
    for module in modules.values():
        for node in module.nodes:
            if not isinstance(node, ast.Attribute) or not re.match(r"_.*(?<!__)$", node.attr):
                continue
            if node.attr in _OF_NAMED_TUPLES:
                continue
            owner = node.value.func if isinstance(node.value, ast.Call) else node.value
            found += not (isinstance(owner, ast.Name) and owner.id in _OWN)
    return found


def imports_of(modules: Modules) -> dict[str, set[str]]:
    """Return the modules that each module imports, those for type checkers included."""
    found: dict[str, set[str]] = {}
    for name, module in modules.items():
        statements = [node for node in module.nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        targets = {target for node in statements for _, target in imported(node, modules)}
        found[name] = (targets & modules.keys()) - {name}
    return found


def largest_cycle(edges: Mapping[str, set[str]]) -> int:
    """Return the size of the largest set of modules that all import one another, directly or not; 0 without any."""
    reached = {name: set(_reached(edges, name)) for name in edges}
    return max((sum(name in reached[other] for other in reached[name]) for name in edges), default=0)


def _reached(edges: Mapping[str, set[str]], start: str) -> Iterator[str]:
    waiting, seen = [start], set[str]()
    while waiting:
        for target in edges[waiting.pop()] - seen:
            seen.add(target)
            waiting.append(target)
            yield target


def measured() -> dict[str, str]:
    """Return the rows of the table."""
    modules = read_tree()
    source = [module.source for module in modules.values()]
    tests = [path.read_text("utf-8") for path in sorted((ROOT / "tests").rglob("*.py"))]
    edges = imports_of(modules)
    importers = [sum(name in targets for targets in edges.values()) for name in modules]
    lines = lines_of(source)
    return {
        "phrases that `tests/wording.py` finds: source, tests": " / ".join(
            str(sum(1 for text in texts for _ in findings(text))) for texts in (source, tests)
        ),
        "comments, % of lines": f"{100 * comments(source) / lines:.1f}",
        "`Any` per 1,000 lines": f"{1000 * uses_of_any(modules) / lines:.1f}",
        "largest import cycle, with imports for type checkers": str(largest_cycle(edges)),
        "entries at the top of `aioflow/`": str(sum(1 for each in (ROOT / "aioflow").iterdir() if each.name[1] != "_")),
        "accesses to private attributes of other objects": str(private_accesses(modules)),
        "lines: source / tests": f"{lines:,} / {lines_of(tests):,}",
        "files; with exactly one importer": f"{len(source)}; {importers.count(1)}",
    }


if __name__ == "__main__":
    print("| measure | value |\n|---|---|")
    for row, value in measured().items():
        print(f"| {row} | {value} |")
