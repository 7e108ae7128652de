"""Every op of the registry, called with what its definition allows and with what it does not: typed errors only.

No call may end in another exception than those of `aioflow.errors`, in an UnknownError or InternalError, in an error
that only repeats what Python said of a slip, in a hang, or in the end of the process. See `calls.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from aioflow.graph.opdef import OPS
from tests.sweep.hostile.runner import Outcome, Patience, run_calls, table

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limit of the address space is Linux's")

PARTS = 6  # so that each ends in time on a busy machine

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
    """Every op that is registered here. (Those that other tests have defined are unknown to the children.)"""
    return sorted(op.name for op in OPS)


def require_no_faults(outcomes: Sequence[Outcome]) -> None:
    faults = [outcome for outcome in outcomes if outcome.is_fault]
    shown = "\n".join(map(str, faults[:50]))
    names = {fault.op for fault in faults}
    assert not faults, f"{shown}\n\n{table(outcome for outcome in outcomes if outcome.op in names)}"


def test_planted_faults_are_found() -> None:
    """And one that ends its process does not take the calls behind it along."""
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
def test_many_hostile_calls(seed: int, tmp_path: Path) -> None:
    """Writes the table of op by outcome into pytest's folder of temporary files, which keeps those of three runs."""
    outcomes = run_calls(all_ops(), seed, range(40))
    path = tmp_path / f"seed_{seed}.txt"
    path.write_text(table(outcomes) + "\n")
    print(f"the table is in {path}")
    require_no_faults(outcomes)
