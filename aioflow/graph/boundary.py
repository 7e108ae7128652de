"""Names of the ops where values enter and leave a step, and cross between devices (`ops/transfer.py` defines them), and
of the attribute that marks nodes whose elements may be put back.
"""

from __future__ import annotations

from typing import Final

__all__ = ["ARG", "BOUNDARY", "GIVES_BACK", "PARTIAL_FEED", "PARTIAL_FETCH", "RECV", "RETVAL", "SEND"]

# What a step is given and what it gives, each with its number: a part of a plan is complete in itself.
ARG: Final = "_Arg"
RETVAL: Final = "_Retval"
# The same in a step that is fed and fetched while it runs; `ops/partial_run.py` defines them.
PARTIAL_FEED: Final = "_PartialFeed"
PARTIAL_FETCH: Final = "_PartialFetch"
# The two ends of an edge between devices.
SEND: Final = "_Send"
RECV: Final = "_Recv"

# The attribute of a node whose kernel puts back the element that it has taken, if the fetches are not delivered.
GIVES_BACK: Final = "_gives_back"

BOUNDARY: Final = frozenset({ARG, RETVAL})
