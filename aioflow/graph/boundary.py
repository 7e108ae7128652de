"""Names of the ops at the boundary of a step and between devices, defined in `ops/transfer.py`.

Also the name of the attribute that marks nodes whose elements may be put back.
"""

from __future__ import annotations

from typing import Final

# Inputs and outputs of a step, each with its index, so that a part of a plan is complete in itself.
ARG: Final = "_Arg"
RETVAL: Final = "_Retval"
# The same for a step that is fed and fetched while it runs; defined in `ops/transfer.py`.
PARTIAL_FEED: Final = "_PartialFeed"
PARTIAL_FETCH: Final = "_PartialFetch"
# The two ends of an edge between devices.
SEND: Final = "_Send"
RECV: Final = "_Recv"

# The attribute of a node whose kernel puts its element back if the fetches are not delivered.
GIVES_BACK: Final = "_gives_back"

BOUNDARY: Final = frozenset({ARG, RETVAL})
