"""The onnx package's own backend tests: all with `tox -e onnx`, otherwise one of each op, and the small models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from tests.interop.onnx.reasons import NOT_RUN, REASONS
from tests.interop.onnx.suite import Case, cases, models_folder, node_models, outcome

KINDS = ("Node", "Real", "Simple", "PyTorchConverted", "PyTorchOperator")


@pytest.fixture(autouse=True)
def folder() -> Iterator[None]:
    with models_folder():
        yield


def wrong(chosen: Iterable[Case]) -> list[str]:
    """Return unexpected results: tests that fail without a reason, or pass in spite of one."""
    found = []
    for case in chosen:
        if case.name in NOT_RUN:
            continue
        problem, reason = outcome(case), REASONS.get(case.name)
        if (problem is None) != (reason is None):
            found.append(f"{case.name}: {problem or f'passes, and should not: {reason}'}")
    return found


@pytest.mark.onnx
@pytest.mark.parametrize("kind", KINDS)
def test_every_test_passes_or_has_a_reason(kind: str) -> None:
    problems = wrong(case for case in cases() if case.kind == kind)
    assert not problems, "\n".join(problems)


@pytest.mark.onnx
def test_nearly_all_tests_of_nodes_pass() -> None:
    nodes = {case.name for case in cases() if case.kind == "Node"}
    assert len(nodes & {*REASONS, *NOT_RUN}) <= 0.03 * len(nodes)
    assert {*REASONS, *NOT_RUN} <= {case.name for case in cases()}


def test_one_test_of_each_op_passes_or_has_a_reason() -> None:
    models, chosen = node_models(), []
    seen: set[str] = set()
    for case in cases():
        ops = models.get(case.name, frozenset())
        if case.kind == "Node" and not ops <= seen:
            seen |= ops
            chosen.append(case)
    assert len(seen) > 190
    problems = wrong(chosen)
    assert not problems, "\n".join(problems)


def test_the_small_models_pass_or_have_a_reason() -> None:
    problems = wrong(case for case in cases() if case.kind in ("Simple", "PyTorchOperator"))
    assert not problems, "\n".join(problems)
