"""Exported ONNX models in onnxruntime: equal results, dtypes and shapes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import hypothesis
import hypothesis.extra.numpy
import numpy as np
import onnx
import onnx.backend.test
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

import aioflow as af
from aioflow.interop.onnx import export, load
from tests.interop.onnx_out.cases import CASES, Case
from tests.interop.onnx_out.running import Arrays, check, compare, same
from tests.parity.program_generator import generate

pytestmark = pytest.mark.parity


def onnxruntime_run(model: onnx.ModelProto, feeds: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the results of onnxruntime's CPU kernels."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: Arrays = session.run(None, {name: _text(array) for name, array in feeds.items()})
    return found


def _text(array: NDArray[Any]) -> NDArray[Any]:
    """Decode bytes to the strings that onnxruntime accepts."""
    if array.dtype != object:
        return array
    return np.array([item.decode() for item in array.reshape(-1)], object).reshape(array.shape)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_export_with_known_shapes(case: Case) -> None:
    await compare(case.build, case.arrays, onnxruntime_run, tolerance=case.tolerance)


@pytest.mark.parametrize("case", [c for c in CASES if not c.static_only], ids=lambda case: case.name)
async def test_export_with_unknown_sizes(case: Case) -> None:
    await compare(case.build, case.arrays, onnxruntime_run, dynamic=True, tolerance=case.tolerance)


# -- any shapes --------------------------------------------------------------------------------------------------------

_SHAPES = st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple)
_ANY = hypothesis.settings(max_examples=60, deadline=None, derandomize=True)


def _numbers(shape: Sequence[int]) -> NDArray[Any]:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape) - 3


@st.composite
def _slices(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    shape = draw(_SHAPES)
    index: list[Any] = []
    for size in shape[: draw(st.integers(0, len(shape)))]:
        bound = st.none() | st.integers(-6, 6)
        step = draw(st.none() | st.sampled_from([1, 2, 3, -1, -2]))
        one = st.integers(-size, size - 1) if size else st.just(slice(None))
        index.append(draw(one | st.builds(slice, bound, bound, st.just(step))))
    if draw(st.booleans()):
        index.insert(draw(st.integers(0, len(index))), None)
    if draw(st.booleans()):
        index.insert(draw(st.integers(0, len(index))), ...)
    if not any(i is ... for i in index):
        return shape, tuple(index)
    # Indices after an ellipsis belong to the last axes, where an integer might be out of range; a slice never is.
    return shape, tuple(i if not isinstance(i, int) else slice(i, None) for i in index)


@_ANY
@hypothesis.given(_slices(), st.booleans())
async def test_any_slice(case: tuple[tuple[int, ...], tuple[Any, ...]], dynamic: bool) -> None:
    shape, index = case
    await compare(lambda x: x[index], [_numbers(shape)], onnxruntime_run, dynamic=dynamic)


@_ANY
@hypothesis.given(
    _SHAPES.flatmap(lambda s: st.tuples(st.just(s), st.sets(st.integers(-len(s), len(s) - 1)).map(tuple))),
    st.sampled_from(["reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([np.float32, np.int32]),
)
async def test_any_reduction(case: Any, op: str, keepdims: bool, dynamic: bool, dtype: Any) -> None:
    shape, axes = case
    hypothesis.assume(len({axis % len(shape) for axis in axes}) == len(axes))
    hypothesis.assume(
        op != "reduce_mean" or dtype is np.float32 or 0 not in shape
    )  # integer means of no elements have no NaN
    given = (_numbers(shape) / 4).astype(dtype)
    await compare(
        lambda x: getattr(af, op)(x, list(axes), keepdims=keepdims), [given], onnxruntime_run, dynamic=dynamic
    )


@_ANY
@hypothesis.given(
    hypothesis.extra.numpy.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=3, min_side=0),
    st.booleans(),
)
async def test_any_broadcast(shapes: Any, dynamic: bool) -> None:
    given = [_numbers(shape) for shape in shapes.input_shapes]
    await compare(
        lambda x, y: [x + y, x * y, af.maximum(x, y), x < y, af.where_v2(x > 0, x, y)],
        given,
        onnxruntime_run,
        dynamic=dynamic,
    )


@_ANY
@hypothesis.given(
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 2),
    st.booleans(),
    st.booleans(),
)
async def test_any_window(
    height: int, width: int, kernel: int, stride: int, dilation: int, same_size: bool, dynamic: bool
) -> None:
    span = (kernel - 1) * dilation + 1
    hypothesis.assume(same_size or span <= min(height, width))
    hypothesis.assume(stride == 1 or dilation == 1)
    pool = min(kernel, height, width)
    gaps = (kernel > 1 and span < stride) or (1 < pool < stride)
    hypothesis.assume(not (gaps and dynamic and same_size))  # the exporter rejects these
    weights = _numbers((kernel, kernel, 2, 3)) / 10
    padding: Literal["SAME", "VALID"] = "SAME" if same_size else "VALID"

    def build(x: Any) -> Any:
        made = af.nn.conv2d(
            x, af.constant(weights), [1, stride, stride, 1], padding, dilations=[1, dilation, dilation, 1]
        )
        pooled = [f(x, [1, pool, pool, 1], [1, stride, stride, 1], padding) for f in (af.nn.max_pool, af.nn.avg_pool)]
        return [made, *pooled]

    await compare(build, [_numbers((2, height, width, 2)) / 10], onnxruntime_run, dynamic=dynamic, tolerance=1e-3)


# -- networks ----------------------------------------------------------------------------------------------------------


async def test_exported_network_matches_for_any_batch_size() -> None:
    random = np.random.default_rng(3)
    images, labels = random.random((32, 8, 8, 1), np.float32), random.integers(0, 3, 32)
    x, y = af.placeholder(af.float32, [None, 8, 8, 1]), af.placeholder(af.int64, [None])
    with af.variable_scope("net"):
        kernel = af.get_variable("kernel", [3, 3, 1, 4])
        bias = af.get_variable("bias", [4], initializer=af.zeros_initializer())
        dense = af.get_variable("dense", [64, 3])
    hidden = af.nn.relu(af.nn.bias_add(af.nn.conv2d(x, kernel, [1, 2, 2, 1], "SAME"), bias))
    normal, _, _ = af.nn.fused_batch_norm(
        hidden, af.ones([4]), af.zeros([4]), af.zeros([4]), af.ones([4]), is_training=False
    )
    logits = af.matmul(af.reshape(normal, [-1, 64]), dense)
    loss = af.reduce_mean(af.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    step = af.train.AdamOptimizer(0.01).minimize(loss)
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        first = await session.run(loss, {x: images, y: labels})
        for _ in range(10):
            await session.run(step, {x: images, y: labels})
        assert await session.run(loss, {x: images, y: labels}) < first
        model = await export(session, {"logits": logits, "loss": loss}, {"images": x, "labels": y})
        check(model, ["images", "labels"], ["logits", "loss"])
        assert [node.op_type for node in model.graph.node].count("Transpose") <= 2
        for size in (1, 5, 32):
            wanted = await session.run([logits, loss], {x: images[:size], y: labels[:size]})
            found = onnxruntime_run(model, {"images": images[:size], "labels": labels[:size]})
            for ours, theirs in zip(wanted, found, strict=True):
                same(ours, theirs, 1e-5)


@pytest.mark.parametrize("name", ["shufflenet", "inception_v1", "resnet50"])
async def test_loaded_model_exports_to_an_equal_model(name: str) -> None:
    path = Path(onnx.backend.test.__file__).parent / "data" / "light" / f"light_{name}.onnx"
    original = onnx.load(path)
    model = load(original)
    out = await export(model)
    given = np.random.default_rng(5).random((1, 3, 224, 224), np.float32)
    source = {value.name for value in original.graph.input} - {each.name for each in original.graph.initializer}
    # Seconds on a crowded machine, during which the loop must not be held.
    (wanted,) = await asyncio.to_thread(onnxruntime_run, original, dict.fromkeys(source, given))
    (found,) = await asyncio.to_thread(onnxruntime_run, out, dict.fromkeys(model.inputs, given))
    same(wanted, found, 1e-4)


@pytest.mark.parametrize("case", [c for c in CASES if c.reference], ids=lambda case: case.name)
async def test_exported_model_can_be_loaded_again(case: Case) -> None:
    async def run(proto: onnx.ModelProto, feeds: Mapping[str, NDArray[Any]]) -> Arrays:
        model = load(proto)
        async with af.Session(graph=model.graph) as session:
            found: Arrays = await session.run(
                list(model.outputs.values()), {model.inputs[name]: value for name, value in feeds.items()}
            )
        return found

    await compare(case.build, case.arrays, run, tolerance=case.tolerance)


@pytest.mark.parametrize("seed", range(32))
async def test_random_programs_of_branches_and_loops(seed: int) -> None:
    """Export the programs that are compared with TensorFlow, without variable updates, which no model can make."""
    program = generate(seed)
    unchanged = "def unchanged(m, token, update):\n    return token\n"
    vars(program)["source"] = unchanged + program.source.replace("after(m,", "unchanged(m,")
    built = program.build(af)
    outputs = {f"output_{i}": tensor for i, tensor in enumerate(built.outputs)}
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        wanted = await session.run(list(outputs.values()), built.feeds(program.feeds))
        model = await export(session, outputs, built.inputs)
    found = onnxruntime_run(model, {name: np.asarray(value) for name, value in program.feeds.items()})
    for ours, theirs in zip(wanted, found, strict=True):
        same(ours, theirs, 1e-5)
