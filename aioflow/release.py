"""Name and version of this release, importable by every layer.

Files record the release that wrote them, and error messages name the command that installs an optional dependency.
"""

from __future__ import annotations

from typing import Final

__all__ = ["DISTRIBUTION", "RELEASE", "install_command"]

# The package index has another project under the name `aioflow`.
DISTRIBUTION: Final = "aioflow-engine"
RELEASE: Final = "0.1.0"


def install_command(extra: str) -> str:
    """Return the command that installs the dependencies of an optional feature."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
