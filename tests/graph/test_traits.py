"""Traits of ops: each op has what its kind needs, and no two traits contradict each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import aioflow as af
import aioflow_cupy.backend  # noqa: F401  # registers all kernels for GPUs
from aioflow.extend import define_op
from aioflow.graph.dtypes import as_dtype
from aioflow.graph.opdef import OPS, OpDef, OpRegistry, traits_of
from aioflow.graph.traits import Effect, Memory, elementwise, passes_on, random, reshapes, view
from aioflow.kernels.registry import ANY_DEVICE, KERNELS

# Other tests and examples define ops in this process.
BUILT_IN = [op for op in OPS if OPS.home(op.name).startswith("aioflow.")]


def unsaid(op: OpDef) -> Iterator[str]:
    """Yield messages to the author of an op about missing or contradictory traits."""
    traits = op.traits
    if not traits.kind:
        yield f'define_op("{op.name}", …, traits=elementwise()): say of which kind it is, see aioflow/graph/traits.py'
    devices = {kernel.device_type for kernel in KERNELS.for_op(op.name)}
    if devices and devices <= {"CPU"} and not traits.on_host:
        yield f'define_op("{op.name}", …, traits=…(on_host="why")): it has kernels for the CPU alone; say why'
    if traits.rounded_by and traits.rounded_by not in [arg.name for arg in op.inputs]:
        yield f"{op.name} has no input {traits.rounded_by!r}, by which it is said to be rounded"
    if traits.origin(0) is not None and op.outputs and not op.inputs:
        yield f"{op.name} cannot be in the memory of an input: it has none"
    if traits.fuses and len(op.outputs) != 1:
        yield f"{op.name} cannot be a member of a chain: it has {len(op.outputs)} outputs"
    if traits.in_c and not traits.fuses:
        yield f"{op.name} is written in C, but may not be a member of a chain: say fuses="


def test_every_op_has_the_traits_that_its_kind_needs() -> None:
    assert [message for op in BUILT_IN for message in unsaid(op)] == []


def test_the_message_for_missing_traits_shows_what_to_write() -> None:
    registry = OpRegistry()
    bare = registry.register(OpDef("Bare", (), ()))
    (message,) = unsaid(bare)
    assert message.startswith('define_op("Bare"')
    assert "traits=" in message


def test_opposite_laws_refer_to_each_other() -> None:
    for op in BUILT_IN:
        laws = op.traits.laws
        if laws.opposite:
            assert OPS.get(laws.opposite).traits.laws.opposite == op.name
            assert OPS.get(laws.opposite).traits.laws.total == laws.total


def test_ops_that_return_their_input_have_no_fresh_kernels() -> None:
    handing = [op.name for op in BUILT_IN if op.traits.memory in (Memory.PASSED, Memory.VIEW, Memory.SAME_ORDER)]
    assert len(handing) > 20
    new = [k.op for name in handing for k in KERNELS.for_op(name) if k.device_type == ANY_DEVICE and k.fresh]
    assert new == []


def test_ops_that_fuse_have_fresh_kernels() -> None:
    members = [op for op in BUILT_IN if op.traits.fuses]
    assert len(members) > 60
    for op in members:
        name = next((arg.type_attr for arg in op.inputs if arg.type_attr), "")
        for dtype in op.traits.fuses:
            kernel = KERNELS.find(op.name, "CPU", {name: as_dtype(dtype)})
            assert kernel is None or kernel.fresh, (op.name, dtype)


@pytest.mark.parametrize(
    ("op", "effect"),
    [
        ("Add", Effect.NONE),
        ("EnsureShape", Effect.FAILS),
        ("RandomUniform", Effect.KEEPS),
        ("VarHandleOp", Effect.KEEPS),
        ("ReadVariableOp", Effect.READS),
        ("AssignVariableOp", Effect.CHANGES),
        ("Switch", Effect.STEERS),
    ],
)
def test_stateful_follows_from_the_effect(op: str, effect: Effect) -> None:
    assert traits_of(op).effect is effect
    assert OPS.get(op).stateful is (effect in (Effect.KEEPS, Effect.READS, Effect.CHANGES))


def test_origins_of_outputs() -> None:
    assert elementwise().origin(0) is None
    assert [passes_on().origin(port) for port in (0, 2)] == [0, 2]
    assert view(shares=1).origin(3) == 1
    assert reshapes(shares=2).origin(0) == 2


def test_stateful_means_a_change_unless_traits_are_given() -> None:
    assert define_op("TestTraitsChange", "", "y: float32", stateful=True).traits.effect is Effect.CHANGES
    assert define_op("TestTraitsDraw", "", "y: float32", stateful=True, traits=random()).traits.effect is Effect.KEEPS
    assert not define_op("TestTraitsNothing", "x: float32", "y: float32").stateful


def test_traits_are_keyword_arguments() -> None:
    with pytest.raises(TypeError, match="keyword arguments only"):
        elementwise(3)  # type: ignore[arg-type, call-arg]  # wrong on purpose
    with pytest.raises(TypeError, match="colour"):
        elementwise(colour=3)  # type: ignore[call-arg]  # as above


def test_unregistered_ops_have_empty_traits() -> None:
    assert traits_of("TestTraitsNobody").kind == ""


def _turned_image(x: af.Tensor) -> af.Tensor:
    """Return an image that is not in row-major order."""
    return af.transpose(af.tile(af.reshape(x, [1, 3, 2, 1]), [2, 1, 1, 2]), [0, 2, 1, 3])


ROW_MAJOR: dict[str, Callable[[af.Tensor], af.Tensor]] = {
    "AvgPool": lambda x: af.nn.avg_pool2d(_turned_image(x), 1, 1, "VALID"),
    "Conv2D": lambda x: af.nn.conv2d(_turned_image(x), af.ones([1, 1, 2, 3], "float64"), 1, "VALID"),
    "DepthwiseConv2dNative": lambda x: af.nn.depthwise_conv2d(
        _turned_image(x), af.ones([1, 1, 2, 2], "float64"), [1, 1, 1, 1], "VALID"
    ),
    "Fill": lambda x: af.fill([2, 3], 1.0),
    "LinSpace": lambda x: af.linspace(0.0, 1.0, 3),
    "MatMul": lambda x: af.matmul(x, x, transpose_b=True),
    "MaxPool": lambda x: af.nn.max_pool2d(_turned_image(x), 1, 1, "VALID"),
    "OnesLike": lambda x: af.ones_like(x, optimize=False),
    "Pack": lambda x: af.stack([x, x]),
    "Pad": lambda x: af.pad(x, [[0, 1], [0, 1]]),
    "PadV2": lambda x: af.pad(x, [[0, 1], [0, 1]], constant_values=1.0),
    "Range": lambda x: af.range(4),
    "Shape": lambda x: af.raw_ops.Shape(input=x),
    "Tile": lambda x: af.tile(x, [2, 2]),
    "ZerosLike": lambda x: af.zeros_like(x, optimize=False),
}


@pytest.mark.parametrize("op", [op.name for op in BUILT_IN if op.traits.row_major])
def test_row_major_ops_return_row_major_outputs(op: str) -> None:
    with af.Graph().as_default(), af.Session(config=af.SessionConfig(optimizations=False)) as session:
        turned = af.transpose(af.placeholder_with_default(np.arange(6.0).reshape(2, 3), (2, 3)))
        made = ROW_MAJOR[op](turned)
        assert made.op.type == op
        assert session.run_sync(made).flags.c_contiguous
