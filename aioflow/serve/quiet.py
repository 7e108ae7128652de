"""The log of a program that is nothing but a service."""

from __future__ import annotations

import logging

__all__ = ["log_changes", "log_no_garbage"]


def log_no_garbage() -> None:
    """Have no line for each piece of garbage that is sent: anybody could fill the disk with them."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)


def log_changes() -> None:
    """Say on the error output what becomes of models while they are served, unless a module that the program has
    imported has seen to its log.
    """
    log = logging.getLogger("aioflow.serve")
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
