"""RNN, LSTM and GRU of ONNX against onnxruntime: activations, clipping, peepholes, coupled gates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.interop.onnx.one_node import one_node, run_model

STEPS, BATCH, WIDTH, HIDDEN = 5, 3, 4, 6
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
WAYS = {"forward": 1, "reverse": 1, "bidirectional": 2}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((op, {"clip": 0.3}) for op in GATES),
    ("RNN", {"activations": ["Affine"], "activation_alpha": [0.7], "activation_beta": [0.1]}),
    ("RNN", {"activations": ["ThresholdedRelu"], "activation_alpha": [0.2]}),
    ("GRU", {"linear_before_reset": 1}),
    ("GRU", {"activations": ["HardSigmoid", "LeakyRelu"], "activation_alpha": [0.3, 0.2], "activation_beta": [0.4]}),
    (
        "LSTM",
        {
            "activations": ["HardSigmoid", "ScaledTanh", "Elu"],
            "activation_alpha": [0.3, 0.9, 0.5],
            "activation_beta": [0.4, 0.8],
        },
    ),
    ("LSTM", {"activations": ["Sigmoid", "Softsign", "Softplus"]}),
    ("LSTM", {"activations": ["Sigmoid", "Relu", "Tanh"], "input_forget": 1}),
    ("LSTM", {"peepholes": True}),
    ("LSTM", {"peepholes": True, "clip": 0.3}),
    ("LSTM", {"peepholes": True, "input_forget": 1}),
]


def doubled(attributes: dict[str, Any], count: int) -> dict[str, Any]:
    return {name: value * count if isinstance(value, list) else value for name, value in attributes.items()}


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("direction", WAYS)
@pytest.mark.parametrize(("op", "attributes"), VARIANTS, ids=str)
async def test_variant(op: str, attributes: dict[str, Any], direction: str, lengths: bool) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    random = np.random.default_rng(5)

    def normal(*shape: int) -> Any:
        return (random.standard_normal(shape) * 0.5).astype(np.float32)

    count, gates = WAYS[direction], GATES[op]
    attributes = doubled(attributes, count)
    peepholes = attributes.pop("peepholes", False)
    inputs = {
        "x": normal(STEPS, BATCH, WIDTH),
        "w": normal(count, gates * HIDDEN, WIDTH),
        "r": normal(count, gates * HIDDEN, HIDDEN),
        "b": normal(count, 2 * gates * HIDDEN),
        "lengths": np.array([4, 2, 5], np.int32) if lengths else None,
        "h": normal(count, BATCH, HIDDEN),
    }
    outputs = ["y", "y_h"]
    if op == "LSTM":
        inputs |= {"c": normal(count, BATCH, HIDDEN), "p": normal(count, 3 * HIDDEN) if peepholes else None}
        outputs.append("y_c")
    weights = ("w", "r", "b", "p")
    model = one_node(
        op, inputs, outputs, weights=weights, opset=14, direction=direction, hidden_size=HIDDEN, **attributes
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {name: value for name, value in inputs.items() if value is not None and name not in weights}
    for found, wanted in zip(await run_model(model, inputs), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
