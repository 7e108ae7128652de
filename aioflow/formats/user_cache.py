"""The user's cache folder, by the conventions of the platform."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def cache_folder(environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """Return this user's cache folder of aioflow, which may not exist; a relative path if the user has no home."""
    # USERPROFILE is the counterpart of HOME on Windows.
    home = Path(environ.get("HOME") or environ.get("USERPROFILE") or ".")
    if platform == "win32":
        folder = Path(environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif platform == "darwin":
        folder = home / "Library" / "Caches"
    else:
        # The variable and its default are those of the XDG Base Directory Specification.
        folder = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    return folder / "aioflow"
