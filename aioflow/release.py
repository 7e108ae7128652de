"""The version of this release, where every layer can see it: files say by which release they were written."""

from __future__ import annotations

from typing import Final

__all__ = ["RELEASE"]

RELEASE: Final = "0.1.0"
