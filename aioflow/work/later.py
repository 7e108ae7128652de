"""Names of a package whose modules are loaded when somebody first asks for one, so that the import does not wait.

To type checkers the package imports them under `if TYPE_CHECKING:`, so a name that is not there is an error as before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NoReturn

from aioflow.work.forking import not_forked

__all__ = ["Later", "load_later"]


class Later:
    """The `__getattr__` of such a package.

    Args:
        package: Its name.
        homes: For each name the module that has it, or the module that it is.

    Attributes:
        refuse: Is called with a name that is not there, and raises AttributeError.
    """

    def __init__(self, package: str, homes: Mapping[str, str]) -> None:
        self._package = package
        self._homes = homes
        self.refuse: Callable[[str], NoReturn] = self._refuse

    def __call__(self, name: str) -> Any:
        home = self._homes.get(name)
        if home is None:
            self.refuse(name)
        with not_forked():
            module = import_module(home)
        value = module if home == f"{self._package}.{name}" else getattr(module, name)
        setattr(sys.modules[self._package], name, value)  # nobody asks here again
        return value

    def names(self) -> list[str]:
        """What `dir` shows."""
        return sorted({*vars(sys.modules[self._package]), *self._homes})

    def _refuse(self, name: str) -> NoReturn:
        raise AttributeError(f"module {self._package!r} has no attribute {name!r}")


def load_later(package: str, homes: Mapping[str, str]) -> None:
    """Let the package, which is being imported, have these names, each from the module that it stands with."""
    later = Later(package, homes)
    vars(sys.modules[package]).update(__getattr__=later, __dir__=later.names)
