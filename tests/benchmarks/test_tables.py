"""The tables of `python -m benchmarks`: the FLOPs of a step, the cells of a row, and the report of all programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import aioflow as af
from benchmarks.cases import CASES
from benchmarks.harness import Case, Measured
from benchmarks.report import Section, report, sections
from benchmarks.roofline import Peak, Rates, share, step_flops

_PEAK = Peak(Rates(50e9, 100e9), Rates(10e9, 15e9), "some library")


async def _flops(build: Any) -> float:
    with af.Graph().as_default() as graph:
        fetches, feeds = build(af)
        return await step_flops(graph, fetches, feeds)


async def test_step_flops_counts_two_for_a_multiply_add() -> None:
    layers = (784 * 512, 512 * 512, 512 * 10)
    assert await _flops(CASES["mlp_inference"].build) == 2 * 128 * sum(layers)
    # Forward, gradients of the weights, and gradients of the inputs, except for the first layer.
    assert await _flops(CASES["mlp"].build) == 2 * 128 * (3 * sum(layers) - layers[0])


async def test_step_flops_counts_every_kernel_position_of_convolutions() -> None:
    convolutions = 28 * 28 * 25 * 1 * 32 + 14 * 14 * 25 * 32 * 64
    assert await _flops(CASES["lenet_inference"].build) == 2 * 64 * (convolutions + 7 * 7 * 64 * 512 + 512 * 10)


async def test_step_flops_multiplies_loop_bodies_by_their_iterations() -> None:
    def build(m: Any) -> Any:
        x = m.placeholder(m.float32, [None, 8])
        weight = m.constant(np.eye(8, dtype=np.float32))
        loop = m.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, m.matmul(y, weight)), (0, x))
        return loop[1], {x: np.ones((3, 8), np.float32)}

    assert await _flops(build) == 5 * 2 * 3 * 8 * 8


async def test_step_without_products_has_no_share_of_the_peak() -> None:
    assert await _flops(CASES["add"].build) == 0
    assert share(0, 1.0, _PEAK) == "—"


def test_share_is_relative_to_the_peak_of_all_threads() -> None:
    assert share(25e9, 0.5, _PEAK) == "50.0 GFLOP/s, 50%"


@pytest.mark.parametrize(("ours", "verdict"), [(0.8, "yes"), (1.2, "**no**")])
def test_row_shows_if_its_target_is_reached(ours: float, verdict: str) -> None:
    case = Case("some step", lambda m: (None, {}), 0.5)
    row = Measured(case, ours, 1.0, 25e9, 0.9).row(_PEAK)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[0] == "some step"
    assert cells[3:6] == [f"{ours:.3f}", "≤ 0.9", verdict]


def _said(outputs: dict[str, list[str | int]]) -> tuple[str, int, list[str]]:
    def run(part: Section) -> Iterator[str | int]:
        yield from outputs[part.title]

    shown: list[str] = []
    text, status = report([Section(title, ("-m", title)) for title in outputs], "# Head", shown.append, run)
    return text, status, shown


def test_report_contains_the_output_of_all_programs() -> None:
    text, status, shown = _said({"one": ["| a |", "|---|", 0], "two": ["| b |", 0]})
    assert text == "# Head\n\n## one\n\n| a |\n|---|\n\n## two\n\n| b |\n"
    assert status == 0
    assert [line for line in shown if line.startswith("|")] == ["| a |", "|---|", "| b |"]


def test_report_names_failed_programs_and_keeps_the_others() -> None:
    text, status, _ = _said({"one": [1], "two": ["| b |", 0], "three": ["| c |", 1]})
    assert "## one\n\n`python -m one` failed." in text
    assert "## three\n\n| c |\n\n`python -m three` failed." in text
    assert "## two\n\n| b |\n" in text
    assert status == 1


def test_comparison_with_slower_rows_is_not_a_failed_program() -> None:
    part = Section("one", ("-m", "one", "--compare"))
    text, status = report([part], "# Head", lambda line: None, lambda _: iter(["| a |", 1]))
    assert text == "# Head\n\n## one\n\n| a |\n"
    assert status == 1


def test_numpy_only_sections_receive_the_options() -> None:
    parts = {part.title: part for part in sections(["mlp"], 3, ["--keep"])}
    for title in ("Steps, NumPy alone", "Image nets, one picture, NumPy alone"):
        assert parts[title].arguments[-3:] == ("--rounds", "3", "--keep")
    assert all(part.arguments[1].startswith("benchmarks") for part in parts.values())
