"""The decisions of a port: calls to await, functions that become coroutine functions, and the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import libcst as cst
from libcst.helpers import get_full_name_for_node
from libcst.metadata import CodeRange

from aioflow.cli.porting.kinds import (
    CUSTOMARY,
    AioflowModule,
    Kind,
    Kinds,
    Local,
    Missing,
    Public,
    accepts_coroutine,
    awaited_methods,
    class_name,
    iterated,
    lacks,
    must_be_awaited,
    owns_tasks,
    unknown_keywords,
)
from aioflow.cli.porting.program import Program, ProgramFunction, ProgramScope, Site
from aioflow.loading.missing_names import answer, is_tensorflows

MISSING: Final = "missing"  # a name of TensorFlow that aioflow lacks
CHECK: Final = "check"  # a place to look at by hand
NOTE: Final = "note"  # an assumption of the port

# Calls without an effect in aioflow, which always builds graphs with resource variables and TensorFlow 1's shapes.
NO_EFFECT: Final = (
    *("disable_v2_behavior", "disable_eager_execution", "disable_v2_tensorshape"),
    *("enable_resource_variables", "disable_control_flow_v2"),
)
# Functions that take coroutines, in a program that is ported in part.
_TAKE_COROUTINES: Final = (
    *("run", "gather", "create_task", "ensure_future", "shield", "wait", "wait_for", "as_completed"),
    *("run_coroutine_threadsafe", "run_until_complete", "start"),
)
_PLAIN_DECORATORS: Final = ("staticmethod", "classmethod")


class Finding(NamedTuple):
    """Something to report, with its place in the program: line from 1, column from 1."""

    line: int
    column: int
    level: str
    text: str


@dataclass(slots=True)
class Decisions:
    """The changes of a port, and its report."""

    awaited: set[cst.Call] = field(default_factory=set)
    functions: list[ProgramFunction] = field(default_factory=list)  # that become coroutine functions
    blocks: dict[cst.With, list[bool]] = field(default_factory=dict)  # for each item, whether it becomes async
    loops: set[cst.CSTNode] = field(default_factory=set)
    whole: set[cst.CSTNode] = field(default_factory=set)  # `tf.compat.v1` for `tf`
    removed: set[cst.CSTNode] = field(default_factory=set)  # calls without effect
    findings: set[Finding] = field(default_factory=set)


class Decider:
    """Decides about all places of a program.

    Args:
        program: The program, settled.
        place: The position of a node.
        parent: The parent of a node.
    """

    def __init__(
        self,
        program: Program,
        place: Callable[[cst.CSTNode], CodeRange],
        parent: Callable[[cst.CSTNode], cst.CSTNode],
    ) -> None:
        self._program = program
        self._place = place
        self._parent = parent
        self.made = Decisions()

    def decide(self) -> Decisions:
        """Return the decisions."""
        self._spread()
        for site in self._program.sites:
            if isinstance(site.node, cst.Call):
                self._decide_call(site, site.node)
            elif isinstance(site.node, cst.With):
                self._decide_block(site, site.node)
            else:
                self._decide_loop(site, site.node)
        self.made.functions = [f for f in self._program.functions if f.is_async and not f.was_async]
        for node, scope in self._program.chains:
            self._report_missing(node, scope)
            self._report_reference(node, scope)
        for function in self.made.functions:
            self._report_function(function)
        return self.made

    def _report(self, node: cst.CSTNode, level: str, text: str) -> None:
        start = self._place(node).start
        self.made.findings.add(Finding(start.line, start.column + 1, level, text))

    # -- coroutine functions --------------------------------------------------------------------------------------

    def _spread(self) -> None:
        """Make functions async until each that awaits is."""
        changed = True
        while changed:
            changed = False
            for site in self._program.sites:
                function = site.function
                if function is None or function.is_async or site.obstacle or _hindrance(function):
                    continue
                if self._waits(site):
                    function.is_async = changed = True

    def _waits(self, site: Site) -> bool:
        match site.node:
            case cst.Call():
                return self._call_waits(site.node, site.scope) is True
            case cst.With():
                return site.node.asynchronous is None and any(self._items(site.node, site.scope))
            case _:
                return site.node.asynchronous is None and self._is_async_loop(site)

    def _call_waits(self, call: cst.Call, scope: ProgramScope) -> bool | None:
        """Return whether a call is to be awaited; None if only some of the functions that it may call are."""
        if isinstance(self._parent(call), cst.Await) or self._is_taken(call):
            return False
        answers = {self._kind_waits(kind, call) for kind in self._program.kinds(call.func, scope)}
        answers |= {function.is_async and not function.was_async for function in self._program.targets(call, scope)}
        if answers == {True, False}:
            return None
        return True in answers

    @staticmethod
    def _kind_waits(kind: Kind, call: cst.Call) -> bool:
        if isinstance(kind, Local) and isinstance(kind.definition, ProgramFunction):
            return kind.definition.is_async and not kind.definition.was_async
        return must_be_awaited(kind)

    def _is_taken(self, call: cst.Call) -> bool:
        """Return whether the call makes the argument of a function that takes coroutines, such as asyncio.run."""
        parent = self._parent(call)
        outer = self._parent(parent) if isinstance(parent, cst.Arg) else None
        if not isinstance(outer, cst.Call):
            return False
        name = get_full_name_for_node(outer.func) or ""
        owner, _, last = name.rpartition(".")
        return last in _TAKE_COROUTINES and (owner == "asyncio" or last == "create_task" or "loop" in owner)

    # -- places ---------------------------------------------------------------------------------------------------

    def _decide_call(self, site: Site, call: cst.Call) -> None:
        kinds = self._program.kinds(call.func, site.scope)
        name = get_full_name_for_node(call.func) or "the call"
        self._report_arguments(site, call, kinds)
        self._look_at_coordinator(site, call)
        waits = self._call_waits(call, site.scope)
        if waits is None:
            self._report(call, CHECK, f"{name}(…) is a coroutine only for some of the values that it may have")
        elif waits and self._may_wait(site, call, f"{name}(…) has to be awaited"):
            self.made.awaited.add(call)
            self._note_custom(call, site)
        elif not waits and isinstance(call.func, cst.Attribute):
            self._look_at_method(site, call, call.func)

    def _look_at_coordinator(self, site: Site, call: cst.Call) -> None:
        """Report a coordinator that no block enters."""
        if Public(CUSTOMARY["coord"]) in self._program.kinds(call.func, site.scope) and not self._enters_coordinator():
            name = get_full_name_for_node(call.func)
            self._report(call, CHECK, f"{name} starts tasks only in its block: use `async with {name}(…) as coord:`")

    def _enters_coordinator(self) -> bool:
        return any(
            owns_tasks(kind)
            for site in self._program.sites
            if isinstance(site.node, cst.With)
            for item in site.node.items
            for kind in self._program.kinds(item.item, site.scope)
        )

    def _look_at_method(self, site: Site, call: cst.Call, func: cst.Attribute) -> None:
        name = func.attr.value
        receiver = self._program.kinds(func.value, site.scope)
        written = get_full_name_for_node(func) or f"….{name}"
        if not receiver and name in awaited_methods() and not isinstance(self._parent(call), cst.Await):
            self._report(
                call, CHECK, f"{written}(…): the kind of {written.rpartition('.')[0]} is not known; await it if needed"
            )
        if receiver and all(lacks(kind, name) for kind in receiver):
            owners = " and ".join(sorted(class_name(kind) for kind in receiver))
            self._report(call, MISSING, f"{written}: {owners} has no method {name!r}")

    def _decide_block(self, site: Site, block: cst.With) -> None:
        items = self._items(block, site.scope)
        if block.asynchronous is None and any(items) and self._may_wait(site, block, "the block has to be async"):
            self.made.blocks[block] = items

    def _items(self, block: cst.With, scope: ProgramScope) -> list[bool]:
        return [
            any(self._program.entered(kind)[0] for kind in self._program.kinds(item.item, scope))
            for item in block.items
        ]

    def _decide_loop(self, site: Site, loop: cst.For | cst.CompFor) -> None:
        if (
            loop.asynchronous is None
            and self._is_async_loop(site)
            and self._may_wait(site, loop, "the loop has to be async")
        ):
            self.made.loops.add(loop)

    def _is_async_loop(self, site: Site) -> bool:
        if not isinstance(site.node, cst.For | cst.CompFor):
            return False
        return any(iterated(kind)[0] for kind in self._program.kinds(site.node.iter, site.scope))

    def _may_wait(self, site: Site, node: cst.CSTNode, what: str) -> bool:
        """Return whether something can be awaited here, and report it if not."""
        reason = site.obstacle and f"in {site.obstacle}"
        if not reason and site.function is not None and not site.function.is_async:
            reason = f"in {site.function.name}, {_hindrance(site.function)}"
        if reason:
            self._report(node, CHECK, f"{what}, which is not possible {reason}")
        return not reason

    def _note_custom(self, call: cst.Call, site: Site) -> None:
        """Note a receiver whose kind is known only by its customary name."""
        if not isinstance(call.func, cst.Attribute):
            return
        value = call.func.value
        name = value.attr.value if isinstance(value, cst.Attribute) else getattr(value, "value", None)
        if name in CUSTOMARY and not self._program.evidence(value, site.scope):
            written = get_full_name_for_node(value)
            self._report(call, NOTE, f"{written} is taken for a {CUSTOMARY[name].__name__} because of its name")

    # -- reports --------------------------------------------------------------------------------------------------

    def _report_missing(self, node: cst.BaseExpression, scope: ProgramScope) -> None:
        inner = node
        while isinstance(inner, cst.Attribute):
            if inner.attr.value == "v1" and AioflowModule(()) in self._program.kinds(inner, scope):
                self.made.whole.add(inner)
            inner = inner.value
        if not any(isinstance(kind, AioflowModule) for kind in self._program.kinds(inner, scope)):
            return  # a name that has been imported or assigned is reported there
        for kind in self._program.kinds(node, scope):
            if isinstance(kind, Missing) and not self._removes(node, kind):
                self._report(node, MISSING, missing_text(kind, get_full_name_for_node(node) or ""))

    def _removes(self, node: cst.BaseExpression, kind: Missing) -> bool:
        """Remove a call without effect, if it is a statement."""
        call = self._parent(node)
        if kind.names[-1] not in NO_EFFECT or not isinstance(call, cst.Call):
            return False
        if is_statement := isinstance(self._parent(call), cst.Expr):
            self.made.removed.add(call)
        return is_statement

    def _report_arguments(self, site: Site, call: cst.Call, kinds: Kinds) -> None:
        keywords = [each.keyword.value for each in call.args if each.keyword is not None]
        for kind in kinds:
            for keyword in unknown_keywords(kind, keywords):
                name = get_full_name_for_node(call.func) or "the function"
                self._report(call, MISSING, f"{name} has no argument {keyword!r}")

    def _report_reference(self, node: cst.BaseExpression, scope: ProgramScope) -> None:
        """Report a function that becomes async and is passed on instead of called."""
        if node in self._program.called:
            return
        for kind in self._program.kinds(node, scope):
            function = kind.definition if isinstance(kind, Local) else None
            if not isinstance(function, ProgramFunction) or not function.is_async or function.was_async:
                continue
            if not self._is_accepted(node, scope):
                self._report(node, CHECK, f"{function.name} becomes a coroutine function, and is passed on here")

    def _is_accepted(self, node: cst.BaseExpression, scope: ProgramScope) -> bool:
        argument = self._parent(node)
        call = self._parent(argument) if isinstance(argument, cst.Arg) else None
        if not isinstance(call, cst.Call) or not isinstance(argument, cst.Arg):
            return False
        place: int | str = argument.keyword.value if argument.keyword else call.args.index(argument)
        kinds = self._program.kinds(call.func, scope)
        return bool(kinds) and all(accepts_coroutine(kind, place) for kind in kinds)

    def _report_function(self, function: ProgramFunction) -> None:
        owner = function.owner
        if owner is None:
            return
        if self._program.has_open_bases(owner):
            text = f"{function.name} becomes a coroutine function: does the base of {owner.node.name.value} await it?"
            self._report(function.node.name, CHECK, text)


def _hindrance(function: ProgramFunction) -> str:
    """Return the reason why a function cannot become a coroutine function; "" if it can."""
    if function.was_async:
        return ""
    name = function.node.name.value
    if name.startswith("__") and name.endswith("__") and name != "__call__":
        return f"which Python calls as {name}"
    if function.is_generator:
        return "which is a generator"
    if other := [each for each in function.decorators if each not in _PLAIN_DECORATORS]:
        return f"which is decorated by {other[0]}"
    return ""


def missing_text(kind: Missing, written: str) -> str:
    """Return the text of a report of a missing name."""
    module = ".".join(("aioflow", *kind.namespace))
    if not kind.namespace and not is_tensorflows("", kind.names[0]):
        return f"{written}: not in TensorFlow's public interface, nor in aioflow"
    return f"{written}: {answer(module, kind.names[0])}"
