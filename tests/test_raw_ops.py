"""`aioflow.raw_ops`: one builder for each op, generated from its definition."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow import errors, raw_ops
from aioflow.graph.opdef import OPS
from aioflow.testing.evaluate import evaluate

EMPTY = inspect.Parameter.empty


def parameters(name: str) -> dict[str, Any]:
    return {p.name: p.default for p in inspect.signature(getattr(raw_ops, name)).parameters.values()}


def test_every_public_op_has_a_builder() -> None:
    public = sorted(op_def.name for op_def in OPS if not op_def.name.startswith("_"))
    assert dir(raw_ops) == public
    assert len(public) >= 150
    for name in public:
        builder = getattr(raw_ops, name)
        assert builder.__name__ == name
        assert builder.__module__ == "aioflow.raw_ops"
        assert builder.__doc__.startswith(f"A node of op {name}.")
        assert list(parameters(name))[-1] == "name"
        assert set(parameters(name)) >= {arg.name for arg in OPS.get(name).inputs}


def test_signature_omits_inferred_attributes() -> None:
    assert list(parameters("MatMul").items())[:4] == [
        ("a", EMPTY), ("b", EMPTY), ("transpose_a", False), ("transpose_b", False)
    ]  # fmt: skip
    assert list(parameters("ConcatV2")) == ["values", "axis", "name"]
    assert list(parameters("IdentityN")) == ["input", "name"]
    assert parameters("Cast")["DstT"] is EMPTY
    kinds = {p.kind for p in inspect.signature(raw_ops.Conv2D).parameters.values()}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}
    required = [default is EMPTY for default in parameters("Conv2D").values()]
    assert required == sorted(required, reverse=True)


def test_builders_compute_values(graph: af.Graph) -> None:
    product = raw_ops.MatMul(a=[[1.0, 2.0]], b=[[3.0, 4.0]], transpose_b=True, name="product")
    assert product.op.name == "product"
    joined = raw_ops.ConcatV2(values=[[1, 2], [3]], axis=0)
    split = raw_ops.Split(split_dim=0, value=[1, 2, 3, 4], num_split=2)
    top = raw_ops.TopKV2(input=[1.0, 3.0, 2.0], k=2)
    cast = raw_ops.Cast(x=[1.5], DstT="int32")
    values = evaluate([product, joined, *split, top.values, top.indices, cast])
    assert [v.tolist() for v in values] == [[[11.0]], [1, 2, 3], [1, 2], [3, 4], [3.0, 2.0], [1, 2], [1]]
    assert values[-1].dtype == np.int32
    assert isinstance(raw_ops.NoOp(name="nothing"), af.Operation)


def test_docstring_lists_dtypes_and_defaults() -> None:
    doc = inspect.getdoc(raw_ops.MatMul)
    assert doc is not None
    assert "a: a tensor of dtype T, one of bfloat16, float16, float32" in doc
    assert "transpose_a: bool; False by default." in doc
    assert "product: a tensor of dtype T" in doc
    assert "'SAME', 'VALID'" in (inspect.getdoc(raw_ops.MaxPool) or "")


def test_builders_are_cached() -> None:
    assert raw_ops.MatMul is raw_ops.MatMul


def test_unknown_op_raises_attribute_error_with_similar_names() -> None:
    with pytest.raises(AttributeError, match=r"'MatMull'.*MatMul"):
        _ = raw_ops.MatMull
    assert not hasattr(raw_ops, "_Arg")
    assert not hasattr(raw_ops, "__path__")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"a": [[1.0]]}, "missing a required .*'b'"),
        ({"a": [[1.0]], "b": [[1.0]], "transpose": True}, "unexpected keyword argument 'transpose'"),
    ],
)
def test_wrong_arguments_raise_type_error_with_the_signature(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=rf"MatMul\(\*, a, b.*{said}"):
        raw_ops.MatMul(**arguments)


def test_inputs_are_keyword_only() -> None:
    with pytest.raises(TypeError, match=r"MatMul\(\) takes 0 positional arguments"):
        raw_ops.MatMul([[1.0]], [[1.0]])


def test_errors_name_the_users_line() -> None:
    with pytest.raises(errors.InvalidArgumentError) as caught:
        raw_ops.MatMul(a=[[1.0, 2.0]], b=[[1.0, 2.0]], name="product")
    assert caught.value.source is not None
    assert caught.value.source.filename == __file__
    with pytest.raises(errors.DTypeError):
        raw_ops.Const(value=np.array([1.0], np.float64), dtype=af.float32)
