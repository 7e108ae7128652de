"""The tables of `python -m benchmarks`: the FLOPs of a step, the form of rows, and the pages of all programs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import aioflow as af
from benchmarks.cases import CASES
from benchmarks.harness import Case, Measured
from benchmarks.history import FOLDER, Run, runs
from benchmarks.report import PAGES, Fault, Page, Section, page_text, run_sections
from benchmarks.roofline import Peak, Rates, share, step_flops
from benchmarks.tables import Printer, Quantity, Row, Table, Target, markdown, read

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


def _row(ours: float) -> Row:
    case = Case("some step", lambda m: (None, {}), 0.5)
    return Measured(case, ours, 1.0, 25e9, 0.9).row(_PEAK)


def test_table_for_readers_has_no_targets() -> None:
    lines = markdown([_row(1.2)]).splitlines()
    assert lines[0] == "|  | TensorFlow | aioflow | ratio | of the peak |"
    assert lines[2] == "| some step | 1.00 s | 1.20 s | 1.20 | 20.8 GFLOP/s, 21% |"


@pytest.mark.parametrize(("ours", "verdict"), [(0.8, "yes"), (1.2, "**no**")])
def test_table_for_maintainers_shows_if_targets_are_reached(ours: float, verdict: str) -> None:
    cells = [cell.strip() for cell in markdown([_row(ours)], targets=True).splitlines()[2].strip("|").split("|")]
    assert cells[-2:] == ["ratio ≤ 0.900", verdict]


def test_row_reaches_its_targets_if_it_reaches_all() -> None:
    targets = (Target(least=2.5, column="rate"), Target(1e-3, column="lag"))
    rows = [Row("serving", {"rate": Quantity(3), "lag": Quantity(lag, "s")}, targets) for lag in (5e-4, 2e-3)]
    assert [row.is_reached for row in rows] == [True, False]
    assert "| rate ≥ 2.50, lag ≤ 1.00 ms | **no** |" in markdown(rows, targets=True)
    assert Row("serving", {"rate": Quantity(3)}).is_reached is None


def test_rows_with_other_columns_begin_a_new_table() -> None:
    rows = [Row("a", {"one": Quantity(1)}), Row("b", {"two": Quantity(2)}), Row("c", {"two": Quantity(3)})]
    text = "|  | one |\n|---|---|\n| a | 1.00 |\n\n|  | two |\n|---|---|\n| b | 2.00 |\n| c | 3.00 |"
    assert markdown(rows) == text


@pytest.mark.parametrize(
    ("quantity", "text"),
    [
        (Quantity(4.59e-6, "s"), "4.59 µs"),
        (Quantity(2.9e-7, "s each"), "290 ns each"),
        (Quantity(0.0543, "s", "alone"), "54.3 ms (alone)"),
        (Quantity(33951.2), "33,951"),
        (Quantity(0.0262), "0.026"),
        (Quantity(0, "s"), "0 s"),
    ],
)
def test_quantities_have_three_significant_digits(quantity: Quantity, text: str) -> None:
    assert str(quantity) == text


# -- programs and pages -----------------------------------------------------------------------------------------------


def _options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    Printer.add_options(parser)
    return parser.parse_args(arguments)


def test_output_of_a_program_is_read_as_it_was_printed(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(_options("--json"))
    printer.note("Peak: 100 GFLOP/s.")
    printer.row(_row(0.8))
    assert [read(line) for line in capsys.readouterr().out.splitlines()] == ["Peak: 100 GFLOP/s.", _row(0.8)]


def test_failed_row_does_not_end_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> Row:
        raise RuntimeError("bytes were lost")

    printer = Printer(_options())
    assert printer.rows([fails, lambda: _row(0.8)]) == 1
    assert printer.table.rows == [_row(0.8)]
    assert "bytes were lost" in capsys.readouterr().err


def _run(outputs: dict[str, list[str | int]], needs: Sequence[str] = ()) -> tuple[Run, list[Fault]]:
    def program(section: Section) -> Iterator[str | int]:
        yield from outputs[section.name]

    run = Run("20260102T000000", "abc1234", {"some processor": ""})
    sections = [Section(name, name, ("-m", name), needs=needs) for name in outputs]
    stored: list[list[str]] = []
    faults = list(run_sections(sections, run, _options(), program, lambda run: stored.append(list(run.tables))))
    assert stored == [list(run.tables)[: count + 1] for count in range(len(run.tables))]  # after each table
    return run, faults


def test_run_has_the_tables_of_all_programs() -> None:
    row = json.dumps(_row(0.8).to_json())
    run, faults = _run({"one": [json.dumps({"note": "Peak."}), "a warning", "3", row, 0], "two": [row, row, 0]})
    assert run.tables == {"one": Table([_row(0.8)], ["Peak."]), "two": Table([_row(0.8)] * 2)}
    assert faults == []


def test_failed_programs_are_reported_and_do_not_end_the_others() -> None:
    row = json.dumps(_row(0.8).to_json())
    run, faults = _run({"one": [1], "two": [row, 0], "three": [row, 1], "four": [0]})
    assert list(run.tables) == ["two", "three"]
    assert faults == [
        Fault("one: `python -m one` failed with exit status 1", True),
        Fault("three: `python -m three` failed with exit status 1", True),
        Fault("four: `python -m four` measured nothing", False),
    ]
    assert run.tables["three"].notes == ["`python -m three` failed, so rows may be missing."]


def test_program_whose_packages_are_missing_is_reported() -> None:
    run, faults = _run({"one": []}, needs=("json", "a_package_that_does_not_exist"))
    assert faults == [Fault("one: not installed: a_package_that_does_not_exist", False)]
    assert run.tables == {}


def test_page_has_the_latest_tables_and_their_environments() -> None:
    page = Page("X.md", "Title", "Text.", [Section(name, name.title(), ()) for name in ("one", "two", "three")])
    old, new = (
        Run(f"2026010{day}T", f"commit{day}", {"some processor": ""}, {"one": Table([_row(day)], [f"Day {day}."])})
        for day in (1, 2)
    )
    assert page_text(page, [old, new]).startswith(
        f"# Title\n\nText.\n\n{new.head()}\n\n## One\n\nDay 2.\n\n{markdown([_row(2)])}\n"
    )
    old.tables["two"] = Table([_row(1)])
    text = page_text(page, [old, new])
    assert f"## One\n\n{new.head()}\n\nDay 2." in text
    assert f"## Two\n\n{old.head()}\n\n|" in text
    assert "Three" not in text


def test_pages_of_the_repository_are_those_of_the_stored_tables() -> None:
    stored = runs()
    for page in PAGES:
        assert (FOLDER.parent / page.file).read_text("utf-8") == page_text(page, stored), (
            f"{page.file}: run `python -m benchmarks --write`"
        )


def test_sections_have_different_names() -> None:
    names = [section.name for page in PAGES for section in page.sections]
    assert len(set(names)) == len(names)
