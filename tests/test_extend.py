"""User-defined ops through `aioflow.extend`: registration, its checks, and the errors for missing parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow import errors, extend
from aioflow.graph.gradient_registry import GRADIENTS
from aioflow.graph.opdef import OPS
from aioflow.kernels.registry import KERNELS
from aioflow.testing.evaluate import evaluate
from aioflow.testing.gradcheck import check_gradients


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """Restore the registries of ops, kernels and gradients after each test."""
    held = (OPS._ops, KERNELS._kernels, GRADIENTS)
    saved = [dict(table) for table in held]
    yield
    for table, before in zip(held, saved, strict=True):
        table.clear()  # type: ignore[attr-defined]  # three dictionaries of different types
        table.update(before)  # type: ignore[attr-defined]


def define() -> extend.OpDef:
    return extend.define_op("Halve", "x: T", "y: T", ["T: {floats}"], shape=lambda ctx: ctx.dims("x"))


def test_user_defined_op_runs_and_has_a_gradient() -> None:
    define()

    @extend.kernel("Halve", fresh=True)
    def halve(x: Any) -> Any:
        return x / x.dtype.type(2)

    @extend.gradient("Halve")
    def halve_gradient(op: af.Operation, grad: af.Tensor) -> af.Tensor:
        return grad * 0.5

    x = af.placeholder(af.float32, [None, 2])
    y = extend.make("Halve", x, name="half")
    assert y.name == "half:0"
    assert y.get_shape().as_list() == [None, 2]
    assert evaluate([y], {x: [[1.0, 2.0]]})[0].tolist() == [[0.5, 1.0]]
    check_gradients(lambda v: extend.make("Halve", v), np.array([1.0, 2.0]))
    assert af.raw_ops.Halve(x=1.0).dtype is af.float32


def test_kernels_are_chosen_by_dtype() -> None:
    define()

    @extend.binder("Halve", dtypes={"T": "float32"})
    def bind(binding: extend.Binding) -> Any:
        factor = np.float32(0.5)
        return lambda x: x * factor

    extend.elementwise({"Halve": extend.Ufunc("sqrt", dtypes={"T": "float64"})})
    found = evaluate([extend.make("Halve", np.array([4.0], kind)) for kind in (np.float32, np.float64)])
    assert [v.item() for v in found] == [2.0, 2.0]
    assert [v.dtype for v in found] == [np.float32, np.float64]


def test_unknown_op_error_suggests_existing_ops() -> None:
    with pytest.raises(errors.NotFoundError) as caught:
        extend.make("MatMull", 1.0)
    assert caught.value.op_type == "MatMull"
    assert "'MatMul'" in str(caught.value)
    assert f"one of {len(OPS)} ops" in str(caught.value)
    with pytest.raises(errors.NotFoundError):
        extend.kernel("MatMull")(lambda x: x)


def test_missing_kernel_error_lists_kernels_and_names_the_node() -> None:
    define()
    y = extend.make("Halve", np.float64(1.0), name="mine")
    with pytest.raises(errors.UnimplementedError) as caught:
        evaluate([y])
    assert caught.value.expected == "no kernel at all"
    extend.kernel("Halve", device="TPU")(lambda x: x)
    extend.kernel("Halve", dtypes={"T": "float16 float32"})(lambda x: x)
    with pytest.raises(errors.UnimplementedError) as caught:
        evaluate([y])
    assert caught.value.expected == "TPU; any device (T in {float16, float32})"
    assert caught.value.actual == "CPU with {'T': 'float64'}"
    assert caught.value.node == "mine"
    assert caught.value.source is not None
    assert caught.value.source.filename == __file__


def test_missing_gradient_error_shows_how_to_register_one() -> None:
    define()
    x = af.placeholder(af.float32)
    with pytest.raises(errors.UnimplementedError, match=r"RegisterGradient\('Halve'\)"):
        af.gradients(extend.make("Halve", x), x)


def test_registering_twice_is_rejected() -> None:
    define()
    with pytest.raises(errors.AlreadyExistsError):
        define()
    extend.kernel("Halve")(lambda x: x)
    with pytest.raises(errors.AlreadyExistsError):
        extend.kernel("Halve")(lambda x: x)
    extend.not_differentiable("Halve")
    with pytest.raises(errors.AlreadyExistsError):
        extend.gradient("Halve")(lambda op, grad: grad)


def test_kernel_with_another_signature_is_rejected() -> None:
    define()
    for body in (lambda: 1, lambda x, y: x, lambda x, *, color: x):
        with pytest.raises(errors.InvalidArgumentError) as caught:
            extend.kernel("Halve")(body)
        assert "['x']" in str(caught.value.expected)


def test_failing_kernel_raises_unknown_error_with_its_cause() -> None:
    define()
    table: dict[str, float] = {}
    extend.kernel("Halve")(lambda x: table["missing"])
    with pytest.raises(errors.UnknownError) as caught:
        evaluate([extend.make("Halve", 1.0, name="mine")])
    assert caught.value.node == "mine"
    assert isinstance(caught.value.__cause__, KeyError)


def test_extending_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[1] / "docs" / "extending.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 8
    exec("\n".join(blocks), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert "[0.       , 0.7615942]" in printed
    assert "np.float32(0.7615942)" in printed  # the running sum that the resource holds


def test_labeled_kernel_runs_for_nodes_with_that_label() -> None:
    extend.kernel("Tanh", label="mine", fresh=True)(lambda x: x + x.dtype.type(40))
    assert evaluate([extend.make("Tanh", 2.0, _kernel="mine"), extend.make("Tanh", 0.0)]) == [42.0, 0.0]


@pytest.mark.parametrize("returned", [3, (3.0,), ("?",)])
def test_invalid_result_of_a_shape_function_is_rejected(returned: Any) -> None:
    extend.define_op("Halve", "x: T", "y: T", ["T: {floats}"], shape=lambda ctx: returned)
    with pytest.raises(errors.InvalidArgumentError, match="the shape function of Halve") as caught:
        extend.make("Halve", 1.0)
    assert caught.value.actual == repr(returned)


def test_gradient_of_another_dtype_is_rejected() -> None:
    """Otherwise it would be added to other gradients, or returned, with that dtype."""
    define()
    extend.gradient("Halve")(lambda op, grad: af.cast(grad, af.float64))
    x = af.placeholder(af.float32, [2])
    with pytest.raises(errors.DTypeError, match="wrong dtype") as caught:
        af.gradients(extend.make("Halve", x, name="half"), x)
    assert (caught.value.node, caught.value.expected, caught.value.actual) == ("half", "float32", "float64")


def test_gradient_decorator_requires_an_op_name() -> None:
    for names in ((), (lambda op, grad: grad,)):
        with pytest.raises(errors.InvalidArgumentError, match="@gradient"):
            extend.gradient(*names)
