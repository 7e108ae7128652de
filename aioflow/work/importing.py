"""Imports that were cut off: by an interrupt, or by an error in the middle of a module.

Python forgets such a module and executes it anew with the next import. What it had registered by then is still there,
and must give way to what it registers now: else one Ctrl-C in the wrong moment would be the end of the process.
"""

from __future__ import annotations

import sys
from typing import Any, Final, TypeAlias

__all__ = ["Namespace", "gives_way", "importing"]

Namespace: TypeAlias = dict[str, Any]
_NOWHERE: Final[Namespace] = {}


def importing() -> Namespace:
    """The names of the module whose code is being executed here: the innermost one, where one imports another."""
    frame = sys._getframe(1)
    while frame.f_code.co_name != "<module>":
        if frame.f_back is None:
            return _NOWHERE
        frame = frame.f_back
    return frame.f_globals


def gives_way(before: Namespace, now: Namespace) -> bool:
    """Whether what was registered from `before` is of an import that was cut off and is made up for now."""
    name = now.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    return before is not now and before.get("__name__") == name and getattr(module, "__dict__", None) is now
