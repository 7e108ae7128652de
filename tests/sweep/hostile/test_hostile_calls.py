"""Tests that every registered op answers calls, valid and invalid by its definition, with typed errors only.

No call may end in an exception outside `aioflow.errors`, in an UnknownError or InternalError, in an error that only
repeats Python's message for a slip, in a hang, or in the end of the process. See `calls.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from aioflow.graph.opdef import OPS
from tests.sweep.hostile.runner import Outcome, Patience, run_calls, table

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limit of the address space is Linux's")

PARTS = 6  # enough that each ends within the time limit of a test on a busy machine

PLANTED = {
    "FaultyCrash": "crash -9",
    "FaultyGradient": "unexplained NotFoundError",
    "FaultyHang": "hang",
    "FaultyHuge": "ResourceExhaustedError",
    "FaultyIndex": "unexplained InvalidArgumentError",
    "FaultyInternal": "InternalError",
    "FaultyLeft": "hang",
    "FaultyName": "UnknownError",
    "FaultyShape": "unexplained InvalidArgumentError",
    "FaultySize": "unexplained InvalidArgumentError",
}


def all_ops() -> list[str]:
    """Return every op registered in this process."""
    # Ops that other tests have defined are included, although the children do not know them.
    return sorted(op.name for op in OPS)


def require_no_faults(outcomes: Sequence[Outcome]) -> None:
    faults = [outcome for outcome in outcomes if outcome.is_fault]
    shown = "\n".join(map(str, faults[:50]))
    names = {fault.op for fault in faults}
    assert not faults, f"{shown}\n\n{table(outcome for outcome in outcomes if outcome.op in names)}"


def test_planted_faults_are_found() -> None:
    """Check also that a call that ends its process does not prevent the calls after it."""
    module = "tests.sweep.hostile.faulty_ops"
    fatal = ["FaultyCrash", "FaultyHang", "FaultyLeft"]
    outcomes = run_calls([*fatal, "FaultyName"], 1, [0], children=1, patience=Patience(busy=1.0), ops=module)
    assert [outcome.kind for outcome in outcomes] == [PLANTED[outcome.op] for outcome in outcomes]
    assert "in hang" in outcomes[1].place
    assert "in left" in outcomes[2].place
    outcomes += run_calls([name for name in PLANTED if name not in fatal], 1, range(6), ops=module)
    for name, kind in PLANTED.items():
        found = {outcome.kind for outcome in outcomes if outcome.op == name}
        assert kind in found, (name, found)
    assert {o.op for o in outcomes if o.is_fault} == PLANTED.keys() - {"FaultyHuge"}


@pytest.mark.parametrize("part", range(PARTS))
def test_every_op_answers_hostile_calls_with_typed_errors(part: int) -> None:
    names = all_ops()[part::PARTS]
    outcomes = run_calls(names, 1, range(3))
    assert {outcome.op for outcome in outcomes} == set(names)
    require_no_faults(outcomes)
    assert sum(outcome.reached for outcome in outcomes) > len(outcomes) * 0.4, "what no kernel gets tries little"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 110))
def test_every_op_answers_many_seeded_calls_with_typed_errors(seed: int, tmp_path: Path) -> None:
    """Write the table of outcomes into pytest's temporary folder, which keeps those of the last three runs."""
    outcomes = run_calls(all_ops(), seed, range(40))
    path = tmp_path / f"seed_{seed}.txt"
    path.write_text(table(outcomes) + "\n")
    print(f"the table is in {path}")
    require_no_faults(outcomes)
