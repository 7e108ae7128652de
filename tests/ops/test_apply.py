"""Entry points by which builders make nodes (`make`, `make_list`, `make_tuple`, `make_op`), and their use."""

from __future__ import annotations

import ast
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import aioflow as af
from aioflow import extend
from aioflow.errors import InvalidArgumentError
from aioflow.graph.opdef import OPS, OpDef
from aioflow.testing.evaluate import evaluate

ROOT = Path(__file__).resolve().parents[2]


class Best(NamedTuple):
    """Outputs of TopKV2, with their names."""

    values: af.Tensor
    indices: af.Tensor


class Misnamed(NamedTuple):
    """Outputs of TopKV2 in the wrong order."""

    indices: af.Tensor
    values: af.Tensor


class Taken(NamedTuple):
    """Outputs of BarrierTakeMany, one of which is a list."""

    indices: af.Tensor
    keys: af.Tensor
    values: list[af.Tensor]


X = np.array([1.0, 3.0, 2.0], np.float32)


def test_entry_points_return_tensor_list_tuple_or_operation() -> None:
    assert isinstance(extend.make("Neg", X), af.Tensor)
    assert [t.dims for t in extend.make_list("Split", 0, X, num_split=3)] == [(1,)] * 3
    assert [t.op.type for t in extend.make_list("TopKV2", X, 2)] == ["TopKV2"] * 2
    best = extend.make_tuple(Best, "TopKV2", X, 2)
    assert isinstance(best, Best)
    assert [best.values.dtype, best.indices.dtype] == [af.float32, af.int32]
    barrier = extend.make("Barrier", component_types=["int32", "string"])
    taken = extend.make_tuple(Taken, "BarrierTakeMany", barrier, 1, component_types=["int32", "string"])
    assert [t.dtype for t in taken.values] == [af.int32, af.string]
    assert isinstance(extend.make_op("NoOp"), af.Operation)
    assert extend.make_op("Neg", X, name="mine").name == "mine"


def test_entry_points_accept_matching_outputs() -> None:
    assert isinstance(extend.apply_op("Neg", X), af.Tensor)
    assert isinstance(extend.apply_op("NoOp"), af.Operation)
    assert isinstance(extend.apply_op("Split", 0, X, num_split=1), list)
    best = extend.apply_op("TopKV2", X, 2)
    assert isinstance(best, tuple)
    assert type(best).__name__ == "TopKV2"
    assert getattr(best, "_fields") == ("values", "indices")  # noqa: B009


@pytest.mark.parametrize(
    ("build", "outputs"),
    [
        (lambda: extend.make("TopKV2", X, 2), "values, indices"),
        (lambda: extend.make("Split", 0, X, num_split=1), "output (a list)"),
        (lambda: extend.make("NoOp"), "no outputs"),
        (lambda: extend.make_tuple(Misnamed, "TopKV2", X, 2), "values, indices"),
        (lambda: extend.make_tuple(Best, "Neg", X), "y"),
    ],
)
def test_wrong_entry_point_is_refused_and_leaves_no_node(build: Callable[[], Any], outputs: str) -> None:
    with af.Graph().as_default() as graph:
        with pytest.raises(InvalidArgumentError, match="has other outputs") as caught:
            build()
        assert not graph.get_operations()
    assert caught.value.actual == outputs
    assert caught.value.op_type in ("TopKV2", "Split", "NoOp", "Neg")


@pytest.mark.parametrize(
    ("builder", "arguments"),
    [
        (af.nn.top_k, ([1.0, 2.0],)),
        (af.unique, ([1, 1],)),
        (af.unique_with_counts, ([1, 1],)),
        (af.setdiff1d, ([1, 2], [1])),
        (af.linalg.eigh, ([[1.0]],)),
        (af.linalg.qr, ([[1.0]],)),
        (af.linalg.slogdet, ([[1.0]],)),
    ],
)
def test_builders_return_the_annotated_named_tuple(builder: Any, arguments: tuple[Any, ...]) -> None:
    annotated = typing.get_type_hints(builder)["return"]
    result = builder(*arguments)
    assert type(result) is annotated
    assert all(isinstance(tensor, af.Tensor) for tensor in result)


# -- the source ----------------------------------------------------------------------------------------------------


def _one_tensor(op_def: OpDef) -> bool:
    return [arg.is_sequence for arg in op_def.outputs] == [False]


FITS: dict[str, Callable[[OpDef], bool]] = {
    "make": _one_tensor,
    "make_list": lambda op_def: bool(op_def.outputs) and not _one_tensor(op_def),
}


def _calls(door: str) -> Iterator[tuple[str, str]]:
    """Yield the place and the op name of each call of the entry point `door` in the package."""
    for path in sorted((ROOT / "aioflow").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == door and node.args:
                for part in ast.walk(node.args[0]):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value in OPS:
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", part.value


@pytest.mark.parametrize("door", FITS)
def test_package_calls_the_entry_point_that_fits_the_op(door: str) -> None:
    calls = list(_calls(door))
    assert len(calls) > 20, "the search finds nothing any more"
    wrong = [f"{where} {name}" for where, name in calls if not FITS[door](OPS.get(name))]
    assert not wrong, f"`{door}` is not for these:\n" + "\n".join(wrong)


CASTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "operator": lambda int32, int64, other: other * [int32],
    "reversed operator": lambda int32, int64, other: [int32] - other,
    "product of matrices": lambda int32, int64, other: af.reshape(other, [1, 1]) @ [[int32]],
    "numbers beside tensors": lambda int32, int64, other: other * [[int32, 1], [2, int32]],
    "several tensors": lambda int32, int64, other: af.convert_to_tensor([int32, int64], other.dtype),
    "variable": lambda int32, int64, other: other - [af.Variable(1)],
    "list after list": lambda int32, int64, other: af.add([other], [int32]),
    "list of inputs": lambda int32, int64, other: af.concat([[int32, 1], af.reshape(other, [1])], 0),
    "initial value": lambda int32, int64, other: af.Variable([int32, int64], dtype=other.dtype).initial_value,
    "choice": lambda int32, int64, other: af.where_v2([True], other, [int32]),
    "tensor array": lambda int32, int64, other: af.TensorArray(other.dtype, 1).write(0, [int32]).read(0),
}


@pytest.mark.parametrize("dtype", ["int64", "float32", "uint8", "complex64"])
@pytest.mark.parametrize("case", CASTS)
def test_lists_of_tensors_are_cast_to_the_wanted_dtype(case: str, dtype: str) -> None:
    tensor = CASTS[case](af.constant(2, "int32"), af.constant(3, "int64"), af.constant(4, dtype))
    assert tensor.dtype.name == dtype


SIZES: dict[str, Callable[[list[af.Tensor]], Any]] = {
    "fill": lambda sizes: af.fill(sizes, 1.0),
    "zeros": af.zeros,
    "ones": lambda sizes: af.ones(sizes, "int8"),
    "reshape": lambda sizes: af.reshape(af.range(6), sizes),
    "tile": lambda sizes: af.tile([[1]], sizes),
    "broadcast_to": lambda sizes: af.broadcast_to(1, sizes),
    "random_uniform": af.random_uniform,
}


@pytest.mark.parametrize("case", SIZES)
@pytest.mark.parametrize("order", [1, -1])
def test_lists_of_sizes_may_be_of_several_integer_dtypes(case: str, order: int) -> None:
    sizes = [af.constant(2, "int32"), af.constant(3, "int64")][::order]
    tensor = SIZES[case](sizes)
    assert evaluate([tensor])[0].shape == tensor.dims == (2, 3)[::order]


@pytest.mark.parametrize(
    "build",
    [
        lambda int32, int64, float32: af.convert_to_tensor([int32, int64]),
        lambda int32, int64, float32: af.negative([int32, float32]),
        lambda int32, int64, float32: af.stack([[int64], [int32]]),
        lambda int32, int64, float32: af.stack([int64, int32]),
        lambda int32, int64, float32: af.concat([[float32], [int32]], 0),
        lambda int32, int64, float32: af.reshape([1], [float32, int32]),
        lambda int32, int64, float32: af.zeros([float32, int32]),
        lambda int32, int64, float32: af.add("a", [int32]),
        lambda int32, int64, float32: af.convert_to_tensor([af.constant("1")], "int32"),
        lambda int32, int64, float32: af.convert_to_tensor([int32, 1.5], "int64"),
        lambda int32, int64, float32: int64 + int32,
    ],
)
def test_lists_of_tensors_are_not_cast_without_a_wanted_dtype(build: Callable[[Any, Any, Any], Any]) -> None:
    with pytest.raises(af.errors.DTypeError):
        build(af.constant(2, "int32"), af.constant(3, "int64"), af.constant(1.5))
