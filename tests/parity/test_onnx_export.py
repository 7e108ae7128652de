"""Models that are exported, in onnxruntime: equal results, dtypes and shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from tests.interop.onnx_out.cases import CASES, Case
from tests.interop.onnx_out.running import Arrays, compare

pytestmark = pytest.mark.parity


def onnxruntime_run(model: onnx.ModelProto, feeds: Mapping[str, NDArray[Any]]) -> Arrays:
    """What onnxruntime's CPU kernels give."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: Arrays = session.run(None, {name: _text(array) for name, array in feeds.items()})
    return found


def _text(array: NDArray[Any]) -> NDArray[Any]:
    """Strings as onnxruntime takes them."""
    if array.dtype != object:
        return array
    return np.array([item.decode() for item in array.reshape(-1)], object).reshape(array.shape)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_of_known_shapes(case: Case) -> None:
    await compare(case.build, case.arrays, onnxruntime_run, tolerance=case.tolerance)


@pytest.mark.parametrize("case", [c for c in CASES if not c.static_only], ids=lambda case: case.name)
async def test_of_unknown_sizes(case: Case) -> None:
    await compare(case.build, case.arrays, onnxruntime_run, dynamic=True, tolerance=case.tolerance)
