"""The line of the user's program that creates a node."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType
from typing import Final

from aioflow.errors import SourceLine

# With the separator, so that `aioflow_more` is not part of the engine.
_ENGINE: Final = str(Path(__file__).parents[1]) + os.sep
# Frames of asyncio are below those of the engine's tasks.
_LOOP: Final = str(Path(os.__file__).parent / "asyncio") + os.sep


def user_line() -> SourceLine | None:
    """Return the user's line: the innermost stack frame outside of the engine and the event loop."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((_ENGINE, _LOOP)):
            return SourceLine(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return None
