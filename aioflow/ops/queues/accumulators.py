"""Conditional accumulators: they sum the gradients of many steps and release the result once enough have arrived.

Synchronous training with backup workers uses them to wait for the first m of n gradients. TensorFlow's sparse
accumulator is a reference to a string. Here its handle is a resource under the same op names, and both kinds share the
ops of the dense one where their behavior is the same.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from aioflow.graph import dtypes as _dtypes
from aioflow.graph.costs import PER_ELEMENT
from aioflow.graph.default_graph import default_graph
from aioflow.graph.dtypes import DType, DTypeLike
from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.scopes import current_scope
from aioflow.graph.shapes import Dims, ShapeLike, dims_of, merge_dims
from aioflow.graph.traits import handle, waiting
from aioflow.ops.apply import TensorLike, convert_to_tensor, make, make_op, make_tuple
from aioflow.ops.core import scalar

GradientReduction: TypeAlias = Literal["MEAN", "SUM", "FIRST"]

__all__ = ["ConditionalAccumulator", "ConditionalAccumulatorBase", "SparseConditionalAccumulator"]


_DTYPE = "dtype: {numbertype}"


def _taken_shape(ctx: ShapeContext) -> Dims:
    op = ctx.tensors[0].op
    # Only the node that makes the handle knows the shape.
    dims: Dims = op.attrs["shape"] if op.type == "ResourceConditionalAccumulator" else None
    return dims


_ATTRIBUTES = [
    _DTYPE,
    "shape: shape",
    "container: string = ''",
    "shared_name: string = ''",
    "reduction_type: {'MEAN', 'SUM', 'FIRST'} = 'MEAN'",
]
define_op(
    "ResourceConditionalAccumulator",
    "",
    "handle: resource",
    _ATTRIBUTES,
    shape=scalar,
    traits=handle(on_host="its queue belongs to the event loop", is_shared=True),
)
define_op(
    "SparseConditionalAccumulator",
    "",
    "handle: resource",
    _ATTRIBUTES,
    shape=scalar,
    traits=handle(on_host="its queue belongs to the event loop"),
)
define_op(
    "ResourceAccumulatorApplyGradient",
    "handle: resource, local_step: int64, gradient: dtype",
    "",
    [_DTYPE],
    traits=waiting(is_numeric=True, cost=PER_ELEMENT),
)
define_op(
    "ResourceAccumulatorTakeGradient",
    "handle: resource, num_required: int32",
    "average: dtype",
    [_DTYPE],
    shape=_taken_shape,
    traits=waiting(is_numeric=True, cost=PER_ELEMENT, tells_step=True, takes_away=True),
)
define_op(
    "SparseAccumulatorApplyGradient",
    "handle: resource, local_step: int64, gradient_indices: int64, gradient_values: dtype, gradient_shape: int64",
    "",
    [_DTYPE, "has_known_shape: bool"],
    traits=waiting(is_numeric=True, cost=PER_ELEMENT),
)
define_op(
    "SparseAccumulatorTakeGradient",
    "handle: resource, num_required: int32",
    "indices: int64, values: dtype, shape: int64",
    [_DTYPE],
    traits=waiting(is_numeric=True, cost=PER_ELEMENT, tells_step=True, takes_away=True),
)
define_op(
    "ResourceAccumulatorNumAccumulated",
    "handle: resource",
    "num_accumulated: int32",
    shape=scalar,
    traits=waiting(is_numeric=True, cost=PER_ELEMENT, tells_step=True),
)
define_op(
    "ResourceAccumulatorSetGlobalStep",
    "handle: resource, new_global_step: int64",
    "",
    traits=waiting(is_numeric=True, cost=PER_ELEMENT),
)
define_op(
    "_ResourceAccumulatorRestart",
    "handle: resource, step: int64",
    "",
    traits=waiting(is_numeric=True, cost=PER_ELEMENT),
)
define_op(
    "_ResourceAccumulatorGoBack",
    "handle: resource, step: int64",
    "",
    traits=waiting(is_numeric=True, cost=PER_ELEMENT),
)
define_op(
    "_ResourceAccumulatorLimit",
    "handle: resource, num_required: int32",
    "",
    traits=waiting(is_numeric=True, cost=PER_ELEMENT),
)
define_op("_ResourceAccumulatorClose", "handle: resource", "", traits=waiting(is_numeric=True, cost=PER_ELEMENT))
not_differentiable(
    "ResourceConditionalAccumulator",
    "SparseConditionalAccumulator",
    "SparseAccumulatorApplyGradient",
    "SparseAccumulatorTakeGradient",
    "ResourceAccumulatorApplyGradient",
    "ResourceAccumulatorTakeGradient",
    "ResourceAccumulatorNumAccumulated",
    "ResourceAccumulatorSetGlobalStep",
    "_ResourceAccumulatorRestart",
    "_ResourceAccumulatorGoBack",
    "_ResourceAccumulatorLimit",
    "_ResourceAccumulatorClose",
)


class SparseGradient(NamedTuple):
    """Result of `SparseConditionalAccumulator.take_grad`."""

    indices: Tensor
    values: Tensor
    shape: Tensor


class ConditionalAccumulatorBase:
    """Base class of accumulators.

    Args:
        dtype: Dtype of the gradients.
        shape: Static shape of the gradients, or None.
        accumulator_ref: The handle tensor.
    """

    def __init__(self, dtype: DTypeLike, shape: ShapeLike | None, accumulator_ref: Tensor) -> None:
        self._dtype = _dtypes.as_dtype(dtype)
        self._dims = dims_of(shape)
        self._accumulator_ref = accumulator_ref

    @property
    def accumulator_ref(self) -> Tensor:
        """The handle."""
        return self._accumulator_ref

    @property
    def name(self) -> str:
        """Name of the node that makes the handle."""
        return self._accumulator_ref.op.name

    @property
    def dtype(self) -> DType:
        """Dtype of the gradients."""
        return self._dtype

    def num_accumulated(self, name: str | None = None) -> Tensor:
        """Return the number of gradients added since the last take, an int32 scalar."""
        return make("ResourceAccumulatorNumAccumulated", self._accumulator_ref, name=name)

    def set_global_step(self, new_global_step: TensorLike, name: str | None = None) -> Operation:
        """Return an operation that advances to a later step, so that gradients of earlier steps are stale.

        An earlier step is ignored.
        """
        step = _as_int64(new_global_step)
        return make_op("ResourceAccumulatorSetGlobalStep", self._accumulator_ref, step, name=name)

    def restart(self, step: TensorLike) -> Operation:
        """Return an operation that continues from a step, for training restored from a checkpoint.

        An earlier step drops the gradients added so far, and gradients of the undone steps that arrive later. The
        operation also reopens a closed accumulator and removes its limit.
        """
        tensor = _as_int64(step)
        return make_op("_ResourceAccumulatorRestart", self._accumulator_ref, tensor, name="Restart")

    def go_back(self, step: TensorLike) -> Operation:
        """Return an operation that accepts gradients of `step` again.

        Use it if the gradients taken in this step have changed nothing.
        """
        tensor = _as_int64(step)
        return make_op("_ResourceAccumulatorGoBack", self._accumulator_ref, tensor, name="GoBack")

    def limit(self, num_required: TensorLike, name: str | None = None) -> Operation:
        """Return an operation that limits the number of gradients a `take_grad` waits for, whatever it requires.

        The limit applies to waiting takes too. It holds until a `restart` or another limit.

        Args:
            num_required: The limit, an int32 scalar.
            name: Name of the node.

        Raises:
            InvalidArgumentError: at run time, `num_required` is not positive.
        """
        count = convert_to_tensor(num_required, _dtypes.int32)
        return make_op("_ResourceAccumulatorLimit", self._accumulator_ref, count, name=name or "Limit")

    def close(self, name: str | None = None) -> Operation:
        """Return an operation that fails waiting and later calls of `take_grad` with CancelledError.

        A `restart` reopens the accumulator.
        """
        return make_op("_ResourceAccumulatorClose", self._accumulator_ref, name=name or "Close")


def _accumulator(
    op_type: str,
    dtype: DTypeLike,
    shape: ShapeLike | None,
    shared_name: str | None,
    name: str,
    reduction_type: GradientReduction,
) -> Tensor:
    return make(
        op_type,
        dtype=_dtypes.as_dtype(dtype),
        shape=dims_of(shape),
        container=current_scope(default_graph()).container,
        shared_name=shared_name or "",
        reduction_type=reduction_type,
        name=name,
    )


class ConditionalAccumulator(ConditionalAccumulatorBase):
    """An accumulator of dense gradients that returns their mean (or sum) once enough have arrived.

    Args:
        dtype: Dtype of the gradients.
        shape: Static shape of the gradients, which may be partly known; or None.
        shared_name: Accumulators with the same name, in any session of a worker, are the same.
        name: Name of the node.
        reduction_type: "MEAN", "SUM" or "FIRST". "FIRST", which TensorFlow does not have, keeps only the first gradient
            of a step.
    """

    def __init__(
        self,
        dtype: DTypeLike,
        shape: ShapeLike | None = None,
        shared_name: str | None = None,
        name: str = "conditional_accumulator",
        reduction_type: GradientReduction = "MEAN",
    ) -> None:
        handle = _accumulator("ResourceConditionalAccumulator", dtype, shape, shared_name, name, reduction_type)
        super().__init__(dtype, shape, handle)

    def apply_grad(self, grad: TensorLike, local_step: TensorLike = 0, name: str | None = None) -> Operation:
        """Return an operation that adds a gradient, or drops it if `local_step` is earlier than the accumulator's step.

        Raises:
            InvalidArgumentError: the gradient has a different shape.
        """
        tensor = convert_to_tensor(grad, self._dtype)
        merge_dims(tensor.dims, self._dims)
        step = _as_int64(local_step)
        return make_op("ResourceAccumulatorApplyGradient", self._accumulator_ref, step, tensor, name=name)

    def take_grad(self, num_required: TensorLike, name: str | None = None) -> Tensor:
        """Return the mean (or sum) of the added gradients, once there are at least `num_required`.

        The take empties the accumulator and advances its step by one.

        Raises:
            CancelledError: at run time, the accumulator is closed.
        """
        count = convert_to_tensor(num_required, _dtypes.int32)
        return make("ResourceAccumulatorTakeGradient", self._accumulator_ref, count, dtype=self._dtype, name=name)


class SparseConditionalAccumulator(ConditionalAccumulatorBase):
    """A `ConditionalAccumulator` of sparse gradients: rows and their indices.

    The mean of a row is taken over the gradients that contain it. A gradient may contain rows in any order and
    repeatedly; repeated rows are summed. The result has each row once, in ascending order.

    The arguments are those of `ConditionalAccumulator`. `shape` is the shape of the whole tensor, with None for sizes
    that vary.
    """

    def __init__(
        self,
        dtype: DTypeLike,
        shape: ShapeLike | None = None,
        shared_name: str | None = None,
        name: str = "sparse_conditional_accumulator",
        reduction_type: GradientReduction = "MEAN",
    ) -> None:
        handle = _accumulator("SparseConditionalAccumulator", dtype, shape, shared_name, name, reduction_type)
        super().__init__(dtype, shape, handle)

    def apply_indexed_slices_grad(
        self, grad: IndexedSlices, local_step: TensorLike = 0, name: str | None = None
    ) -> Operation:
        """Return an operation that applies `grad`, a result of `gradients`; see `apply_grad`."""
        return self.apply_grad(grad.indices, grad.values, grad.dense_shape, local_step, name)

    def apply_grad(
        self,
        grad_indices: TensorLike,
        grad_values: TensorLike,
        grad_shape: TensorLike | None = None,
        local_step: TensorLike = 0,
        name: str | None = None,
    ) -> Operation:
        """Return an operation that adds a gradient, or drops it if `local_step` is earlier than the accumulator's step.

        Args:
            grad_indices: [n] integers, the indices of the rows.
            grad_values: [n, …], the rows.
            grad_shape: Shape of the whole tensor, or None.
            local_step: Step in which the gradient was computed.
            name: Name of the node.

        Raises:
            InvalidArgumentError: at run time, the shapes do not fit, or an index is out of range.
        """
        indices = _as_int64(grad_indices)
        values = convert_to_tensor(grad_values, self._dtype)
        shape = _as_int64([] if grad_shape is None else grad_shape)
        return make_op(
            "SparseAccumulatorApplyGradient",
            self._accumulator_ref,
            _as_int64(local_step),
            indices,
            values,
            shape,
            has_known_shape=grad_shape is not None,
            name=name,
        )

    def take_grad(self, num_required: TensorLike, name: str | None = None) -> SparseGradient:
        """Return the mean (or sum) of the added gradients, once there are at least `num_required`.

        The take empties the accumulator and advances its step by one.

        Returns:
            A named tuple of `indices`, `values` and `shape`; the first size of the shape is -1 if it is unknown.

        Raises:
            CancelledError: at run time, the accumulator is closed.
        """
        count = convert_to_tensor(num_required, _dtypes.int32)
        return make_tuple(
            SparseGradient, "SparseAccumulatorTakeGradient", self._accumulator_ref, count, dtype=self._dtype, name=name
        )

    def take_indexed_slices_grad(self, num_required: TensorLike, name: str | None = None) -> IndexedSlices:
        """Return the result of `take_grad` as IndexedSlices."""
        taken = self.take_grad(num_required, name)
        return IndexedSlices(taken.values, taken.indices, taken.shape)


def _as_int64(value: TensorLike) -> Tensor:
    """Return steps, indices or shapes as int64. Indices from `gradients` may have another integer dtype."""
    tensor = convert_to_tensor(value, dtype_hint=_dtypes.int64)
    return (
        make("Cast", tensor, DstT=_dtypes.int64)
        if tensor.dtype.is_integer
        else convert_to_tensor(tensor, _dtypes.int64)
    )
