"""Names of a package whose modules are loaded when somebody first asks for one, so that the import does not wait.

To type checkers the package imports them under `if TYPE_CHECKING:`, so a name that is not there is an error as before.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, ClassVar, Final, NoReturn

from aioflow.errors import UnimplementedError
from aioflow.release import install_command
from aioflow.work.forking import not_forked

__all__ = ["Later", "homes", "load_later", "not_installed"]

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class Later:
    """The `__getattr__` of such a package.

    Args:
        package: Its name.
        homes: For each name the module that has it, or the module that it is; "module:name" where it has another name
            there.
        extra: The package, and the extra of ours that brings it, without which there are no such names.

    Attributes:
        answers: The module whose `refuse` raises AttributeError for a name that is in no such package, with what may
            have been meant.
    """

    answers: ClassVar[str] = ""

    def __init__(self, package: str, homes: Mapping[str, str], extra: str | None = None) -> None:
        self._package = package
        self._homes = homes
        self._extra = extra

    def __call__(self, name: str) -> Any:
        home = self._homes.get(name)
        if home is None:
            self._refuse(name)
        where, _, own = home.partition(":")
        try:
            with not_forked():
                module = import_module(where)
        except ModuleNotFoundError as error:
            if self._extra is None or (error.name or "").partition(".")[0] != self._extra:
                raise
            raise not_installed(f"{self._package}.{name}", self._extra, error) from error
        value = module if home == f"{self._package}.{name}" else getattr(module, own or name)
        setattr(sys.modules[self._package], name, value)  # nobody asks here again
        return value

    def names(self) -> list[str]:
        """What `dir` shows."""
        return sorted({*vars(sys.modules[self._package]), *self._homes})

    def _refuse(self, name: str) -> NoReturn:
        if self.answers and not name.startswith("_"):
            import_module(self.answers).refuse(self._package, name)
        raise AttributeError(f"module {self._package!r} has no attribute {name!r}")


def homes(modules: Mapping[str, str]) -> dict[str, str]:
    """For each name where it is, from the names of each module, separated by spaces; "name=own" where it has another
    name there.
    """
    found = {}
    for module, names in modules.items():
        for each in names.split():
            name, _, own = each.partition("=")
            found[name] = f"{module}:{own}" if own else module
    return found


def load_later(package: str, homes: Mapping[str, str] = _NONE, extra: str | None = None) -> None:
    """Let the package, which is being imported, have these names, each from the module that it stands with.

    Where `extra` is not installed, a package that an extra of ours of the same name brings, asking for one of the names
    raises UnimplementedError, which says how to install it.
    """
    later = Later(package, homes, extra)
    vars(sys.modules[package]).update(__getattr__=later, __dir__=later.names)


def not_installed(what: str, extra: str, error: ImportError) -> UnimplementedError:
    """What to raise where something needs the package of an extra, which is not there."""
    return UnimplementedError(
        f"{what} needs the {extra} package, which is not installed: {install_command(extra)}",
        expected=extra,
        actual=str(error),
    )
