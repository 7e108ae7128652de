"""Lazily loaded names of a package, which keep `import` fast.

For type checkers the package imports the names under `if TYPE_CHECKING:`, so an unknown name is still an error.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, NoReturn

from aioflow.concurrency.forking import not_forked
from aioflow.errors import UnimplementedError
from aioflow.memory.collector import full_collections_postponed
from aioflow.release import install_command

_NONE: Final[Mapping[str, str]] = MappingProxyType({})
_OWN: Final = __name__.partition(".")[0]


class Later:
    """The `__getattr__` of a package with lazily loaded names.

    Args:
        package: Name of the package.
        homes: For each name, its module; "module:own" if the module calls it `own`. If the name is that of a module in
            the package, the module itself.
        extra: aioflow's extra that installs the packages which the names need.
        modules: The modules of these packages; by default all that are not aioflow's.
    """

    def __init__(
        self, package: str, homes: Mapping[str, str], extra: str | None = None, modules: Collection[str] = ()
    ) -> None:
        self._package = package
        self._homes = homes
        self._extra = extra
        self._modules = modules

    def __call__(self, name: str) -> Any:
        home = self._homes.get(name)
        if home is None:
            self._refuse(name)
        where, _, own = home.partition(":")
        try:
            # In a child forked during the import, the module's lock would stay locked. The objects of modules stay.
            with not_forked(), full_collections_postponed():
                module = import_module(where)
            # The name of a submodule stands for the module itself, which has no attribute of that name.
            value = module if home == f"{self._package}.{name}" else getattr(module, own or name)
        except ModuleNotFoundError as error:
            # The user can install only the extra. A missing module of aioflow is an error in aioflow.
            missing = (error.name or _OWN).partition(".")[0]
            if self._extra is None or missing == _OWN or (self._modules and missing not in self._modules):
                raise
            raise not_installed(f"{self._package}.{name}", missing, error, self._extra) from error
        setattr(sys.modules[self._package], name, value)  # so that the next access does not call this function
        return value

    def names(self) -> list[str]:
        """Return the names for `dir`."""
        return sorted({*vars(sys.modules[self._package]), *self._homes})

    def _refuse(self, name: str) -> NoReturn:
        if not name.startswith("_"):
            # Imported here: only error messages need it.
            from aioflow.loading.missing_names import refuse

            refuse(self._package, name)
        raise AttributeError(f"module {self._package!r} has no attribute {name!r}")


def homes(modules: Mapping[str, str]) -> dict[str, str]:
    """Return the module of each name, from the names of each module, separated by spaces.

    "name=own" stands for a name that the module calls `own`.
    """
    found = {}
    for module, names in modules.items():
        for each in names.split():
            name, _, own = each.partition("=")
            found[name] = f"{module}:{own}" if own else module
    return found


def load_later(
    package: str, homes: Mapping[str, str] = _NONE, extra: str | None = None, modules: Collection[str] = ()
) -> None:
    """Register lazily loaded names with the package that is being imported, each with its module.

    If the names need packages that aioflow's extra `extra` installs, and one of their `modules` is missing (by default
    any that is not aioflow's), access to a name raises UnimplementedError with the command to install the extra.
    """
    later = Later(package, homes, extra, modules)
    vars(sys.modules[package]).update(__getattr__=later, __dir__=later.names)


def not_installed(what: str, package: str, error: ImportError, extra: str = "") -> UnimplementedError:
    """Return the error for a feature that needs a package of an extra, by default of the same name."""
    return UnimplementedError(
        f"{what} needs the {package} package, which is not installed: {install_command(extra or package)}",
        expected=package,
        actual=str(error),
    )
