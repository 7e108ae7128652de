"""`get_variable` and related functions: variables shared by name, with defaults from the open variable scope."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

from aioflow.graph import dtypes
from aioflow.graph.default_graph import default_graph
from aioflow.graph.dtypes import DTypeLike
from aioflow.graph.graph import DeviceLike, GraphKeys, Tensor
from aioflow.graph.shapes import ShapeLike
from aioflow.ops.variables.partitioned import PartitionedVariable
from aioflow.ops.variables.partitioners import Partitioner
from aioflow.ops.variables.replicas import VariableAggregation, VariableSynchronization
from aioflow.ops.variables.scope import InitializerLike, Regularizer, get_variable_scope, variable_scope
from aioflow.ops.variables.store import share_or_make_any
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
    caching_device: DeviceLike = None,
    partitioner: None = None,
    validate_shape: bool = True,
    use_resource: bool | None = None,
    custom_getter: Callable[..., object] | None = None,
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
    caching_device: DeviceLike = None,
    validate_shape: bool = True,
    use_resource: bool | None = None,
    custom_getter: Callable[..., object] | None = None,
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
    caching_device: DeviceLike = None,
    partitioner: Partitioner | None = None,
    validate_shape: bool = True,
    use_resource: bool | None = None,
    custom_getter: Callable[..., object] | None = None,
    constraint: Callable[[Tensor], Tensor] | None = None,
    synchronization: VariableSynchronization = VariableSynchronization.AUTO,
    aggregation: VariableAggregation = VariableAggregation.NONE,
) -> Variable | PartitionedVariable:
    """Return the variable with this name in the open variable scope.

    The `reuse` setting of the scope decides whether the variable is new or shared.

    Args:
        name: Name of the variable, without the prefix of the scope.
        shape: Required for a new variable, unless the initializer is a value.
        dtype: float32 by default.
        initializer: An initializer, or a value. By default Glorot's uniform initializer for floats, and zeros for other
            dtypes.
        regularizer: A function of the new variable; its result joins the regularization losses.
        trainable: As for `Variable`.
        collections: As for `Variable`.
        caching_device: As for `Variable`.
        partitioner: A function of the shape and the dtype that returns the number of parts along each axis; one axis
            can be split. The result is then a `PartitionedVariable`. By default, the partitioner of the scope, if any.
        validate_shape: As for `Variable`.
        use_resource: Ignored: every variable is a resource.
        custom_getter: Called as `custom_getter(getter, name, …)` to make or find the variable, instead of the
            scope's getter.
        constraint: As for `Variable`.
        synchronization: As for `Variable`.
        aggregation: As for `Variable`.

    Raises:
        AlreadyExistsError: the variable exists and is not to be reused.
        InvalidArgumentError: the variable is to be reused and does not exist; the shape, the dtype or the parts differ;
            the partitioner is not a function, or does not fit the shape.
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
    """Return a variable as `get_variable` does, but a local one: not part of a checkpoint, and not trainable."""
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
    """Return the parts of a variable as a list: an older form of `get_variable` with a partitioner.

    The parts are made in a variable scope of their own.

    Args:
        shape: Shape of the whole variable.
        slicing: Number of parts along each axis.
        initializer: A value of the whole shape, or an initializer, which is called for each part.
        dtype: Dtype of the parts.
        trainable: Whether optimizers update the parts by default.
        collections: Graph collections to join.
        name: Name of the scope and of the whole; "PartitionedVariable", made unique, by default.
        reuse: As for `variable_scope`.

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
