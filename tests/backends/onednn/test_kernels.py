"""oneDNN's kernels against NumPy's: equal results for all shapes, layouts, threads and sessions."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import FailedPreconditionError, NotFoundError
from aioflow_numpy import products as numpy_products
from aioflow_onednn import conv_blocks, convolutions, products
from aioflow_onednn.filters import Filters, PackedFilter
from aioflow_onednn.forward import Forward
from aioflow_onednn.library import library
from aioflow_onednn.team import TEAM
from tests.backends.onednn.random_cases import Array, Case, body, convolution, fused, normal, product
from tests.backends.onednn.stress import OneDnn

try:
    library()
except (NotFoundError, FailedPreconditionError) as error:
    pytest.skip(error.message, allow_module_level=True)

from aioflow_onednn import kernels


@pytest.fixture(autouse=True)
def however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make small arrays go to oneDNN, and to several threads."""
    monkeypatch.setattr(products, "WORTHWHILE", 1)
    monkeypatch.setattr(products, "COLUMNS", 1)
    monkeypatch.setattr(products, "are_quicker", lambda: True)
    monkeypatch.setattr(kernels, "_WORTHWHILE", 1)
    monkeypatch.setattr(kernels, "CHOICES", OneDnn())
    monkeypatch.setattr(numpy_products, "_BLOCK", 2**12)
    monkeypatch.setattr(conv_blocks, "LEAST", 2**10)
    monkeypatch.setattr(conv_blocks, "_LONG_SUM", 2**13)
    monkeypatch.setattr(conv_blocks, "_CHANNELS", 4)


def cases(seed: int, count: int) -> list[Case]:
    rng = np.random.default_rng(seed)
    some = [product(rng, 100) if number % 4 == 0 else convolution(rng) for number in range(count)]
    return [fused(case, rng) if rng.integers(2) else case for case in some]


@pytest.mark.parametrize("seed", range(4))
def test_results_are_numpys(seed: int) -> None:
    for case in cases(seed, 100):
        assert case.agrees(), (case.op, case.attrs, [getattr(value, "shape", value) for value in case.inputs])


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
def test_results_are_numpys_for_a_hundred_thousand_shapes() -> None:
    for seed in range(1000, 2000):
        test_results_are_numpys(seed)


def test_several_threads_may_run_one_primitive() -> None:
    some = cases(7, 12)
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(Case.agrees, some * 12))


@pytest.mark.parametrize("kind", ["MatMul", "Conv2D"])
def test_onednn_is_used_unless_results_must_be_reproducible(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []

    def watched(name: str, known: Any) -> Any:
        def call(*args: Any) -> Any:
            used.append(name)
            return known(*args)

        return call

    for owner, name in ((products, "matmul"), (Forward, "__call__")):
        monkeypatch.setattr(owner, name, watched(name, getattr(owner, name)))
    rng = np.random.default_rng(3)
    if kind == "MatMul":
        inputs, attrs = (normal(rng, 90, 80), normal(rng, 80, 70)), {}
    else:
        inputs, attrs = (normal(rng, 2, 9, 9, 4), normal(rng, 3, 3, 4, 8)), _CONVOLUTION
    body(kind, attrs, inputs, reproducible=True)(*inputs)
    assert not used
    body(kind, attrs, inputs, reproducible=False)(*inputs)
    assert used == ["matmul" if kind == "MatMul" else "__call__"]


_CONVOLUTION = {"strides": (1, 1, 1, 1), "dilations": (1, 1, 1, 1), "data_format": "NHWC", "padding": "SAME"}


async def test_a_session_can_ask_for_reproducible_results() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((200, 300), np.float32), rng.standard_normal((300, 150), np.float32)
    expected = numpy_products.matmul(a, b)
    with af.Graph().as_default():
        left, right = af.placeholder(af.float32, [None, 300]), af.placeholder(af.float32, [300, 150])
        product = af.matmul(left, right)
        exact, faster = af.SessionConfig(reproducible=True), af.SessionConfig()
        async with af.Session(config=exact) as one, af.Session(config=faster) as other:
            feeds = {left: a, right: b}
            np.testing.assert_array_equal(await one.run(product, feeds), expected)
            np.testing.assert_allclose(await other.run(product, feeds), expected, rtol=1e-4, atol=1e-4)


async def test_assigned_filter_is_used() -> None:
    rng = np.random.default_rng(6)
    image = rng.standard_normal((2, 12, 12, 8), np.float32)
    with af.Graph().as_default():
        kernel = af.Variable(np.ones((3, 3, 8, 8), np.float32))
        made = af.nn.conv2d(image, kernel, [1, 1, 1, 1], "SAME")
        double = kernel.assign(kernel * 2.0)
        async with af.Session() as session:
            await session.run(af.global_variables_initializer())
            first = await session.run(made)
            await session.run(double)
            np.testing.assert_allclose(await session.run(made), 2.0 * first, rtol=1e-5)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_nonfinite_elements_stay_nonfinite(odd: float) -> None:
    a, b = np.ones((64, 64), np.float32), np.ones((64, 64), np.float32)
    a[3, 5] = odd
    made = body("MatMul", {}, (a, b), reproducible=False)(a, b)
    np.testing.assert_array_equal(made, a @ b)


def test_openmp_thread_count_of_the_user_is_kept() -> None:
    before = library()._threads()
    library()._set_threads(3)
    try:
        assert all(case.agrees() for case in cases(2, 3))
        assert library()._threads() == 3
    finally:
        library()._set_threads(before)


def test_shape_error_is_the_same_as_numpys() -> None:
    image, kernel = np.ones((1, 8, 8, 4), np.float32), np.ones((3, 3, 4, 4), np.float32)
    wrong = np.ones((1, 7, 8, 4), np.float32)
    for op, inputs in (
        ("MatMul", (image[0, 0], kernel[0, 0, 1:])),
        ("Conv2D", (image, kernel[:, :, :3])),
        ("Conv2D", (image[0], kernel)),
        ("Conv2DBackpropInput", ((1, 8, 8, 4), kernel, wrong)),
        ("Conv2DBackpropFilter", (image, (3, 3, 4, 4), wrong)),
    ):
        attrs = {} if op == "MatMul" else _CONVOLUTION
        messages = [refusal(op, attrs, inputs, reproducible) for reproducible in (True, False)]
        assert messages[0] == messages[1]


def test_fused_convolution_error_names_the_convolution_node() -> None:
    with af.Graph().as_default():
        image = af.placeholder(af.float32, name="image")
        made = af.nn.conv2d(image, np.ones((3, 3, 4, 4), np.float32), [1, 1, 1, 1], "SAME", name="mine")
        result = af.nn.relu(af.nn.bias_add(made, np.ones(4, np.float32)), name="behind")
        with af.Session() as session, pytest.raises(af.errors.InvalidArgumentError, match="rank") as refused:
            session.run_sync(result, {image: np.ones((8, 8, 4), np.float32)})
    assert (refused.value.node, refused.value.op_type) == ("mine", "Conv2D")


def test_constant_filter_in_another_byte_order() -> None:
    rng = np.random.default_rng(0)
    image, kernel = normal(rng, 1, 8, 8, 4), normal(rng, 3, 3, 4, 4)
    with af.Graph().as_default():
        given = af.placeholder(af.float32)
        swapped = kernel.astype(kernel.dtype.newbyteorder("S"))
        results = [af.nn.conv2d(given, each, [1, 1, 1, 1], "SAME") for each in (kernel, af.constant(swapped))]
        with af.Session() as session:
            wanted, found = session.run_sync(results, {given: image})
    np.testing.assert_array_equal(found, wanted)


def refusal(op: str, attrs: dict[str, Any], inputs: tuple[Any, ...], reproducible: bool) -> str:
    with pytest.raises((af.errors.OpError, ValueError)) as refused:
        body(op, attrs, inputs, reproducible=reproducible)(*inputs)
    return str(refused.value)


def test_constant_filter_is_packed_once_for_all_batch_sizes() -> None:
    rng = np.random.default_rng(8)
    kernel = rng.standard_normal((3, 3, 32, 32), np.float32)
    packed = PackedFilter(kernel)
    filters = Filters(1, 32, 32)
    made = [packed.of((convolutions.forward(windows_of(n), filters), 0)) for n in (1, 2, 3, 4)]
    assert len({id(array) for array in made}) == 1


def windows_of(n: int) -> Any:
    from aioflow_numpy.conv_shapes import windows

    return windows((n, 10, 10, 32), (3, 3), (1, 1), ((1, 1), (1, 1)))


@pytest.mark.parametrize("kind", ["MatMul", "Conv2D"])
def test_nan_stays_nan_behind_a_relu(kind: str) -> None:
    """The relu of oneDNN turns NaN into zero."""
    rng = np.random.default_rng(11)
    inputs: tuple[Any, ...] = (normal(rng, 40, 30), normal(rng, 30, 20), [np.full(20, np.nan, np.float32)])
    if kind == "Conv2D":
        inputs = (normal(rng, 1, 9, 9, 30), normal(rng, 1, 1, 30, 20), inputs[2])
    said = ["a", "b", "c"]
    attrs = {**({} if kind == "MatMul" else _CONVOLUTION), "num_args": 1, "nodes": said, "sources": said}
    attrs["fused_ops"] = ("BiasAdd", "Relu")
    assert np.isnan(body(f"_Fused{kind}", attrs, inputs, reproducible=False)(*inputs)).all()


@pytest.mark.parametrize("activation", ["Relu", "Relu6"])
@pytest.mark.parametrize("of", ["image", "filter", "bias"])
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 3e38, 1e30])
def test_overflow_in_a_convolution_is_kept_behind_a_relu(odd: float, of: str, activation: str) -> None:
    """Weights of both signs are multiplied by numbers near infinity: sums that overflow both ways are NaN."""
    rng = np.random.default_rng(13)
    arrays = {"image": normal(rng, 1, 9, 9, 30), "filter": normal(rng, 3, 3, 30, 20), "bias": normal(rng, 20)}
    arrays[of] = arrays[of].copy()
    arrays[of][..., ::3] = odd
    image, kernel, bias = (value * np.float32(1e9) if name != of else value for name, value in arrays.items())
    said = ["a", "b", "c"]
    attrs = {**_CONVOLUTION, "num_args": 1, "nodes": said, "sources": said, "fused_ops": ("BiasAdd", activation)}
    inputs: tuple[Any, ...] = (image, kernel, [bias])
    with np.errstate(all="ignore"):  # as in every thread that runs kernels
        made = body("_FusedConv2D", attrs, inputs, reproducible=False, constants=(None, kernel, bias))(*inputs)
        # The reference is NumPy's kernel. Whether finite numbers overflow depends on the order of the sum: for them the
        # reference is oneDNN's kernel without constants, which sums in the same order.
        expected = body("_FusedConv2D", attrs, inputs, reproducible=not np.isfinite(odd))(*inputs)
    assert np.isnan(expected).any() or of == "bias" or np.isfinite(odd)
    np.testing.assert_array_equal(np.isnan(made), np.isnan(expected))
    np.testing.assert_array_equal(made == 0, expected == 0)


@pytest.mark.parametrize("of", ["image", "filter", "bias"])
@pytest.mark.parametrize("size", [1, 3])
def test_swish_of_nonfinite_and_extreme_numbers_equals_numpys(size: int, of: str) -> None:
    rng = np.random.default_rng(14)
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, 1e30, -1e30, 90.0, -90.0, 1e-40, -200.0], np.float32)
    arrays = {"image": normal(rng, 1, 10, 10, 30), "filter": normal(rng, size, size, 30, 20), "bias": normal(rng, 20)}
    arrays[of] = np.array(arrays[of])
    arrays[of][..., ::3] = np.resize(odd, arrays[of][..., ::3].shape)
    said = ["a", "b", "c", "d"]
    attrs = {**_CONVOLUTION, "num_args": 1, "nodes": said, "sources": said}
    attrs |= {"fused_ops": ("BiasAdd", "Sigmoid", "Mul"), "operands": (0, 1, 2, 2, 3)}
    inputs: tuple[Any, ...] = (arrays["image"], arrays["filter"], [arrays["bias"]])
    with np.errstate(all="ignore"):
        made, expected = (body("_FusedConv2D", attrs, inputs, reproducible=each)(*inputs) for each in (False, True))
    assert np.isnan(expected).any()
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activation", [(), ("Relu",), ("Relu6",)])
@pytest.mark.parametrize("odd", [0.0, np.nan, np.inf, -np.inf, 3e38, 1e30])
def test_addend_is_kept_behind_a_relu(odd: float, activation: tuple[str, ...]) -> None:
    rng = np.random.default_rng(15)
    image, kernel, bias = normal(rng, 1, 9, 9, 30), normal(rng, 3, 3, 30, 20), normal(rng, 20)
    other = np.array(normal(rng, 1, 9, 9, 20))
    other[..., ::3] = odd
    said = ["a", "b", "c", "d"][: 3 + len(activation)]
    attrs = {**_CONVOLUTION, "num_args": 2, "nodes": said, "sources": said}
    attrs |= {"fused_ops": ("BiasAdd", "AddV2", *activation), "operands": (0, 1, 2, 3, *(4 for _ in activation))}
    inputs: tuple[Any, ...] = (image, kernel, [bias, other])
    expected = body("_FusedConv2D", attrs, inputs, reproducible=True)(*inputs)
    for constants in (None, (None, kernel, bias, None)):
        with np.errstate(all="ignore"):  # as in every thread that runs kernels
            made = body("_FusedConv2D", attrs, inputs, reproducible=False, constants=constants)(*inputs)
        np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 9, 9, 20), (9, 9, 20), (2, 9, 9, 1), (2, 9, 9, 20), (5, 2, 9, 9, 20)])
@pytest.mark.parametrize("n", [1, 2])
def test_addend_may_have_another_shape(n: int, shape: tuple[int, ...]) -> None:
    """The plan is made without knowing the shapes."""
    rng = np.random.default_rng(17)
    said = ["a", "b", "c"]
    attrs = {**_CONVOLUTION, "num_args": 2, "nodes": said, "sources": said}
    attrs |= {"fused_ops": ("BiasAdd", "AddV2"), "operands": (0, 1, 3, 2)}
    args = [normal(rng, 20), normal(rng, *shape)]
    assert Case("_FusedConv2D", attrs, (normal(rng, n, 9, 9, 30), normal(rng, 3, 3, 30, 20), args), 270).agrees()


@pytest.mark.parametrize(("n", "edge", "channels"), [(1, 20, 20), (1, 3, 64), (3, 9, 20), (9, 5, 16)])
@pytest.mark.parametrize("size", [1, 3])
def test_sum_has_the_same_bits_with_and_without_constants(
    size: int, n: int, edge: int, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers additions by lines, by channels and by samples.

    oneDNN adds if all inputs except the image are constant; otherwise NumPy adds afterwards.
    """
    rng = np.random.default_rng(16)
    said = ["a", "b", "c", "d"]
    attrs = {**_CONVOLUTION, "num_args": 2, "nodes": said, "sources": said}
    attrs |= {"fused_ops": ("BiasAdd", "AddV2", "Relu"), "operands": (0, 1, 2, 3, 4)}
    kernel, bias = normal(rng, size, size, 30, channels), normal(rng, channels)
    inputs: tuple[Any, ...] = (normal(rng, n, edge, edge, 30), kernel, [bias, normal(rng, n, edge, edge, channels)])
    assert Case("_FusedConv2D", attrs, inputs, size * size * 30).agrees()
    results = []
    for threads in (TEAM.size(), 1):
        monkeypatch.setattr(TEAM, "size", lambda threads=threads: threads)
        results += [
            body("_FusedConv2D", attrs, inputs, reproducible=False, constants=constants)(*inputs)
            for constants in (None, (None, kernel, bias, None))
        ]
    np.testing.assert_array_equal(results[1:], results[:1] * 3)


@pytest.mark.parametrize("fused_ops", [("BiasAdd", "BiasAdd"), ("Relu", "BiasAdd"), ("BiasAdd", "Relu", "BiasAdd")])
def test_unusual_order_of_fused_ops(fused_ops: tuple[str, ...]) -> None:
    """Our optimizer never produces these orders, but a plan may come from another program."""
    rng = np.random.default_rng(12)
    biases = [normal(rng, 20) for op in fused_ops if op == "BiasAdd"]
    said = ["a", "b", "c", "d"][: 1 + len(fused_ops)]
    attrs = {"num_args": len(biases), "fused_ops": fused_ops, "nodes": said, "sources": said}
    assert Case("_FusedMatMul", attrs, (normal(rng, 40, 30), normal(rng, 30, 20), biases), 30).agrees()


async def test_cancelled_step_has_no_effect_on_later_steps() -> None:
    rng = np.random.default_rng(9)
    image: Array = rng.standard_normal((8, 32, 32, 32), np.float32)
    with af.Graph().as_default():
        value = af.placeholder(af.float32, [None, 32, 32, 32])
        made = value
        for _ in range(6):
            made = af.nn.conv2d(made, rng.standard_normal((3, 3, 32, 32), np.float32) / 17.0, [1, 1, 1, 1], "SAME")
        async with af.Session() as session:
            expected = await session.run(made, {value: image})
            for number in range(10):
                with suppress(TimeoutError):
                    async with asyncio.timeout(number * 1e-3):
                        await session.run(made, {value: image})
            np.testing.assert_allclose(await session.run(made, {value: image}), expected, rtol=1e-5, atol=1e-5)
