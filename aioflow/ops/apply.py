"""Node creation: convert the inputs, infer attributes, check them, and compute dtypes and shapes.

Every builder creates its nodes here, so all rules about inputs and attributes are here. The entry points differ in what
they return: `make` a tensor, `make_list` the tensors of all outputs, `make_tuple` a named tuple of them, and `make_op`
the node. `apply_op`, for code that handles any op, returns the form that fits the op.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np

from aioflow.arguments import check_callable, check_kind
from aioflow.concurrency.forking import not_forked
from aioflow.errors import DTypeError, InvalidArgumentError, OpError, ResourceExhaustedError
from aioflow.graph import dtypes
from aioflow.graph.arrays import check_depth, to_array
from aioflow.graph.default_graph import default_graph, graph_of
from aioflow.graph.dtypes import DType, DTypeLike
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.labelled import LabelledTensor
from aioflow.graph.opdef import OPS, OpDef, ShapeContext, ShapeFn
from aioflow.graph.scopes import current_scope
from aioflow.graph.shapes import MAX_RANK, Dims, ShapeLike, dims_of, format_dims, num_elements
from aioflow.graph.signature.arguments import ArgDef, per_argument
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.source_lines import user_line
from aioflow.graph.tensor_like import SupportsTensor, TensorLike
from aioflow.memory.values import Array
from aioflow.ops.dtype_errors import (
    ByName,
    another_dtype,
    disagreeing_inputs,
    mixed_dtypes,
    offending,
    refused_dtype,
    wrong_input,
)

__all__ = [
    "Outputs",
    "TensorLike",
    "apply_op",
    "constant",
    "constant_of",
    "convert_n_to_tensor",
    "convert_to_tensor",
    "make",
    "make_list",
    "make_op",
    "make_tuple",
    "register_tensor_conversion_function",
]

# The result of a node: itself if it has no outputs, otherwise a tensor (or a list of them) per output of the signature.
Outputs: TypeAlias = Operation | Tensor | list[Tensor] | tuple[Tensor | list[Tensor], ...]

# A tensor, or an object that a conversion function makes one of.
_Symbolic: TypeAlias = Tensor | SupportsTensor

_Tuple = TypeVar("_Tuple", bound=NamedTuple)

_MAX_ELEMENTS: Final = 2**63 - 1
_MAX_OUTPUTS: Final = 1 << 16
_PRIORITY: Final = 100


def _to_dense(value: IndexedSlices, **wanted: object) -> Tensor:
    """Convert slices to a dense tensor."""
    # Imported here, because that module lies above this one.
    with not_forked():
        slices = import_module("aioflow.ops.sparse.indexed_slices")
    tensor: Tensor = slices.to_dense(value, **wanted)
    return tensor


def _to_values(value: LabelledTensor, **wanted: object) -> Tensor:
    return value.values


_CONVERSIONS: Final[list[tuple[int, type, Callable[..., Any]]]] = [
    (_PRIORITY, IndexedSlices, _to_dense),
    (_PRIORITY, LabelledTensor, _to_values),
]


def register_tensor_conversion_function(
    base_type: type, conversion_func: Callable[..., object], priority: int = 100
) -> None:
    """Convert values of `base_type` by `conversion_func(value, dtype, name, as_ref)` wherever a tensor is expected.

    A lower `priority` is tried first. If the function returns NotImplemented, the next one is tried.
    """
    check_kind(base_type, (type, tuple), "the type to convert from", "a type, or a tuple of them")
    check_callable(conversion_func, "the conversion function")
    _CONVERSIONS.append((priority, base_type, conversion_func))
    _CONVERSIONS.sort(key=lambda entry: entry[0])


def constant(
    value: TensorLike,
    dtype: DTypeLike | None = None,
    shape: ShapeLike | None = None,
    name: str = "Const",
    verify_shape: bool = False,
) -> Tensor:
    """Return a node that always produces `value`.

    Args:
        value: A number, bool, string, array, or nested list.
        dtype: Element type; inferred by default (float32 for Python floats, int32 for ints).
        shape: Shape of the result. A single element, or the last one, is repeated to fill it unless `verify_shape`. A
            shape without elements accepts any value and uses only its dtype.
        name: Name of the node.
        verify_shape: Require that the value has the given shape.

    Raises:
        DTypeError: the value is of another kind, the shape has unknown sizes, or `verify_shape` finds another shape.
        InvalidArgumentError: the value does not fit the shape.
        ResourceExhaustedError: the repeated value does not fit into memory.
    """
    wanted = None if dtype is None else dtypes.as_dtype(dtype)
    if wanted in (dtypes.resource, dtypes.variant):
        raise DTypeError("a constant cannot hold handles", expected="numbers, bools or strings", actual=wanted)
    array = to_array(value, wanted)
    if shape is not None:
        array = _fill(array, dims_of(shape), verify_shape)
    return _const_node(array, wanted or dtypes.as_dtype(array.dtype), name)


def _fill(array: Array, dims: Dims, verify: bool) -> Array:
    count = num_elements(dims)
    if dims is None or count is None:
        raise DTypeError(
            "the shape of a constant must be fully known", expected="known sizes", actual=format_dims(dims)
        )
    if verify and array.shape != dims:
        raise DTypeError("the value does not have the given shape", expected=format_dims(dims), actual=array.shape)
    sizes = tuple(d for d in dims if d is not None)
    flat = array.reshape(-1)
    if not count:
        return flat[:0].reshape(sizes)
    if flat.size > count or not flat.size:
        raise InvalidArgumentError(
            "the value does not fit the shape", expected=f"{count} elements", actual=f"{flat.size}"
        )
    if flat.size < count:
        try:
            # TensorFlow fills the rest with the last element.
            flat = np.concatenate([flat, np.repeat(flat[-1:], count - flat.size)])
        except (MemoryError, ValueError) as error:
            raise ResourceExhaustedError(
                "the constant is too large", expected="a size that fits in memory", actual=format_dims(dims)
            ) from error
    return flat.reshape(sizes)


def _const_node(array: Array, dtype: DType, name: str) -> Tensor:
    frozen = array.copy()  # a constant needs a read-only array when the caller's array does
    frozen.flags.writeable = False
    op = default_graph().create_op("Const", (), {"value": frozen, "dtype": dtype}, [(dtype, frozen.shape)], name=name)
    return op.outputs[0]


def constant_of(array: Array, name: str = "Const") -> Tensor:
    """Return a constant that shares the memory of `array`, which must be read-only.

    Raises:
        InvalidArgumentError: the array is writeable.
    """
    if array.flags.writeable:
        raise InvalidArgumentError("a constant needs a read-only array", expected="a read-only array", actual=name)
    dtype = dtypes.as_dtype(array.dtype)
    return (
        default_graph()
        .create_op("Const", (), {"value": array, "dtype": dtype}, [(dtype, array.shape)], name=name)
        .outputs[0]
    )


def convert_to_tensor(
    value: TensorLike,
    dtype: DTypeLike | None = None,
    name: str | None = None,
    preferred_dtype: DTypeLike | None = None,
    dtype_hint: DTypeLike | None = None,
) -> Tensor:
    """Convert to a tensor of the default graph: a tensor itself, a variable's value, a new constant, or a stacked list.

    The tensors of a list are cast to `dtype`. Without `dtype` they must have equal dtypes, or be integers and
    `dtype_hint` an integer dtype.

    Raises:
        DTypeError: `value` is a tensor, or holds a value, of another dtype.
    """
    wanted = None if dtype is None else dtypes.as_dtype(dtype)
    if isinstance(value, Tensor):
        return _checked(value, wanted)
    # `preferred_dtype` is TensorFlow's older name of `dtype_hint`.
    hint = preferred_dtype if preferred_dtype is not None else dtype_hint
    # Conversions come before lists, so that a class derived from list or tuple can have one.
    for _, base_type, convert in _CONVERSIONS:
        if isinstance(value, base_type):
            converted = convert(value, dtype=wanted, name=name, as_ref=False)
            if converted is not NotImplemented:
                return _checked(converted, wanted)
    if isinstance(value, list | tuple):
        found = list(_symbolic_leaves(value))
        if found:
            target = wanted or _common_integer(found, hint)
            return _pack(value, target or found[0].dtype, found[0], target is not None, name or "packed")
    if wanted is None and hint is not None:
        try:
            return constant(value, hint, name=name or "Const")
        except InvalidArgumentError:
            pass  # the hint is only a preference: fall back to what the value itself suggests
    return constant(value, wanted, name=name or "Const")


def convert_n_to_tensor(values: Iterable[TensorLike], dtype: DTypeLike | None = None) -> list[Tensor]:
    """Apply `convert_to_tensor` to each value. Raise DTypeError if `values` is a single value."""
    if isinstance(values, str | bytes | Mapping):
        raise DTypeError(
            "a list of values is needed, not a single value", expected="a list of tensors", actual=repr(values)
        )
    check_kind(values, Iterable, "the values to convert to tensors", "a list of tensors")
    return [convert_to_tensor(value, dtype) for value in values]


def _checked(tensor: Tensor, dtype: DType | None) -> Tensor:
    if dtype is not None and tensor.dtype is not dtype:
        raise another_dtype(tensor, dtype).at(tensor.op.name, tensor.op.type, tensor.op.source)
    return tensor


def _symbolic(value: object) -> bool:
    return isinstance(value, Tensor) or any(isinstance(value, base) for _, base, _ in _CONVERSIONS)


def _common_integer(found: Sequence[_Symbolic], hint: DTypeLike | None) -> DType | None:
    """Return the hinted dtype if the tensors of a list are integers of several dtypes, as sizes can be; else None."""
    kinds = [each.dtype for each in found]
    if hint is None or all(kind is kinds[0] for kind in kinds):
        return None
    target = dtypes.as_dtype(hint)
    return target if all(kind.is_integer for kind in (target, *kinds)) else None


def _pack(values: Sequence[Any], dtype: DType, first: _Symbolic, casts: bool, name: str) -> Tensor:
    items = []
    for value in values:
        if isinstance(value, list | tuple) and _first_symbolic(value) is not None:
            items.append(_pack(value, dtype, first, casts, "packed"))
        elif casts and _symbolic(value) and _is_cast(value.dtype, dtype):
            items.append(make("Cast", convert_to_tensor(value), DstT=dtype))
        else:
            items.append(_convert_beside(value, dtype, first, "the tensors of a list"))
    return make("Pack", items, axis=0, name=name)


def _is_cast(source: DType, target: DType) -> bool:
    return source is not target and source.is_plain and target.is_plain


def _symbolic_leaves(value: object, depth: int = 1) -> Iterator[Any]:
    """Yield the tensors and variables in a value or nested list."""
    check_depth(depth)
    for item in value if isinstance(value, list | tuple) else [value]:
        if isinstance(item, list | tuple):
            yield from _symbolic_leaves(item, depth + 1)
        elif _symbolic(item):
            yield item


def _first_symbolic(value: object) -> _Symbolic | None:
    """Return the first tensor or variable in a value or nested list, or None."""
    return next(_symbolic_leaves(value), None)


def _convert_beside(
    value: TensorLike, wanted: DType | None, first: _Symbolic | None, what: str, **options: Any
) -> Tensor:
    """Apply `convert_to_tensor`; if `first` determined the dtype, an error names it. A dtype of None accepts any."""
    try:
        return convert_to_tensor(value, wanted, **options)
    except DTypeError as error:
        if first is None or wanted is None or first.dtype is not wanted:
            raise
        raise mixed_dtypes(what, first, offending(value, wanted, _symbolic)) from error


def make(op_type: str, *inputs: TensorLike | None, name: str | None = None, **attrs: object) -> Tensor:
    """Make a node of an op whose only output is one tensor, and return that tensor.

    Args:
        op_type: A registered op.
        inputs: One value per input of the signature; a sequence for a sequence input.
        name: Name of the node; by default derived from the op.
        attrs: Attributes; those implied by the inputs (dtypes, counts) and those with defaults may be left out.

    Raises:
        NotFoundError: there is no such op.
        InvalidArgumentError: an input, an attribute or a shape does not fit the signature, or the op has other outputs.
    """
    op_def = OPS.get(op_type)
    if not _gives_one_tensor(op_def):
        raise _other_outputs(op_def, "one tensor")
    graph = graph_of(inputs)
    # In the gradient of a loop, the tensor may already exist: see `ControlFlowContext.stand_in`.
    context = current_scope(graph).context
    if context is not None:
        known: Tensor | None = context.stand_in(op_type, inputs, attrs)
        if known is not None:
            return known
    return _make_node(graph, op_def, inputs, attrs, name).outputs[0]


def make_list(op_type: str, *inputs: TensorLike | None, name: str | None = None, **attrs: object) -> list[Tensor]:
    """Make a node of an op with several outputs, or a list of them, and return all its tensors. See `make`."""
    return list(make_op(op_type, *inputs, name=name, **attrs).outputs)


def make_tuple(
    kind: type[_Tuple], op_type: str, *inputs: TensorLike | None, name: str | None = None, **attrs: object
) -> _Tuple:
    """Make a node of an op with several outputs, and return them as a named tuple. See `make`.

    The fields of `kind` must have the names of the outputs; a sequence output becomes a list of tensors.
    """
    op_def = OPS.get(op_type)
    if tuple(arg.name for arg in op_def.outputs) != kind._fields:
        raise _other_outputs(op_def, ", ".join(kind._fields))
    return kind._make(_grouped(make_op(op_type, *inputs, name=name, **attrs)))


def make_op(op_type: str, *inputs: TensorLike | None, name: str | None = None, **attrs: object) -> Operation:
    """Make a node and return it, whatever its outputs. See `make`."""
    return _make_node(graph_of(inputs), OPS.get(op_type), inputs, attrs, name)


def apply_op(op_type: str, *inputs: TensorLike | None, name: str | None = None, **attrs: object) -> Outputs:
    """Make a node of any op and return its outputs. See `make`.

    Returns:
        The Operation if it has no outputs; a Tensor (or a list of them) if it has one; otherwise a named tuple of
        these.
    """
    op_def = OPS.get(op_type)
    if _gives_one_tensor(op_def):
        return make(op_type, *inputs, name=name, **attrs)
    op = make_op(op_type, *inputs, name=name, **attrs)
    if not op.outputs and all(arg.number_attr is None for arg in op_def.outputs):
        return op
    groups = _grouped(op)
    return groups[0] if len(groups) == 1 else _output_tuple(op_def)(*groups)


def _gives_one_tensor(op_def: OpDef) -> bool:
    return len(op_def.outputs) == 1 and not op_def.outputs[0].is_sequence


def _other_outputs(op_def: OpDef, wanted: str) -> InvalidArgumentError:
    outputs = ", ".join(f"{arg.name} (a list)" if arg.is_sequence else arg.name for arg in op_def.outputs)
    return InvalidArgumentError(
        f"op {op_def.name} has other outputs",
        op_type=op_def.name,
        expected=f"an op with {wanted}; `make_list` returns any outputs, `make_op` the node",
        actual=outputs or "no outputs",
    )


def _make_node(
    graph: Graph, op_def: OpDef, inputs: Sequence[object], attrs: dict[str, object], name: str | None
) -> Operation:
    try:
        return _converted_node(graph, op_def, inputs, attrs, name)
    except OpError as error:
        at = None if name is None else str(name).rstrip("/")
        raise error.at(at, op_def.name, user_line()) from error.__cause__


def _converted_node(
    graph: Graph, op_def: OpDef, inputs: Sequence[object], attrs: dict[str, object], name: str | None
) -> Operation:
    if len(inputs) != len(op_def.inputs):
        wanted = ", ".join(a.name for a in op_def.inputs) or "no inputs"
        raise InvalidArgumentError(
            "wrong number of inputs", expected=f"{len(op_def.inputs)} ({wanted})", actual=len(inputs)
        )
    for key, value in attrs.items():
        # Private attributes, which start with "_", are in no signature.
        if not key.startswith("_"):
            attrs[key] = op_def.attr(key).check(value)
    # Tensors alone need no name scope for the constants that other values become.
    if all(_is_ready(arg, value) for arg, value in zip(op_def.inputs, inputs, strict=True)):
        return _create(graph, op_def, inputs, attrs, name)
    with graph.as_default(), graph.name_scope(name or op_def.name) as scope:
        converted = _convert_inputs(op_def, inputs, attrs)
        return _create(graph, op_def, converted, attrs, scope)


def _is_ready(arg: ArgDef, value: object) -> bool:
    if arg.is_sequence:
        return isinstance(value, list | tuple) and all(isinstance(v, Tensor) for v in value)
    return isinstance(value, Tensor)


def _convert_inputs(op_def: OpDef, inputs: Sequence[object], attrs: Attrs) -> list[Tensor | list[Tensor]]:
    # A dtype that the caller passes as an attribute decides before any input.
    known: dict[str, DType] = {k: v for k, v in attrs.items() if isinstance(v, DType)}
    firsts: dict[str, _Symbolic] = {}
    # A tensor that is an input itself determines the dtype before one inside a list, which is cast to it.
    for find in (_first_input, _first_symbolic):
        for arg, value in zip(op_def.inputs, inputs, strict=True):
            if arg.type_attr is not None and arg.type_attr not in known:
                found = find(value if arg.is_sequence else [value])
                if found is not None:
                    known[arg.type_attr] = found.dtype
                    firsts[arg.type_attr] = found
    converted: list[Tensor | list[Tensor]] = []
    for arg, value in zip(op_def.inputs, inputs, strict=True):
        converted.append(_convert_input(op_def, arg, value, known, firsts))
    return converted


def _first_input(values: object) -> _Symbolic | None:
    """Return the first tensor or variable that is itself an input, not an element of a list input; or None."""
    return next(filter(_symbolic, values), None) if isinstance(values, list | tuple) else None


def _convert_input(
    op_def: OpDef, arg: ArgDef, value: Any, known: dict[str, DType], firsts: Mapping[str, _Symbolic]
) -> Tensor | list[Tensor]:
    # Each tensor of such a list has a dtype of its own.
    if arg.list_attr is not None:
        return [convert_to_tensor(v, name=arg.name) for v in _as_list(arg, value)]
    wanted = arg.dtype if arg.type_attr is None else known.get(arg.type_attr)
    default = op_def.attrs[arg.type_attr].default if arg.type_attr is not None else None
    first = firsts.get(arg.type_attr or "")
    items = [value] if arg.number_attr is None else _as_list(arg, value)
    # If a tensor inside these lists determines the dtype, the lists' other tensors are not cast to it.
    is_own = first is not None and _first_input(items) is None and any(t is first for t in _symbolic_leaves(items))
    what = f"the inputs of {op_def.name}"
    tensors: list[Tensor] = []
    for i, item in enumerate(items):
        name = arg.name if arg.number_attr is None else f"{arg.name}_{i}"
        dtype = None if is_own and _first_symbolic(item) is not None else wanted
        tensors.append(_convert_beside(item, dtype, first, what, name=name, dtype_hint=default))
        # The first item determines the dtype of the others.
        wanted = wanted or tensors[0].dtype
    if arg.type_attr is not None and tensors:
        known.setdefault(arg.type_attr, tensors[0].dtype)
    return tensors if arg.is_sequence else tensors[0]


def _as_list(arg: ArgDef, value: object) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    # The items of an array are its rows.
    if isinstance(value, np.ndarray) and value.ndim:
        return list(value)
    raise DTypeError(f"input {arg.name!r} takes a sequence", expected="a list of tensors", actual=repr(value))


def _create(
    graph: Graph, op_def: OpDef, inputs: Sequence[Any], attrs: dict[str, object], name: str | None
) -> Operation:
    by_name = dict(zip((a.name for a in op_def.inputs), inputs, strict=True))
    resolved = infer_attrs(op_def, by_name, attrs)
    flat = [t for arg, v in zip(op_def.inputs, inputs, strict=True) for t in (v if arg.is_sequence else [v])]
    specs = output_specs(op_def, by_name, resolved)
    return graph.create_op(op_def.name, flat, resolved, specs, name=name or None)


def infer_attrs(op_def: OpDef, inputs: ByName, attrs: Attrs) -> dict[str, Any]:
    """Return all attributes: those passed, those implied by the input tensors, and defaults.

    Raises:
        InvalidArgumentError: inputs disagree, a value is not allowed, or an attribute is missing.
    """
    found: dict[str, Any] = dict(attrs)
    for arg in op_def.inputs:
        _infer_from_input(op_def, arg, inputs, found)
    for attr in op_def.attrs.values():
        if attr.name in found:
            try:
                found[attr.name] = attr.check(found[attr.name])
            except InvalidArgumentError as error:
                refused = refused_dtype(op_def, attr, inputs, error)
                if refused is None:
                    raise
                raise refused from error
        elif attr.has_default:
            found[attr.name] = attr.default
        else:
            raise InvalidArgumentError(
                f"attribute {attr.name!r} is missing", expected=f"a value of kind {attr.kind}", actual="none"
            )
    return found


def _infer_from_input(op_def: OpDef, arg: ArgDef, inputs: ByName, found: dict[str, Any]) -> None:
    tensors = list(inputs[arg.name]) if arg.is_sequence else [inputs[arg.name]]
    if arg.list_attr is not None:
        found[arg.list_attr] = tuple(t.dtype for t in tensors)
        return
    if arg.number_attr is not None and found.setdefault(arg.number_attr, len(tensors)) != len(tensors):
        raise InvalidArgumentError(
            f"input {arg.name!r} of {op_def.name} does not match {arg.number_attr}",
            expected=found[arg.number_attr],
            actual=len(tensors),
        )
    for tensor in tensors:
        if arg.type_attr is None:
            if tensor.dtype is not arg.dtype:
                raise wrong_input(op_def, arg, tensor)
        elif found.setdefault(arg.type_attr, tensor.dtype) is not tensor.dtype:
            raise disagreeing_inputs(op_def, arg.type_attr, inputs, arg, tensor, found[arg.type_attr])


def output_specs(op_def: OpDef, inputs: ByName, attrs: Attrs) -> list[tuple[DType, Dims]]:
    """Return dtype and static shape of each output, by the signature and the shape function.

    Raises:
        InvalidArgumentError: such outputs cannot exist, or the shape function rejects its inputs.
    """
    types: list[DType] = []
    for arg in op_def.outputs:
        if arg.list_attr is not None:
            types.extend(attrs[arg.list_attr])
        elif arg.number_attr is None:
            types.append(_dtype_of(arg, attrs))
        else:
            types.extend([_dtype_of(arg, attrs)] * _output_count(arg, attrs))
    if op_def.shape_fn is None:
        return [(dtype, None) for dtype in types]
    shapes = _inferred_shapes(op_def, op_def.shape_fn, inputs, attrs)
    if len(shapes) != len(types):
        raise InvalidArgumentError(
            "one shape per output is needed", expected=f"{len(types)} shapes", actual=f"{len(shapes)} shapes"
        )
    return list(zip(types, shapes, strict=True))


def _output_count(arg: ArgDef, attrs: Attrs) -> int:
    count = arg.count(attrs)
    if not 0 <= count <= _MAX_OUTPUTS:
        raise InvalidArgumentError(f"too many outputs {arg.name!r}", expected=f"0 to {_MAX_OUTPUTS}", actual=count)
    return count


def _inferred_shapes(op_def: OpDef, shape_fn: ShapeFn, inputs: ByName, attrs: Attrs) -> list[Dims]:
    try:
        result = shape_fn(ShapeContext(op_def, attrs, inputs))
    except OpError:
        raise
    except Exception as error:  # shape functions may fail in any way on unexpected attributes or constants
        raise InvalidArgumentError(f"the inputs do not match the op: {type(error).__name__}: {error}") from error
    shapes = result if isinstance(result, list) else [result]
    for dims in shapes:
        if dims is not None and not _is_dims(dims):
            raise InvalidArgumentError(
                f"the shape function of {op_def.name} does not return a shape",
                expected="a tuple of sizes, or None; a list of them for several outputs",
                actual=repr(dims),
            )
        if dims and len(dims) > MAX_RANK:
            raise InvalidArgumentError(
                "the result has too many dimensions", expected=f"at most {MAX_RANK}", actual=len(dims)
            )
        if dims and not _can_exist(dims):
            raise InvalidArgumentError(
                "the size overflows", expected=f"at most {_MAX_ELEMENTS} elements", actual=format_dims(dims)
            )
    return shapes


def _is_dims(value: object) -> bool:
    return isinstance(value, tuple) and all(size is None or isinstance(size, int | np.integer) for size in value)


def _can_exist(dims: tuple[int | None, ...]) -> bool:
    """Return whether an array of this shape can exist.

    NumPy limits the product of the sizes other than 0, even if the array has no elements.
    """
    total = 1
    for size in dims:
        if size:
            total *= size
            if size < 0 or total > _MAX_ELEMENTS:
                return False
    return True


def _dtype_of(arg: ArgDef, attrs: Attrs) -> DType:
    dtype: Any = arg.dtype if arg.type_attr is None else attrs[arg.type_attr]
    found: DType = dtype
    return found


_OUTPUT_TUPLES: Final[dict[str, Callable[..., tuple[Tensor | list[Tensor], ...]]]] = {}


def _output_tuple(op_def: OpDef) -> Callable[..., tuple[Tensor | list[Tensor], ...]]:
    """Return the named tuple class of an op's outputs, created on first use."""
    if op_def.name not in _OUTPUT_TUPLES:
        fields = [arg.name for arg in op_def.outputs]
        _OUTPUT_TUPLES[op_def.name] = namedtuple(op_def.name.lstrip("_"), fields)
    return _OUTPUT_TUPLES[op_def.name]


def _grouped(op: Operation) -> list[Tensor | list[Tensor]]:
    """Return a node's outputs with one entry per output of the signature."""
    return [
        list(tensors) if arg.is_sequence else tensors[0]
        for arg, tensors in per_argument(op.op_def.outputs, op.attrs, op.outputs)
    ]
