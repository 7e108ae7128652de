"""A program as a port sees it: its names, functions, classes and calls, and the kinds of their values.

Kinds are found without running the program. Every name has a slot with all values that are bound to it, and the slots
are filled until none changes. A name that no binding explains has no kinds: its calls are reported, not rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import libcst as cst
from libcst.helpers import get_full_name_for_node

from aioflow.cli.porting.kinds import (
    CUSTOMARY,
    PLAIN,
    TENSOR,
    UNKNOWN,
    AioflowModule,
    Foreign,
    Instance,
    Kind,
    Kinds,
    Local,
    LocalInstance,
    Missing,
    Public,
    builtin,
    called,
    element,
    entered,
    is_tensor,
    iterated,
    member,
)

# Steps from the value of an expression to the value that a name is bound to: an index of a tuple, or one of these.
ELEMENT: Final = "element"
ENTERED: Final = "entered"
CALLED: Final = "called"  # an instance of an annotation
Steps: TypeAlias = tuple[int | str, ...]


@dataclass(eq=False, slots=True, repr=False)
class BoundValue:
    """A value that is bound to a name: an expression with steps into it, or kinds that are known."""

    value: cst.BaseExpression | None = None
    scope: ProgramScope | None = None
    steps: Steps = ()
    kinds: Kinds = UNKNOWN


@dataclass(eq=False, slots=True, repr=False)
class Slot:
    """A name, an attribute or the result of a function, with the kinds found for it so far."""

    kinds: Kinds = UNKNOWN
    bindings: list[BoundValue] = field(default_factory=list)


@dataclass(eq=False, slots=True, repr=False)
class ProgramScope:
    """The names of the module, a function or a class."""

    parent: ProgramScope | None = None
    owner: ProgramFunction | ProgramClass | None = None
    names: dict[str, Slot] = field(default_factory=dict)
    outer: set[str] = field(default_factory=set)  # declared global or nonlocal

    def slot(self, name: str) -> Slot:
        """Return the slot to which this scope binds `name`."""
        if name in self.outer and self.parent is not None:
            found = self.parent.find(name)
            return found or self.module().names.setdefault(name, Slot())
        return self.names.setdefault(name, Slot())

    def find(self, name: str) -> Slot | None:
        """Return the slot that an expression in this scope reads, or None. Functions do not see names of classes."""
        scope: ProgramScope | None = self
        while scope is not None:
            if name in scope.names and (scope is self or not isinstance(scope.owner, ProgramClass)):
                return scope.names[name]
            scope = scope.parent
        return None

    def module(self) -> ProgramScope:
        """Return the scope of the module."""
        return self if self.parent is None else self.parent.module()


@dataclass(eq=False, slots=True, repr=False)
class ProgramFunction:
    """A function of the program."""

    node: cst.FunctionDef
    scope: ProgramScope  # around it
    owner: ProgramClass | None
    inside: ProgramScope = field(default_factory=ProgramScope)
    result: Slot = field(default_factory=Slot)
    is_generator: bool = False
    is_async: bool = False  # in the port

    @property
    def name(self) -> str:
        """Name, with that of its class."""
        name = self.node.name.value
        return f"{self.owner.node.name.value}.{name}" if self.owner else name

    @property
    def was_async(self) -> bool:
        """True if it is a coroutine function in the program already."""
        return self.node.asynchronous is not None

    @property
    def decorators(self) -> Sequence[str]:
        """Names of its decorators."""
        found = (each.decorator for each in self.node.decorators)
        return [get_full_name_for_node(each) or "?" for each in found]

    @property
    def parameters(self) -> Sequence[str]:
        """Names of the parameters that may be given by position, without that of the instance."""
        names = [p.name.value for p in (*self.node.params.posonly_params, *self.node.params.params)]
        return names[1:] if self.owner and "staticmethod" not in self.decorators else names

    @property
    def keywords(self) -> Sequence[str]:
        """Names of the parameters that may be given by name."""
        return [p.name.value for p in (*self.node.params.params, *self.node.params.kwonly_params)]


@dataclass(eq=False, slots=True, repr=False)
class ProgramClass:
    """A class of the program."""

    node: cst.ClassDef
    scope: ProgramScope  # around it
    inside: ProgramScope = field(default_factory=ProgramScope)
    attributes: dict[str, Slot] = field(default_factory=dict)


@dataclass(eq=False, slots=True, repr=False)
class Site:
    """A call, block or loop, with its surroundings.

    Attributes:
        function: The function around it; None at module level.
        obstacle: The construct around it in which nothing can be awaited, such as "a lambda", or "".
    """

    node: cst.Call | cst.With | cst.For | cst.CompFor
    scope: ProgramScope
    function: ProgramFunction | None
    obstacle: str


@dataclass(eq=False, slots=True, repr=False)
class Program:
    """The names of a program and the places that a port may change."""

    module: ProgramScope = field(default_factory=ProgramScope)
    functions: list[ProgramFunction] = field(default_factory=list)
    classes: list[ProgramClass] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    chains: list[tuple[cst.BaseExpression, ProgramScope]] = field(default_factory=list)  # names such as tf.nn.relu
    called: set[cst.BaseExpression] = field(default_factory=set)  # those that are called
    scopes: list[ProgramScope] = field(default_factory=list)

    def settle(self) -> None:
        """Fill all slots."""
        changed = True
        while changed:
            changed = False
            for slot in list(self._slots()):
                for binding in slot.bindings:
                    changed |= _add(slot, self._bound(binding))
            for site in self.sites:
                if isinstance(site.node, cst.Call):
                    changed |= self._pass_arguments(site.node, site.scope)

    def _slots(self) -> Iterator[Slot]:
        for scope in self.scopes:
            yield from scope.names.values()
        yield from (function.result for function in self.functions)
        yield from (slot for each in self.classes for slot in each.attributes.values())

    def _bound(self, binding: BoundValue) -> Kinds:
        kinds = binding.kinds
        if binding.value is not None and binding.scope is not None:
            kinds = self._stepped(binding.value, binding.scope, binding.steps)
        return kinds

    def _stepped(self, value: cst.BaseExpression, scope: ProgramScope, steps: Steps) -> Kinds:
        if steps and isinstance(step := steps[0], int) and isinstance(value, cst.Tuple | cst.List):
            # Both sides are written out: `a, b = 1, 2`.
            inner = value.elements[step].value if step < len(value.elements) else None
            return UNKNOWN if inner is None else self._stepped(inner, scope, steps[1:])
        if steps[:1] == (ELEMENT,) and isinstance(value, cst.Tuple | cst.List):
            return _union(self._stepped(each.value, scope, steps[1:]) for each in value.elements)
        kinds = self.kinds(value, scope)
        for step in steps:
            if step == ENTERED:
                kinds = _union(self.entered(kind)[1] for kind in kinds)
            elif step == ELEMENT:
                kinds = _union(iterated(kind)[1] for kind in kinds)
            elif step == CALLED:
                kinds = _union(self._called(kind) for kind in kinds)
            elif isinstance(step, int):
                kinds = _union(element(kind, step) for kind in kinds)
        return kinds

    # -- calls of the program's own functions ---------------------------------------------------------------------

    def _pass_arguments(self, call: cst.Call, scope: ProgramScope) -> bool:
        changed = False
        for function in self.targets(call, scope):
            names = [*function.parameters]
            for i, argument in enumerate(call.args):
                if argument.star:
                    break
                name = argument.keyword.value if argument.keyword else names[i] if i < len(names) else None
                if name in function.inside.names:
                    changed |= _add(function.inside.names[name], self.kinds(argument.value, scope))
        return changed

    def targets(self, call: cst.Call, scope: ProgramScope) -> Iterator[ProgramFunction]:
        """Yield the functions of the program that a call may call, `__init__` for a class."""
        for kind in self.kinds(call.func, scope):
            if isinstance(kind, Local) and isinstance(kind.definition, ProgramFunction):
                yield kind.definition
            elif isinstance(kind, Local | LocalInstance):
                method = "__init__" if isinstance(kind, Local) else "__call__"
                yield from _functions(self.of_class(kind.definition, method))

    # -- kinds of expressions -------------------------------------------------------------------------------------

    def kinds(self, node: cst.BaseExpression, scope: ProgramScope) -> Kinds:
        """Return the kinds of an expression."""
        match node:
            case cst.Name(name):
                slot = scope.find(name)
                found = builtin(name) if slot is None else slot.kinds
                return found or _customary(name)
            case cst.Attribute(value, cst.Name(name)):
                return self._attribute(self.kinds(value, scope), name) or _customary(name)
            case cst.Call(func):
                return _union(self._called(kind) for kind in self.kinds(func, scope))
            case cst.Await(value) | cst.NamedExpr(_, value):
                return self.kinds(value, scope)
            case cst.Subscript(value):
                return self._subscript(node, self.kinds(value, scope))
        return PLAIN if isinstance(node, _PLAIN) else self._combined(node, scope)

    def _combined(self, node: cst.BaseExpression, scope: ProgramScope) -> Kinds:
        match node:
            case cst.BinaryOperation(left, _, right):
                return self._operation([left, right], scope)
            case cst.UnaryOperation(_, operand):
                return self._operation([operand], scope)
            case cst.Comparison(left, comparisons):
                return self._operation([left, *(each.comparator for each in comparisons)], scope)
            case cst.IfExp(_, body, otherwise):
                return self.kinds(body, scope) | self.kinds(otherwise, scope)
            case cst.BooleanOperation(left, _, right):
                return self.kinds(left, scope) | self.kinds(right, scope)
        return UNKNOWN

    def evidence(self, node: cst.BaseExpression, scope: ProgramScope) -> bool:
        """Return whether the kinds of a name or attribute come from more than its customary meaning."""
        if isinstance(node, cst.Attribute):
            return bool(self._attribute(self.kinds(node.value, scope), node.attr.value))
        slot = scope.find(node.value) if isinstance(node, cst.Name) else None
        return slot is None or bool(slot.kinds)

    def _operation(self, operands: Sequence[cst.BaseExpression], scope: ProgramScope) -> Kinds:
        found = [self.kinds(operand, scope) for operand in operands]
        if any(map(is_tensor, found)):
            return TENSOR
        return PLAIN if all(found) else UNKNOWN

    @staticmethod
    def _subscript(node: cst.Subscript, kinds: Kinds) -> Kinds:
        index = None
        if len(node.slice) == 1 and isinstance(at := node.slice[0].slice, cst.Index):
            index = int(at.value.value) if isinstance(at.value, cst.Integer) and at.value.value.isdecimal() else None
        return _union(element(kind, index) for kind in kinds)

    def _attribute(self, kinds: Kinds, name: str) -> Kinds:
        return _union(self._member(kind, name) for kind in kinds)

    def _member(self, kind: Kind, name: str) -> Kinds:
        match kind:
            case AioflowModule() | Missing() | Foreign() | Public() | Instance():
                return member(kind, name)
            case Local(ProgramClass() as definition):
                return self.of_class(definition, name)
            case LocalInstance(definition):
                slot = definition.attributes.get(name)
                return (slot.kinds if slot else UNKNOWN) | self.of_class(definition, name)
        return UNKNOWN

    def of_class(self, definition: ProgramClass, name: str) -> Kinds:
        """Return the kinds of what a class defines under a name, itself or in a base."""
        if name in definition.inside.names:
            return definition.inside.names[name].kinds
        return _union(self._member(base, name) for base in self.bases(definition) - PLAIN)

    def bases(self, definition: ProgramClass) -> Kinds:
        """Return the kinds of the bases of a class."""
        return _union(self.kinds(base.value, definition.scope) for base in definition.node.bases)

    def has_open_bases(self, definition: ProgramClass) -> bool:
        """Return whether a class has a base that is neither aioflow's nor one of the program's with known bases."""
        for base in definition.node.bases:
            for kind in self.kinds(base.value, definition.scope) or [None]:
                known = isinstance(kind, Public) or kind == Foreign("builtins")
                if not known and not (isinstance(kind, Local) and not self.has_open_bases(kind.definition)):
                    return True
        return False

    def _called(self, kind: Kind) -> Kinds:
        match kind:
            case Local(ProgramFunction() as function):
                return function.result.kinds
            case Local(ProgramClass() as definition):
                return frozenset({LocalInstance(definition)})
            case LocalInstance(definition):
                return _union(f.result.kinds for f in _functions(self.of_class(definition, "__call__")))
        return called(kind)

    def entered(self, kind: Kind) -> tuple[bool, Kinds]:
        """Return whether a value is entered by `async with`, and the kinds of the target of `as`."""
        if isinstance(kind, Foreign):
            return False, frozenset({kind})
        return entered(kind)


_PLAIN: Final = (
    *(cst.SimpleString, cst.ConcatenatedString, cst.FormattedString, cst.BaseNumber, cst.Dict, cst.Set, cst.List),
    *(cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp, cst.Tuple, cst.Lambda),
)


def _add(slot: Slot, kinds: Kinds) -> bool:
    more = kinds - slot.kinds
    slot.kinds |= more
    return bool(more)


def _union(parts: Iterator[Kinds]) -> Kinds:
    return UNKNOWN.union(*parts)


def _functions(kinds: Kinds) -> Iterator[ProgramFunction]:
    for kind in kinds:
        if isinstance(kind, Local) and isinstance(kind.definition, ProgramFunction):
            yield kind.definition


def _customary(name: str) -> Kinds:
    return frozenset({Instance(CUSTOMARY[name])}) if name in CUSTOMARY else UNKNOWN
