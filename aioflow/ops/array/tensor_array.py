"""`TensorArray`: tensors by index within one step, as loops fill and read them.

The order of operations follows from the *flow*, a scalar that every write consumes and returns. A read that must see a
write reads the flow of that write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioflow.arguments import check_kind
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.dtypes import DType, DTypeLike, as_dtype
from aioflow.graph.gradient_registry import gradient, not_differentiable
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.scopes import current_scope
from aioflow.graph.shapes import Dims, ShapeLike, TensorShape, dims_of, format_dims, is_compatible, merge_dims
from aioflow.graph.traits import Effect, bookkeeping, handle, movement, opaque
from aioflow.ops import row_lists, rows
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make, make_list, make_op
from aioflow.ops.core import identity, scalar
from aioflow.ops.dtype_errors import another_dtype
from aioflow.ops.scoping import name_scope

__all__ = ["TensorArray"]

_FLOW = "flow_in: float32"


def _flow(ctx: ShapeContext) -> list[Dims]:
    return [()]


def _new_array(ctx: ShapeContext) -> list[Dims]:
    ctx.require_rank("size", 0)
    return [(), ()]


def _scattered(ctx: ShapeContext) -> list[Dims]:
    indices, value = ctx.require_rank("indices", 1), ctx.dims("value")
    merge_dims(indices, None if value is None else value[:1])
    return [()]


def _cut(ctx: ShapeContext) -> list[Dims]:
    ctx.require_rank("lengths", 1)
    return [()]


def _gathered(ctx: ShapeContext) -> Dims:
    indices, dims = ctx.require_rank("indices", 1), ctx.attrs["element_shape"]
    return None if dims is None else (None if indices is None else indices[0], *dims)


def _joined(ctx: ShapeContext) -> list[Dims]:
    rest = ctx.attrs["element_shape_except0"]
    return [None if rest is None else (None, *rest), (None,)]


define_op(
    "TensorArrayV3",
    "size: int32",
    "handle: resource, flow: float32",
    [
        "dtype: type",
        "element_shape: shape = None",
        "dynamic_size: bool = False",
        "clear_after_read: bool = True",
        "identical_element_shapes: bool = False",
        "tensor_array_name: string = ''",
    ],
    shape=_new_array,
    rows=row_lists.new_list,
    traits=handle(),
)
define_op(
    "TensorArrayGradV3",
    f"handle: resource, {_FLOW}",
    "grad_handle: resource, flow_out: float32",
    ["source: string"],
    shape=lambda ctx: [(), ()],
    traits=bookkeeping(effect=Effect.KEEPS),
)
define_op(
    "TensorArrayWriteV3",
    f"handle: resource, index: int32, value: T, {_FLOW}",
    "flow_out: float32",
    ["T: type"],
    shape=_flow,
    rows=row_lists.put_in_list(3, 2),
    traits=bookkeeping(effect=Effect.KEEPS),
)
define_op(
    "TensorArrayReadV3",
    f"handle: resource, index: int32, {_FLOW}",
    "value: dtype",
    ["dtype: type"],
    rows=row_lists.element_at(2),
    traits=bookkeeping(effect=Effect.KEEPS),
)
define_op(
    "TensorArrayGatherV3",
    f"handle: resource, indices: int32, {_FLOW}",
    "value: dtype",
    ["dtype: type", "element_shape: shape = None"],
    shape=_gathered,
    rows=row_lists.stacked_list(2),
    traits=movement(effect=Effect.KEEPS),
)
define_op(
    "TensorArrayScatterV3",
    f"handle: resource, indices: int32, value: T, {_FLOW}",
    "flow_out: float32",
    ["T: type"],
    shape=_scattered,
    rows=row_lists.list_of_rows(2, 3),
    traits=opaque(effect=Effect.KEEPS),
)
define_op(
    "TensorArraySplitV3",
    f"handle: resource, value: T, lengths: int64, {_FLOW}",
    "flow_out: float32",
    ["T: type"],
    shape=_cut,
    traits=opaque(effect=Effect.KEEPS),
)
define_op(
    "TensorArrayConcatV3",
    f"handle: resource, {_FLOW}",
    "value: dtype, lengths: int64",
    ["dtype: type", "element_shape_except0: shape = None"],
    shape=_joined,
    traits=opaque(effect=Effect.KEEPS),
)
define_op(
    "TensorArraySizeV3",
    f"handle: resource, {_FLOW}",
    "size: int32",
    shape=scalar,
    rows=rows.fixed,
    traits=bookkeeping(effect=Effect.KEEPS),
)
define_op("TensorArrayCloseV3", "handle: resource", "", traits=bookkeeping(effect=Effect.KEEPS))

not_differentiable("TensorArrayV3", "TensorArraySizeV3", "TensorArrayCloseV3")


def _gradients_of(op: Operation, dtype: DType, flow: Tensor) -> TensorArray:
    """Return the array of the gradients of the array that `op` uses, one for each call of `gradients`."""
    source = current_scope(op.graph).differentiation
    forward = TensorArray(dtype, handle=op.inputs[0], flow=flow, infer_shape=False)
    return forward.grad(source or "gradients", flow=flow)


@gradient("TensorArrayGradV3")
def _array_grad(op: Operation, handle: Tensor | None, flow: Tensor) -> list[Tensor | None]:
    return [None, flow]


@gradient("TensorArrayReadV3")
def _read_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    # The gradient of a read is written to the array of gradients, and that of a write is read from it.
    _, index, flow = op.inputs
    return [None, None, _gradients_of(op, grad.dtype, flow).write(index, grad).flow]


@gradient("TensorArrayWriteV3")
def _write_grad(op: Operation, flow: Tensor) -> list[Tensor | None]:
    _, index, value, _ = op.inputs
    grad = _gradients_of(op, value.dtype, flow).read(index)
    # The flow has no value: its gradient only orders the operations on the array of gradients.
    return [None, None, grad, flow]


@gradient("TensorArrayGatherV3")
def _gather_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    _, indices, flow = op.inputs
    return [None, None, _gradients_of(op, grad.dtype, flow).scatter(indices, grad).flow]


@gradient("TensorArrayScatterV3")
def _scatter_grad(op: Operation, flow: Tensor) -> list[Tensor | None]:
    _, indices, value, _ = op.inputs
    grad = _gradients_of(op, value.dtype, flow).gather(indices)
    return [None, None, grad, flow]


@gradient("TensorArraySplitV3")
def _split_grad(op: Operation, flow: Tensor) -> list[Tensor | None]:
    grad = _gradients_of(op, op.inputs[1].dtype, flow).concat()
    return [None, grad, None, flow]


@gradient("TensorArrayConcatV3")
def _concat_grad(op: Operation, grad: Tensor, lengths_grad: Tensor | None) -> list[Tensor | None]:
    flow = op.inputs[1]
    return [None, _gradients_of(op, grad.dtype, flow).split(grad, op.outputs[1]).flow]


class TensorArray:
    """Tensors by index, each written once, that live as long as the step.

    A write returns the array as it is afterwards; use that one from then on. If the array is a loop variable, the loop
    carries its flow.

    Args:
        dtype: Dtype of the elements.
        size: Number of elements; 0 if not given.
        dynamic_size: Whether writes beyond the end enlarge the array.
        clear_after_read: Whether an element is dropped when it has been read, so that it can be read only once; True if
            not given.
        tensor_array_name: A name for errors.
        handle: Handle of an existing array, instead of `size`.
        flow: Flow of that array.
        infer_shape: Whether all elements have one static shape, as far as it is known.
        element_shape: Static shape of the elements.
        colocate_with_first_write_call: Accepted for published code.
        name: Name of the node.
    """

    def __init__(
        self,
        dtype: DTypeLike,
        size: TensorLike | None = None,
        dynamic_size: bool | None = None,
        clear_after_read: bool | None = None,
        tensor_array_name: str | None = None,
        handle: Tensor | None = None,
        flow: Tensor | None = None,
        infer_shape: bool = True,
        element_shape: ShapeLike | None = None,
        colocate_with_first_write_call: bool = True,
        name: str | None = None,
    ) -> None:
        if handle is not None:
            check_kind(handle, Tensor, "the handle of a tensor array", "a tensor")
            if tensor_array_name is not None:
                raise InvalidArgumentError(
                    "a tensor array cannot be given both a name and a handle", expected="one of them", actual="both"
                )
        if handle is not None and (size is not None or dynamic_size is not None or clear_after_read is not None):
            raise InvalidArgumentError(
                "a tensor array is made either new or from a handle", expected="size or handle", actual="both"
            )
        self._dtype = as_dtype(dtype)
        self._dims: Dims = dims_of(element_shape)
        self._infer_shape = infer_shape
        self._dynamic_size = bool(dynamic_size)
        # An array that grows knows its size only in a step.
        self._size = None if self._dynamic_size else size
        if handle is not None:
            self._handle = handle
            self._flow = constant(0.0) if flow is None else flow
            return
        made = make_list(
            "TensorArrayV3",
            0 if size is None else size,
            dtype=self._dtype,
            element_shape=self._dims,
            dynamic_size=self._dynamic_size,
            clear_after_read=clear_after_read is None or clear_after_read,
            identical_element_shapes=infer_shape,
            tensor_array_name=tensor_array_name or "",
            name=name or "TensorArray",
        )
        self._handle, self._flow = made if flow is None else (made[0], flow)

    @property
    def dtype(self) -> DType:
        """Dtype of the elements."""
        return self._dtype

    @property
    def handle(self) -> Tensor:
        """The resource handle of the array."""
        return self._handle

    if not TYPE_CHECKING:

        def __array__(self, *args, **kwargs):
            return self._flow.__array__()

    @property
    def flow(self) -> Tensor:
        """The scalar that orders the operations on the array."""
        return self._flow

    @property
    def dynamic_size(self) -> bool:
        """True if writes beyond the end enlarge the array."""
        return self._dynamic_size

    @property
    def element_shape(self) -> TensorShape:
        """Static shape of the elements."""
        return TensorShape(self._dims)

    @property
    def graph(self) -> Graph:
        """The graph of the array."""
        return self._flow.op.graph

    def with_flow(self, flow: Tensor) -> TensorArray:
        """Return the same array with another flow: its operations come after the node that made `flow`."""
        # Not by the constructor, which would make a node.
        after = object.__new__(TensorArray)
        after.__dict__.update(self.__dict__)
        after._flow = flow
        return after

    def identity(self) -> TensorArray:
        """Return the same array with its flow in a node of its own, to attach control dependencies to."""
        return self.with_flow(identity(self._flow))

    def read(self, index: TensorLike, name: str | None = None) -> Tensor:
        """Return the element at `index`, a scalar.

        Raises:
            InvalidArgumentError: when the step runs, if there is no such index or the element was not written.
            FailedPreconditionError: when the step runs, if the element was read and cleared.
        """
        value = make("TensorArrayReadV3", self._handle, index, self._flow, dtype=self._dtype, name=name)
        value.set_shape(self._dims)
        return value

    def write(self, index: TensorLike, value: TensorLike, name: str | None = None) -> TensorArray:
        """Set the element at `index`. Return the array after that.

        Raises:
            DTypeError: `value` does not have the array's dtype.
            InvalidArgumentError: the static shape of `value` does not fit the other elements'; or, when the step runs,
                there is no such index, or the element was written or read before.
        """
        tensor = self._converted(value)
        learned = self._learned(tensor.dims)
        flow = make("TensorArrayWriteV3", self._handle, index, tensor, self._flow, name=name)
        return self._after(flow, learned)

    def stack(self, name: str | None = None) -> Tensor:
        """Return all elements in one tensor [size] + element_shape."""
        with name_scope(name, "TensorArrayStack", [self]):
            return self.gather(make("Range", 0, self.size(), 1), name=name)

    def gather(self, indices: TensorLike, name: str | None = None) -> Tensor:
        """Return the elements at `indices`, a vector, in one tensor [n] + element_shape."""
        gathered = make(
            "TensorArrayGatherV3",
            self._handle,
            indices,
            self._flow,
            dtype=self._dtype,
            element_shape=self._dims,
            name=name,
        )
        if self._dims is not None:
            gathered.set_shape((None, *self._dims))
        return gathered

    def concat(self, name: str | None = None) -> Tensor:
        """Return all elements, joined along their first axis."""
        rest = None if self._dims is None else self._dims[1:]
        return make_list(
            "TensorArrayConcatV3", self._handle, self._flow, dtype=self._dtype, element_shape_except0=rest, name=name
        )[0]

    def unstack(self, value: TensorLike, name: str | None = None) -> TensorArray:
        """Write the rows of `value` to 0, 1, 2, …. Return the array after that."""
        with name_scope(name, "TensorArrayUnstack", [self._handle]):
            tensor = self._converted(value)
            count = make("StridedSlice", make("Shape", tensor), [0], [1], [1], shrink_axis_mask=1)
            return self.scatter(make("Range", 0, count, 1), tensor, name=name)

    def scatter(self, indices: TensorLike, value: TensorLike, name: str | None = None) -> TensorArray:
        """Write the rows of `value` to `indices`, a vector. Return the array after that."""
        tensor = self._converted(value)
        learned = self._learned(None if tensor.dims is None else tensor.dims[1:])
        flow = make("TensorArrayScatterV3", self._handle, indices, tensor, self._flow, name=name)
        return self._after(flow, learned)

    def split(self, value: TensorLike, lengths: TensorLike, name: str | None = None) -> TensorArray:
        """Write parts of `value`, split along its first axis by `lengths`. Return the array after that."""
        tensor = self._converted(value)
        given = convert_to_tensor(lengths, dtype_hint="int64")
        if not given.dtype.is_integer:
            raise another_dtype(given, as_dtype("int64"))
        sizes = make("Cast", given, DstT="int64")
        learned = self._learned(None if tensor.dims is None else (None, *tensor.dims[1:]))
        flow = make("TensorArraySplitV3", self._handle, tensor, sizes, self._flow, name=name)
        return self._after(flow, learned)

    def size(self, name: str | None = None) -> Tensor:
        """Return the number of elements, an int32 scalar. If the size cannot change, it is the given one."""
        if self._size is not None:
            with self.graph.as_default():
                return convert_to_tensor(self._size, "int32", name=name)
        return make("TensorArraySizeV3", self._handle, self._flow, name=name)

    def close(self, name: str | None = None) -> Operation:
        """Return a node that drops the elements before the step ends."""
        return make_op("TensorArrayCloseV3", self._handle, name=name)

    def grad(self, source: str, flow: Tensor | None = None, name: str | None = None) -> TensorArray:
        """Return the array of the gradients that flow to this one; `source` distinguishes calls of `gradients`."""
        handle, after = make_list(
            "TensorArrayGradV3", self._handle, self._flow if flow is None else flow, source=source, name=name
        )
        return TensorArray(
            self._dtype, handle=handle, flow=after, infer_shape=self._infer_shape, element_shape=self._dims
        )

    def _converted(self, value: TensorLike) -> Tensor:
        # The tensors of a list are cast to the array's dtype; a single tensor must have it.
        wanted = self._dtype if isinstance(value, list | tuple) else None
        with self.graph.as_default():
            tensor = convert_to_tensor(value, wanted, dtype_hint=self._dtype, name="value")
        if tensor.dtype is not self._dtype:
            error = DTypeError("the tensor array has a different dtype", expected=self._dtype.name, actual=repr(tensor))
            raise error.at(tensor.op.name, tensor.op.type, tensor.op.source)
        return tensor

    def _learned(self, dims: Dims) -> Dims:
        """Return the static shape of the elements, merged with the shape of an element that is written."""
        if not is_compatible(self._dims, dims):
            raise InvalidArgumentError(
                "the elements of the tensor array have a different shape",
                expected=format_dims(self._dims),
                actual=format_dims(dims),
            )
        return merge_dims(self._dims, dims) if self._infer_shape else self._dims

    def _after(self, flow: Tensor, dims: Dims) -> TensorArray:
        after = self.with_flow(flow)
        after._dims = dims
        return after
