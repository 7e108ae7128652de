"""Tests of op coverage: the GPU's ops, the reasons for those it lacks, and the strands that can be captured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.compiler.prune import StepRequest, prune
from aioflow.graph.opdef import OPS
from aioflow.kernels.registry import ANY_DEVICE, KERNELS
from aioflow.kernels.resources import ResourceManager
from aioflow.runtime.bind import BoundNode, bind_graph
from aioflow_cupy.graphs import is_capturable
from tests.backends.cupy.fakes import PlainDevice


def ops_on(device: str) -> set[str]:
    """Return the ops with a kernel for this type of device."""
    return {kernel.op for kernel in KERNELS if kernel.device_type in (ANY_DEVICE, device)}


def test_nine_of_ten_numeric_ops_run_on_the_gpu() -> None:
    on_cpu, on_gpu = ops_on("CPU"), ops_on("GPU")
    assert len(on_cpu) >= 470
    left = {op for op in on_cpu - on_gpu if OPS.get(op).traits.is_numeric}
    assert len(left) <= 0.1 * len(left | (on_cpu & on_gpu))


def test_every_op_left_on_the_cpu_has_a_reason() -> None:
    assert [op for op in sorted(ops_on("CPU") - ops_on("GPU")) if not OPS.get(op).traits.on_host] == []


def test_kernels_that_synchronise_run_on_the_gpu() -> None:
    assert ops_on("GPU") >= {kernel.op for kernel in KERNELS if kernel.synchronises}


@pytest.mark.parametrize("op", ["Identity", "ConcatV2", "Equal", "Const", "Pack"])
def test_strings_have_no_kernel_on_a_gpu(op: str) -> None:
    name = next(a.type_attr for a in (*OPS.get(op).inputs, *OPS.get(op).outputs) if a.type_attr)
    assert KERNELS.find(op, "GPU", {name: af.string, "incompatible_shape_error": True}) is None
    assert KERNELS.find(op, "GPU", {name: af.float32, "incompatible_shape_error": True}) is not None
    assert KERNELS.find(op, "CPU", {name: af.string, "incompatible_shape_error": True}) is not None


def test_no_gpu_kernel_accepts_strings() -> None:
    for kernel in KERNELS:
        if kernel.device_type == "GPU":
            types = [
                n
                for n, a in OPS.get(kernel.op).attrs.items()
                if a.kind == "type" and (not a.allowed or af.string in a.allowed)
            ]
            for name in types:
                attrs = {n: next(iter(kernel.dtypes.get(n, {af.float32}))) for n in types} | {name: af.string}
                assert not kernel.accepts("GPU", attrs), (kernel.op, name)


def bound(*tensors: Any) -> list[BoundNode]:
    return bind_graph(prune(StepRequest((), tensors, ())), PlainDevice(), ResourceManager(), {})


def test_strands_that_read_device_values_on_the_host_are_not_capturable() -> None:
    x = af.placeholder_with_default(np.ones((4, 3), np.float32), (None, 3))
    dense = af.nn.relu(x @ np.ones((3, 3), np.float32)) + af.reduce_sum(x, 1, keepdims=True)
    shaped = af.reshape(dense, af.shape(x))  # the shape stays on the host
    counted = af.reshape(x, [af.cast(af.reduce_max(x), af.int32), 3])  # the device computes a size
    chosen = af.boolean_mask(x, x[:, 0] > 0)  # the size depends on values
    assert is_capturable(bound(shaped))
    assert not is_capturable(bound(counted))
    assert not is_capturable(bound(chosen))
