"""RNN, LSTM and GRU: lengths, directions, unknown shapes and gradients, against a step-by-step oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow.interop import onnx
from aioflow.interop.unsupported import UnsupportedError
from tests.interop.onnx.one_node import one_node, run_model

STEPS, BATCH, WIDTH, HIDDEN = 5, 3, 2, 4
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
Inputs = dict[str, np.ndarray[Any, Any] | None]


def some(op: str, directions: int, *, lengths: bool = False, dtype: Any = np.float32) -> Inputs:
    random = np.random.default_rng(3)

    def normal(*shape: int) -> np.ndarray[Any, Any]:
        return (random.standard_normal(shape) * 0.5).astype(dtype)

    gates = GATES[op]
    found: Inputs = {
        "x": normal(STEPS, BATCH, WIDTH),
        "w": normal(directions, gates * HIDDEN, WIDTH),
        "r": normal(directions, gates * HIDDEN, HIDDEN),
        "b": normal(directions, 2 * gates * HIDDEN),
        "lengths": np.array([5, 2, 3], np.int32) if lengths else None,
        "h": normal(directions, BATCH, HIDDEN),
    }
    return found | ({"c": normal(directions, BATCH, HIDDEN)} if op == "LSTM" else {})


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def step(op: str, x: Any, h: Any, c: Any, w: Any, r: Any, b: Any) -> tuple[Any, Any]:
    from_x = np.split(x @ w.T + b[: len(w)], GATES[op], axis=-1)
    from_h = np.split(h @ r.T + b[len(w) :], GATES[op], axis=-1)
    if op == "RNN":
        return np.tanh(from_x[0] + from_h[0]), c
    if op == "LSTM":
        let_in, let_out, keep = (sigmoid(p + q) for p, q in list(zip(from_x, from_h, strict=True))[:3])
        c = keep * c + let_in * np.tanh(from_x[3] + from_h[3])
        return let_out * np.tanh(c), c
    update, reset = (sigmoid(p + q) for p, q in list(zip(from_x, from_h, strict=True))[:2])
    size = HIDDEN
    new = np.tanh(from_x[2] + (reset * h) @ r[2 * size :].T + b[5 * size :])
    return (1 - update) * new + update * h, c


def expected(op: str, inputs: Inputs, backwards: list[bool]) -> list[np.ndarray[Any, Any]]:
    """Compute each sequence of each direction by itself, one step after the other."""
    given: dict[str, Any] = dict(inputs)
    lengths = given["lengths"] if given["lengths"] is not None else [STEPS] * BATCH
    y = np.zeros((STEPS, len(backwards), BATCH, HIDDEN))
    last_h, last_c = np.zeros((2, len(backwards), BATCH, HIDDEN))
    for d, reverse in enumerate(backwards):
        for n, length in enumerate(lengths):
            h, c = given["h"][d, n], given["c"][d, n] if op == "LSTM" else 0
            for t in reversed(range(length)) if reverse else range(length):
                h, c = step(op, given["x"][t, n], h, c, given["w"][d], given["r"][d], given["b"][d])
                y[t, d, n] = h
            last_h[d, n], last_c[d, n] = h, c
    return [y, last_h, last_c][: 3 if op == "LSTM" else 2]


OUTPUTS = {"RNN": ("y", "y_h"), "GRU": ("y", "y_h"), "LSTM": ("y", "y_h", "y_c")}
WAYS = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}


@pytest.mark.parametrize(("known_shapes", "known_weights"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("lengths", [True, False])
@pytest.mark.parametrize("direction", WAYS)
@pytest.mark.parametrize("op", GATES)
async def test_outputs_equal_those_of_the_oracle(
    op: str, direction: str, lengths: bool, known_shapes: bool, known_weights: bool
) -> None:
    inputs = some(op, len(WAYS[direction]), lengths=lengths)
    model = one_node(
        op,
        inputs,
        OUTPUTS[op],
        weights=("w", "r", "b") if known_weights else (),
        known_shapes=known_shapes,
        hidden_size=HIDDEN,
        direction=direction,
    )
    for found, wanted in zip(await run_model(model, inputs), expected(op, inputs, WAYS[direction]), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", GATES)
async def test_batches_may_come_first(op: str) -> None:
    inputs = some(op, 2)
    model = one_node(op, inputs, OUTPUTS[op], hidden_size=HIDDEN, direction="bidirectional")
    y, *state = await run_model(model, inputs)
    first = {k: v.swapaxes(0, 1) if v is not None and k in ("x", "h", "c") else v for k, v in inputs.items()}
    model = one_node(op, first, OUTPUTS[op], hidden_size=HIDDEN, direction="bidirectional", layout=1)
    y_first, *state_first = await run_model(model, first)
    np.testing.assert_allclose(y_first, y.transpose(2, 0, 1, 3), rtol=1e-6)
    for found, wanted in zip(state_first, state, strict=True):
        np.testing.assert_allclose(found, wanted.swapaxes(0, 1), rtol=1e-6)


async def test_one_step_needs_no_loop() -> None:
    inputs = some("LSTM", 1)
    whole = expected("LSTM", inputs, [False])
    assert inputs["x"] is not None
    inputs["x"] = inputs["x"][:1]
    model = one_node("LSTM", inputs, ("y", "y_h", ""), hidden_size=HIDDEN)
    loaded = onnx.load(model)
    assert not any(op.type in ("Enter", "While") for op in loaded.graph.get_operations())
    y, h = await run_model(model, inputs)
    np.testing.assert_allclose(y, whole[0][:1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(h, whole[0][0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op", GATES)
async def test_gradients_flow_through_all_steps(op: str, dtype: Any) -> None:
    inputs = some(op, 1, lengths=True, dtype=dtype)
    far, tolerance = (1e-5, 1e-6) if dtype is np.float64 else (1e-2, 5e-3)
    model = onnx.load(one_node(op, inputs, OUTPUTS[op], hidden_size=HIDDEN))
    wanted = ["x", "w", "r", "b", "h"]
    with model.graph.as_default():
        loss = aioflow.add_n([aioflow.reduce_sum(aioflow.square(value)) for value in model.outputs.values()])
        slopes = aioflow.gradients(loss, [model.inputs[name] for name in wanted])
    async with aioflow.Session(graph=model.graph) as session:
        feed = {tensor: inputs[name] for name, tensor in model.inputs.items()}
        found = await session.run(slopes, feed)
        for name, slope in zip(wanted, found, strict=True):
            value = inputs[name]
            assert value is not None
            direction = np.asarray(np.random.default_rng(1).standard_normal(value.shape), dtype)
            moved = [await session.run(loss, feed | {model.inputs[name]: value + e * direction}) for e in (far, -far)]
            np.testing.assert_allclose((slope * direction).sum(), (moved[0] - moved[1]) / (2 * far), rtol=tolerance)


@pytest.mark.parametrize("op", GATES)
async def test_values_beyond_a_sequences_length_are_ignored(op: str) -> None:
    inputs = some(op, 2, lengths=True)
    assert inputs["x"] is not None
    inputs["x"][3:, 1] = np.nan
    model = onnx.load(one_node(op, inputs, OUTPUTS[op], hidden_size=HIDDEN, direction="bidirectional"))
    with model.graph.as_default():
        slopes = aioflow.gradients(model.outputs["y"], [model.inputs["w"], model.inputs["x"]])
    async with aioflow.Session(graph=model.graph) as session:
        feed = {tensor: inputs[name] for name, tensor in model.inputs.items()}
        y = await session.run(model.outputs["y"], feed)
        of_w, of_x = await session.run(slopes, feed)
    np.testing.assert_allclose(y, expected(op, inputs, [False, True])[0], rtol=1e-5, atol=1e-6)
    assert np.isfinite(of_w).all()
    np.testing.assert_array_equal(of_x[2:, 1], 0)


def test_an_unknown_activation_is_refused() -> None:
    inputs = some("LSTM", 1)
    with pytest.raises(UnsupportedError, match="activations="):
        onnx.load(
            one_node("LSTM", inputs, OUTPUTS["LSTM"], hidden_size=HIDDEN, activations=["Sigmoid", "Step", "Tanh"])
        )


async def test_peepholes_of_one_unit_read_its_cell() -> None:
    """With one unit, the gates of a batch are 4 floats apart."""
    rng = np.random.default_rng(3)
    shapes = {"x": (3, 5, 2), "w": (1, 4, 2), "r": (1, 4, 1), "b": (1, 8), "h": (1, 5, 1), "c": (1, 5, 1), "p": (1, 3)}
    a = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    given = {name: a.get(name) for name in ("x", "w", "r", "b", "lengths", "h", "c", "p")}
    model = one_node("LSTM", given, ("y", "last", "cell"), hidden_size=1)
    y, last, cell = await run_model(model, a)
    h, c, (to_in, to_out, to_keep) = a["h"][0], a["c"][0], a["p"][0]
    for t, x in enumerate(a["x"]):
        gates = x @ a["w"][0].T + h @ a["r"][0].T + a["b"][0, :4] + a["b"][0, 4:]
        in_, out, forget, new = (gates[:, i : i + 1] for i in range(4))
        c = sigmoid(forget + to_keep * c) * c + sigmoid(in_ + to_in * c) * np.tanh(new)
        h = sigmoid(out + to_out * c) * np.tanh(c)
        np.testing.assert_allclose(y[t, 0], h, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last[0], h, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(cell[0], c, rtol=1e-5, atol=1e-6)
