"""Name and version of this release, importable by every layer.

Files record the release that wrote them, and error messages name the command that installs an optional dependency.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["DISTRIBUTION", "RELEASE", "install_command", "install_command_for"]

# The package index has another project under the name `aioflow`.
DISTRIBUTION: Final = "aioflow-engine"
RELEASE: Final = "0.2.0"


def install_command(extra: str) -> str:
    """Return the command that installs the dependencies of an optional feature."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def install_command_for(error: ImportError, extra: str) -> str:
    """Return the install commands in the error's message, or the command of the extra if it has none.

    A backend may have several extras, and tell in its message which one suits the machine.
    """
    named = re.findall(rf"pip install '{DISTRIBUTION}\[\w+\]'", str(error))
    return " or ".join(named) or install_command(extra)
