"""What a node may be called."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["NAME", "NODE_NAME", "SCOPE_NAME"]

NAME: Final = r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*"
NODE_NAME: Final = re.compile(NAME)
SCOPE_NAME: Final = re.compile(r"[A-Za-z0-9_.\\/>-]*")  # under another scope, where any of these may be the first
