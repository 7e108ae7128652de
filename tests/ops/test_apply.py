"""The doors by which builders make nodes: each gives what it says, in the source as for extensions."""

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

ROOT = Path(__file__).resolve().parents[2]


class Best(NamedTuple):
    """The outputs of TopKV2, by their names."""

    values: af.Tensor
    indices: af.Tensor


class Misnamed(NamedTuple):
    """As many as TopKV2 has, in the wrong order."""

    indices: af.Tensor
    values: af.Tensor


class Taken(NamedTuple):
    """The outputs of BarrierTakeMany: one of them is a list."""

    indices: af.Tensor
    keys: af.Tensor
    values: list[af.Tensor]


X = np.array([1.0, 3.0, 2.0], np.float32)


def test_each_door_gives_what_it_says() -> None:
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


def test_what_fits_the_op() -> None:
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
def test_another_door_is_refused_and_leaves_no_node(build: Callable[[], Any], outputs: str) -> None:
    with af.Graph().as_default() as graph:
        with pytest.raises(InvalidArgumentError, match="does not have these outputs") as caught:
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
def test_named_tuples_are_of_the_class_that_the_annotation_names(builder: Any, arguments: tuple[Any, ...]) -> None:
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
    """Where the source calls a door with the name of an op, and the name."""
    for path in sorted((ROOT / "aioflow").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == door and node.args:
                for part in ast.walk(node.args[0]):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value in OPS:
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", part.value


@pytest.mark.parametrize("door", FITS)
def test_builders_and_gradients_take_the_door_that_fits(door: str) -> None:
    calls = list(_calls(door))
    assert len(calls) > 20, "the search finds nothing any more"
    wrong = [f"{where} {name}" for where, name in calls if not FITS[door](OPS.get(name))]
    assert not wrong, f"`{door}` is not for these:\n" + "\n".join(wrong)
