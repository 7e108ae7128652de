"""The rewriting of a program: imports, and `await` and `async` as decided."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import libcst as cst
from libcst.helpers import get_full_name_for_node
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

from aioflow.cli.porting.deciding import CHECK, MISSING, Decider, Decisions, Finding, missing_text
from aioflow.cli.porting.kinds import Missing, resolved
from aioflow.cli.porting.main_function import with_main
from aioflow.cli.porting.reading import ProgramReader, package_of
from aioflow.errors import InvalidArgumentError

_OLD: Final = ("tensorflow.compat.v1", "tensorflow")
_SPACE: Final = cst.SimpleWhitespace(" ")


@dataclass(frozen=True, slots=True)
class PortedProgram:
    """A ported program.

    Attributes:
        source: Its text.
        findings: The report, in the order of the original program's lines.
        awaited: Number of calls that are awaited.
        functions: Names of the functions that have become coroutine functions.
    """

    source: str
    findings: Sequence[Finding]
    awaited: int
    functions: Sequence[str]

    @property
    def is_complete(self) -> bool:
        """True if nothing is left to do by hand."""
        return not any(finding.level in (MISSING, CHECK) for finding in self.findings)


def port(source: str, name: str) -> PortedProgram:
    """Return the port of a program.

    Raises:
        InvalidArgumentError: the text is not a Python 3 program.
    """
    try:
        module = cst.parse_module(source)
    except cst.ParserSyntaxError as error:
        line, column, text = error.raw_line, error.raw_column + 1, error.message
        try:
            compile(source, name, "exec", dont_inherit=True)
        except SyntaxError as better:  # Python explains more, such as a print statement
            line, column, text = better.lineno or line, better.offset or column, better.msg
        raise InvalidArgumentError(f"{name}:{line}:{column}: not a program in Python 3: {text}") from error
    wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
    places, parents = wrapper.resolve(PositionProvider), wrapper.resolve(ParentNodeProvider)
    reader = ProgramReader()
    wrapper.module.visit(reader)
    reader.program.settle()
    made = Decider(reader.program, places.__getitem__, parents.__getitem__).decide()
    rewriter = _Rewriter(made)
    changed = wrapper.module.visit(rewriter)
    for node, text, level in rewriter.reports:
        start = places[node].start
        made.findings.add(Finding(start.line, start.column + 1, level, text))
    return PortedProgram(
        with_main(changed).code,
        sorted(made.findings),
        len(made.awaited),
        [function.name for function in made.functions],
    )


def difference(source: str, result: str, name: str) -> str:
    """Return the unified diff from a program to its port."""
    lines = source.splitlines(keepends=True), result.splitlines(keepends=True)
    return "".join(difflib.unified_diff(*lines, fromfile=name, tofile=f"{name} (aioflow)"))


class _Rewriter(cst.CSTTransformer):
    """Applies decisions to a module, and replaces imports of TensorFlow."""

    def __init__(self, made: Decisions) -> None:
        super().__init__()
        self._made = made
        self._functions = {function.node for function in made.functions}
        self._empty: set[cst.CSTNode] = set()  # lines that have lost their statements
        self.reports: list[tuple[cst.CSTNode, str, str]] = []

    # -- await and async ------------------------------------------------------------------------------------------

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """Put `await` before the call."""
        if original_node not in self._made.awaited:
            return updated_node
        return cst.Await(updated_node.with_changes(lpar=[], rpar=[]), lpar=updated_node.lpar, rpar=updated_node.rpar)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        """Put an awaited call into parentheses, and drop `compat.v1`."""
        if original_node in self._made.whole and isinstance(updated_node.value, cst.Attribute):
            return updated_node.value.value
        return updated_node.with_changes(value=_parenthesized(updated_node.value))

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> cst.BaseExpression:
        """Put an awaited call into parentheses."""
        return updated_node.with_changes(value=_parenthesized(updated_node.value))

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        """Make a coroutine function."""
        if original_node not in self._functions:
            return updated_node
        return updated_node.with_changes(asynchronous=cst.Asynchronous())

    def leave_For(self, original_node: cst.For, updated_node: cst.For) -> cst.For:
        """Make an async loop."""
        if original_node not in self._made.loops:
            return updated_node
        return updated_node.with_changes(asynchronous=cst.Asynchronous())

    def leave_CompFor(self, original_node: cst.CompFor, updated_node: cst.CompFor) -> cst.CompFor:
        """Make an async loop of a comprehension."""
        if original_node not in self._made.loops:
            return updated_node
        return updated_node.with_changes(asynchronous=cst.Asynchronous())

    def leave_With(self, original_node: cst.With, updated_node: cst.With) -> cst.With:
        """Make an async block. Items that are not async get a block of their own."""
        kinds = self._made.blocks.get(original_node)
        if kinds is None:
            return updated_node
        groups: list[tuple[bool, list[cst.WithItem]]] = []
        for item, is_async in zip(updated_node.items, kinds, strict=True):
            if not groups or groups[-1][0] != is_async:
                groups.append((is_async, []))
            groups[-1][1].append(item)
        if len(groups) == 1:
            return updated_node.with_changes(asynchronous=cst.Asynchronous())
        body: cst.BaseSuite = updated_node.body
        for is_async, items in reversed(groups):
            last = items[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            made = cst.With([*items[:-1], last], body, asynchronous=cst.Asynchronous() if is_async else None)
            body = cst.IndentedBlock([made])
        return made.with_changes(leading_lines=updated_node.leading_lines)

    # -- statements without effect --------------------------------------------------------------------------------

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        """Remove calls that have no effect in aioflow. The block around removes the line if it is empty then."""
        kept = [
            small
            for before, small in zip(original_node.body, updated_node.body, strict=True)
            if not (isinstance(before, cst.Expr) and before.value in self._made.removed)
        ]
        if len(kept) == len(updated_node.body):
            return updated_node
        if kept:
            kept[-1] = kept[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
            return updated_node.with_changes(body=kept)
        # libcst would drop an empty line together with the comments before it.
        empty = updated_node.with_changes(body=[cst.Pass()])
        self._empty.add(empty)
        return empty

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        """Remove empty lines, and keep a block that has lost its only statement."""
        kept = list(self._without_empty(updated_node.body))
        return updated_node.with_changes(body=kept or [cst.SimpleStatementLine([cst.Pass()])])

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        """Remove empty lines."""
        return updated_node.with_changes(body=list(self._without_empty(updated_node.body)))

    def _without_empty(self, body: Sequence[cst.BaseStatement]) -> Iterator[cst.BaseStatement]:
        """Yield the statements that are left. The comments before the others go to the next one."""
        carried: Sequence[cst.EmptyLine] = ()
        for statement in body:
            lines: Sequence[cst.EmptyLine] = getattr(statement, "leading_lines", ())
            if statement in self._empty:
                carried = [*carried, *lines] if any(line.comment for line in lines) else carried or lines
                continue
            if any(line.comment for line in carried) or not lines:
                lines = [*carried, *lines]
            yield statement.with_changes(leading_lines=lines) if carried else statement
            carried = ()

    # -- imports --------------------------------------------------------------------------------------------------

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.Import:
        """Import aioflow under the name that the program uses."""
        return updated_node.with_changes(names=[self._alias(original_node, alias) for alias in updated_node.names])

    def _alias(self, node: cst.Import, alias: cst.ImportAlias) -> cst.ImportAlias:
        name = get_full_name_for_node(alias.name) or ""
        package = package_of(name)
        if package is None:
            return alias
        inside = name[len(package) :].split(".")[1:]
        kind = resolved(inside)
        if isinstance(kind, Missing):
            self.reports.append((node, f"import {name}: aioflow has no such module", MISSING))
            return alias
        if package not in _OLD:
            return alias
        if alias.asname is None and inside:
            self.reports.append((node, f"import {name}: import it by a name of its own (import … as …)", CHECK))
            return alias
        changed = alias.with_changes(name=_dotted(["aioflow", *inside]))
        if alias.asname is not None:
            return changed
        return changed.with_changes(asname=cst.AsName(cst.Name("tensorflow")))

    def leave_ImportFrom(self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom) -> cst.BaseSmallStatement:
        """Import names from aioflow."""
        module = get_full_name_for_node(updated_node.module) if updated_node.module else None
        package = package_of(module or "")
        if updated_node.relative or module is None or (package is None and module != "tensorflow.compat"):
            return updated_node
        if isinstance(updated_node.names, cst.ImportStar):
            text = f"from {module} import *: the names that it binds are not known; import the names that are used"
            self.reports.append((original_node, text, CHECK))
            return updated_node
        inside = module[len(package or module) :].split(".")[1:]
        if module == "tensorflow.compat" or (module == "tensorflow" and self._names(updated_node) == ["compat.v1"]):
            return self._versions(original_node, updated_node)
        self._report_imports(original_node, inside, updated_node.names)
        kinds = [resolved([*inside, alias]) for alias in self._names(updated_node)]
        if package not in _OLD or all(isinstance(kind, Missing) for kind in kinds):
            return updated_node
        return updated_node.with_changes(module=_dotted(["aioflow", *inside]))

    @staticmethod
    def _names(node: cst.ImportFrom) -> list[str]:
        return [] if isinstance(node.names, cst.ImportStar) else [n.evaluated_name for n in node.names]

    def _versions(self, original: cst.ImportFrom, node: cst.ImportFrom) -> cst.BaseSmallStatement:
        """Replace `from tensorflow.compat import v1 as tf`."""
        names = () if isinstance(node.names, cst.ImportStar) else node.names
        if [alias.evaluated_name for alias in names] != ["v1"]:
            self.reports.append((original, "only version 1 of TensorFlow's interface can be ported", CHECK))
            return node
        bound = names[0].evaluated_alias or "v1"
        return cst.Import([cst.ImportAlias(cst.Name("aioflow"), cst.AsName(cst.Name(bound)))], semicolon=node.semicolon)

    def _report_imports(self, node: cst.ImportFrom, inside: Sequence[str], names: Sequence[cst.ImportAlias]) -> None:
        for alias in names:
            kind = resolved([*inside, alias.evaluated_name])
            if isinstance(kind, Missing):
                written = ".".join(("tensorflow", *inside, alias.evaluated_name))
                self.reports.append((node, missing_text(kind, written), MISSING))


def _dotted(names: Sequence[str]) -> cst.Attribute | cst.Name:
    node: cst.Attribute | cst.Name = cst.Name(names[0])
    for name in names[1:]:
        node = cst.Attribute(node, cst.Name(name))
    return node


def _parenthesized(node: cst.BaseExpression) -> cst.BaseExpression:
    if not isinstance(node, cst.Await) or node.lpar:
        return node
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
