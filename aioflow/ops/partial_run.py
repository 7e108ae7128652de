"""Ops that stand for feeds and fetches in a partial run, where values come and go while the step runs."""

from __future__ import annotations

from aioflow.graph.opdef import define_op

__all__: list[str] = []

define_op(
    "_PartialFeed",
    "",
    "value: dtype",
    ["dtype: type", "shape: shape", "index: int"],
    shape=lambda ctx: ctx.attrs["shape"],
    stateful=True,
    made_by="worker",
)
define_op("_PartialFetch", "value: T", "", ["T: type", "index: int"], stateful=True, made_by="worker")
