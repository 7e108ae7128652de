"""Logging of a program that only runs a service."""

from __future__ import annotations

import logging


def log_no_garbage() -> None:
    """Suppress uvicorn's warnings about malformed requests, with which any client could fill the disk."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)


def log_changes() -> None:
    """Log changes of the models to standard error, unless an imported module has configured this logger."""
    log = logging.getLogger("aioflow.serve")
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
    # A level that the program has chosen stays.
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
