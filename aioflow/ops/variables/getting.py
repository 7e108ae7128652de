"""`get_variable` and its kin: variables that are shared by name, with what the open variable scope says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

from aioflow.graph import dtypes, scopes
from aioflow.graph.default_graph import default_graph
from aioflow.graph.dtypes import DTypeLike
from aioflow.graph.graph import GraphKeys, Tensor
from aioflow.graph.shapes import ShapeLike
from aioflow.ops.variables.partitioned import PartitionedVariable
from aioflow.ops.variables.partitioners import Partitioner
from aioflow.ops.variables.replicas import VariableAggregation, VariableSynchronization
from aioflow.ops.variables.scope import InitializerLike, Regularizer, get_variable_scope, variable_scope
from aioflow.ops.variables.sharing import share_or_make_any
from aioflow.ops.variables.variable import Variable

__all__ = ["create_partitioned_variables", "get_local_variable", "get_variable"]


@overload
def get_variable(
    name: str,
    shape: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    initializer: InitializerLike | None = None,
    regularizer: Regularizer | None = None,
    trainable: bool | None = None,
    collections: Iterable[str] | None = None,
    caching_device: scopes.DeviceLike = None,
    partitioner: None = None,
    validate_shape: bool = True,
    use_resource: bool | None = None,
    custom_getter: Callable[..., Any] | None = None,
    constraint: Callable[[Tensor], Tensor] | None = None,
    synchronization: VariableSynchronization = VariableSynchronization.AUTO,
    aggregation: VariableAggregation = VariableAggregation.NONE,
) -> Variable: ...


@overload
def get_variable(
    name: str,
    shape: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    initializer: InitializerLike | None = None,
    *,
    partitioner: Partitioner,
    regularizer: Regularizer | None = None,
    trainable: bool | None = None,
    collections: Iterable[str] | None = None,
    caching_device: scopes.DeviceLike = None,
    validate_shape: bool = True,
    use_resource: bool | None = None,
    custom_getter: Callable[..., Any] | None = None,
    constraint: Callable[[Tensor], Tensor] | None = None,
    synchronization: VariableSynchronization = VariableSynchronization.AUTO,
    aggregation: VariableAggregation = VariableAggregation.NONE,
) -> PartitionedVariable: ...


def get_variable(
    name: str,
    shape: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    initializer: InitializerLike | None = None,
    regularizer: Regularizer | None = None,
    trainable: bool | None = None,
    collections: Iterable[str] | None = None,
    caching_device: scopes.DeviceLike = None,
    partitioner: Partitioner | None = None,
    validate_shape: bool = True,
    use_resource: bool | None = None,
    custom_getter: Callable[..., Any] | None = None,
    constraint: Callable[[Tensor], Tensor] | None = None,
    synchronization: VariableSynchronization = VariableSynchronization.AUTO,
    aggregation: VariableAggregation = VariableAggregation.NONE,
) -> Variable | PartitionedVariable:
    """The variable of that name in the open variable scope: a new one, or a shared one, as the scope's `reuse` says.

    Args:
        shape: Needed for a new variable, unless the initializer is a value.
        dtype: float32 by default.
        initializer: An initializer, or a value. By default Glorot's uniform one for floats, and zeros for other dtypes.
        regularizer: A function of the new variable; its result joins the regularization losses.
        partitioner: A function of the shape and the dtype that says into how many parts the variable is cut along each
            axis, of which one may be cut; then a `PartitionedVariable` results. By default the scope's, if it has one.
        custom_getter: Called as `custom_getter(getter, name, …)` to make or find the variable, instead of the scope's.

    Raises:
        AlreadyExistsError: the variable exists and is not to be reused.
        InvalidArgumentError: it does not exist and should; the shape, the dtype or the parts differ; the partitioner is
            not a function, or does not fit the shape.
    """
    result: Variable | PartitionedVariable = get_variable_scope().get_variable(
        name,
        shape=shape,
        dtype=dtype,
        initializer=initializer,
        regularizer=regularizer,
        trainable=trainable,
        collections=collections,
        caching_device=caching_device,
        partitioner=partitioner,
        validate_shape=validate_shape,
        use_resource=use_resource,
        custom_getter=custom_getter,
        constraint=constraint,
        synchronization=synchronization,
        aggregation=aggregation,
    )
    return result


def get_local_variable(
    name: str,
    shape: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    initializer: InitializerLike | None = None,
    regularizer: Regularizer | None = None,
    trainable: bool = False,
    collections: Iterable[str] | None = None,
    **settings: Any,
) -> Variable:
    """As `get_variable`, for a local variable: not part of a checkpoint, and not trainable."""
    joined = [*(collections or ()), GraphKeys.LOCAL_VARIABLES]
    return get_variable(name, shape, dtype, initializer, regularizer, False, joined, **settings)


def create_partitioned_variables(
    shape: ShapeLike,
    slicing: Sequence[int],
    initializer: InitializerLike,
    dtype: DTypeLike = dtypes.float32,
    trainable: bool = True,
    collections: Iterable[str] | None = None,
    name: str | None = None,
    reuse: bool | None = None,
) -> list[Variable]:
    """An older form of `get_variable` with a partitioner, in a variable scope of its own: the parts as a list.

    Args:
        slicing: Into how many parts the variable is cut along each axis.
        initializer: A value of the whole shape, or an initializer, which is called for each part.
        name: Name of the scope and of the whole; "PartitionedVariable", made unique, by default.

    Raises:
        InvalidArgumentError: the slicing does not fit the shape.
    """
    with variable_scope(name, "PartitionedVariable", reuse=reuse) as scope:
        settings = scope.with_defaults(
            initializer=initializer, dtype=dtype, trainable=trainable, collections=collections, shape=shape
        )
        settings["partitioner"] = lambda **_: list(slicing)
        graph = default_graph()
        with graph.name_scope(None):
            made: Any = share_or_make_any(graph, scope.name, **settings)
        return list(made)
