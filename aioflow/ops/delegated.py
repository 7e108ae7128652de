"""The op for a part of a step that another engine computes as a whole. `compiler/delegate.py` makes it."""

from __future__ import annotations

from typing import Final

from aioflow.graph.opdef import define_op
from aioflow.graph.traits import opaque

DELEGATED: Final = "_Delegated"

# The body of the node is the part. `delegate` names the engine, and `seconds` is the time that the part is expected to
# take. `variables` has for each input the name of the variable whose value it is, or "", and `still` the indices of
# the variables that the step does not change.
define_op(
    DELEGATED,
    "inputs: list:Tin",
    "outputs: list:Tout",
    [
        "Tin: list(type)",
        "Tout: list(type) >= 1",
        "delegate: string",
        "seconds: float = 0.0",
        "variables: list(string) = []",
        "still: list(int) = []",
    ],
    made_by="compiler",
    traits=opaque(),
)
