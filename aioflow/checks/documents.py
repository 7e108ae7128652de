"""Where the documents are that messages name."""

from __future__ import annotations

from pathlib import Path

__all__ = ["document"]


def document(name: str) -> str:
    """The place of a document: its path where aioflow is installed, and the one from the root in a checkout."""
    installed = Path(__file__).parent.parent / "docs" / name  # where the wheel puts it
    return str(installed) if installed.exists() else f"docs/{name}"
