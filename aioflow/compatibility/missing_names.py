"""What a public namespace answers to a name that it does not have: whether TensorFlow has it, and what is near.

A program that looks for names (`hasattr`) gets its AttributeError, as from any module. Type checkers do not see this:
to them a name that is not there is an error before the program runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import NoReturn

from aioflow.checks.documents import document
from aioflow.graph.suggestions import did_you_mean, near_names
from aioflow.work.later import Later

__all__ = ["answer_for"]


def answer_for(package: str, namespaces: Sequence[str]) -> None:
    """Let the package, and each of its namespaces that does not answer for itself, answer to what is not there."""
    modules = [package, *(f"{package}.{name}" for name in namespaces)]
    for module in modules:
        refuse = partial(_refuse, package, modules, module)
        own = vars(sys.modules[module]).setdefault("__getattr__", refuse)
        if isinstance(own, Later):
            own.refuse = refuse


def _refuse(package: str, modules: Sequence[str], module: str, name: str) -> NoReturn:
    if name.startswith("_"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    raise AttributeError(_answer(package, modules, module, name))


def _answer(package: str, modules: Sequence[str], module: str, name: str) -> str:
    own = module == package and name.isidentifier() and find_spec(f"{package}.{name}") is not None
    if _is_tensorflows(module.removeprefix(package).removeprefix("."), name):
        other = f"; {package}.{name}, which has to be imported, is something else" if own else ""
        return f"{module} has no {name!r} yet: see {document('compatibility.md')}{other}"
    plain = f"module {module!r} has no attribute {name!r}"
    if own:
        return f"{plain}; it is a module that has to be imported: import {package}.{name}"
    elsewhere = [f"{other}.{name}" for other in modules if name in _public(other)]
    near = elsewhere or near_names(name, _public(module))
    return plain + did_you_mean(near)


def _public(module: str) -> Sequence[str]:
    names: Sequence[str] = getattr(sys.modules[module], "__all__", ())
    return names


def _is_tensorflows(module: str, name: str) -> bool:
    from aioflow.compatibility.tensorflow_names import INNER_MODULES, MODULES, NAMES

    modules = INNER_MODULES.get(module, "") if module else MODULES
    return name in NAMES.get(module, "").split() or name in modules.split()
