"""Logging of a program that only runs a service."""

from __future__ import annotations

import logging


def log_no_garbage() -> None:
    """Suppress uvicorn's warnings about malformed requests, with which any client could fill the disk."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
