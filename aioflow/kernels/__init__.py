"""Kernels, which compute ops in a step. One body over an array namespace `xp` serves every backend that can run it.

The kernels of an op are in the folder with the same name as the folder of its definition.
"""

from collections.abc import Iterator
from pkgutil import iter_modules, walk_packages

__all__ = ["modules"]


def modules(family: str = "") -> Iterator[str]:
    """Yield the names of the modules that register the kernels of a family of ops, by default of all families."""
    if not family:
        yield from (module.name for module in walk_packages(__path__, f"{__name__}."))
        return
    for module in iter_modules(__path__):
        if module.name == family:
            name = f"{__name__}.{family}"
            yield name
            if module.ispkg:
                yield from (inner.name for inner in iter_modules([f"{path}/{family}" for path in __path__], f"{name}."))
