"""Tests that compiled chains are bitwise equal to NumPy, and are used once they are compiled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioflow as af
from aioflow.concurrency.stopping import Stoppable, Stopped, doing
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.opdef import OPS, traits_of
from aioflow.kernels.fused import implied_attrs
from aioflow.kernels.registry import KERNELS
from aioflow_numpy import fused_blocks
from aioflow_numpy.block_functions import CompiledPiece
from aioflow_numpy.compiled import blocks as compiled_blocks
from aioflow_numpy.compiled.code import MachineFunction, Programs
from aioflow_numpy.compiled.pieces import ChainPiece, program
from aioflow_numpy.compiled.wanted import BACKGROUND
from aioflow_numpy.fused_blocks import BlockChain
from tests.support.random_examples import examples
from tests.system.compiled.chains import GATE, Array, F, Step, chain, compiled, compiler, gate, gate_inputs, same

pytestmark = compiler

NUMBERS = (
    *(dtypes.float32, dtypes.float64, dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64),
    *(dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64),
)


def numbers(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Return a mix of random bit patterns, small numbers and special values.

    The bit patterns are numbers of every magnitude, denormals and NaN. The special values are zeros of both signs,
    infinities, NaN and a few small numbers.
    """
    kind = dtype.np_dtype
    if dtype.is_bool:
        return rng.integers(0, 2, shape).astype(np.bool_)
    bits = rng.integers(0, 256, (*shape, kind.itemsize), np.uint8).view(kind).reshape(shape)
    some = [0, 1, 2, 6] if kind.kind == "u" else [0, 1, -1, 2, 6, 7]
    special = np.array([*some, *((-0.0, np.inf, -np.inf, np.nan, 0.5, 1e-45) if kind.kind == "f" else ())]).astype(kind)
    near = (rng.standard_normal(shape) * 4).astype(kind) if kind.kind != "u" else (rng.random(shape) * 9).astype(kind)
    chosen = rng.choice(special, shape)
    which = rng.integers(0, 3, shape)
    return np.where(which == 0, bits, np.where(which == 1, near, chosen))


# -- ops one by one ----------------------------------------------------------------------------------------------------


def exact_ops(dtype: DType) -> Iterator[tuple[str, tuple[DType, ...], DType]]:
    """Yield the ops whose kernels have an exact C form for a dtype, with the dtypes of inputs and output."""
    for op_def in OPS:
        if dtype.name not in traits_of(op_def.name).fuses or not any(k.exact_c for k in KERNELS.for_op(op_def.name)):
            continue
        fixed = [arg.dtype for arg in op_def.inputs]
        inputs = tuple(known or dtype for known in fixed)
        output = op_def.outputs[0].dtype or dtype
        attrs = implied_attrs(op_def.name, inputs, output)
        allowed = all(t in (op_def.attrs[n].allowed or (t,)) for n, t in (attrs or {}).items() if isinstance(t, DType))
        if attrs is not None and allowed and KERNELS.get(op_def.name, "CPU", attrs).exact_c:
            yield op_def.name, inputs, output


@pytest.mark.parametrize("dtype", [*NUMBERS, dtypes.bool_], ids=str)
def test_every_op_with_exact_c_is_bitwise_equal_to_numpy(dtype: DType, programs: Programs) -> None:
    """Compile all ops into one loop; run it on pairs of special values: 0 and -0, NaN and infinities in every order."""
    ops = [each for each in exact_ops(dtype) if each[0] != "BiasAdd"]  # requires another shape
    assert len(ops) >= (5 if dtype.is_bool else 10)
    kinds = [dtype, dtype, dtypes.bool_]
    steps = [(op, (2, 0, 1) if len(inputs) == 3 else (0, 1)[: len(inputs)], made) for op, inputs, made in ops]
    whole = chain(kinds, steps)
    everything = tuple(range(len(steps)))
    piece = ChainPiece(everything, (0, 1, 2), tuple(3 + i for i in everything))
    (function,) = programs.functions(program(whole, [piece], {}), [3 + len(steps)])
    rng = np.random.default_rng(0)
    inputs = [numbers(rng, kind, (50_003,)) for kind in kinds]
    made = [np.empty(50_003, step[2].np_dtype) for step in steps]
    CompiledPiece(piece, function, None).call(*inputs, out=made)
    for member, found in zip(whole.members, made, strict=True):
        with np.errstate(all="ignore"):
            wanted = member.call(*(inputs[i] for i in member.operands))
        assert same(np.asarray(wanted), found), member.op


# -- random chains -----------------------------------------------------------------------------------------------------

FLOATS_ONLY = ("Exp", "Tanh", "Sigmoid")  # computed by NumPy between compiled pieces


@st.composite
def programs_of(draw: st.DrawFn) -> tuple[Sequence[DType], Sequence[Step]]:
    dtype = draw(st.sampled_from((F, F, dtypes.float64, dtypes.int32, dtypes.uint8, dtypes.int64)))
    known = [dtype] * draw(st.integers(1, 4)) + [dtypes.bool_] * draw(st.integers(0, 1))
    count, steps = len(known), []
    available = [op for kind in (dtype, dtypes.bool_) for op in exact_ops(kind)]
    if dtype.is_floating:
        available += [(op, (dtype,), dtype) for op in FLOATS_ONLY]
    for at in range(draw(st.integers(2, 9))):
        fitting = [op for op in available if all(kind in known for kind in op[1]) and op[0] != "BiasAdd"]
        op, inputs, output = draw(st.sampled_from(fitting))
        choices = [[i for i, kind in enumerate(known) if kind is wanted] for wanted in inputs]
        # Read the last result if possible, so that chains grow long.
        operands = [
            len(known) - 1 if at and len(known) - 1 in choice and draw(st.booleans()) else draw(st.sampled_from(choice))
            for choice in choices
        ]
        steps.append((op, tuple(operands), output))
        known.append(output)
    return known[:count], steps


@st.composite
def arguments(draw: st.DrawFn, inputs: Sequence[DType]) -> list[Any]:
    shape = draw(st.sampled_from(((1,), (7,), (4099,), (30, 17), (3, 5, 64), (257, 1), (0,), (4, 0))))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    made: list[Any] = []
    for position, dtype in enumerate(inputs):
        form = draw(st.sampled_from(("whole", "whole", "number", "row", "one row", "reversed", "transposed", "frozen")))
        if position == 0 and form in ("number", "row", "one row"):
            form = "whole"
        if form == "number":
            made.append(numbers(rng, dtype, (1,))[0])
        elif form == "row":
            made.append(numbers(rng, dtype, shape[-1:]))
        elif form == "one row":
            made.append(numbers(rng, dtype, (*(1 for _ in shape[1:]), shape[-1])))
        elif form == "reversed":
            made.append(numbers(rng, dtype, shape)[::-1])
        elif form == "transposed":
            made.append(numbers(rng, dtype, shape[::-1]).T)
        else:
            made.append(numbers(rng, dtype, shape))
            made[-1].setflags(write=form != "frozen")
    return made


def outcome(run: Callable[[], Any]) -> Any:
    try:
        with np.errstate(all="ignore"):
            return np.asarray(run())
    except af.errors.InvalidArgumentError as error:
        return str(error)


@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_random_chains_are_bitwise_equal_to_numpy(data: st.DataObject) -> None:
    inputs, steps = data.draw(programs_of())
    values = data.draw(arguments(inputs))
    constants = [None, *(value if data.draw(st.booleans()) else None for value in values[1:])]
    blocks = BlockChain(chain(inputs, steps), constants)
    wanted = outcome(lambda: blocks.chain(values))
    with pytest.MonkeyPatch.context() as patch:
        size = data.draw(st.sampled_from((64, 1 << 20)))
        patch.setattr(fused_blocks, "_BLOCK", size)
        patch.setattr(fused_blocks, "_SHARED_BLOCK", size)
        patch.setattr(fused_blocks, "_WORTH_THREADS", 1 << 12)
        compiled(blocks, values)
        found = outcome(lambda: blocks.run(values))
        if isinstance(wanted, str):
            assert found == wanted
            return
        assert same(wanted, found)
        place = values[0]
        if place.shape == wanted.shape and place.dtype == wanted.dtype and place.flags.carray:
            compiled(blocks, values, place)
            assert same(wanted, outcome(lambda: blocks.run(values, place)))


# -- choice of the implementation --------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the sizes that pieces in machine code compute."""
    seen: list[int] = []
    functions = Programs.functions

    def noted(function: MachineFunction) -> MachineFunction:
        def call(rows: int, width: int, *addresses: int) -> None:
            seen.append(rows * width)
            function(rows, width, *addresses)

        return call

    monkeypatch.setattr(Programs, "functions", lambda *given: [noted(each) for each in functions(*given)])
    return seen


def test_chain_is_compiled_once_its_cost_exceeds_the_threshold(
    calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks, inputs = gate(), gate_inputs(100_000)
    wanted = blocks.chain(inputs)
    monkeypatch.setattr(compiled_blocks, "_WORTH", 5 * 10 * wanted.nbytes)
    for _ in range(5):
        assert not calls
        assert blocks.run(inputs).tobytes() == wanted.tobytes()
    assert BACKGROUND.wait(60)
    calls.clear()  # calls of the trial
    assert blocks.run(inputs).tobytes() == wanted.tobytes()
    assert calls == [100_000]


def test_compiled_code_serves_arrays_of_all_sizes(calls: list[int]) -> None:
    blocks = gate()
    assert compiled(blocks, gate_inputs(1000))
    calls.clear()
    for shape in ((50_000,), (30, 40), (3,)):
        inputs = gate_inputs(*shape)
        assert blocks.run(inputs).tobytes() == blocks.chain(inputs).tobytes()
    assert calls == [50_000, 1200, 3]


NORM: Sequence[Step] = (("Mul", (0, 1), F), ("AddV2", (3, 2), F), ("Relu", (4,), F))


@pytest.mark.parametrize("shape", [(1, 7, 7, 128), (2, 3), (1, 1, 1, 5), (4, 1), (1, 64, 64, 32)])
def test_normalization_chain_equals_numpy_for_small_arrays_and_constants(
    shape: tuple[int, ...], calls: list[int]
) -> None:
    """Run a normalization by NumPy and in machine code, into new memory and into the memory of an input."""
    x, scale, shift = (numbers(np.random.default_rng(i), F, shape[i > 0 and -1 :]) for i in range(3))
    x = np.ascontiguousarray(x.reshape(shape))
    wanted = outcome(lambda: np.maximum(x * scale + shift, np.float32(0)))
    for constants in ((), (None, scale, shift), (None, None, shift)):
        blocks = BlockChain(chain([F] * 3, NORM), constants)
        assert same(wanted, outcome(lambda: blocks.run((x, scale, shift))))  # noqa: B023  # called here
        assert compiled(blocks, (x, scale, shift))
        calls.clear()
        assert same(wanted, outcome(lambda: blocks.run((x, scale, shift))))  # noqa: B023  # as above
        assert calls == [x.size]
        for other in (x[..., ::-1][..., ::-1], np.asfortranarray(x), x.astype(">f4")):
            assert same(wanted, outcome(lambda: blocks.run((other, scale, shift))).astype(F.np_dtype))  # noqa: B023
        frozen = x.copy()
        frozen.setflags(write=False)
        assert same(wanted, outcome(lambda: blocks.run((frozen, scale, shift))))  # noqa: B023  # as above
        place = x.copy()
        assert compiled(blocks, (place, scale, shift), place)
        assert outcome(lambda: blocks.run((place, scale, shift), place)).tobytes() == place.tobytes()  # noqa: B023
        assert same(wanted, place)


@pytest.mark.parametrize(("x", "y"), [((40, 1), (40, 50)), ((40, 1), (40, 1)), ((1, 50), (40, 50)), ((1, 1), (40, 1))])
def test_operands_that_are_not_whole_rows_are_left_to_numpy(
    x: tuple[int, ...], y: tuple[int, ...], calls: list[int]
) -> None:
    """Use shapes that are known only at run time: machine code takes scalars and rows, but no columns."""
    rng = np.random.default_rng(0)
    whole, a, b = (numbers(rng, F, shape) for shape in ((20, 40, 50), x, y))
    blocks = BlockChain(chain([F] * 3, NORM))
    compiled(blocks, (whole, whole[0], whole[0]))  # operands of the form that machine code accepts
    is_compiled = compiled(blocks, (whole, a, b))
    calls.clear()
    wanted = outcome(lambda: np.maximum(whole * a + b, np.float32(0)))
    assert same(wanted, outcome(lambda: blocks.run((whole, a, b))))
    assert not is_compiled
    assert not calls


def test_chains_of_the_same_form_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that costs of equal small chains, as in a network, add up, and that one program serves them all."""
    asked: list[str] = []
    trials: list[Any] = []
    functions, agrees = Programs.functions, compiled_blocks.CompiledBlock._agrees

    def ask(self: Programs, text: str, counts: Sequence[int]) -> list[MachineFunction]:
        asked.append(text)
        return functions(self, text, counts)

    def try_out(self: Any, made: Any) -> bool:
        trials.append(self)
        return agrees(self, made)

    monkeypatch.setattr(Programs, "functions", ask)
    monkeypatch.setattr(compiled_blocks.CompiledBlock, "_agrees", try_out)
    row, x = np.ones(64, np.float32), np.ones((100, 64), np.float32)
    chains = [BlockChain(chain([F] * 3, NORM), (None, row, row)) for _ in range(20)]
    monkeypatch.setattr(compiled_blocks, "_WORTH", 3 * 20 * (x.nbytes + compiled_blocks._CALL))
    for blocks in chains:
        assert not asked
        blocks.run((x, row, row))
    assert BACKGROUND.wait(60)
    for blocks in chains:
        blocks.run((x, row, row))
    assert BACKGROUND.wait(60)
    assert len(set(asked)) == 1
    assert len(trials) == 1
    for size in (3, 100, 5000):
        given = np.full((size, 64), -0.5, np.float32)
        assert {blocks.run((given, row, row)).tobytes() for blocks in chains} == {(given + 1).tobytes()}


def test_inputs_that_do_not_suit_the_code_are_left_to_numpy(calls: list[int]) -> None:
    inputs = gate_inputs(1000, 10)
    blocks = gate()
    wanted = blocks.chain(inputs)
    assert compiled(blocks, inputs)
    calls.clear()
    raw = np.empty(40_001, np.uint8)[1:].view(np.float32).reshape(1000, 10)
    raw[...] = inputs[0]
    ordered = np.asfortranarray(inputs[0])
    wide = inputs[0].astype(np.float64)
    for other in (raw, ordered, wide):
        given = (other, *inputs[1:])
        np.testing.assert_array_equal(blocks.run(given), gate().run(given))
    assert not calls
    target = np.empty(1000, np.float64)  # dtype differs from that of the result
    assert blocks.run(inputs, target).tobytes() == wanted.tobytes()
    assert calls == [10_000]


def test_code_with_different_results_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Change the code, as if the processor chose another of two zeros as the larger one."""
    blocks, inputs = gate(), gate_inputs(1000)
    text = program
    monkeypatch.setattr(
        compiled_blocks, "program", lambda *given: text(*given).replace("v7 > v3", "v7 >= v3").replace("v6 * ", "v6 + ")
    )
    assert not compiled(blocks, inputs)
    assert "its results differ from NumPy's" in caplog.text
    assert blocks.run(inputs).tobytes() == blocks.chain(inputs).tobytes()


def test_long_run_stops_between_blocks(monkeypatch: pytest.MonkeyPatch, calls: list[int]) -> None:
    monkeypatch.setattr(fused_blocks, "_BLOCK", 1 << 12)
    works: list[Stoppable] = []
    call = CompiledPiece.call

    def stop(self: CompiledPiece, *values: Array, out: Sequence[Array]) -> None:
        call(self, *values, out=out)
        for work in works:
            work.stop()

    monkeypatch.setattr(CompiledPiece, "call", stop)
    blocks, inputs = gate(), gate_inputs(100_000)
    assert compiled(blocks, inputs)
    calls.clear()
    works.append(Stoppable(effects=False))
    with pytest.raises(Stopped):
        doing(works[0], blocks.run, inputs, None, False)
    assert len(calls) == 1


def test_pieces_between_numpy_calls_are_compiled(calls: list[int]) -> None:
    steps = (*GATE[:5], ("Tanh", (10,), F), ("Mul", (11, 0), F), ("Sub", (12, 10), F))
    blocks, inputs = BlockChain(chain([F] * 6, steps)), gate_inputs(70_000)
    assert compiled(blocks, inputs)
    calls.clear()
    assert blocks.run(inputs).tobytes() == blocks.chain(inputs).tobytes()
    assert calls == [70_000, 70_000]


async def test_session_steps_use_compiled_chains_with_equal_results(
    calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_blocks, "_WORTH", 0)
    x = af.placeholder("float32", [None, 100])
    bias = af.constant(np.linspace(-1, 1, 100, dtype=np.float32))
    y = af.square(af.nn.relu(x * 2.0 + bias)) - x
    value = np.random.default_rng(2).standard_normal((1000, 100)).astype(np.float32)
    wanted = np.square(np.maximum(value * np.float32(2) + np.linspace(-1, 1, 100, dtype=np.float32), 0)) - value
    async with af.Session() as session:
        for _ in range(4):
            assert (await session.run(y, {x: value})).tobytes() == wanted.tobytes()
        assert await asyncio.to_thread(BACKGROUND.wait, 60)
        calls.clear()
        assert (await session.run(y, {x: value})).tobytes() == wanted.tobytes()
    assert calls


def test_chain_runs_by_numpy_if_the_compiler_is_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiled_blocks, "programs", Programs)
    monkeypatch.setenv("AIOFLOW_CC", "off")
    caplog.set_level(logging.INFO)
    blocks, inputs = gate(), gate_inputs(1000)
    assert not compiled(blocks, inputs)
    assert "switched off" in caplog.text
    assert blocks.run(inputs).tobytes() == blocks.chain(inputs).tobytes()
