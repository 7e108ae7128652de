"""Kernels: what ops do when a step runs. One body over an array namespace `xp` serves every backend that can run it."""

from importlib import import_module
from pkgutil import walk_packages

__all__ = ["load"]


def load() -> None:
    """Import every module here, which registers its kernels. The registry does it when it is first asked for one."""
    for module in walk_packages(__path__, f"{__name__}."):
        import_module(module.name)
