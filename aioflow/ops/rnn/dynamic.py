"""Recurrent nets over tensors of any number of steps, as loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aioflow.arguments import check_callable
from aioflow.errors import InvalidArgumentError
from aioflow.graph.default_graph import default_graph
from aioflow.graph.dtypes import DTypeLike
from aioflow.graph.graph import Tensor
from aioflow.graph.scopes import current_scope, in_loop
from aioflow.graph.shapes import format_dims
from aioflow.ops import nest
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make
from aioflow.ops.array.order import reverse, reverse_sequence
from aioflow.ops.array.static_shapes import shape_of
from aioflow.ops.array.tensor_array import TensorArray
from aioflow.ops.control.branches_and_loops import while_loop
from aioflow.ops.control.primitives import Assert
from aioflow.ops.core import identity
from aioflow.ops.rnn.cells import batch_size_of, check_cell, sizes_of, zeros_of
from aioflow.ops.rnn.steps import copied, dtype_of, initial_state_of, lengths_of, step, zero_outputs
from aioflow.ops.scoping import control_dependencies
from aioflow.ops.variables.scope import VariableScope, variable_scope


def _read_variables_once(scope: VariableScope) -> None:
    """Let loops in the scope read variables before their first iteration instead of in each."""
    if scope.caching_device is None and not in_loop(current_scope(default_graph())):
        scope.set_caching_device(lambda op: op.device)


def dynamic_rnn(
    cell: Any,
    inputs: Any,
    sequence_length: TensorLike | None = None,
    initial_state: Any = None,
    dtype: DTypeLike | None = None,
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    time_major: bool = False,
    scope: str | VariableScope | None = None,
) -> tuple[Any, Any]:
    """Apply a cell to each step of a batch of sequences.

        outputs, state = af.nn.dynamic_rnn(af.nn.rnn_cell.LSTMCell(128), x, dtype=af.float32)

    Args:
        cell: A cell of `nn.rnn_cell`, or an object like one.
        inputs: [batch, steps, features …], or a structure of such tensors.
        sequence_length: [batch] number of steps of each sequence. Later outputs are zeros, and the state stays.
        initial_state: The state to begin with; zeros of `dtype` if not given.
        dtype: Dtype of the state; needed without `initial_state`.
        parallel_iterations: As for `while_loop`; 32 if not given.
        swap_memory: As for `while_loop`.
        time_major: Whether inputs and outputs are [steps, batch, …], which saves two transpositions.
        scope: Variable scope; "rnn" if not given.

    Returns:
        The outputs [batch, steps, …], and the final state.

    Raises:
        DTypeError: `cell` is not a cell.
        InvalidArgumentError: state and dtype are missing, or a static shape does not fit; or, when a step runs,
            `sequence_length` has another size than the batch.
    """
    check_cell(cell)
    with variable_scope(scope or "rnn") as opened:
        _read_variables_once(opened)
        major = nest.map_structure(convert_to_tensor, inputs)
        for each in nest.flatten(major):
            if each.dims is None or len(each.dims) < 3 or None in each.dims[2:]:
                raise InvalidArgumentError(
                    "the inputs of dynamic_rnn have a wrong shape",
                    expected="[batch, steps, features …] with known features",
                    actual=format_dims(each.dims),
                )
        if not time_major:
            major = nest.map_structure(_swapped, major)
        batch = batch_size_of(nest.flatten(major), 1)
        state = initial_state_of(cell, initial_state, batch, dtype)
        lengths = None if sequence_length is None else _checked(lengths_of(sequence_length), batch)
        outputs, state = _loop(cell, major, state, lengths, batch, dtype, parallel_iterations or 32, swap_memory)
        return outputs if time_major else nest.map_structure(_swapped, outputs), state


def _swapped(tensor: Tensor) -> Tensor:
    """Exchange batch and time."""
    return make("Transpose", tensor, [1, 0, *range(2, len(tensor.dims or (0, 0)))])


def _checked(lengths: Tensor, batch: int | Tensor) -> Tensor:
    """Return the lengths, whose number is checked when the graph is built, or else in each step."""
    if isinstance(batch, int) and lengths.dims is not None and lengths.dims[0] is not None:
        if lengths.dims[0] != batch:
            raise InvalidArgumentError(
                "sequence_length does not fit the batch", expected=f"{batch} elements", actual=lengths.dims[0]
            )
        return lengths
    size, wanted = shape_of(lengths), make("Pack", [convert_to_tensor(batch)], axis=0)
    same = make("All", make("Equal", size, wanted), [0])
    message = "sequence_length has another size than the batch:"
    with control_dependencies([Assert(same, [message, size, wanted])]):
        return identity(lengths, name="CheckSeqLen")


def _loop(
    cell: Any,
    inputs: Any,
    state: Any,
    lengths: Tensor | None,
    batch: int | Tensor,
    dtype: DTypeLike | None,
    parallel_iterations: int,
    swap_memory: bool,
) -> tuple[Any, Any]:
    """Return the outputs [steps, batch, …] and the final state."""
    flat = nest.flatten(inputs)
    steps = batch_size_of(flat, 0)
    static, kind = steps if isinstance(steps, int) else None, dtype_of(dtype, state)
    rows = batch if isinstance(batch, int) else None
    given = [
        TensorArray(each.dtype, steps, element_shape=each.dims[1:], tensor_array_name=f"input_{n}").unstack(each)
        for n, each in enumerate(flat)
    ]
    sizes = nest.flatten(cell.output_size)
    made = tuple(
        TensorArray(kind, steps, element_shape=(rows, *sizes_of(size)), tensor_array_name=f"output_{n}")
        for n, size in enumerate(sizes)
    )
    zeros, bound = None, convert_to_tensor(steps, "int32")
    if lengths is not None:
        zeros = zero_outputs(cell, batch, kind)
        # At least one iteration, by which the arrays learn the shape of their elements.
        longest = make("Maximum", make("Max", lengths, [0]), 1)
        bound = make("Minimum", bound, longest)

    def body(time: Tensor, outputs: tuple[TensorArray, ...], before: Any) -> tuple[Any, ...]:
        current = nest.pack(inputs, [array.read(time) for array in given])
        output, after = step(lambda: cell(current, before), time, lengths, zeros, before)
        written = zip(outputs, nest.flatten(output), strict=True)
        return make("AddV2", time, 1), tuple(array.write(time, each) for array, each in written), after

    _, final, last = while_loop(
        lambda time, *_: make("Less", time, bound),
        body,
        (constant(0, name="time"), made, state),
        parallel_iterations=parallel_iterations,
        swap_memory=swap_memory,
        maximum_iterations=steps,
    )
    outputs = [array.stack() for array in final]
    for output, size in zip(outputs, sizes, strict=True):
        output.set_shape((static, rows, *sizes_of(size)))
    return nest.pack(cell.output_size, outputs), last


def bidirectional_dynamic_rnn(
    cell_fw: Any,
    cell_bw: Any,
    inputs: Any,
    sequence_length: TensorLike | None = None,
    initial_state_fw: Any = None,
    initial_state_bw: Any = None,
    dtype: DTypeLike | None = None,
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    time_major: bool = False,
    scope: str | VariableScope | None = None,
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Apply a cell to sequences in order, and another one in reverse order.

    Args:
        cell_fw: The cell for the steps in order.
        cell_bw: The cell for the steps in reverse order.
        inputs: As for `dynamic_rnn`.
        sequence_length: As for `dynamic_rnn`; each sequence is reversed by itself.
        initial_state_fw: As for `dynamic_rnn`.
        initial_state_bw: As for `dynamic_rnn`.
        dtype: As for `dynamic_rnn`.
        parallel_iterations: As for `dynamic_rnn`.
        swap_memory: As for `dynamic_rnn`.
        time_major: As for `dynamic_rnn`.
        scope: Variable scope; "bidirectional_rnn" if not given.

    Returns:
        The outputs of both, in the order of the inputs, and both final states.
    """
    check_cell(cell_fw, "cell_fw")
    check_cell(cell_bw, "cell_bw")
    how = (parallel_iterations, swap_memory, time_major)
    time_axis, batch_axis = (0, 1) if time_major else (1, 0)

    def turned(tensor: TensorLike) -> Tensor:
        if sequence_length is None:
            return reverse(tensor, [time_axis])
        return reverse_sequence(tensor, sequence_length, time_axis, batch_axis)

    with variable_scope(scope or "bidirectional_rnn"):
        with variable_scope("fw") as forward:
            ahead, state_fw = dynamic_rnn(
                cell_fw, inputs, sequence_length, initial_state_fw, dtype, *how, scope=forward
            )
        with variable_scope("bw") as backward:
            reversed_inputs = nest.map_structure(turned, inputs)
            back, state_bw = dynamic_rnn(
                cell_bw, reversed_inputs, sequence_length, initial_state_bw, dtype, *how, scope=backward
            )
    return (ahead, nest.map_structure(turned, back)), (state_fw, state_bw)


def raw_rnn(
    cell: Any,
    loop_fn: Callable[[Tensor, Any, Any, Any], tuple[Any, Any, Any, Any, Any]],
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    scope: str | VariableScope | None = None,
) -> tuple[Any, Any, Any]:
    """Apply a cell to inputs that a function makes, until the function reports that all sequences have ended.

    Args:
        cell: A cell of `nn.rnn_cell`, or an object like one.
        loop_fn: A function of the time, the cell's output, its state and the loop's state. It returns, for the next
            step: a bool for each sequence, whether it has ended; the inputs; the cell's state; the outputs to write;
            the loop's state or None. The first call has time 0 and None for the rest. The outputs of that call have
            the shapes, without the batch, and dtypes of those to write; None stands for the cell's.
        parallel_iterations: As for `while_loop`; 32 if not given.
        swap_memory: As for `while_loop`.
        scope: Variable scope; "rnn" if not given.

    Returns:
        Tensor arrays of the outputs, the final state, and the final state of the loop.

    Raises:
        DTypeError: `cell` is not a cell, `loop_fn` is not a function, or a structure changes.
    """
    check_cell(cell)
    check_callable(loop_fn, "loop_fn")
    with variable_scope(scope or "rnn") as opened:
        _read_variables_once(opened)
        time = constant(0, name="time")
        ended, inputs, state, emitted, own = loop_fn(time, None, None, None)
        inputs, state = (nest.map_structure(convert_to_tensor, each) for each in (inputs, state))
        nest.check_same_structure(cell.state_size, state, "the state does not fit the cell")
        batch = batch_size_of(nest.flatten(inputs), 0)
        zeros = _zeros_like(emitted, batch) if emitted is not None else None
        if zeros is None:
            zeros = zero_outputs(cell, batch, nest.flatten(state)[0].dtype)
        arrays = nest.map_structure(
            lambda zero: TensorArray(zero.dtype, 0, dynamic_size=True, element_shape=zero.dims), zeros
        )
        # A loop without a state of its own carries a number instead.
        carried = constant(0) if own is None else nest.map_structure(_leaf, own)

        def body(time: Tensor, ended: Tensor, inputs: Any, arrays: Any, state: Any, carried: Any) -> tuple[Any, ...]:
            output, after = cell(inputs, state)
            following = make("AddV2", time, 1)
            now_ended, next_inputs, next_state, emit, next_own = loop_fn(
                following, output, after, None if own is None else carried
            )
            written = nest.map_structure(
                lambda array, each: array.write(time, each), arrays, copied(ended, zeros, emit)
            )
            return (
                following,
                make("LogicalOr", ended, now_ended),
                nest.map_structure(convert_to_tensor, next_inputs),
                written,
                copied(ended, state, next_state),
                carried if next_own is None else next_own,
            )

        found = while_loop(
            lambda _, ended, *__: make("LogicalNot", make("All", ended, [0])),
            body,
            [time, convert_to_tensor(ended), inputs, arrays, state, carried],
            parallel_iterations=parallel_iterations or 32,
            swap_memory=swap_memory,
        )
        return found[3], found[4], None if own is None else found[5]


def _leaf(value: Any) -> Any:
    return value if isinstance(value, TensorArray) else convert_to_tensor(value)


def _zeros_like(emitted: Any, batch: int | Tensor) -> Any:
    """Return zeros [batch, …] for outputs without the batch, whose shapes are those of `emitted`."""

    def zeros(value: Any) -> Tensor:
        tensor = convert_to_tensor(value)
        sizes = tensor.dims
        if sizes is None or None in sizes:
            raise InvalidArgumentError(
                "the outputs of the first call need known shapes", expected="known sizes", actual=format_dims(sizes)
            )
        return zeros_of(batch, tensor.get_shape(), tensor.dtype)

    return nest.map_structure(zeros, emitted)
