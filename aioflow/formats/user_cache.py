"""Where the user's caches are, by the customs of the platform."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder(environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """This user's cache folder of aioflow, which need not be there; a relative path where the user has no home."""
    home = Path(environ.get("HOME") or environ.get("USERPROFILE") or ".")
    if platform == "win32":
        folder = Path(environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif platform == "darwin":
        folder = home / "Library" / "Caches"
    else:
        folder = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    return folder / "aioflow"
