"""The reading of a program: one walk over its syntax tree that collects names, functions, classes and calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import libcst as cst
from libcst.helpers import get_full_name_for_node

from aioflow.cli.porting.kinds import PLAIN, Kinds, Local, LocalInstance, origin, resolved
from aioflow.cli.porting.program import (
    CALLED,
    ELEMENT,
    ENTERED,
    BoundValue,
    Program,
    ProgramClass,
    ProgramFunction,
    ProgramScope,
    Site,
    Slot,
    Steps,
)

# The package under its old names, and under the new one: a port can be read again.
PACKAGES: Final = ("tensorflow.compat.v1", "tensorflow", "aioflow")


class ProgramReader(cst.CSTVisitor):
    """Reads a module into a `Program`."""

    def __init__(self) -> None:
        super().__init__()
        self.program = Program()
        self._scope = self.program.module
        self.program.scopes.append(self._scope)
        self._function: ProgramFunction | None = None
        self._class: ProgramClass | None = None  # whose body is being read
        self._obstacle = ""

    # -- functions and classes ------------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        """Bind the function, and read its body in its own scope."""
        function = ProgramFunction(node, self._scope, self._class, is_async=node.asynchronous is not None)
        function.inside = ProgramScope(self._scope, function)
        self.program.functions.append(function)
        self.program.scopes.append(function.inside)
        self._bind(node.name, BoundValue(kinds=frozenset({Local(function)})))
        self._parameters(function)
        with self._within("a decorator or a default"):
            for part in (*node.decorators, node.params):
                part.visit(self)
        outer = self._function, self._class
        self._function, self._class = function, None
        with self._within("", function.inside):
            node.body.visit(self)
        self._function, self._class = outer
        return False

    def _parameters(self, function: ProgramFunction) -> None:
        params = function.node.params
        for each in (*params.posonly_params, *params.params, *params.kwonly_params):
            slot = function.inside.slot(each.name.value)
            if each.default is not None:
                slot.bindings.append(self._to(each.default))
            if each.annotation is not None:
                slot.bindings.append(self._to(each.annotation.annotation, CALLED))
        first = [*params.posonly_params, *params.params][:1]
        if function.owner is not None and first and "staticmethod" not in function.decorators:
            kind = Local if "classmethod" in function.decorators else LocalInstance
            slot = function.inside.slot(first[0].name.value)
            slot.bindings = [BoundValue(kinds=frozenset({kind(function.owner)}))]
        for star in (params.star_arg, params.star_kwarg):
            if isinstance(star, cst.Param):
                function.inside.slot(star.name.value).bindings.append(BoundValue(kinds=PLAIN))

    def visit_Lambda(self, node: cst.Lambda) -> bool:
        """Read the body of a lambda in a scope of its own."""
        scope = ProgramScope(self._scope)
        self.program.scopes.append(scope)
        params = node.params
        for each in (*params.posonly_params, *params.params, *params.kwonly_params):
            scope.slot(each.name.value).bindings.append(BoundValue())
        params.visit(self)
        with self._within("a lambda", scope):
            node.body.visit(self)
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        """Bind the class, and read its body in its own scope."""
        found = ProgramClass(node, self._scope)
        found.inside = ProgramScope(self._scope, found)
        self.program.classes.append(found)
        self.program.scopes.append(found.inside)
        self._bind(node.name, BoundValue(kinds=frozenset({Local(found)})))
        for part in (*node.decorators, *node.bases, *node.keywords):
            part.visit(self)
        outer, self._class = self._class, found
        with self._within("the body of a class", found.inside):
            node.body.visit(self)
        self._class = outer
        return False

    @contextmanager
    def _within(self, obstacle: str, scope: ProgramScope | None = None) -> Iterator[None]:
        before = self._obstacle, self._scope
        self._obstacle, self._scope = obstacle, scope or self._scope
        yield
        self._obstacle, self._scope = before

    # -- calls, blocks, loops -------------------------------------------------------------------------------------

    def visit_Call(self, node: cst.Call) -> None:
        """Note the call."""
        self._site(node)
        self.program.called.add(node.func)

    def visit_With(self, node: cst.With) -> None:
        """Note the block, and bind its names."""
        self._site(node)
        for item in node.items:
            if item.asname is not None:
                self._bind(item.asname.name, self._to(item.item, ENTERED))

    def visit_For(self, node: cst.For) -> None:
        """Note the loop, and bind its names."""
        self._site(node)
        self._bind(node.target, self._to(node.iter, ELEMENT))

    def visit_CompFor(self, node: cst.CompFor) -> None:
        """Note the loop of a comprehension, and bind its names."""
        self._site(node)
        self._bind(node.target, self._to(node.iter, ELEMENT))

    def visit_GeneratorExp(self, node: cst.GeneratorExp) -> bool:
        """Read a generator expression, in which an await would make an async generator."""
        self._bind(node.for_in.target, self._to(node.for_in.iter, ELEMENT))
        node.for_in.iter.visit(self)  # the first iterable is computed outside
        with self._within(self._obstacle or "a generator expression"):
            node.elt.visit(self)
            for condition in node.for_in.ifs:
                condition.visit(self)
            if node.for_in.inner_for_in is not None:
                node.for_in.inner_for_in.visit(self)
        return False

    def _site(self, node: cst.Call | cst.With | cst.For | cst.CompFor) -> None:
        self.program.sites.append(Site(node, self._scope, self._function, self._obstacle))

    def visit_Return(self, node: cst.Return) -> None:
        """Note the result of the function."""
        if self._function is not None and node.value is not None:
            self._function.result.bindings.append(self._to(node.value))

    def visit_Yield(self, node: cst.Yield) -> None:
        """Note that the function is a generator."""
        if self._function is not None:
            self._function.is_generator = True

    # -- names ----------------------------------------------------------------------------------------------------

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        """Note a chain of names as a whole."""
        self.program.chains.append((node, self._scope))
        base: cst.BaseExpression = node
        while isinstance(base, cst.Attribute):
            base = base.value
        if not isinstance(base, cst.Name):
            base.visit(self)
        return False

    def visit_Name(self, node: cst.Name) -> None:
        """Note the use of a name."""
        self.program.chains.append((node, self._scope))

    def visit_Param(self, node: cst.Param) -> bool:
        """Read the default of a parameter; its name is bound with the function."""
        for part in (node.annotation, node.default):
            if part is not None:
                part.visit(self)
        return False

    def visit_AssignTarget(self, node: cst.AssignTarget) -> bool:
        """Read a target, unless it is a name, which is only bound."""
        return not isinstance(node.target, cst.Name)

    def visit_Arg(self, node: cst.Arg) -> bool:
        """Read the value of an argument; its keyword is no name of the program."""
        node.value.visit(self)
        return False

    def visit_Assign(self, node: cst.Assign) -> None:
        """Bind the targets."""
        for target in node.targets:
            self._bind(target.target, self._to(node.value))

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        """Bind the target."""
        if node.value is not None:
            self._bind(node.target, self._to(node.value))

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        """Bind the target: a number becomes a tensor if a tensor is added."""
        self._bind(node.target, self._to(node.value))

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        """Bind the target."""
        self._bind(node.target, self._to(node.value))

    def visit_ExceptHandler(self, node: cst.ExceptHandler) -> None:
        """Bind the exception."""
        if node.name is not None:
            self._bind(node.name.name, BoundValue(kinds=PLAIN))

    def visit_Global(self, node: cst.Global) -> bool:
        """Note that names belong to the module."""
        self._scope.outer |= {each.name.value for each in node.names}
        return False

    def visit_Nonlocal(self, node: cst.Nonlocal) -> bool:
        """Note that names belong to an outer function."""
        self._scope.outer |= {each.name.value for each in node.names}
        return False

    def _to(self, value: cst.BaseExpression, *steps: int | str) -> BoundValue:
        return BoundValue(value, self._scope, steps)

    def _bind(self, target: cst.BaseExpression, binding: BoundValue) -> None:
        match target:
            case cst.Name(name):
                self._scope.slot(name).bindings.append(binding)
            case cst.Attribute(cst.Name(name), cst.Name(attribute)):
                if (owner := self._instance(name)) is not None:
                    owner.attributes.setdefault(attribute, Slot()).bindings.append(binding)
            case cst.Tuple(elements) | cst.List(elements):
                for i, each in enumerate(elements):
                    steps: Steps = (*binding.steps, ELEMENT if isinstance(each, cst.StarredElement) else i)
                    self._bind(each.value, BoundValue(binding.value, binding.scope, steps, binding.kinds))

    def _instance(self, name: str) -> ProgramClass | None:
        """Return the class of the method that is read, if `name` is its instance."""
        function = self._function
        while function is not None and function.owner is None:
            owner = function.scope.owner
            function = owner if isinstance(owner, ProgramFunction) else None
        if function is None or function.owner is None:
            return None
        first = [*function.node.params.posonly_params, *function.node.params.params][:1]
        return function.owner if first and first[0].name.value == name else None

    # -- imports --------------------------------------------------------------------------------------------------

    def visit_Import(self, node: cst.Import) -> bool:
        """Bind modules."""
        for alias in node.names:
            name = get_full_name_for_node(alias.name) or ""
            bound = alias.evaluated_alias or name.partition(".")[0]
            module = name if alias.evaluated_alias else bound
            self._scope.slot(bound).bindings.append(BoundValue(kinds=_module(module)))
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        """Bind imported names."""
        module = ("." * len(node.relative)) + (get_full_name_for_node(node.module) or "" if node.module else "")
        if not isinstance(node.names, cst.ImportStar):
            for alias in node.names:
                name = get_full_name_for_node(alias.name) or ""
                bound = alias.evaluated_alias or name
                self._scope.slot(bound).bindings.append(BoundValue(kinds=_module(f"{module}.{name}")))
        return False


def _module(name: str) -> Kinds:
    package = package_of(name)
    return origin(name) if package is None else frozenset({resolved(name[len(package) :].split(".")[1:])})


def package_of(module: str) -> str | None:
    """Return the start of a module's name that stands for aioflow or TensorFlow 1, or None."""
    return next((name for name in PACKAGES if module == name or module.startswith(f"{name}.")), None)
