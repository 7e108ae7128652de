"""Detection of imports that were aborted by an interrupt, or by an error inside a module.

Python drops such a module and executes it again with the next import. Its earlier registrations still exist and must be
replaced by the new ones. Otherwise one Ctrl-C at the wrong moment would break the process permanently.
"""

from __future__ import annotations

import sys
from typing import Any, Final, TypeAlias

Globals: TypeAlias = dict[str, Any]
_NOWHERE: Final[Globals] = {}


def importing() -> Globals:
    """Return the namespace of the innermost module whose code is being executed, or an empty one."""
    frame = sys._getframe(1)
    while frame.f_code.co_name != "<module>":
        if frame.f_back is None:
            return _NOWHERE
        frame = frame.f_back
    return frame.f_globals


def gives_way(before: Globals, now: Globals) -> bool:
    """Return True if a registration is left from an aborted import, so that a new one replaces it.

    `before` and `now` are the namespaces of the modules that made the old and the new registration.
    """
    # A second execution of a module has a new namespace, and `sys.modules` has that of the latest.
    name = now.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    return before is not now and before.get("__name__") == name and getattr(module, "__dict__", None) is now
