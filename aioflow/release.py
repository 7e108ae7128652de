"""The name and the version of this release, where every layer can see them: files say by which release they were
written, and messages say how to install what is optional.
"""

from __future__ import annotations

from typing import Final

__all__ = ["DISTRIBUTION", "RELEASE", "install_command"]

# The package index has another project under the name `aioflow`.
DISTRIBUTION: Final = "aioflow-engine"
RELEASE: Final = "0.1.0"


def install_command(extra: str) -> str:
    """Return the command that installs what an optional part needs."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
