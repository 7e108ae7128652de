"""The location of the documents that messages name."""

from __future__ import annotations

from pathlib import Path


def document(name: str) -> str:
    """Return the location of a document: its path if aioflow is installed, or its path from the root of a checkout."""
    installed = Path(__file__).parent.parent / "docs" / name  # where the wheel puts it
    return str(installed) if installed.exists() else f"docs/{name}"
