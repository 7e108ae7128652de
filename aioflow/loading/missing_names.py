"""The AttributeError of a public namespace for a missing name: whether TensorFlow has the name, and similar names.

A program that probes for names (`hasattr`) gets its AttributeError, as from any module. Type checkers do not see this
module: they report a missing name as an error before the program runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Final, NoReturn

from aioflow.arguments import did_you_mean, near_names

# ── the location of the documents that messages name ──────────────────────────────────────────────────────────────────


def document(name: str) -> str:
    """Return the location of a document: its path if aioflow is installed, or its path from the root of a checkout."""
    installed = Path(__file__).parent.parent / "docs" / name  # where the wheel puts it
    return str(installed) if installed.exists() else f"docs/{name}"


# ── errors for missing names ──────────────────────────────────────────────────────────────────────────────────────────


_PACKAGE: Final = "aioflow"


def refuse(module: str, name: str) -> NoReturn:
    """Raise the AttributeError for a name that the package, or one of its namespaces, does not have."""
    raise AttributeError(answer(module, name))


def answer(module: str, name: str) -> str:
    """Return the message for a name that the package, or one of its namespaces, does not have."""
    own = module == _PACKAGE and name.isidentifier() and find_spec(f"{_PACKAGE}.{name}") is not None
    inside = module.removeprefix(_PACKAGE).removeprefix(".")
    if is_tensorflows(inside, name):
        other = f"; {_PACKAGE}.{name}, which has to be imported, is something else" if own else ""
        advice = _advice(f"{inside}.{name}".removeprefix("."))
        return f"{module} has no {name!r} yet: {advice}see {document('compatibility.md')}{other}"
    plain = f"module {module!r} has no attribute {name!r}"
    if own:
        return f"{plain}; it is a module that has to be imported: import {_PACKAGE}.{name}"
    elsewhere = [f"{other}.{name}" for other in _modules() if name in _public(other)]
    near = elsewhere or near_names(name, _public(module))
    return plain + did_you_mean(near)


def _modules() -> Iterator[str]:
    yield _PACKAGE
    files = {file.name for file in iter_modules(import_module(_PACKAGE).__path__)}
    yield from (f"{_PACKAGE}.{name}" for name in _public(_PACKAGE) if name in files)


def _public(module: str) -> list[str]:
    names: list[str] = getattr(import_module(module), "__all__", [])
    return names


def _advice(name: str) -> str:
    from aioflow.loading.tensorflow_names import INSTEAD

    return f"use {INSTEAD[name]}; " if name in INSTEAD else ""


def is_tensorflows(module: str, name: str) -> bool:
    """Return whether TensorFlow has the name, in the namespace `module` or, for "", in itself."""
    # A large table that only error messages need.
    from aioflow.loading.tensorflow_names import INNER_MODULES, MODULES, NAMES

    modules = INNER_MODULES.get(module, "") if module else MODULES
    return name in NAMES.get(module, "").split() or name in modules.split()
