"""Recurrent nets against TensorFlow: variables, outputs, final states and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from tests.parity.legacy_keras import described, rnn_cell

# The cells of TensorFlow.
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated and will be removed.*:UserWarning")

BATCH, STEPS, FEATURES = 3, 4, 2
LENGTHS: Final = [4, 0, 2]


def array(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def numbers(m: Any) -> Any:
    """Return an initializer with the same values in both systems, whose random numbers differ."""

    def initializer(shape: Any, dtype: Any = None, **_: Any) -> Any:
        sizes = [int(size) for size in shape]
        return m.constant(np.random.default_rng(sum(sizes)).uniform(-1, 1, sizes), "float32")

    return initializer


def rows(x: Any, m: Any) -> list[Any]:
    return list(m.unstack(x, axis=1))


def basic(m: Any, x: Any, **how: Any) -> Any:
    return m.nn.dynamic_rnn(rnn_cell(m).BasicLSTMCell(3), x, dtype=m.float32, **how)


def lstm(m: Any, x: Any, **how: Any) -> Any:
    return m.nn.dynamic_rnn(rnn_cell(m).LSTMCell(3, **how), x, sequence_length=LENGTHS, dtype=m.float32)


def stack(m: Any, state_is_tuple: bool = True) -> Any:
    cells = rnn_cell(m)
    parts = [cells.BasicLSTMCell(3, state_is_tuple=state_is_tuple), cells.GRUCell(2)]
    return cells.MultiRNNCell(parts, state_is_tuple)


def two_inputs(m: Any, x: Any) -> Any:
    """Return the net of a cell of one's own, with nested inputs, outputs and states."""

    class Pair(rnn_cell(m).RNNCell):  # type: ignore[misc]  # a class of either system
        @property
        def state_size(self) -> Any:
            return {"a": 2, "b": (3,)}

        output_size = (2, m.TensorShape([3]))

        def call(self, inputs: Any, state: Any) -> Any:
            w = m.get_variable("w", [FEATURES, 2])
            v = m.get_variable("v", [FEATURES, 3], trainable=False)
            a, b = m.tanh(m.matmul(inputs[0], w) + state["a"]), m.tanh(m.matmul(inputs[1], v) + state["b"][0])
            return (a * 2, b), {"a": a, "b": (b,)}

    return m.nn.dynamic_rnn(Pair(), (x, x * x), LENGTHS, dtype=m.float32)


def raw(m: Any, x: Any, with_state: bool) -> Any:
    """Return the net of `raw_rnn` over the steps of x; sequences end by their lengths."""
    cell = rnn_cell(m).BasicRNNCell(3)
    steps = m.TensorArray(m.float32, STEPS, clear_after_read=False).unstack(m.transpose(x, [1, 0, 2]))

    def loop_fn(time: Any, output: Any, state: Any, own: Any) -> Any:
        ended = time >= m.constant(LENGTHS)
        following = steps.read(m.minimum(time, STEPS - 1))
        following.set_shape([BATCH, FEATURES])
        if output is None:
            emit = (m.zeros([3]), m.zeros([2], m.int32)) if with_state else None
            return ended, following, cell.zero_state(BATCH, m.float32), emit, m.constant(1.0) if with_state else None
        emit = (output * 2, m.fill([BATCH, 2], time)) if with_state else output
        return ended, following, state, emit, own * 2 if with_state else None

    arrays, state, own = m.nn.raw_rnn(cell, loop_fn)
    outputs = [each.stack() for each in arrays] if with_state else [arrays.stack()]
    return [*outputs, state, *([own] if with_state else [])]


class Saver:
    """A saver of states in variables."""

    def __init__(self, m: Any, names: list[str]) -> None:
        with m.variable_scope("saver"):
            self.kept = {
                name: m.get_variable(name, [BATCH, 3], trainable=False, use_resource=True, initializer=numbers(m))
                for name in names
            }

    def state(self, name: str) -> Any:
        return self.kept[name].read_value()

    def save_state(self, name: str, value: Any) -> Any:
        return self.kept[name].assign(value, read_value=False)


def saving(m: Any, x: Any) -> Any:
    saver = Saver(m, ["c", "h"])
    return m.nn.static_state_saving_rnn(rnn_cell(m).BasicLSTMCell(3), rows(x, m), saver, ("c", "h"), LENGTHS)


CASES: Final[dict[str, Callable[..., Any]]] = {
    "BasicRNNCell": lambda m, x: m.nn.dynamic_rnn(rnn_cell(m).BasicRNNCell(3), x, dtype=m.float32),
    "BasicRNNCell, activation": lambda m, x: m.nn.static_rnn(
        rnn_cell(m).BasicRNNCell(3, m.nn.relu, name="mine"), rows(x, m), dtype=m.float32, scope="net"
    ),
    "GRUCell": lambda m, x: m.nn.dynamic_rnn(rnn_cell(m).GRUCell(3), x, LENGTHS, dtype=m.float32),
    "GRUCell, initializers": lambda m, x: m.nn.dynamic_rnn(
        rnn_cell(m).GRUCell(3, kernel_initializer=m.ones_initializer(), bias_initializer=m.zeros_initializer()),
        x,
        dtype=m.float32,
    ),
    "BasicLSTMCell": basic,
    "BasicLSTMCell, lengths": lambda m, x: basic(m, x, sequence_length=m.placeholder_with_default(LENGTHS, [None])),
    "BasicLSTMCell, time major": lambda m, x: basic(m, m.transpose(x, [1, 0, 2]), time_major=True),
    "BasicLSTMCell, joined state": lambda m, x: m.nn.dynamic_rnn(
        rnn_cell(m).BasicLSTMCell(3, 0.5, state_is_tuple=False), x, initial_state=m.ones([BATCH, 6])
    ),
    "LSTMCell": lstm,
    "LSTMCell, peepholes": lambda m, x: lstm(m, x, use_peepholes=True, cell_clip=0.4, forget_bias=0.3),
    "LSTMCell, projection": lambda m, x: lstm(m, x, num_proj=2, proj_clip=0.2),
    "LSTMCell, joined state": lambda m, x: lstm(m, x, num_proj=2, state_is_tuple=False, initializer=numbers(m)),
    "LSTMCell, shards": lambda m, x: lstm(m, x, num_unit_shards=2, num_proj=2, num_proj_shards=3),
    "MultiRNNCell": lambda m, x: m.nn.dynamic_rnn(stack(m), x, LENGTHS, dtype=m.float32),
    "MultiRNNCell, joined state": lambda m, x: m.nn.static_rnn(stack(m, False), rows(x, m), dtype=m.float32),
    "ResidualWrapper": lambda m, x: m.nn.dynamic_rnn(
        rnn_cell(m).ResidualWrapper(rnn_cell(m).GRUCell(FEATURES)), x, dtype=m.float32
    ),
    "ResidualWrapper, function": lambda m, x: m.nn.dynamic_rnn(
        rnn_cell(m).ResidualWrapper(rnn_cell(m).GRUCell(FEATURES), lambda x, y: x * y), x, dtype=m.float32
    ),
    "DeviceWrapper": lambda m, x: m.nn.dynamic_rnn(
        rnn_cell(m).DeviceWrapper(rnn_cell(m).GRUCell(3), "/cpu:0"), x, dtype=m.float32
    ),
    "DropoutWrapper that keeps all": lambda m, x: m.nn.dynamic_rnn(
        rnn_cell(m).DropoutWrapper(rnn_cell(m).BasicLSTMCell(3), 1.0, m.constant(1.0)), x, dtype=m.float32
    ),
    "static_rnn, lengths": lambda m, x: m.nn.static_rnn(
        rnn_cell(m).BasicLSTMCell(3), rows(x, m), dtype=m.float32, sequence_length=LENGTHS
    ),
    "static_bidirectional_rnn": lambda m, x: m.nn.static_bidirectional_rnn(
        rnn_cell(m).GRUCell(3), rnn_cell(m).BasicRNNCell(2), rows(x, m), dtype=m.float32
    ),
    "static_bidirectional_rnn, lengths": lambda m, x: m.nn.static_bidirectional_rnn(
        rnn_cell(m).GRUCell(3), rnn_cell(m).GRUCell(3), rows(x, m), dtype=m.float32, sequence_length=LENGTHS
    ),
    "bidirectional_dynamic_rnn": lambda m, x: m.nn.bidirectional_dynamic_rnn(
        rnn_cell(m).GRUCell(3), rnn_cell(m).BasicLSTMCell(2), x, dtype=m.float32, scope="both"
    ),
    "bidirectional_dynamic_rnn, lengths": lambda m, x: m.nn.bidirectional_dynamic_rnn(
        rnn_cell(m).GRUCell(3), rnn_cell(m).GRUCell(3), x, LENGTHS, dtype=m.float32
    ),
    "static_state_saving_rnn": saving,
    "raw_rnn": lambda m, x: raw(m, x, False),
    "raw_rnn with outputs and a state of its own": lambda m, x: raw(m, x, True),
    "nested inputs, outputs and states": two_inputs,
}


def leaves(made: Any) -> list[Any]:
    if isinstance(made, dict):
        return [leaf for key in sorted(made) for leaf in leaves(made[key])]
    return [leaf for each in made for leaf in leaves(each)] if isinstance(made, list | tuple) else [made]


@pytest.mark.parametrize("name", CASES)
def test_net_equals_tensorflows(parity: Any, name: str) -> None:
    def build(m: Any, x: Any) -> Any:
        with m.variable_scope("model", initializer=numbers(m)):
            found = leaves(CASES[name](m, x))
        total = m.add_n([m.reduce_sum(m.sin(y + 1)) for y in found if y.dtype.is_floating])
        gradients = m.gradients(total, m.trainable_variables())
        return [m.convert_to_tensor(each) for each in [*found, described(m), *gradients]]

    parity(build, array(BATCH, STEPS, FEATURES), rtol=1e-4, atol=1e-5, grad_of=[0], static=False)


def test_state_saver_keeps_the_last_state(parity: Any) -> None:
    def build(m: Any, x: Any) -> Any:
        saver = Saver(m, ["s"])
        with m.variable_scope("model", initializer=numbers(m)):
            outputs, state = m.nn.static_state_saving_rnn(rnn_cell(m).GRUCell(3), rows(x, m), saver, "s")
        with m.control_dependencies([outputs[-1]]):
            return [outputs[-1], state, saver.state("s")]

    parity(build, array(BATCH, STEPS, FEATURES), rtol=1e-4, atol=1e-5, grad=False)
