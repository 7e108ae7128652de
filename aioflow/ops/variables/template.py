"""Templates: functions whose variables are made by their first call and shared by all later calls."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from aioflow.arguments import check_text
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.default_graph import default_graph
from aioflow.graph.graph import GraphKeys
from aioflow.graph.source_lines import user_line
from aioflow.ops.variables.scope import VariableScope, get_variable_scope, variable_scope
from aioflow.ops.variables.variable import Variable

__all__ = ["make_template"]

_LOGGER: Final = logging.getLogger("aioflow.variables")


class Template:
    """A function in a variable scope of its own, which all calls but the first reuse; see `make_template`."""

    def __init__(
        self,
        name: str,
        func: Callable[..., Any],
        create_scope_now: bool,
        unique_name: str | None,
        custom_getter: Callable[..., object] | None,
    ) -> None:
        if name is None:
            raise InvalidArgumentError("a template needs a name", expected="a str", actual=None)
        check_text(name, "the name of a template")
        if not callable(func):
            raise DTypeError(f"the function of template {name!r}", expected="a function", actual=repr(func))
        self._name = name
        self._func = func
        self._unique_name = unique_name
        self._custom_getter = custom_getter
        self._made_at = user_line()
        self._scope: VariableScope | None = None
        self._started = False
        self._finished = False
        if create_scope_now:
            # Without a name scope: no node is made here.
            with variable_scope(unique_name, name, custom_getter=custom_getter, auxiliary_name_scope=False) as scope:
                self._scope = scope
            # As in TensorFlow: the part of the name that this scope adds.
            scope.original_name_scope = scope.name.removeprefix(get_variable_scope().name + "/")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the function's result. Only the first call may make trainable variables.

        Raises:
            InvalidArgumentError: a later call made a trainable variable, or needs one that does not exist.
        """
        if self._scope is None:
            entered = variable_scope(self._unique_name, self._name, custom_getter=self._custom_getter)
        else:
            entered = variable_scope(self._scope, reuse=self._started)
        try:
            with entered as scope:
                if self._scope is None:
                    self._scope = scope
                return self._call(args, kwargs)
        except Exception as error:
            error.add_note(f"aioflow: in template {self._name!r}, made at {self._made_at}")
            raise

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._finished:
            return self._call_again(args, kwargs)
        # A nested call, or one of another thread, reuses the variables that this call has made so far.
        first, self._started = not self._started, True
        try:
            result = self._func(*args, **kwargs)
        except BaseException:
            if first:
                self._started = False
            raise
        if first:
            self._finished = True
        return result

    def _call_again(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        graph = default_graph()
        trainable = graph.get_collection_ref(GraphKeys.TRAINABLE_VARIABLES)
        present = graph.get_collection_ref(GraphKeys.GLOBAL_VARIABLES)
        counts = len(trainable), len(present)
        result = self._func(*args, **kwargs)
        if made := trainable[counts[0] :]:
            raise InvalidArgumentError(
                f"template {self._name!r} made trainable variables in a call after the first one",
                expected="get_variable, which shares variables, instead of Variable",
                actual=", ".join(v.name for v in made),
            )
        if made := present[counts[1] :]:
            names = ", ".join(v.name for v in made)
            _LOGGER.info("template %r made variables in a call after the first one: %s", self._name, names)
        return result

    @property
    def name(self) -> str:
        """The name given to the template."""
        return self._name

    @property
    def func(self) -> Callable[..., Any]:
        """The function, with the keyword arguments given to `make_template`."""
        return self._func

    @property
    def variable_scope(self) -> VariableScope | None:
        """The template's variable scope; None before the first call, unless it was created at once."""
        return self._scope

    @property
    def var_scope(self) -> VariableScope | None:
        """Older name of `variable_scope`."""
        return self._scope

    @property
    def variable_scope_name(self) -> str | None:
        """Name of the variable scope with a "/" at the end, or None if there is no scope yet."""
        if self._scope is None:
            return None
        name = self._scope.name
        return name if not name or name.endswith("/") else name + "/"

    @property
    def variables(self) -> list[Variable]:
        """The global and local variables that the template made."""
        return self.global_variables + self.local_variables

    @property
    def trainable_variables(self) -> list[Variable]:
        """The trainable variables that the template made."""
        return self._collected(GraphKeys.TRAINABLE_VARIABLES)

    @property
    def non_trainable_variables(self) -> list[Variable]:
        """The global variables that the template made and that are not trainable."""
        trainable = {id(v) for v in self.trainable_variables}
        return [v for v in self.global_variables if id(v) not in trainable]

    @property
    def global_variables(self) -> list[Variable]:
        """The global variables that the template made."""
        return self._collected(GraphKeys.GLOBAL_VARIABLES)

    @property
    def local_variables(self) -> list[Variable]:
        """The local variables that the template made."""
        return self._collected(GraphKeys.LOCAL_VARIABLES)

    @property
    def weights(self) -> list[Variable]:
        """All variables that the template made."""
        return self.variables

    @property
    def trainable_weights(self) -> list[Variable]:
        """The trainable variables that the template made."""
        return self.trainable_variables

    @property
    def non_trainable_weights(self) -> list[Variable]:
        """The global variables that the template made and that are not trainable."""
        return self.non_trainable_variables

    def _collected(self, key: str) -> list[Variable]:
        return default_graph().get_collection(key, self.variable_scope_name) if self._finished else []


def make_template(
    name_: str,
    func_: Callable[..., Any],
    create_scope_now_: bool = False,
    unique_name_: str | None = None,
    custom_getter_: Callable[..., object] | None = None,
    **kwargs: Any,
) -> Template:
    """Wrap a function so that its first call makes variables and later calls share them.

    Args:
        name_: The name of the variable scope; a suffix makes it unique.
        func_: The function, which makes its variables by `get_variable`.
        create_scope_now_: Create the scope here, and not by the first call, which may be inside other scopes.
        unique_name_: A name to use instead of `name_`, without a suffix. If its variables exist, they are reused only
            in a scope with `reuse`.
        custom_getter_: The getter of the scope; see `get_variable`.
        **kwargs: Keyword arguments for each call of the function.

    Returns:
        A function. Its attributes `variables`, `trainable_variables`, … list its variables.

    Raises:
        InvalidArgumentError: the name is None.
    """
    func = partial(func_, **kwargs) if kwargs else func_
    return Template(name_, func, create_scope_now_, unique_name_, custom_getter_)
