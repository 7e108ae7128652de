"""Ops for the feeds and fetches of a partial run, which arrive and leave while the step runs."""

from __future__ import annotations

from aioflow.graph.boundary import PARTIAL_FEED, PARTIAL_FETCH
from aioflow.graph.opdef import define_op
from aioflow.graph.traits import state_change

define_op(
    PARTIAL_FEED,
    "",
    "value: dtype",
    ["dtype: type", "shape: shape", "index: int"],
    shape=lambda ctx: ctx.attrs["shape"],
    made_by="worker",
    traits=state_change(stays_home="belongs to a partial run of this process"),
)
define_op(
    PARTIAL_FETCH,
    "value: T",
    "",
    ["T: type", "index: int"],
    made_by="worker",
    traits=state_change(stays_home="belongs to a partial run of this process"),
)
