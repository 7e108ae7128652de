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
from typing import Final, cast

from tests.support.source_modules import ROOT, Modules, imported, read_tree
from tests.wording import findings

_OWN: Final = ("self", "cls", "super", "mcs")
_PRIVATE: Final = re.compile(r"_.*(?<!__)")
_BY_NAME: Final = ("getattr", "setattr", "hasattr", "delattr")
# Names that begin with an underscore and are documented, or belong to a library that has no other name.
PRIVATE_IN_NAME_ONLY: Final = (
    *("_asdict", "_fields", "_make", "_replace"),  # documented: named tuples
    *("_getframe", "_current_frames", "_get_running_loop"),  # documented: sys, asyncio
    "_as_graph_element",  # TensorFlow's protocol of objects that stand for a tensor
    "_ArgumentGroup",  # the type has no other name in argparse
    "_bootstrap",  # importlib's frames are recognized by the globals of this module
    "_BUILDERS",  # `import *` of a public namespace, for type checkers, exports every public name
    "_context",  # asyncio's handles have `get_context` only from Python 3.12 on
)


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


def private_accesses(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield each access to a private attribute of another object or module, with its name.

    Allowed is `self._x`, and `other._x` in the body of a class that defines `_x`: for another instance, and for the
    class itself. `getattr(other, "_x")` and `from module import _x` are accesses too.
    """
    yield from _accesses(tree, None)


def _accesses(node: ast.AST, own: frozenset[str] | None) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield the accesses below a node. `own` are the attributes of the classes around it; None outside of classes."""
    for child in ast.iter_child_nodes(node):
        for owner, name in _private_names(child):
            if name not in PRIVATE_IN_NAME_ONLY and not (own is not None and (name in own or _is_self(owner))):
                yield cast("ast.expr | ast.stmt", child), name
        yield from _accesses(child, (own or frozenset()) | _defined(child) if isinstance(child, ast.ClassDef) else own)


def _private_names(node: ast.AST) -> Iterator[tuple[ast.expr | None, str]]:
    """Yield the private attributes that a node itself reads or writes, with the objects that have them."""
    found: list[tuple[ast.expr | None, object]] = []
    if isinstance(node, ast.Attribute):
        found = [(node.value, node.attr)]
    elif isinstance(node, ast.ImportFrom):
        found = [(None, alias.name) for alias in node.names]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _BY_NAME:
        found = [(node.args[0], each.value) for each in node.args[1:2] if isinstance(each, ast.Constant)]
    yield from ((owner, name) for owner, name in found if isinstance(name, str) and _PRIVATE.fullmatch(name))


def _is_self(owner: ast.expr | None) -> bool:
    base = owner.func if isinstance(owner, ast.Call) else owner
    return isinstance(base, ast.Name) and base.id in _OWN


def _defined(of: ast.ClassDef) -> frozenset[str]:
    """Return the names that a class defines: in its body, in `__slots__`, and as attributes of `self` or `cls`."""
    found = {target.attr for target in ast.walk(of) if isinstance(target, ast.Attribute) and _is_set_on_self(target)}
    waiting: list[ast.AST] = list(of.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__":
            found.update(str(each.value) for each in ast.walk(node) if isinstance(each, ast.Constant))
        waiting.extend(ast.iter_child_nodes(node))
    return frozenset(found)


def _is_set_on_self(target: ast.Attribute) -> bool:
    return isinstance(target.ctx, ast.Store) and _is_self(target.value)


def imports_of(modules: Modules) -> dict[str, set[str]]:
    """Return the modules that each module imports, those for type checkers included."""
    found: dict[str, set[str]] = {}
    for name, module in modules.items():
        statements = [node for node in module.nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        targets = {target for node in statements for target in imported(node, modules)}
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
        "accesses to private attributes of other objects": str(
            sum(1 for module in modules.values() for _ in private_accesses(module.tree))
        ),
        "lines: source / tests": f"{lines:,} / {lines_of(tests):,}",
        "files; with exactly one importer": f"{len(source)}; {importers.count(1)}",
    }


if __name__ == "__main__":
    print("| measure | value |\n|---|---|")
    for row, value in measured().items():
        print(f"| {row} | {value} |")
