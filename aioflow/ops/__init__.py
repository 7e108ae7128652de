"""Ops, a folder per family: for each op its definition, shape function, gradient and public builder, side by side."""

from importlib import import_module
from pkgutil import walk_packages

__all__ = ["load"]


def load() -> None:
    """Import every module here, which defines its ops."""
    for module in walk_packages(__path__, f"{__name__}."):
        import_module(module.name)
