"""Variable scopes: names and defaults for the variables that `get_variable` makes inside them.

The open scope is stored in the context, per graph, like the other scopes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from functools import partial
from typing import Any, Final, TypeAlias

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes, scopes
from aioflow.graph.default_graph import default_graph, graph_of
from aioflow.graph.dtypes import DType, DTypeLike, as_dtype
from aioflow.graph.graph import DeviceLike, Graph, GraphKeys, Tensor
from aioflow.ops.apply import TensorLike
from aioflow.ops.variables.partitioners import Partitioner
from aioflow.ops.variables.store import share_or_make_any, store_of, value_of_dtype
from aioflow.ops.variables.variable import Variable

# A value, a function of (shape, dtype=), or a class whose instances are such functions.
InitializerLike: TypeAlias = TensorLike | Callable[..., object]
Regularizer: TypeAlias = Callable[[Any], Tensor | None]

__all__ = [
    "AUTO_REUSE",
    "VariableScope",
    "get_variable_scope",
    "variable_op_scope",
    "variable_scope",
]


# Arguments of `get_variable` whose defaults come from its scope.
_DEFAULTS: Final = (
    "initializer",
    "regularizer",
    "caching_device",
    "constraint",
    "dtype",
    "reuse",
    "use_resource",
    "partitioner",
)


class ReuseMode(Enum):
    """A treatment of existing names in `get_variable`, besides True (it must exist) and False (it must not)."""

    AUTO_REUSE = 1

    def __repr__(self) -> str:
        return "aioflow.AUTO_REUSE"


AUTO_REUSE: Final = ReuseMode.AUTO_REUSE
"""Share the variable if it exists, otherwise make it."""


class VariableScope:
    """Defaults for `get_variable`; each `variable_scope` block has its own object.

    Attributes:
        name: Prefix of the variables' names, without a "/" at the end.
        original_name_scope: The name scope that was opened with the variable scope, with a "/" at the end.
        reuse: True (variables must exist), AUTO_REUSE, or False.
        initializer, regularizer, constraint, caching_device, dtype, partitioner, custom_getter: Defaults for the
            arguments of `get_variable`.
    """

    def __init__(
        self,
        reuse: bool | ReuseMode | None,
        name: str = "",
        initializer: InitializerLike | None = None,
        regularizer: Regularizer | None = None,
        caching_device: DeviceLike = None,
        partitioner: Partitioner | None = None,
        custom_getter: Callable[..., object] | None = None,
        name_scope: str = "",
        dtype: DTypeLike = dtypes.float32,
        use_resource: bool | None = None,
        constraint: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.set_partitioner(partitioner)
        self.name = name
        self.reuse: bool | ReuseMode = reuse or False
        self.original_name_scope = name_scope
        self.initializer = initializer
        self.regularizer = regularizer
        self.caching_device = caching_device
        self.custom_getter = custom_getter
        self.constraint = constraint
        self.use_resource = use_resource
        self.dtype: DType = as_dtype(dtype)

    @property
    def partitioner(self) -> Partitioner | None:
        """Default partitioner for `get_variable`; None leaves variables whole."""
        return self._partitioner

    def reuse_variables(self) -> None:
        """Require variables to exist from now on."""
        self.reuse = True

    def set_initializer(self, initializer: InitializerLike | None) -> None:
        """Set the default initializer."""
        self.initializer = initializer

    def set_regularizer(self, regularizer: Regularizer | None) -> None:
        """Set the default regularizer."""
        self.regularizer = regularizer

    def set_caching_device(self, caching_device: DeviceLike) -> None:
        """Set the default caching device."""
        self.caching_device = caching_device

    def set_custom_getter(self, custom_getter: Callable[..., object] | None) -> None:
        """Set the function through which `get_variable` makes and finds variables."""
        self.custom_getter = custom_getter

    def set_dtype(self, dtype: DTypeLike) -> None:
        """Set the default dtype."""
        self.dtype = as_dtype(dtype)

    def set_use_resource(self, use_resource: bool | None) -> None:
        """Store `use_resource`, which has no effect: every variable is a resource."""
        self.use_resource = use_resource

    def set_partitioner(self, partitioner: Partitioner | None) -> None:
        """Set the default partitioner. Raise InvalidArgumentError if it is not a function."""
        if partitioner is not None and not callable(partitioner):
            raise InvalidArgumentError(
                "a partitioner must be a function", expected="a function, or None", actual=repr(partitioner)
            )
        self._partitioner = partitioner

    def get_collection(self, name: str) -> list[Any]:
        """Return the items of a collection whose names are in this scope."""
        return default_graph().get_collection(name, self.name + "/" if self.name else "")

    def global_variables(self) -> list[Variable]:
        """Return the global variables of this scope."""
        return self.get_collection(GraphKeys.GLOBAL_VARIABLES)

    def local_variables(self) -> list[Variable]:
        """Return the local variables of this scope."""
        return self.get_collection(GraphKeys.LOCAL_VARIABLES)

    def trainable_variables(self) -> list[Variable]:
        """Return the trainable variables of this scope."""
        return self.get_collection(GraphKeys.TRAINABLE_VARIABLES)

    def get_variable(self, name: str, **settings: Any) -> Any:
        """Return a variable as the function `get_variable` does, with this scope's prefix and defaults."""
        graph = default_graph()
        settings = self.with_defaults(**settings)
        getter = settings.pop("custom_getter", None) or self.custom_getter
        full_name = f"{self.name}/{name}" if self.name else name
        make = partial(share_or_make_any, graph)
        with graph.name_scope(None):  # only variable scopes determine the name of a variable
            return make(name=full_name, **settings) if getter is None else getter(make, name=full_name, **settings)

    def with_defaults(self, **settings: Any) -> dict[str, Any]:
        """Return settings of `get_variable`, completed with the defaults of this scope."""
        settings["initializer"] = value_of_dtype(settings.get("initializer"), settings.get("dtype"))
        for key in _DEFAULTS:
            if settings.get(key) is None:
                settings[key] = getattr(self, key)
        return settings


def _composed(outer: Callable[..., object], inner: Callable[..., object]) -> Callable[..., object]:
    """Return a getter that calls `outer` with a getter that calls `inner`."""

    def getter(make: Callable[..., object], *args: object, **kwargs: object) -> object:
        return outer(partial(inner, make), *args, **kwargs)

    return getter


def get_variable_scope() -> VariableScope:
    """Return the innermost open variable scope of the default graph, or its root scope."""
    return _current(default_graph())


def _current(graph: Graph) -> VariableScope:
    scope: VariableScope | None = scopes.current_scope(graph).variable_scope
    if scope is not None:
        return scope
    store = store_of(graph)
    # Under the lock, two threads cannot make two roots.
    with graph.lock:
        if store.root is None:
            store.root = VariableScope(False)
        root: VariableScope = store.root
        return root


@contextmanager
def variable_scope(
    name_or_scope: str | VariableScope | None,
    default_name: str | None = None,
    values: Iterable[object] | None = None,
    initializer: InitializerLike | None = None,
    regularizer: Regularizer | None = None,
    caching_device: DeviceLike = None,
    partitioner: Partitioner | None = None,
    custom_getter: Callable[..., object] | None = None,
    reuse: bool | ReuseMode | None = None,
    dtype: DTypeLike | None = None,
    use_resource: bool | None = None,
    constraint: Callable[[Tensor], Tensor] | None = None,
    auxiliary_name_scope: bool = True,
) -> Iterator[VariableScope]:
    """Prefix the names of variables, set defaults for `get_variable`, and open a name scope of the same name.

    Args:
        name_or_scope: A name, or a VariableScope to enter again; None stands for `default_name`, made unique.
        default_name: The name if `name_or_scope` is None.
        values: Tensors whose graph becomes the default.
        initializer: New default for `get_variable`.
        regularizer: New default for `get_variable`.
        caching_device: New default for `get_variable`.
        partitioner: New default for `get_variable`.
        custom_getter: A getter that is called before the outer scope's getter.
        reuse: True: variables must exist. AUTO_REUSE: missing ones are made. None or False: as in the outer scope.
        dtype: New default for `get_variable`.
        use_resource: Ignored: every variable is a resource.
        constraint: New default for `get_variable`.
        auxiliary_name_scope: Whether to open a name scope as well.

    Raises:
        DTypeError: no name is given, or it is neither a str nor a VariableScope.
        InvalidArgumentError: `reuse` is unknown or given with a default name, or the partitioner is not a function.
    """
    _check_scope_arguments(name_or_scope, default_name, reuse)
    overrides = {
        "initializer": initializer,
        "regularizer": regularizer,
        "caching_device": caching_device,
        "dtype": None if dtype is None else as_dtype(dtype),
        "use_resource": use_resource,
        "constraint": constraint,
    }
    with graph_of(values or ()).as_default():
        graph = default_graph()
        with _name_scope_for(graph, name_or_scope, default_name, auxiliary_name_scope) as prefix:
            opened = _opened(graph, name_or_scope, default_name, reuse, prefix)
            for key, value in overrides.items():
                if value is not None:
                    setattr(opened, key, value)
            if partitioner is not None:
                opened.set_partitioner(partitioner)
            # The new getter comes first, and decides whether to call the older one.
            if custom_getter is not None:
                inner = opened.custom_getter
                opened.custom_getter = custom_getter if inner is None else _composed(custom_getter, inner)
            with _entered(graph, opened, isinstance(name_or_scope, VariableScope)):
                yield opened


def _check_scope_arguments(
    name_or_scope: str | VariableScope | None, default_name: str | None, reuse: bool | ReuseMode | None
) -> None:
    if name_or_scope is None and default_name is None:
        raise DTypeError("a variable scope needs a name", expected="name_or_scope or default_name", actual=None)
    if name_or_scope is None and reuse:
        raise InvalidArgumentError(
            "reuse needs a name", expected="name_or_scope", actual=f"default_name={default_name!r}"
        )
    if name_or_scope is not None and not isinstance(name_or_scope, str | VariableScope):
        raise DTypeError("not a variable scope", expected="a name or a VariableScope", actual=repr(name_or_scope))
    if reuse not in (None, True, False, AUTO_REUSE):
        raise InvalidArgumentError("`reuse` is unknown", expected="True, False, None or AUTO_REUSE", actual=repr(reuse))


@contextmanager
def _name_scope_for(
    graph: Graph, name_or_scope: str | VariableScope | None, default_name: str | None, auxiliary: bool
) -> Iterator[str]:
    name = default_name if name_or_scope is None else name_or_scope
    if isinstance(name, VariableScope):
        # The name scope is nested in the current one, so it needs only the last part of the name.
        name = name.name.rpartition("/")[2]
    if auxiliary and name:
        with graph.name_scope(name) as prefix:
            yield prefix
    else:
        present = scopes.current_scope(graph).name
        yield present + "/" if present else ""


def _opened(
    graph: Graph,
    name_or_scope: str | VariableScope | None,
    default_name: str | None,
    reuse: bool | ReuseMode | None,
    prefix: str,
) -> VariableScope:
    """Return a new scope for the block, which inherits from the outer scope or from the one to enter again."""
    if isinstance(name_or_scope, VariableScope):
        source = name_or_scope
        return _child(source, source.name, reuse or source.reuse, source.original_name_scope)
    outer = _current(graph)
    start = outer.name + "/" if outer.name else ""
    if name_or_scope is None:
        full_name = store_of(graph).unique_name(f"{start}{default_name}")
    else:
        full_name = f"{start}{name_or_scope}" if name_or_scope else outer.name
    # As in TensorFlow, an inner scope cannot undo the reuse of an outer one.
    return _child(outer, full_name, reuse or outer.reuse, prefix)


def _child(outer: VariableScope, name: str, reuse: Any, name_scope: str) -> VariableScope:
    """Return a scope with the defaults of another one."""
    return VariableScope(
        reuse,
        name,
        outer.initializer,
        outer.regularizer,
        outer.caching_device,
        outer.partitioner,
        outer.custom_getter,
        name_scope,
        outer.dtype,
        outer.use_resource,
        outer.constraint,
    )


@contextmanager
def _entered(graph: Graph, scope: VariableScope, again: bool) -> Iterator[None]:
    store = store_of(graph)
    with graph.lock:
        store.enter(scope.name)
        # After a first opening, the counts of inner scopes start from 0 again, later from where they were.
        before = dict(store.opened) if again else {}
    try:
        with scopes.enter_scope(graph, lambda outer: outer._replace(variable_scope=scope)):
            yield
    finally:
        with graph.lock:
            store.leave(scope.name, before)


def variable_op_scope(
    values: Iterable[object],
    name_or_scope: str | VariableScope | None,
    default_name: str | None = None,
    **settings: Any,
) -> AbstractContextManager[VariableScope]:
    """Open a `variable_scope`; an older form with the values first."""
    return variable_scope(name_or_scope, default_name, values, **settings)
