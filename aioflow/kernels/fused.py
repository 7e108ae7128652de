"""Kernels of the fused ops, over any array namespace: each fused node is a short program of its nodes' kernels.

The program is generated as Python code when the node is bound, so that it costs what the single nodes cost in a strand.
A backend may run the same program in another way, for example block by block. The results are equal to the last bit,
since the bodies are those of the single kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from aioflow.errors import InvalidArgumentError, OpError, SourceLine
from aioflow.graph.dtypes import DType, int32
from aioflow.graph.opdef import OPS, traits_of
from aioflow.graph.shapes import Dims
from aioflow.graph.signature.attributes import Attrs
from aioflow.kernels.one_shape import may_differ, of_one_shape
from aioflow.kernels.registry import KERNELS, Binding, KernelBody, KernelDef, binder
from aioflow.memory.values import Array, Value

_FILENAME: Final = "<aioflow chain>"
_FIRST_LINE: Final = 3  # line of the first member in the generated function, after the head and the unpacking


@dataclass(frozen=True, slots=True)
class FusedMember:
    """One node of a program.

    Attributes:
        kernel: The kernel of the node.
        call: The bound body of the kernel.
        operands: Indices of its operands among the program's inputs, followed by the results of the members.
        dtype: Dtype of its result.
        node: Name of the user's node.
        source: The user's line that created the node.
    """

    kernel: KernelDef
    call: KernelBody
    operands: tuple[int, ...]
    dtype: DType
    node: str
    source: SourceLine | None

    @property
    def op(self) -> str:
        """The op of the node."""
        return self.kernel.op


@dataclass(frozen=True, slots=True)
class ProgramValues:
    """Dtypes, dims and constants of a program's values at binding: its inputs, and the results added so far."""

    dtypes: tuple[DType, ...]
    dims: tuple[Dims, ...]
    constants: tuple[Array | None, ...]

    def add(self, dtype: DType) -> ProgramValues:
        """Return the values with one more, of which only the dtype is known."""
        return ProgramValues((*self.dtypes, dtype), (*self.dims, None), (*self.constants, None))


class Chain:
    """A program of elementwise members over some inputs.

    Attributes:
        inputs: Number of inputs.
        dtypes: Dtypes of the inputs.
        members: The members in order; the result of the last one is the result of the program.
        whole: The compiled program, as a function of the inputs.
    """

    def __init__(self, dtypes: Sequence[DType], members: Sequence[FusedMember]) -> None:
        self.inputs = len(dtypes)
        self.dtypes = tuple(dtypes)
        self.members = tuple(members)
        self.whole = self._compiled()

    def last_uses(self) -> dict[int, int]:
        """Return for each value the position of the last member that reads it."""
        return {value: at for at, member in enumerate(self.members) for value in member.operands}

    def explained(self, error: Exception) -> OpError | None:
        """Return a member's error with the user's node, or None if the error belongs to the program as a whole."""
        member = self._failed(error)
        if member is None or not isinstance(error, OpError | ValueError):
            return None
        found = error if isinstance(error, OpError) else InvalidArgumentError(f"{type(error).__name__}: {error}")
        return found.at(member.node, member.op, member.source)

    def __call__(self, inputs: Sequence[Array]) -> Array:
        """Return the result, computed over whole arrays, one member after another.

        Raises:
            OpError: a member failed; the error has its node and line.
        """
        try:
            return self.whole(inputs)
        except (OpError, ValueError) as error:
            explained = self.explained(error)
            if explained is None or explained is error:
                raise
            raise explained from error

    def _failed(self, error: BaseException) -> FusedMember | None:
        trace = error.__traceback__
        while trace is not None:
            # Each member is one line of the generated function, so the line number identifies it.
            if trace.tb_frame.f_code.co_filename == _FILENAME:
                at = trace.tb_lineno - _FIRST_LINE
                return self.members[at] if 0 <= at < len(self.members) else None
            trace = trace.tb_next
        return None

    def _compiled(self) -> Callable[[Sequence[Array]], Array]:
        """Return the program as a function of its inputs."""
        scope: dict[str, Any] = {f"k{at}": member.call for at, member in enumerate(self.members)}
        names = [f"a{i}" for i in range(self.inputs)]
        lines = ["def chain(inputs):", f"    {''.join(f'{name}, ' for name in names)}= inputs"]
        last, free, made = self.last_uses(), [], 0
        for at, member in enumerate(self.members):
            text = _call_text(at, member, [names[value] for value in member.operands])
            # Inputs are not reused: the caller holds them anyway. A member may read a value twice, hence `fromkeys`.
            free += [names[v] for v in dict.fromkeys(member.operands) if v >= self.inputs and last[v] == at]
            # Variables are reused after the last use of their values, which frees those arrays early.
            if not free:
                free.append(f"v{made}")
                made += 1
            names.append(free.pop())
            lines.append(f"    {names[-1]} = {text}")
        lines.append(f"    return {names[-1]}")
        # The text consists of numbered variables and of kernels' own expressions. No name from a graph enters it.
        exec(compile("\n".join(lines) + "\n", _FILENAME, "exec"), scope)
        function: Callable[[Sequence[Array]], Array] = scope["chain"]
        return function


def _call_text(at: int, member: FusedMember, arguments: Sequence[str]) -> str:
    if member.kernel.expression is not None:
        return member.kernel.expression.format(*arguments)
    return f"k{at}({', '.join(arguments)})"


# ── from the attributes of a node ─────────────────────────────────────────────────────────────────────────────────────


def implied_attrs(op: str, inputs: Sequence[DType], output: DType) -> dict[str, Any] | None:
    """Return the attributes of a node of `op` with these dtypes and otherwise default attributes.

    Return None if the op needs attributes that neither the dtypes nor defaults determine.
    """
    op_def = OPS.get(op)
    if len(op_def.inputs) != len(inputs) or any(arg.is_sequence for arg in op_def.inputs) or len(op_def.outputs) != 1:
        return None
    dtypes: dict[str | None, DType] = {arg.type_attr: dtype for arg, dtype in zip(op_def.inputs, inputs, strict=True)}
    dtypes.setdefault(op_def.outputs[0].type_attr, output)
    found: dict[str, Any] = {}
    for name, attr in op_def.attrs.items():
        if name in dtypes:
            found[name] = dtypes[name]
        elif attr.has_default:
            found[name] = attr.default
        else:
            return None
    return found


def chain_of(binding: Binding) -> Chain:
    """Return the program of an `_ElementwiseChain` node."""
    attrs = binding.attrs
    values = ProgramValues(binding.input_dtypes, binding.input_dims, binding.constants)
    if tuple(attrs["dtypes"])[-1:] != binding.output_dtypes:
        raise _no_program("a last member of the result's dtype", attrs["dtypes"])
    return Chain(values.dtypes, list(_members(binding, values, attrs["ops"], attrs["operands"], attrs["dtypes"])))


def epilogue_of(binding: Binding) -> Chain | None:
    """Return the program that follows the product of a `_FusedMatMul` or fused convolution, or None.

    Input 0 of the program is the product; the others are `args`.
    """
    ops, dtype, count = binding.attrs["fused_ops"], binding.output_dtypes[0], binding.attrs["num_args"]
    if not ops:
        return None
    # Inputs 0 and 1 of the node are the operands of the product.
    values = ProgramValues((dtype,) * (1 + count), (None, *binding.input_dims[2:]), (None, *binding.constants[2:]))
    operands = operands_of(binding.attrs)
    members = _members(binding, values, ops, operands, (dtype,) * len(ops), first=1)
    return Chain(values.dtypes, list(members))


def operands_of(attrs: Attrs) -> list[int]:
    """Return the operands of the ops that follow a product, op by op: see `aioflow.ops.fused`."""
    if attrs["operands"]:
        return list(attrs["operands"])
    operands: list[int] = []
    # Each op reads the result of the op before it, and a binary one also the next argument.
    argument, value = 1, 0
    for at, op in enumerate(attrs["fused_ops"]):
        operands.append(value)
        if len(OPS.get(op).inputs) == 2:
            operands.append(argument)
            argument += 1
        value = 1 + attrs["num_args"] + at
    return operands


def product_binding(binding: Binding, op: str) -> Binding:
    """Return the binding of the product alone, as a node of `op`."""
    attrs = {name: binding.attrs[name] for name in OPS.get(op).attrs if name in binding.attrs}
    return replace(
        binding,
        op_type=op,
        attrs=attrs,
        input_dtypes=binding.input_dtypes[:2],
        input_dims=binding.input_dims[:2],
        constants=binding.constants[:2],
    )


def _members(
    binding: Binding,
    values: ProgramValues,
    ops: Sequence[str],
    operands: Sequence[int],
    dtypes: Sequence[DType],
    first: int = 0,
) -> Iterator[FusedMember]:
    """Yield the bound members; the name and line of member i are those of fused node `first + i`.

    Raises:
        InvalidArgumentError: the attributes do not form a program as the optimizer writes it.
    """
    # The operands of all members, one after another; each member takes as many as its op has inputs.
    remaining = iter(operands)
    nodes, sources = binding.attrs["nodes"][first:], binding.attrs["sources"][first:]
    complete = len(ops) == len(dtypes) == len(nodes) == len(sources)
    if not complete or sum(len(OPS.get(op).inputs) for op in ops) != len(operands):
        raise _no_program("as many operands, dtypes, names and lines as the members have", binding.attrs)
    for op, dtype, node, source in zip(ops, dtypes, nodes, sources, strict=True):
        read = tuple(next(remaining) for _ in OPS.get(op).inputs)
        if not all(0 <= i < len(values.dtypes) for i in read):
            raise _no_program(f"operands among {len(values.dtypes)} values", read)
        inputs = [values.dtypes[i] for i in read]
        attrs = implied_attrs(op, inputs, dtype)
        if attrs is None:
            raise _no_program("members without attributes of their own", op)
        _check_member(op, inputs, dtype, attrs)
        kernel = KERNELS.get(op, binding.backend.device_type, attrs)
        if kernel.is_async or kernel.takes_step:
            raise _no_program("members that compute", op)
        one = replace(
            binding,
            name=node,
            op_type=op,
            attrs=attrs,
            input_dtypes=tuple(inputs),
            input_dims=tuple(values.dims[i] for i in read),
            output_dtypes=(dtype,),
            output_dims=(None,),
            constants=tuple(values.constants[i] for i in read),
        )
        call = kernel.bind(one)
        if may_differ(op, one.input_dims):
            # Generated code would use the expression instead of the call, and so skip the check of the shapes.
            kernel, call = replace(kernel, expression=None), of_one_shape(call)
        yield FusedMember(kernel, call, read, dtype, node, _source_line(source))
        values = values.add(dtype)


def _check_member(op: str, inputs: Sequence[DType], output: DType, attrs: Attrs) -> None:
    """Raise InvalidArgumentError unless the member is elementwise for these dtypes, with a result of dtype `output`.

    Backends rely on it that compute in blocks or generate machine code, and a plan may come from an untrusted client.
    """
    allowed, op_def = traits_of(op).fuses, OPS.get(op)
    if not allowed or any(dtype.name not in allowed for dtype in inputs):
        raise _no_program("elementwise members, for these dtypes", op)
    for arg, dtype in zip((*op_def.inputs, *op_def.outputs), (*inputs, output), strict=True):
        if dtype is not (arg.dtype if arg.type_attr is None else attrs[arg.type_attr]):
            raise _no_program("members of the dtypes that their ops take and make", op)


def _no_program(expected: str, actual: object) -> InvalidArgumentError:
    return InvalidArgumentError("the members of a fused node do not fit together", expected=expected, actual=actual)


def _source_line(text: str) -> SourceLine | None:
    """Parse the `str` of a SourceLine. Return None if `text` is not one."""
    place, separator, function = text.rpartition(" in ")
    filename, _, number = place.rpartition(":")
    return SourceLine(filename, int(number), function) if separator and number.isdecimal() else None


# ── the portable kernels ──────────────────────────────────────────────────────────────────────────────────────────────


@binder("_ElementwiseChain", fresh=True)
def elementwise_chain(binding: Binding) -> KernelBody:
    return chain_of(binding)


def naming(binding: Binding, product: KernelBody) -> KernelBody:
    """Return the body of the product, whose errors have the name and line of the user's node."""
    nodes, sources = binding.attrs["nodes"], binding.attrs["sources"]
    if not nodes or not sources:
        raise _no_program("the name and line of the product", binding.attrs)
    node, source = nodes[0], _source_line(sources[0])
    op = PRODUCTS[binding.op_type]

    def body(*inputs: Array, **named: object) -> Value:
        try:
            return product(*inputs, **named)
        except OpError as error:
            raise error.at(node, op, source) from error.__cause__
        except ValueError as error:
            raise InvalidArgumentError(f"{type(error).__name__}: {error}").at(node, op, source) from error

    return body


PRODUCTS: Final[Mapping[str, str]] = {
    "_FusedMatMul": "MatMul",
    "_FusedConv2D": "Conv2D",
    "_FusedDepthwiseConv2dNative": "DepthwiseConv2dNative",
    "_IntegerMatMul": "MatMul",
    "_IntegerBatchMatMulV2": "BatchMatMulV2",
}


@binder("_FusedMatMul", fresh=True)
@binder("_FusedConv2D", fresh=True)
@binder("_FusedDepthwiseConv2dNative", fresh=True)
def fused_product(binding: Binding) -> KernelBody:
    alone = product_binding(binding, PRODUCTS[binding.op_type])
    product = naming(binding, KERNELS.get(alone.op_type, binding.backend.device_type, alone.attrs).bind(alone))
    epilogue = epilogue_of(binding)
    if epilogue is None:
        return lambda left, right, args: product(left, right)
    finish = epilogue
    return lambda left, right, args: finish((product(left, right), *args))


def integer_product_alone(binding: Binding) -> KernelBody:
    """Return the product of an `_IntegerMatMul` or `_IntegerBatchMatMulV2`, as a function of the converted factors."""
    op, dtype = PRODUCTS[binding.op_type], binding.attrs["T"]
    alone = replace(
        binding,
        op_type=op,
        attrs=implied_attrs(op, (dtype, dtype), dtype) or {},
        input_dtypes=(dtype, dtype),
        input_dims=binding.input_dims[:2],
        constants=(None, binding.constants[1] if binding.attrs["Tb"] is dtype else None),
    )
    return naming(binding, KERNELS.get(op, binding.backend.device_type, alone.attrs).bind(alone))


@binder("_IntegerMatMul", fresh=True)
@binder("_IntegerBatchMatMulV2", fresh=True)
def integer_product(binding: Binding) -> KernelBody:
    product, dtype = integer_product_alone(binding), binding.attrs["T"].np_dtype

    def body(a: Array, b: Array, zeros: Sequence[Array]) -> Value:
        made = a.astype(dtype)
        for zero in zeros:
            made -= zero
        return product(made, b.astype(dtype, copy=False))

    return body


def mean_of_rows(binding: Binding) -> Callable[[Array], Array]:
    """Return the mean along the last axis for a `_LayerNorm`, which has the bits of the node's."""
    dtype, axes = binding.attrs["T"], (-1,)
    alone = replace(
        binding,
        op_type="Mean",
        attrs={"T": dtype, "Tidx": int32, "keep_dims": True},
        input_dtypes=(dtype, int32),
        input_dims=(binding.input_dims[0], (1,)),
        constants=(None, np.array(axes, np.int32)),
    )
    mean = KERNELS.get("Mean", binding.backend.device_type, alone.attrs).bind(alone)
    return lambda x: mean(x, axes)


@binder("_LayerNorm", fresh=True)
def layer_norm(binding: Binding) -> KernelBody:
    xp, mean, epsilon = binding.xp, mean_of_rows(binding), binding.attrs["T"].np_dtype.type(binding.attrs["epsilon"])

    def body(x: Array, scale: Array, offset: Array) -> Value:
        deviation = x - mean(x)
        inverse = xp.reciprocal(xp.sqrt(mean(xp.square(deviation)) + epsilon))
        return deviation * inverse * scale + offset

    return body
