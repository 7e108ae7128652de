"""Whole-layer LSTM ops against TensorFlow: values of the outputs, and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

STEPS, BATCH, SIZE, UNITS = 4, 3, 5, 2
NAMES = ("x", "cs_prev", "h_prev", "w", "wci", "wcf", "wco", "b")
SHAPES = (
    (STEPS, BATCH, SIZE),
    (BATCH, UNITS),
    (BATCH, UNITS),
    (SIZE + UNITS, 4 * UNITS),
    *((UNITS,),) * 3,
    (4 * UNITS,),
)


def arrays(dtype: Any = np.float32) -> list[np.ndarray[Any, Any]]:
    random = np.random.default_rng(6)
    return [(random.standard_normal(shape) * 0.7).astype(dtype) for shape in SHAPES]


@pytest.mark.parametrize("steps", [STEPS, 2, 0])
@pytest.mark.parametrize("peephole", [False, True])
@pytest.mark.parametrize("op", ["BlockLSTM", "BlockLSTMV2"])
def test_layer(parity: Any, op: str, peephole: bool, steps: int) -> None:
    def build(m: Any, *tensors: Any) -> list[Any]:
        given = dict(zip(NAMES, tensors, strict=True))
        count = m.constant(steps, m.int64)
        made = getattr(m.raw_ops, op)(seq_len_max=count, use_peephole=peephole, cell_clip=0.0, **given)
        # TensorFlow does not initialize what lies beyond the last step, so compare only these slices.
        return [made.cs[:steps], made.h[:steps], made.i[:steps], made.f[:steps], made.o[:steps], made.ci[:steps]]

    # TensorFlow differentiates a BlockLSTMV2 with the gates of a BlockLSTM: test_gradient_op checks the gradient op.
    parity(build, *arrays(), grad=op == "BlockLSTM" and steps == STEPS, grad_of=[0, 1], static=False)


@pytest.mark.parametrize("peephole", [False, True])
@pytest.mark.parametrize("op", ["BlockLSTM", "BlockLSTMV2"])
def test_gradient_op(parity: Any, op: str, peephole: bool) -> None:
    def build(m: Any, *tensors: Any) -> list[Any]:
        given = dict(zip(NAMES, tensors, strict=True)) | {"seq_len_max": m.constant(STEPS, m.int64)}
        made = getattr(m.raw_ops, op)(use_peephole=peephole, cell_clip=0.0, **given)
        values = {name: getattr(made, name) for name in ("i", "cs", "f", "o", "ci", "co", "h")}
        slopes = {"cs_grad": m.sin(made.h), "h_grad": m.cos(made.cs)}
        grad = getattr(m.raw_ops, op.replace("LSTM", "LSTMGrad"))(use_peephole=peephole, **given, **values, **slopes)
        # Without peepholes TensorFlow does not initialize their gradients.
        names = ["x", "cs_prev", "h_prev", "w", "b", *(["wci", "wcf", "wco"] if peephole else [])]
        return [getattr(grad, f"{name}_grad") for name in names]

    parity(build, *arrays(), grad=False, static=False)


def test_clipped_cells(parity: Any) -> None:
    def build(m: Any, *tensors: Any) -> Any:
        given = dict(zip(NAMES, tensors, strict=True))
        made = m.raw_ops.BlockLSTMV2(seq_len_max=m.constant(STEPS, m.int64), cell_clip=0.3, **given)
        return [made.cs, made.h]

    parity(build, *arrays(), grad=False, static=False)


def test_static_shapes(parity: Any) -> None:
    def build(m: Any, *tensors: Any) -> Any:
        given = dict(zip(NAMES, tensors, strict=True))
        return list(m.raw_ops.BlockLSTMV2(seq_len_max=m.constant(STEPS, m.int64), **given))

    parity(build, *arrays(), grad=False)
