"""Random control-flow programs against TensorFlow, with loops as dataflow and as native code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.parity.program_generator import PLANS, generate
from tests.parity.programs import Program, Statement, check, run_primitive, run_session, run_tensorflow, shrink

SEEDS = range(128)

#: The least number of programs with each feature.
FEATURES = {
    "cond": 40, "case": 10, "switch_case": 10, "cond in cond": 10, "loop in cond": 20, "cond in loop": 40,
    "loop in loop": 40, "depth 3": 30, "changing shape": 25, "dead": 15, "array write": 12, "array read": 12,
    "array unstack": 6, "array scatter": 5, "array stack": 3, "array gather": 3, "array concat": 3,
    "dynamic array": 5, "map_fn": 15, "scan": 12, "foldl": 5, "foldr": 5, "variable read in loop": 30,
    "variable assigned in loop": 20, "variable assigned in cond": 10, "captured": 80, "maximum_iterations": 25,
    "early exit": 25, "zero trips": 8, "trips by the outer loop": 20, "parallel 1": 40, "parallel 10": 40,
    "i32 state": 30, "f64 state": 80, "f32 state": 10, "bool state": 20,
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def first_control_flow(tf: Any) -> Iterator[None]:
    tf.disable_control_flow_v2()
    yield
    tf.enable_control_flow_v2()


@pytest.mark.parametrize("seed", SEEDS)
def test_values_match_tensorflow(tf: Any, seed: int) -> None:
    check(tf, generate(seed), [run_primitive, run_session])


def test_every_feature_is_in_enough_programs() -> None:
    count = Counter(feature for seed in SEEDS for feature in generate(seed).features)
    table = {feature: (count[feature], least) for feature, least in FEATURES.items()}
    assert not {feature: found for feature, found in table.items() if found[0] < found[1]}
    assert {what for plan in PLANS for what in plan} <= set(count)


def test_equal_seeds_generate_equal_programs() -> None:
    assert generate(5).source == generate(5).source
    assert generate(5).source != generate(6).source


def test_values_stay_small_and_depend_on_the_inputs(tf: Any) -> None:
    """Check the precondition without which agreement would mean little."""
    for seed in SEEDS[:20]:
        program = generate(seed)
        *outputs, total, _, _ = run_tensorflow(tf, program)
        assert all(np.all(np.abs(np.asarray(y, np.float64)) < 30) for y in outputs)
        program.feeds["x1"] = program.feeds["x1"] + 0.5
        program.feeds["x2"] = program.feeds["x2"] - 0.5
        assert run_tensorflow(tf, program)[-3] != total


def test_shrink_makes_a_failing_program_small() -> None:
    program = generate(3)

    def mentions_a_loop(candidate: Program) -> bool:
        return "m.while_loop" in candidate.source

    small = shrink(program, mentions_a_loop, tries=2000)
    assert mentions_a_loop(small)
    assert len(small.source.splitlines()) < 16 < len(program.source.splitlines())


def test_check_reports_a_wrong_result(tf: Any) -> None:
    """Check the comparison itself by a program that differs between the two sides."""

    def wrong(program: Program, fetches: Any) -> list[Any]:
        last = program.block.statements[-1]
        other = Statement(last.targets, f"({last.template}) * 1.000001", last.args, last.blocks)
        statements = (*program.block.statements[:-1], other)
        block = type(program.block)("program", program.block.params, statements, program.block.results)
        return run_primitive(Program(program.seed, block, program.features, program.feeds, program.initial), fetches)

    with pytest.raises(AssertionError, match="def program"):
        check(tf, generate(1), [wrong])
