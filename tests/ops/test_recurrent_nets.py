"""Recurrent nets: dropout, variables of cells, a language model that learns, and arguments that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import DTypeError, InvalidArgumentError, OpError, UnimplementedError
from aioflow.kernels.resources import ResourceManager
from aioflow.nn import rnn_cell
from aioflow.testing.evaluate import evaluate


def array(*shape: int) -> Any:
    return np.random.default_rng(2).standard_normal(shape).astype(np.float32)


def run(*fetches: Any) -> list[Any]:
    """Evaluate tensors after the initializers of all variables."""
    resources, state = ResourceManager(), dict[str, object]()
    evaluate([], targets=[v.initializer for v in af.global_variables()], resources=resources, state=state)
    return evaluate([af.convert_to_tensor(each) for each in fetches], resources=resources, state=state)


class Echo(rnn_cell.RNNCell):
    """A cell without variables: the output is the input, and the state counts the steps."""

    @property
    def state_size(self) -> Any:
        return rnn_cell.LSTMStateTuple(3, 3)

    @property
    def output_size(self) -> Any:
        return 3

    def call(self, inputs: Any, state: Any) -> Any:
        return inputs, rnn_cell.LSTMStateTuple(state.c + 1.0, state.h + 1.0)


def test_static_sizes_follow_from_inputs_of_any_batch_and_length() -> None:
    x = af.placeholder("float32", [None, None, 3])
    outputs, state = af.nn.dynamic_rnn(rnn_cell.LSTMCell(4, num_proj=2), x, dtype="float32")
    assert [t.get_shape().as_list() for t in (outputs, *state)] == [[None, None, 2], [None, 4], [None, 2]]
    fed = af.nn.dynamic_rnn(Echo(), af.placeholder_with_default(array(2, 0, 3), [2, None, 3]), dtype="float32")
    found = run(fed[0], *fed[1])
    assert [f.shape for f in found] == [(2, 0, 3), (2, 3), (2, 3)]


def test_cells_list_the_variables_of_their_parts() -> None:
    cell = rnn_cell.MultiRNNCell([rnn_cell.DropoutWrapper(rnn_cell.GRUCell(3), 0.5), rnn_cell.BasicLSTMCell(2)])
    assert cell.variables == []
    af.nn.dynamic_rnn(cell, array(2, 4, 3), dtype="float32")
    assert [v.op.name.removeprefix("rnn/multi_rnn_cell/") for v in cell.trainable_variables] == [
        *("cell_0/gru_cell/gates/kernel", "cell_0/gru_cell/gates/bias"),
        *("cell_0/gru_cell/candidate/kernel", "cell_0/gru_cell/candidate/bias"),
        *("cell_1/basic_lstm_cell/kernel", "cell_1/basic_lstm_cell/bias"),
    ]
    assert cell.cells[1].kernel.shape.as_list() == [5, 8]


@pytest.mark.parametrize("variational", [False, True])
def test_dropout_of_inputs_states_and_outputs(variational: bool) -> None:
    keep = 0.5
    kept: dict[str, Any] = {"variational_recurrent": variational, "dtype": "float32", "seed": 4}
    x = np.ones((1, 40, 3), np.float32)
    how: list[dict[str, Any]] = [
        {"input_keep_prob": keep, "input_size": af.TensorShape([3])},
        {"output_keep_prob": af.placeholder_with_default(keep, [])},
        {"state_keep_prob": keep},
        {"state_keep_prob": keep, "dropout_state_filter_visitor": lambda part: True},
    ]
    nets = [af.nn.dynamic_rnn(rnn_cell.DropoutWrapper(Echo(), **each, **kept), x, dtype="float32") for each in how]
    found = run(*(part for outputs, state in nets for part in (outputs[0], state.c, state.h)))
    for outputs in (found[0], found[3]):
        assert set(np.unique(outputs)) <= {0.0, 2.0}
        steps = len({tuple(row) for row in outputs.tolist()})
        assert steps == 1 if variational else steps > 1, "variational dropout drops the same in all steps"
    assert found[7].tolist() == [[40.0] * 3], "the memory is not dropped"
    assert not np.allclose(found[8], 40)
    assert not np.allclose(found[10], 40), "the function chose the memory, too"


async def test_language_model_learns() -> None:
    text = "the cat sat on the mat. " * 2
    letters = sorted(set(text))
    ids = np.array([letters.index(c) for c in text])[None]
    table = af.get_variable("embedding", [len(letters), 8])
    cell = rnn_cell.MultiRNNCell([rnn_cell.LSTMCell(16), rnn_cell.DropoutWrapper(rnn_cell.GRUCell(16), 0.95, seed=1)])
    outputs, _ = af.nn.dynamic_rnn(cell, af.nn.embedding_lookup(table, ids[:, :-1]), dtype="float32")
    logits = af.layers.dense(outputs, len(letters))
    loss = af.losses.sparse_softmax_cross_entropy(ids[:, 1:], logits)
    train = af.train.AdamOptimizer(0.03).minimize(loss)
    async with af.Session() as sess:
        await sess.run(af.global_variables_initializer())
        losses = [float((await sess.run([loss, train]))[0]) for _ in range(30)]
    assert losses[0] > 2.0
    assert losses[-1] < 0.6 * losses[0]


def cell(units: int = 2) -> Any:
    return rnn_cell.BasicLSTMCell(units)


REFUSED: Final[dict[str, tuple[Callable[[], Any], type[OpError], str]]] = {
    "no cell": (lambda: af.nn.dynamic_rnn(3, array(2, 3, 4), dtype="float32"), DTypeError, "cell is not an RNNCell"),
    "no second cell": (
        lambda: af.nn.bidirectional_dynamic_rnn(cell(), None, array(2, 3, 4), dtype="float32"),
        DTypeError,
        "cell_bw is not an RNNCell",
    ),
    "matrix": (lambda: af.nn.dynamic_rnn(cell(), array(2, 3), dtype="float32"), InvalidArgumentError, "wrong shape"),
    "no dtype": (lambda: af.nn.dynamic_rnn(cell(), array(2, 3, 4)), InvalidArgumentError, "without initial_state"),
    "lengths of another batch": (
        lambda: af.nn.dynamic_rnn(cell(), array(2, 3, 4), [1, 2, 3], dtype="float32"),
        InvalidArgumentError,
        "does not fit the batch",
    ),
    "lengths of rank 2": (
        lambda: af.nn.dynamic_rnn(cell(), array(2, 3, 4), [[1], [2]], dtype="float32"),
        InvalidArgumentError,
        "one element per sequence",
    ),
    "lengths known in a step only": (
        lambda: run(
            af.nn.dynamic_rnn(cell(), array(2, 3, 4), af.placeholder_with_default([1, 2, 3], [None]), dtype="float32")[
                0
            ]
        ),
        InvalidArgumentError,
        "another size than the batch",
    ),
    "no steps": (lambda: af.nn.static_rnn(cell(), [], dtype="float32"), InvalidArgumentError, "no inputs"),
    "no list": (lambda: af.nn.static_rnn(cell(), array(2, 3), dtype="float32"), DTypeError, "inputs"),
    "integers": (
        lambda: af.nn.static_rnn(cell(), [np.ones((2, 3), np.int32)], dtype="int32"),
        DTypeError,
        "computes with floats",
    ),
    "units": (lambda: rnn_cell.GRUCell(0), InvalidArgumentError, "num_units is out of range"),
    "no cells": (lambda: rnn_cell.MultiRNNCell([]), InvalidArgumentError, "there are no cells"),
    "cells without a list": (lambda: rnn_cell.MultiRNNCell(cell()), DTypeError, "cells must be a list"),
    "tuples side by side": (
        lambda: rnn_cell.MultiRNNCell([cell()], state_is_tuple=False),
        InvalidArgumentError,
        "side by side",
    ),
    "probability": (lambda: rnn_cell.DropoutWrapper(cell(), 1.5), InvalidArgumentError, "input_keep_prob is out of"),
    "variational without dtype": (
        lambda: rnn_cell.DropoutWrapper(cell(), variational_recurrent=True),
        InvalidArgumentError,
        "needs a dtype",
    ),
    "variational without size": (
        lambda: rnn_cell.DropoutWrapper(cell(), 0.5, variational_recurrent=True, dtype="float32"),
        InvalidArgumentError,
        "needs their size",
    ),
    "names of states": (
        lambda: af.nn.static_state_saving_rnn(cell(), [array(2, 3)], None, "state"),  # type: ignore[arg-type]  # not reached
        InvalidArgumentError,
        "state_name does not fit",
    ),
    "no sizes": (lambda: rnn_cell.RNNCell().state_size, UnimplementedError, "has no state_size"),
    "no function": (lambda: af.nn.raw_rnn(cell(), None), DTypeError, "loop_fn"),  # type: ignore[arg-type]  # refused
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_arguments_are_named(name: str) -> None:
    build, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        build()
