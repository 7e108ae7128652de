"""Regular expressions for the names of nodes and scopes."""

from __future__ import annotations

import re
from typing import Final

NAME: Final = r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*"
NODE_NAME: Final = re.compile(NAME)
# A nested scope's name follows "parent/", so any of these characters may be its first.
SCOPE_NAME: Final = re.compile(r"[A-Za-z0-9_.\\/>-]*")
