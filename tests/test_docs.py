"""The documents: their Python compiles, complete pages run, and links resolve."""

from __future__ import annotations

import ast
import asyncio
import codeop
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import aioflow as af
from tests import compatibility
from tests.support.processes import SECONDS

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
_FENCE = re.compile(r"^(```+|~~~+)[ \t]*([\w-]*)[^\n]*\n(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
_CODE = re.compile(r"`[^`\n]*`")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)


def _blocks(text: str, language: str) -> Iterator[tuple[int, str]]:
    """Yield (line, code) of each fenced block in that language."""
    for match in _FENCE.finditer(text):
        if match[2] == language:
            yield text.count("\n", 0, match.start()) + 2, match[3]


PYTHON = [
    pytest.param(path, line, code, id=f"{path.relative_to(ROOT)}:{line}")
    for path in DOCUMENTS
    for line, code in _blocks(path.read_text(encoding="utf-8"), "python")
]


def test_documents_and_python_blocks_are_found() -> None:
    names = {str(p.relative_to(ROOT)) for p in DOCUMENTS}
    assert {"README.md", "docs/architecture.md"} <= names
    assert PYTHON


@pytest.mark.parametrize(("path", "line", "code"), PYTHON)
def test_python_compiles(path: Path, line: int, code: str) -> None:
    shifted = "\n" * (line - 1) + code  # line numbers in errors are those of the document
    compile(shifted, str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


# Modules with public names: the namespaces of `aioflow`, and those whose names the reference lists.
PUBLIC = {
    *("aioflow", "aioflow.testing", "aioflow.demo"),
    *(f"aioflow.{name}" for name in af.__all__ if isinstance(getattr(af, name), ModuleType)),
    *(
        module
        for page in sorted((ROOT / "docs" / "reference").glob("*.md"))
        for module in re.findall(r"^<!-- public: ([\w.]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    ),
}
EXAMPLES = [
    pytest.param(path, 1, path.read_text(encoding="utf-8"), id=str(path.relative_to(ROOT)))
    for path in sorted((ROOT / "examples").rglob("*.py"))
]


@pytest.mark.parametrize(("path", "line", "code"), [*EXAMPLES, *PYTHON])
def test_programs_import_only_public_names(path: Path, line: int, code: str) -> None:
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    assert list(_internal_imports(compile(code, str(path), "exec", flags=flags))) == []


def _internal_imports(tree: ast.AST) -> Iterator[str]:
    """Yield the imported modules and names of aioflow and its backends that are not public."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if _is_own(each.name) and each.name not in PUBLIC)
        elif isinstance(node, ast.ImportFrom) and _is_own(node.module or "") and not node.level:
            module = node.module or ""
            names = getattr(importlib.import_module(module), "__all__", []) if module in PUBLIC else []
            for each in node.names:
                if each.name not in names and f"{module}.{each.name}" not in PUBLIC:
                    yield f"{module}.{each.name}"


def _is_own(module: str) -> bool:
    return re.match(r"aioflow(_\w+)?(\.|$)", module) is not None


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("from aioflow.runtime.device import host", ["aioflow.runtime.device.host"]),
        ("import aioflow.net.comm", ["aioflow.net.comm"]),
        ("from aioflow_numpy.backend import NumpyBackend", ["aioflow_numpy.backend.NumpyBackend"]),
        ("from aioflow.extend import define_op, _homes", ["aioflow.extend._homes"]),
        ("from aioflow import extend, graph", ["aioflow.graph"]),
        ("from aioflow.testing import check_backend, sim_net, sim_loop", ["aioflow.testing.sim_loop"]),
        ("from aioflow.testing.check_backend import check_backend\nimport aioflow.extend", []),
    ],
)
def test_internal_imports_are_found(program: str, found: list[str]) -> None:
    assert list(_internal_imports(ast.parse(program))) == found


async def test_distributed_training_page_runs_as_one_program(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = ROOT / "docs" / "distributed.md"
    code = "\n\n".join(PASTED["distributed"])
    async with asyncio.timeout(SECONDS):
        await eval(compile(code, str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), {"__name__": "__main__"})
    in_graph, apart, together, shape, count = capsys.readouterr().out.splitlines()
    for found in (in_graph, *re.split(r"(?<=\]) (?=\[)", f"{apart} {together}")):
        np.testing.assert_allclose(np.array(found.strip("[]").split(), float), [1.0, -2.0, 0.5, 3.0], atol=0.05)
    assert (shape, count) == ("(64, 1)", "100")


TRAINING_PAGE = ROOT / "docs" / "training.md"
TRAINING = [code for _, code in _blocks(TRAINING_PAGE.read_text("utf-8"), "python")]
SUPERVISED, SUMMARIES, BY_HAND, *PIECES, MIXED, RECOMPUTED, OLDER = TRAINING


async def test_recomputation_example_trains() -> None:
    names: dict[str, Any] = {}
    with af.Graph().as_default():
        exec(compile(RECOMPUTED, "training.md", "exec"), names)
        rows = np.random.default_rng(0).standard_normal((16, 64)).astype(np.float32)
        placeholder = af.get_default_graph().get_tensor_by_name("Placeholder:0")
        async with af.Session() as sess:
            await sess.run(af.global_variables_initializer())
            before = await sess.run(names["loss"], {placeholder: rows})
            for _ in range(20):
                await sess.run(names["train"], {placeholder: rows})
            assert await sess.run(names["loss"], {placeholder: rows}) < before


async def test_checkpoint_and_inspection_examples_run_as_one_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = compile("\n\n".join(PIECES), "training.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    async with asyncio.timeout(SECONDS):
        await eval(code, {})
    kept, stored, *seen = capsys.readouterr().out.splitlines()
    assert kept == f"{[f'run/beside/model-{n}' for n in (20, 30)]} run/beside/model-30"
    assert stored == "[('global_step', []), ('table', [20000, 64])]"
    shown = next(code for _, code in _blocks(TRAINING_PAGE.read_text("utf-8"), "") if "Dequeue" in code).splitlines()
    assert [re.sub(r"\d\.\d+ s", "", line) for line in seen] == [re.sub(r"\d\.\d+ s", "", line) for line in shown]
    sizes = {p.name.split(".")[0]: p.stat().st_size for p in (tmp_path / "run/incremental").glob("*.blocks")}
    assert sizes["model-1"] > 20_000 * 64 * 4
    assert sizes["model-2"] < 2 * 128 * 1024


async def test_programs_of_the_page_on_datasets_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = []
    for _, code in _blocks((ROOT / "docs" / "data.md").read_text("utf-8"), "python"):
        with af.Graph().as_default():
            # In a thread, because each program has an event loop of its own.
            await asyncio.to_thread(exec, compile(code, "data.md", "exec"), {"__name__": "__main__"})
        printed.append(capsys.readouterr().out)
    first, loss, mapped, continued = printed
    assert len(re.findall(r"0\.\d*", first)) == 4, "a batch of four numbers"
    assert float(loss) < 1e-3
    assert mapped == f"{[float(number**2) for number in range(8)]}\n45\n"
    order = np.array([re.findall(r"\d+", line) for line in continued.splitlines()], int)
    assert order.shape == (4, 3)
    assert len(np.unique(order)) == 12, "the second run continues"


async def test_programs_of_the_models_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "models.md"
    export, *pasted = PASTED["models"]
    # In a thread, because the program has an event loop of its own.
    await asyncio.to_thread(exec, compile(export, "export.py", "exec"), {})
    code = "\n\n".join(pasted)
    async with asyncio.timeout(SECONDS):
        await eval(compile(code, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), {})
    printed = capsys.readouterr().out
    assert "[[0.5 0.5]]\n[0 1 0 1]\n" in printed, "the model of ONNX, before and after it was fine-tuned"
    assert "[[6. 6.]]" in printed
    assert (tmp_path / "tuned.onnx").is_file()
    assert (tmp_path / "model" / "aioflow.json").is_file()


async def test_compatibility_page_reads_a_tensorflow_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with af.Graph().as_default() as graph:
        af.identity(af.placeholder(af.float32, [2], name="x") * 2.0, name="y")
        af.train.write_graph(graph, tmp_path, "frozen.pb", as_text=False)
    page = ROOT / "docs" / "compatibility.md"
    model, idiom = (code for _, code in _blocks(page.read_text("utf-8"), "python"))
    names: dict[str, Any] = {"x": [1.0, 2.0], "data": (tmp_path / "frozen.pb").read_bytes()}
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    async with asyncio.timeout(SECONDS):
        await eval(compile(model, str(page), "exec", flags=flags), names)
    assert names["values"]["y"].tolist() == [2, 4]
    with af.Graph().as_default() as graph:
        exec(compile(idiom, str(page), "exec"), names)
    assert graph.get_tensor_by_name("y:0").shape.as_list() == [2]


def _waits(node: ast.AST) -> bool:
    """Return whether the statement has an `await` outside of functions."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        return False
    return isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith) or any(map(_waits, ast.iter_child_nodes(node)))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_page_says_where_to_paste_code_that_waits_outside_of_functions(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    for line, code in _blocks(text, "python"):
        if _waits(compile(code, str(path), "exec", flags=flags)):
            assert "`python -m asyncio`" in "\n".join(text.splitlines()[:line]), f"line {line}"
            return


PASTED = {
    "models": [code for _, code in _blocks((ROOT / "docs" / "models.md").read_text("utf-8"), "python")],
    "recomputation": [RECOMPUTED],
    "training": PIECES,
    "distributed": [
        code
        for _, code in _blocks((ROOT / "docs" / "distributed.md").read_text("utf-8"), "python")
        if "asyncio.run(" not in code
    ],
}


@pytest.mark.parametrize("page", PASTED)
def test_pieces_can_be_pasted_into_an_interpreter(page: str) -> None:
    """The interpreter reads line by line: a block must end with an empty line and contain none."""
    complete = codeop.CommandCompiler()
    complete.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    lines: list[str] = []
    for line in ["", *"\n\n".join(PASTED[page]).splitlines(), ""]:
        lines.append(line)
        if complete("\n".join(lines), page) is not None:
            lines.clear()
    assert not "".join(lines)


def test_compatibility_page_is_up_to_date() -> None:
    text = compatibility.DOCUMENT.read_text(encoding="utf-8")
    assert text == compatibility.written(text), "python -m tests.compatibility writes it anew"
    missing = text.partition("Missing: ")[2].partition("\n\n")[0]
    assert "`GradientTape`" in missing
    assert "`matmul`" not in missing


def test_readme_fits_a_few_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("picture", sorted((ROOT / "docs" / "pictures").iterdir()), ids=lambda path: path.name)
def test_picture_is_small_and_shown(picture: Path) -> None:
    assert picture.stat().st_size <= 200_000
    pages = [*DOCUMENTS, ROOT / "mkdocs.yml"]
    assert any(f"pictures/{picture.name}" in page.read_text(encoding="utf-8") for page in pages)


def _prose(text: str) -> str:
    return _CODE.sub("", _FENCE.sub("", text))


def _anchors(path: Path) -> set[str]:
    """Return the anchors that a Markdown renderer makes of the headings."""
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in _HEADING.findall(text)}


LINKS = [
    pytest.param(path, target, id=f"{path.relative_to(ROOT)} to {target}")
    for path in DOCUMENTS
    for target in _LINK.findall(_prose(path.read_text(encoding="utf-8")))
    if not re.match(r"[a-z]+:", target)
]


@pytest.mark.parametrize(("path", "target"), LINKS)
def test_relative_link_resolves(path: Path, target: str) -> None:
    name, _, anchor = target.partition("#")
    found = (path.parent / name).resolve() if name else path
    assert found.is_relative_to(ROOT), f"{target} leads out of the repository"
    assert found.exists(), f"{path.name} links to {target}, which does not exist"
    if anchor:
        assert anchor in _anchors(found), f"no heading of {found.name} makes the anchor #{anchor}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_document_has_no_local_paths_or_tabs(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w.])/(?:home|root|work|Users)/\w", text)
    assert text.endswith("\n")
    assert "\t" not in _prose(text)
