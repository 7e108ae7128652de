"""Ops, a folder per family: for each op its definition, shape function, gradient and public builder, side by side."""

from collections.abc import Iterator
from pkgutil import iter_modules
from typing import Final

__all__ = ["modules"]

_FIRST: Final = ("array", "math", "control", "variables")  # the families whose ops other modules use most


def modules() -> Iterator[str]:
    """Yield the modules that define ops, in the order in which they are searched for an op not loaded yet."""
    here = list(iter_modules(__path__, f"{__name__}."))
    yield from (module.name for module in here if not module.ispkg)
    families = [module.name.rpartition(".")[2] for module in here if module.ispkg]
    for family in sorted(families, key=lambda family: _FIRST.index(family) if family in _FIRST else len(_FIRST)):
        folders = [f"{path}/{family}" for path in __path__]
        yield from (module.name for module in iter_modules(folders, f"{__name__}.{family}."))
