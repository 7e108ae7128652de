"""The documents keep their word: their Python compiles, the first program runs, their links lead somewhere."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
_FENCE = re.compile(r"^(```+|~~~+)[ \t]*([\w-]*)[^\n]*\n(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
_CODE = re.compile(r"`[^`\n]*`")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)


def _blocks(text: str, language: str) -> Iterator[tuple[int, str]]:
    """(line, code) of each fenced block in that language."""
    for match in _FENCE.finditer(text):
        if match[2] == language:
            yield text.count("\n", 0, match.start()) + 2, match[3]


PYTHON = [
    pytest.param(path, line, code, id=f"{path.relative_to(ROOT)}:{line}")
    for path in DOCUMENTS
    for line, code in _blocks(path.read_text(encoding="utf-8"), "python")
]


def test_there_is_something_to_check() -> None:
    names = {str(p.relative_to(ROOT)) for p in DOCUMENTS}
    assert {"README.md", "docs/architecture.md"} <= names
    assert PYTHON


@pytest.mark.parametrize(("path", "line", "code"), PYTHON)
def test_python_compiles(path: Path, line: int, code: str) -> None:
    shifted = "\n" * (line - 1) + code  # so that an error names the document's own line
    compile(shifted, str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def _output(code: str, folder: Path) -> str:
    """What a program prints, run as a user would: pasted into a file, with warnings as errors."""
    program = folder / "program.py"
    program.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def _readme_program(word: str) -> str:
    programs = [code for _, code in _blocks((ROOT / "README.md").read_text(encoding="utf-8"), "python")]
    return next(code for code in programs if word in code)


def test_the_readmes_first_program_runs_and_learns(tmp_path: Path) -> None:
    *losses, prediction = _output(_readme_program("matmul"), tmp_path).split("\n")[:-1]
    values = [float(line) for line in losses]
    assert len(values) == 10
    assert values == sorted(values, reverse=True), "the loss falls"
    assert prediction.startswith("[[")


def test_the_readmes_program_with_a_coroutine_runs(tmp_path: Path) -> None:
    printed = _output(_readme_program("py_coroutine"), tmp_path)
    assert printed.count("dtype=float32") == 2
    assert "nan" not in printed


def _prose(text: str) -> str:
    return _CODE.sub("", _FENCE.sub("", text))


def _anchors(path: Path) -> set[str]:
    """The anchors that a Markdown renderer makes of the headings."""
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in _HEADING.findall(text)}


LINKS = [
    pytest.param(path, target, id=f"{path.relative_to(ROOT)} to {target}")
    for path in DOCUMENTS
    for target in _LINK.findall(_prose(path.read_text(encoding="utf-8")))
    if not re.match(r"[a-z]+:", target)
]


@pytest.mark.parametrize(("path", "target"), LINKS)
def test_a_relative_link_leads_to_something(path: Path, target: str) -> None:
    name, _, anchor = target.partition("#")
    found = (path.parent / name).resolve() if name else path
    assert found.is_relative_to(ROOT), f"{target} leads out of the repository"
    assert found.exists(), f"{path.name} links to {target}, which does not exist"
    if anchor:
        assert anchor in _anchors(found), f"no heading of {found.name} makes the anchor #{anchor}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_path_of_one_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w.])/(?:home|root|work|Users)/\w", text)
    assert text.endswith("\n")
    assert "\t" not in _prose(text)
