"""Tests that follow the quickstart, the tutorial and the how-tos from the first line to the last."""

from __future__ import annotations

import ast
import codeop
import contextlib
import io
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from aioflow import cli, worker
from tests.support.follow import Reader, agrees, blocks, missing_packages
from tests.support.processes import SECONDS

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
# Each page of the tutorial continues where the one before ended.
TUTORIAL: Final = ["graph", "training", "queues", "checkpoints", "command_line", "service", "processes"]
ALONE: Final = [
    "comparison.md",
    "faq.md",
    "index.md",
    "quickstart.md",
    "embeddings.md",
    "observing.md",
    "performance.md",
    *(f"howto/{path.name}" for path in sorted((DOCS / "howto").glob("*.md"))),
]
# Pages whose programs are run by other tests.
ELSEWHERE: Final = {
    "tests/test_docs.py": ["compatibility.md", "data.md", "distributed.md", "models.md", "training.md"],
    "tests/system/test_cluster_page.py": ["cluster.md"],
    "tests/system/test_docs.py": ["simulation.md", "training.md", "web.md"],
    "tests/system/test_documented_programs.py": ["serving.md"],
    "tests/system/test_troubleshooting.py": ["troubleshooting.md"],
    "tests/test_extend.py": ["extending.md"],
}
SHELL: Final = [
    pytest.param(block.code, id=f"{page.relative_to(ROOT)}:{block.line}")
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    for block in blocks(page)
    if block.language == "sh"
]


def _need(page: Path) -> None:
    missing = missing_packages(page)
    if missing:
        pytest.skip(f"{page.name} needs {', '.join(sorted(missing))}")
    if sys.platform == "win32" and any(block.language == "sh" for block in blocks(page)):
        pytest.skip("its commands are those of a POSIX shell")


@pytest.mark.parametrize("name", ALONE)
async def test_page_can_be_followed(name: str, tmp_path: Path) -> None:
    _need(DOCS / name)
    await Reader(tmp_path).follow(DOCS / name)


@pytest.mark.timeout(900)  # about twenty programs, one after the other
async def test_tutorial_can_be_followed(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    for name in TUTORIAL:
        page = DOCS / "tutorial" / f"{name}.md"
        _need(page)
        await reader.follow(page)


@pytest.mark.parametrize("name", [*ALONE, *(f"tutorial/{name}.md" for name in TUTORIAL)])
def test_blocks_without_a_file_name_can_be_pasted_into_an_interpreter(name: str) -> None:
    """Check that indented blocks end with an empty line and contain none, since an interpreter reads line by line."""
    complete = codeop.CommandCompiler()
    complete.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    lines: list[str] = []
    for block in blocks(DOCS / name):
        if block.language != "python" or block.title:
            continue
        for line in [*block.code.splitlines(), ""]:
            lines.append(line)
            if complete("\n".join(lines), name) is not None:
                lines.clear()
    assert not "".join(lines)


def test_all_pages_of_the_tutorial_are_followed() -> None:
    index = (DOCS / "tutorial" / "index.md").read_text(encoding="utf-8")
    assert [name for name in TUTORIAL if f"({name}.md)" in index] == TUTORIAL
    assert {path.stem for path in (DOCS / "tutorial").glob("*.md")} == {"index", *TUTORIAL}


def _leaves(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for each in nav.values() if isinstance(nav, dict) else nav:
            yield from _leaves(each)


class _Configuration(yaml.SafeLoader):
    """A loader that ignores the names of Python functions in mkdocs.yml."""


_Configuration.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda *_: None)


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = list(_leaves(yaml.load(text, _Configuration)["nav"]))
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    tables = [page.relative_to(ROOT).as_posix() for page in ROOT.glob("benchmarks/RESULTS*.md")]
    assert sorted(nav) == sorted([*pages, *tables, "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"])
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    assert [table for table in tables if f"](../{table})" not in text] == []


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_page_begins_with_its_goal(page: Path) -> None:
    title, _, rest = page.read_text(encoding="utf-8").partition("\n\n")
    assert re.fullmatch(r"# .+", title)
    assert rest.startswith(("After this page ", "After these pages "))


def test_every_page_with_programs_is_run_by_a_test() -> None:
    run = {*ALONE, *(f"tutorial/{name}.md" for name in TUTORIAL)}
    for test, pages in ELSEWHERE.items():
        text = (ROOT / test).read_text(encoding="utf-8")
        assert all(f'"{page}"' in text for page in pages), test
        run.update(pages)
    programs = {
        page.relative_to(DOCS).as_posix()
        for page in DOCS.rglob("*.md")
        if any(block.language == "python" for block in blocks(page))
    }
    assert programs - run == set()


@pytest.mark.skipif(shutil.which("sh") is None, reason="there is no POSIX shell")
@pytest.mark.parametrize("code", SHELL)
def test_shell_parses_the_documented_commands(code: str) -> None:
    done = subprocess.run(["sh", "-n", "-c", code], capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.returncode == 0, done.stderr


def _help(command: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit):
        worker.main(["--help"]) if command == "worker" else cli.main([command, "--help"])
    return out.getvalue()


def test_documented_options_of_the_commands_exist() -> None:
    asked: dict[str, set[str]] = {}
    for param in SHELL:
        (code,) = param.values
        assert isinstance(code, str)
        for found in re.finditer(r"\b(?:python -m )?aioflow[. ]([a-z]+)\b([^\n|>&)]*)", code.replace("\\\n", " ")):
            asked.setdefault(found[1], set()).update(re.findall(r"(?<= )--[a-z-]+", found[2]))
    assert {"inspect", "run", "worker"} <= asked.keys()
    for command, options in asked.items():
        text = _help(command)
        assert {option for option in options if not re.search(rf"{option}\b", text)} == set(), command


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("[1. 2.]", "[1.  2.0001]", True),
        ("[1. 2.]", "[1. 2.1]", False),
        ("[1. 2.]", "[1. 2. 3.]", False),
        ("loss 0.0…", "loss 0.0312", True),
        ("loss 0.0…", "loss 0.3", False),
        ("a\n…\nz", "a\nb\nc\nz", True),
        ("a\nz", "a\nb\nz", False),
    ],
)
def test_agrees_compares_shown_and_printed_output(shown: str, printed: str, same: bool) -> None:
    assert agrees(shown, printed) == same
