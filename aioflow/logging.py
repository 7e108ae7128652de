"""Log messages, as `tf.logging` has them: the public namespace `aioflow.logging`.

The functions write to the logger "aioflow", whose level also governs what the library logs, such as the values of a
`LoggingTensorHook`. Without a configuration of Python's `logging`, messages go to stderr in TensorFlow's format.
"""

from __future__ import annotations

import itertools
import logging as _logging
import sys
from collections import defaultdict
from functools import cache
from logging import DEBUG, ERROR, FATAL, INFO, WARN
from typing import Any, Final

from aioflow.loading.later import load_later as _load_later
from aioflow.observe.logs import FallbackHandler, is_interactive

__all__ = [
    "DEBUG",
    "ERROR",
    "FATAL",
    "INFO",
    "WARN",
    "TaskLevelStatusMessage",
    "debug",
    "error",
    "fatal",
    "flush",
    "get_verbosity",
    "info",
    "log",
    "log_every_n",
    "log_first_n",
    "log_if",
    "set_verbosity",
    "vlog",
    "warn",
    "warning",
]

_COUNTS: Final[defaultdict[tuple[str, int], itertools.count[int]]] = defaultdict(itertools.count)  # by line of a call


@cache
def get_logger() -> _logging.Logger:
    """Return the logger "aioflow". An interactive interpreter shows its messages from INFO on."""
    logger = _logging.getLogger("aioflow")
    if not logger.handlers:
        handler = FallbackHandler()
        handler.setFormatter(_logging.Formatter(_logging.BASIC_FORMAT))
        logger.addHandler(handler)
        if is_interactive() and not _logging.getLogger().handlers:
            logger.setLevel(INFO)
    return logger


def get_verbosity() -> int:
    """Return the level from which on messages are logged."""
    return get_logger().getEffectiveLevel()


def set_verbosity(v: int | str) -> None:
    """Set the level from which on messages are logged, such as `INFO`."""
    get_logger().setLevel(v)


# `stacklevel` lets records name the caller's line. Keywords are those of Python's `logging`, such as `exc_info`.


def log(level: int, msg: object, *args: object, **kwargs: Any) -> None:
    """Log `msg % args` at a level."""
    get_logger().log(level, msg, *args, stacklevel=2, **kwargs)


def debug(msg: object, *args: object, **kwargs: Any) -> None:
    """Log `msg % args` at DEBUG."""
    get_logger().debug(msg, *args, stacklevel=2, **kwargs)


def info(msg: object, *args: object, **kwargs: Any) -> None:
    """Log `msg % args` at INFO."""
    get_logger().info(msg, *args, stacklevel=2, **kwargs)


def warning(msg: object, *args: object, **kwargs: Any) -> None:
    """Log `msg % args` at WARN."""
    get_logger().warning(msg, *args, stacklevel=2, **kwargs)


def warn(msg: object, *args: object, **kwargs: Any) -> None:
    """Log `msg % args` at WARN."""
    get_logger().warning(msg, *args, stacklevel=2, **kwargs)


def error(msg: object, *args: object, **kwargs: Any) -> None:
    """Log `msg % args` at ERROR."""
    get_logger().error(msg, *args, stacklevel=2, **kwargs)


def fatal(msg: object, *args: object, **kwargs: Any) -> None:
    """Log `msg % args` at FATAL. The program continues."""
    get_logger().fatal(msg, *args, stacklevel=2, **kwargs)


def vlog(level: int, msg: object, *args: object, **kwargs: Any) -> None:
    """Log `msg % args` at a level."""
    get_logger().log(level, msg, *args, stacklevel=2, **kwargs)


def log_if(level: int, msg: object, condition: object, *args: object) -> None:
    """Log `msg % args` at a level if the condition holds."""
    if condition:
        get_logger().log(level, msg, *args, stacklevel=2)


def log_every_n(level: int, msg: object, n: int, *args: object) -> None:
    """Log `msg % args` for the first of every `n` calls from this line."""
    if _calls() % n == 0:
        get_logger().log(level, msg, *args, stacklevel=2)


def log_first_n(level: int, msg: object, n: int, *args: object) -> None:
    """Log `msg % args` for the first `n` calls from this line."""
    if _calls() < n:
        get_logger().log(level, msg, *args, stacklevel=2)


def _calls() -> int:
    """Return the number of earlier calls from the line that called the public function."""
    frame = sys._getframe(2)
    return next(_COUNTS[frame.f_code.co_filename, frame.f_lineno])


def TaskLevelStatusMessage(msg: object) -> None:
    """Log a message at ERROR."""
    get_logger().error(msg, stacklevel=2)


def flush() -> None:
    """Flush the handlers of the logger."""
    for handler in get_logger().handlers:
        handler.flush()


_load_later(__name__)
