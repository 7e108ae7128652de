"""Tests of chains that run block by block: the memory and the threads that they use, and their errors."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np
import pytest

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.kernels.fused import chain_of
from aioflow.kernels.registry import Binding
from aioflow.runtime.device import host
from aioflow_numpy import fused_blocks
from aioflow_numpy.fused_blocks import BlockChain

BACKEND = host()
FLOAT = dtypes.float32


def chain(inputs: int, *steps: tuple[str, tuple[int, ...]], dtype: dtypes.DType = FLOAT) -> BlockChain:
    """Return a chain of steps (op, operands), over inputs of one dtype."""
    boolean = {"Less", "Greater"}
    attrs = {
        "ops": tuple(op for op, _ in steps),
        "operands": tuple(i for _, operands in steps for i in operands),
        "dtypes": tuple(dtypes.bool_ if op in boolean else dtype for op, _ in steps),
        "nodes": tuple(f"node_{i}" for i in range(len(steps))),
        "sources": tuple(f"file.py:{i + 1} in main" for i in range(len(steps))),
    }
    kinds, unknown = (dtype,) * inputs, (None,) * inputs
    binding = Binding("n", "_ElementwiseChain", attrs, kinds, unknown, (dtype,), (None,), unknown, BACKEND, None, {})
    return BlockChain(chain_of(binding))


GATE = (("Add", (0, 1)), ("Exp", (2,)), ("Mul", (3, 0)), ("Relu", (4,)))


def expected(x: Any, y: Any) -> Any:
    return np.maximum(np.exp(x + y) * x, np.float32(0))


def values(*shape: int) -> Any:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Use small blocks and several threads; return a list that receives the identity of each block's thread."""
    seen: list[int] = []

    def for_each(work: Any, items: Any) -> None:
        def note(item: Any) -> None:
            seen.append(threading.get_ident())
            work(item)

        threads = [threading.Thread(target=note, args=(item,)) for item in items]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    monkeypatch.setattr(fused_blocks, "_SHARED_BLOCK", 1 << 12)
    monkeypatch.setattr(fused_blocks, "_BLOCK", 1 << 12)
    monkeypatch.setattr(fused_blocks, "_WORTH_THREADS", 1 << 14)
    monkeypatch.setattr(fused_blocks, "thread_count", lambda: 2)
    monkeypatch.setattr(fused_blocks, "for_each", for_each)
    return seen


def test_only_large_arrays_are_shared_by_threads(blocks: list[int]) -> None:
    x, y = values(10_001), values(10_001)
    made = chain(2, *GATE).run((x, y))
    assert made.tobytes() == expected(x, y).tobytes()
    assert len(blocks) == 10  # of 4 KiB
    blocks.clear()
    chain(2, *GATE).run((x, y), threads=False)
    chain(2, *GATE).run((x[:2000], y[:2000]))
    assert not blocks


def test_helpers_do_not_warn(blocks: list[int]) -> None:
    x = np.full(10_000, 1e38, np.float32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        threading.excepthook, kept = (lambda args: None), threading.excepthook
        made = chain(2, *GATE).run((x, x))
        threading.excepthook = kept
    assert not caught
    assert blocks
    assert np.isinf(made).all()


@pytest.mark.parametrize("place", [0, 1])
def test_result_may_use_the_memory_of_an_input(place: int, blocks: list[int]) -> None:
    inputs = [values(5000), values(5000) + 1]
    wanted = expected(*inputs)
    other = inputs[1 - place].copy()
    target = inputs[place]
    made = chain(2, *GATE).run(tuple(inputs), target)
    assert made is target
    assert made.tobytes() == wanted.tobytes()
    assert inputs[1 - place].tobytes() == other.tobytes()


def test_inputs_are_unchanged_and_results_are_new(blocks: list[int]) -> None:
    x, y = values(5000), values(5000)
    before = x.tobytes(), y.tobytes()
    program = chain(2, *GATE)
    first, second = program.run((x, y)), program.run((y, x))
    assert (x.tobytes(), y.tobytes()) == before
    assert first.tobytes() == expected(x, y).tobytes()  # not overwritten by the second run
    assert not np.shares_memory(first, second)


def test_late_read_of_an_input_whose_memory_the_result_uses(blocks: list[int]) -> None:
    x, y = values(5000), values(5000)
    program = chain(2, ("Add", (0, 1)), ("Square", (2,)), ("Less", (0, 3)), ("Select", (4, 0, 3)))
    total = np.square(x + y)
    wanted = np.where(x < total, x, total)
    assert program.run((x, y), x).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("shape", [(90, 30), (2, 45, 30), (4, 1000), (3000, 1)])
@pytest.mark.parametrize("many", [1, 1000])
def test_rows_are_repeated_or_broadcast(
    shape: tuple[int, ...], many: int, blocks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_blocks, "_LINE", 512)
    monkeypatch.setattr(fused_blocks, "_MANY", many)
    x, row = values(*shape), values(shape[-1])
    program = chain(2, ("Mul", (0, 1)), ("Maximum", (2, 1)), ("BiasAdd", (3, 1)))
    wanted = np.maximum(x * row, row) + row
    for scale in (row, row.reshape(1, -1)) if len(shape) == 2 else (row,):
        made = chain(2, ("Mul", (0, 1)), ("Maximum", (2, 1)), ("Add", (3, 1))).run((x, scale))
        assert made.tobytes() == wanted.tobytes()
    assert program.run((x, row)).tobytes() == wanted.tobytes()


def test_arrays_in_another_order_are_computed_as_a_whole() -> None:
    x, y = values(300, 200), np.asfortranarray(values(300, 200))
    np.testing.assert_array_equal(chain(2, *GATE).run((x, y)), expected(x, y))
    wanted = expected(y, x[:, ::-1])
    np.testing.assert_array_equal(chain(2, *GATE).run((y, x[:, ::-1])), wanted)
    np.testing.assert_array_equal(chain(2, *GATE).run((y, x[:, ::-1]), y), wanted)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("op", ["Maximum", "Minimum"])
@pytest.mark.parametrize("zero", [0.0, -0.0, np.nan])
def test_comparison_with_a_number_treats_zeros_and_nan_as_numpy_does(op: str, order: Any, zero: float) -> None:
    x = np.resize(np.array([0.0, -0.0, np.nan, 1.0, -1.0, np.inf], np.float32), 40_001)
    inputs: tuple[Any, Any] = (x, np.float32(zero))
    ufunc = np.maximum if op == "Maximum" else np.minimum
    made = chain(2, (op, order), ("Add", (2, 0))).run(inputs)
    wanted = ufunc(*(inputs[i] for i in order)) + x
    np.testing.assert_array_equal(np.nan_to_num(made).view(np.int32), np.nan_to_num(wanted).view(np.int32))


def test_relu6_equals_the_single_kernel() -> None:
    x = 5 * values(40_001)
    wanted = np.minimum(np.maximum(x + x, np.float32(0)), np.float32(6))
    assert chain(1, ("Add", (0, 0)), ("Relu6", (1,))).run((x,)).tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    ("steps", "shapes", "node"),
    [
        ((("Exp", (0,)), ("Add", (2, 1))), ((70_000,), (70_001,)), 1),
        ((("Exp", (0,)), ("BiasAdd", (2, 1))), ((300, 400), (1,)), 1),
        ((("Less", (0, 1)), ("Select", (2, 0, 1)), ("Exp", (3,))), ((300, 400), (1, 400)), 1),
    ],
)
def test_shape_error_names_the_node(steps: Any, shapes: Any, node: int) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        chain(2, *steps).run(tuple(values(*shape) for shape in shapes))
    assert caught.value.node == f"node_{node}"
    assert str(caught.value.source) == f"file.py:{node + 1} in main"
