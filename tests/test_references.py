"""Docstrings, comments and documentation refer to files, modules and names that exist."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.wording import docstrings

ROOT: Final = Path(__file__).parent.parent
FOLDERS: Final = ("aioflow", "backends", "benchmarks", "examples", "tests")
DOCUMENTS: Final = sorted((ROOT / "docs").rglob("*.md"))
OTHERS: Final = ("logging", "onnx", "ray")  # libraries that have a package's name
VARIABLES: Final = ("memory", "session", "variable")  # that have a package's name, in examples of code
_QUOTED: Final = re.compile(r"`([^`\n]+)`")
_IN_COMMENT: Final = re.compile(r"#.*`")
_FILE: Final = re.compile(r"[\w./]+\.py")
_IMPORT: Final = re.compile(r"^\s*from (aioflow\w*(?:\.\w+)*) import \(?([\w, ]+)", re.MULTILINE)
MADE_UP: Final = ("tests/test_architecture.py", "tests/test_references.py")  # their programs are only parsed
_DOTTED: Final = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*\.(?!(?:json|safetensors|pb|pbtxt|aiograph)\b)\w+")


class Reference(NamedTuple):
    """A name in backticks."""

    where: str
    text: str


@cache
def modules() -> Mapping[str, ast.Module]:
    """Return the parsed modules of the repository by their dotted names."""
    found: dict[str, ast.Module] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            base = ROOT / "backends" if folder == "backends" else ROOT
            name = ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")
            found[name] = ast.parse(path.read_text("utf-8"))
    return found


@cache
def files() -> frozenset[str]:
    """Return the paths of all Python files, and every shorter form of them, down to the file's name."""
    paths = (path.relative_to(ROOT).parts for folder in (*FOLDERS, "docs") for path in (ROOT / folder).rglob("*.py"))
    return frozenset("/".join(parts[start:]) for parts in paths for start in range(len(parts)))


def names_in(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements bind at this level, and attributes of `self` for a class."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            yield from (each.id for each in ast.walk(node) if isinstance(each, ast.Name))
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.For):
            yield from names_in([each for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)])


@cache
def classes() -> Mapping[str, list[ast.ClassDef]]:
    """Return the classes of the repository by name."""
    found: dict[str, list[ast.ClassDef]] = defaultdict(list)
    for tree in modules().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(node)
    return found


def members(found: ast.ClassDef, seen: frozenset[str] = frozenset()) -> set[str] | None:
    """Return the attributes of a class; None if a base of it is not defined here."""
    own = set(names_in(found.body))
    for node in ast.walk(found):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            own.add(node.attr)
    for base in found.bases:
        name = ast.unparse(base.value if isinstance(base, ast.Subscript) else base).rpartition(".")[2]
        if name in ("Protocol", "Generic", "NamedTuple", "object", "ABC"):
            continue
        if name in seen or name not in classes():
            return None
        for each in classes()[name]:
            inherited = members(each, seen | {found.name})
            if inherited is None:
                return None
            own |= inherited
    return own


def exists(text: str, package: str) -> bool:
    """Return whether a name refers to something, from inside of a package; True for other names."""
    if _FILE.fullmatch(text):
        return text.removeprefix("./") in files()
    parts = text.split(".")
    if not _DOTTED.fullmatch(text) or parts[0] in OTHERS or (parts[0] in VARIABLES and len(parts) == 2):
        return True
    for start in ("", "aioflow.", f"{package}.", f"{package.rpartition('.')[0]}."):
        for cut in range(len(parts), 0, -1):
            name = start + ".".join(parts[:cut])
            if name in modules():
                return cut == len(parts) or is_in(name, parts[cut:])
    return parts[0] not in classes() or any(has(each, parts[1]) for each in classes()[parts[0]])


def is_in(module: str, rest: list[str]) -> bool:
    """Return whether a module binds a name, or loads it on first use, and the class of that name has the attribute."""
    known = known_in(module)
    if module == "aioflow" or "*" in known or "__getattr__" in known:
        return True
    if rest[0] not in known:
        return False
    found = [each for each in modules()[module].body if isinstance(each, ast.ClassDef) and each.name == rest[0]]
    return len(rest) == 1 or not found or has(found[0], rest[1])


@cache
def known_in(module: str) -> frozenset[str]:
    """Return the names that a module binds, and its strings, which may be names that it loads on first use."""
    tree = modules()[module]
    lazy = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return frozenset((*names_in(tree.body), *lazy))


def has(found: ast.ClassDef, name: str) -> bool:
    """Return whether a class has an attribute, as far as can be told."""
    known = members(found)
    return known is None or name in known or (name.startswith("__") and name.endswith("__"))


def in_source(path: Path) -> Iterator[Reference]:
    """Yield the references in the docstrings and comments of a file."""
    text = path.read_text("utf-8")
    place = path.relative_to(ROOT)
    for line, docstring in docstrings(text):
        yield from (Reference(f"{place}:{line}", found[1]) for found in _QUOTED.finditer(docstring))
    if not _IN_COMMENT.search(text):  # to split a file into tokens takes ten times as long
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from (Reference(f"{place}:{token.start[0]}", found[1]) for found in _QUOTED.finditer(token.string))


@cache
def parameters_of(path: Path) -> frozenset[str]:
    """Return the names of all parameters in a file: a module may have the same name."""
    tree = ast.parse(path.read_text("utf-8"))
    return frozenset(node.arg for node in ast.walk(tree) if isinstance(node, ast.arg))


def package_of(path: Path) -> str:
    """Return the dotted name of the package that a file is in."""
    parts = path.relative_to(ROOT).parent.parts
    return ".".join(parts[1:] if parts[0] == "backends" else parts)


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_in_docstrings_and_comments_exist(folder: str) -> None:
    wrong = [
        f"{found.where}: `{found.text}`"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for found in in_source(path)
        if not exists(found.text, package_of(path)) and found.text.partition(".")[0] not in parameters_of(path)
    ]
    assert wrong == []


def imported_by_texts(path: Path) -> Iterator[Reference]:
    """Yield what programs import that stand in the strings of a file."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for found in _IMPORT.finditer(node.value):
                for name in re.sub(r"\bas \w+", "", found[2]).replace(",", " ").split():
                    yield Reference(f"{path.relative_to(ROOT)}:{node.lineno}", f"{found[1]}.{name}")


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_that_programs_in_strings_import_exist(folder: str) -> None:
    wrong = [
        f"{found.where}: {found.text}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.relative_to(ROOT).as_posix() not in MADE_UP
        for found in imported_by_texts(path)
        if not exists(found.text, "")
    ]
    assert wrong == []


def test_names_in_documents_exist() -> None:
    fence = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
    wrong = [
        f"{path.relative_to(ROOT)}: `{found[1]}`"
        for path in DOCUMENTS
        for found in _QUOTED.finditer(fence.sub("", path.read_text("utf-8")))
        if not re.fullmatch(r"\w+\.py", found[1])  # a file of the reader's
        and not exists(found[1], "aioflow")
    ]
    assert wrong == []
