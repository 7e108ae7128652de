"""The coroutine for the code of a module that awaits: `async def main()`, run by `asyncio.run`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Final

import libcst as cst
import libcst.matchers as m
from libcst.helpers import get_full_name_for_node

_NAMES: Final = ("main", "async_main", "run_main")
_GUARD: Final = m.If(test=m.Comparison(left=m.Name("__name__")), orelse=None)
_BLANK: Final = cst.EmptyLine(indent=False)


def with_main(module: cst.Module) -> cst.Module:
    """Return the module with its own awaits in a coroutine, which `asyncio.run` runs."""
    waiting = [i for i, statement in enumerate(module.body) if _awaits(statement)]
    if not waiting:
        return module
    coroutines = {s.name.value for s in module.body if isinstance(s, cst.FunctionDef) and s.asynchronous}
    found = [each for i in waiting for each in _awaits(module.body[i])]
    if len(found) == 1 and isinstance(found[0], cst.Await) and _called(found[0]) in coroutines:
        body: Sequence[cst.BaseStatement] = [
            _RunsIt().change(s) if i in waiting else s for i, s in enumerate(module.body)
        ]
    else:
        body = _moved(module, waiting)
    return _with_import(module.with_changes(body=body))


def _moved(module: cst.Module, waiting: Sequence[int]) -> Sequence[cst.BaseStatement]:
    name = next(each for each in _free_names(module))
    body: list[cst.BaseStatement] = list(module.body)
    first = body[waiting[0]]
    run = cst.SimpleStatementLine([cst.Expr(_run(cst.Call(cst.Name(name))))])
    if len(waiting) == 1 and isinstance(first, cst.If) and m.matches(first, _GUARD):
        moved: list[cst.BaseStatement] = [s for s in first.body.body if isinstance(s, cst.BaseStatement)]
        around = [*body[: waiting[0]], *body[waiting[0] + 1 :]]
        after: Sequence[cst.BaseStatement] = [
            first.with_changes(body=cst.IndentedBlock([run]), leading_lines=[_BLANK, _BLANK]),
            *body[waiting[0] + 1 :],
        ]
        lines = first.leading_lines
    else:
        moved, around = body[waiting[0] :], body[: waiting[0]]
        lines = _leading(moved[0])
        moved[0] = moved[0].with_changes(leading_lines=[line for line in lines if line.comment])
        lines = [line for line in lines if not line.comment]
        after = [run.with_changes(leading_lines=[_BLANK, _BLANK])]
    shared = sorted(_bound(moved) & (_bound(around) | _read_by_functions(around) | _declared(moved)))
    if shared:
        line = cst.SimpleStatementLine([cst.Global([cst.NameItem(cst.Name(each)) for each in shared])])
        moved = [line, *moved]
    blank = [_BLANK] * (2 - sum(not line.comment for line in lines))
    function = cst.FunctionDef(
        cst.Name(name),
        cst.Parameters(),
        cst.IndentedBlock(moved),
        asynchronous=cst.Asynchronous(),
        leading_lines=[*(blank if around else []), *lines] if body[: waiting[0]] else [],
    )
    return [*body[: waiting[0]], function, *after]


def _free_names(module: cst.Module) -> Iterator[str]:
    taken = {node.value for node in m.findall(module, m.Name()) if isinstance(node, cst.Name)}
    yield from (name for name in _NAMES if name not in taken)
    yield "port_main"


def _leading(statement: cst.CSTNode) -> Sequence[cst.EmptyLine]:
    return getattr(statement, "leading_lines", ())


# ── awaits of the module itself ───────────────────────────────────────────────────────────────────────────────────────


class _Finder(cst.CSTVisitor):
    """Finds awaits outside of functions."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[cst.CSTNode] = []

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False

    def visit_Lambda(self, node: cst.Lambda) -> bool:
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        return False

    def visit_Await(self, node: cst.Await) -> None:
        self.found.append(node)

    def visit_Asynchronous(self, node: cst.Asynchronous) -> None:
        self.found.append(node)


def _awaits(statement: cst.CSTNode) -> Sequence[cst.CSTNode]:
    finder = _Finder()
    statement.visit(finder)
    return finder.found


def _called(node: cst.Await) -> str | None:
    return get_full_name_for_node(node.expression) if isinstance(node.expression, cst.Call) else None


class _RunsIt(cst.CSTTransformer):
    """Replaces the only await of a module by `asyncio.run`."""

    def change(self, statement: cst.CSTNode) -> cst.BaseStatement:
        """Return the statement without its await."""
        changed = statement.visit(self)
        if not isinstance(changed, cst.BaseStatement):
            raise TypeError(f"a statement has become {changed!r}")
        return changed

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        """Leave functions as they are."""
        return False

    def leave_Await(self, original_node: cst.Await, updated_node: cst.Await) -> cst.BaseExpression:
        """Run the coroutine."""
        return _run(updated_node.expression)


def _run(value: cst.BaseExpression) -> cst.Call:
    return cst.Call(cst.Attribute(cst.Name("asyncio"), cst.Name("run")), [cst.Arg(value)])


# ── names ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Binder(cst.CSTVisitor):
    """Collects the names that statements bind, functions aside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        self.names.add(node.name.value)
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        self.names.add(node.name.value)
        return False

    def visit_Lambda(self, node: cst.Lambda) -> bool:
        return False

    def visit_ListComp(self, node: cst.ListComp) -> bool:
        return False

    def visit_GeneratorExp(self, node: cst.GeneratorExp) -> bool:
        return False

    def visit_ImportAlias(self, node: cst.ImportAlias) -> bool:
        self.names.add(node.evaluated_alias or node.evaluated_name.partition(".")[0])
        return False

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        self._take(node.target)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        self._take(node.target)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        self._take(node.target)

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        self._take(node.target)

    def visit_For(self, node: cst.For) -> None:
        self._take(node.target)

    def visit_AsName(self, node: cst.AsName) -> None:
        self._take(node.name)

    def _take(self, target: cst.BaseExpression) -> None:
        self.names |= set(names_in(target))


def names_in(target: cst.BaseExpression) -> Iterator[str]:
    """Yield the names that a target binds."""
    if isinstance(target, cst.Name):
        yield target.value
    elif isinstance(target, cst.Tuple | cst.List):
        for each in target.elements:
            yield from names_in(each.value)


def _bound(statements: Sequence[cst.CSTNode]) -> set[str]:
    binder = _Binder()
    for statement in statements:
        statement.visit(binder)
    return binder.names


class _Reads(cst.CSTVisitor):
    """Collects the names that functions read and do not bind themselves: they may be names of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self._depth = 0

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        for part in (*node.decorators, node.params):
            part.visit(self)
        self._inside(node.params, node.body, _bound([node.body]) - _declared([node.body]))
        return False

    def visit_Lambda(self, node: cst.Lambda) -> bool:
        node.params.visit(self)
        self._inside(node.params, node.body, set())
        return False

    def visit_Param(self, node: cst.Param) -> bool:
        if node.default is not None:
            node.default.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        node.value.visit(self)
        return False

    def visit_Name(self, node: cst.Name) -> None:
        if self._depth:
            self.names.add(node.value)

    def _inside(self, params: cst.Parameters, body: cst.CSTNode, own: set[str]) -> None:
        inner = _Reads()
        inner._depth = 1
        body.visit(inner)
        found = {each.name.value for each in m.findall(params, m.Param()) if isinstance(each, cst.Param)}
        targets = [each.target for each in m.findall(body, m.CompFor()) if isinstance(each, cst.CompFor)]
        self.names |= inner.names - own - found - {name for target in targets for name in names_in(target)}


def _read_by_functions(statements: Sequence[cst.CSTNode]) -> set[str]:
    reads = _Reads()
    for statement in statements:
        statement.visit(reads)
    return reads.names


def _declared(statements: Sequence[cst.CSTNode]) -> set[str]:
    """Return the names that functions declare as global."""
    found = [g for s in statements for g in m.findall(s, m.Global())]
    return {item.name.value for g in found if isinstance(g, cst.Global) for item in g.names}


# ── the import of asyncio ─────────────────────────────────────────────────────────────────────────────────────────────


def _with_import(module: cst.Module) -> cst.Module:
    body = list(module.body)
    if "asyncio" in _bound(body):
        return module
    place = next((i for i, s in enumerate(body) if _is_import(s)), None)
    line = cst.SimpleStatementLine([cst.Import([cst.ImportAlias(cst.Name("asyncio"))])])
    if place is None:
        place = 1 if module.get_docstring() is not None else 0
        return module.with_changes(body=[*body[:place], line, *body[place:]])
    while _is_earlier(body[place]) and place + 1 < len(body) and _is_import(body[place + 1]):
        place += 1
    after = body[place]
    if _is_earlier(after):
        return module.with_changes(body=[*body[: place + 1], line, *body[place + 1 :]])
    line = line.with_changes(leading_lines=_leading(after))
    own = _first_module(after).partition(".")[0] in sys.stdlib_module_names
    body[place] = after.with_changes(leading_lines=[] if own else [_BLANK])
    return module.with_changes(body=[*body[:place], line, *body[place:]])


def _is_earlier(statement: cst.CSTNode) -> bool:
    """Return whether the import of a module of Python stands before that of asyncio."""
    first = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    name = _first_module(statement)
    return isinstance(first, cst.Import) and name in sys.stdlib_module_names and name < "asyncio"


def _is_import(statement: cst.CSTNode) -> bool:
    return bool(_first_module(statement)) and _first_module(statement) != "__future__"


def _first_module(statement: cst.CSTNode) -> str:
    first = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if isinstance(first, cst.Import):
        return get_full_name_for_node(first.names[0].name) or ""
    if isinstance(first, cst.ImportFrom):
        return (get_full_name_for_node(first.module) if first.module else None) or "."
    return ""
