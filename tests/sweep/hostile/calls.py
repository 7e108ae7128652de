"""Hostile calls of any op, built from its definition alone, so that every new op is covered.

A random generator alone determines a call. Most calls are nearly right, since only these reach a kernel: arguments
that the op's shape function accepts, one of them damaged (`arguments.py`). A call is made in one of three ways: by the
op's builder, as a node of an imported definition, or in a plan that is damaged before a worker receives it
(`damaged.py`). Some built calls are also differentiated.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, Final

import aioflow as af
from aioflow.config import SessionConfig
from aioflow.graph import dtypes
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import OPS
from aioflow.ops.apply import apply_op
from tests.sweep.hostile import damaged, handles, values
from tests.sweep.hostile.arguments import (
    Arguments,
    Array,
    Held,
    Item,
    Junk,
    accepted,
    flawed,
    implied_attrs,
    items_of,
    provide,
    wild,
)

__all__ = ["perform"]

_WAIT: Final = 0.3  # timeout of a step, in seconds: some calls wait for something that never comes
_WAYS: Final = {"built": 6, "imported": 2, "planned": 2, "differentiated": 2}


async def perform(name: str, rng: Random) -> None:
    """Make one call of an op and run it. Raise the error of either."""
    if OPS.get(name).made_by != "user":
        return await _perform_planted(name, rng)
    way = rng.choices(list(_WAYS), list(_WAYS.values()))[0]
    arguments = wild(OPS.get(name), rng) if rng.random() < 0.1 else accepted(OPS.get(name), rng)
    if way in ("built", "differentiated") and rng.random() < 0.6:
        arguments = flawed(arguments, rng)
    with af.Graph().as_default() as graph:
        provide(arguments.op_def)
        call = _Call(arguments, rng, plain=way == "imported")
        made = call.imported() if way == "imported" else call.built()
        feeds = {f"{damaged.PREFIX if way == 'imported' else ''}{name}": value for name, value in call.feeds.items()}
        wanted: list[Any] = [*made.outputs] if made.outputs else [made]
        if way == "differentiated":
            wanted += [g for g in af.gradients(made.outputs, call.tensors) if g is not None]
    config = _config(rng)
    # The reference executor compares the outputs of kernels with the damaged plan, and would always fail.
    if way == "planned":
        config = replace(config, executor="strands")
    async with af.Session(graph=graph, config=config) as session:
        if way == "planned":
            await damaged.run_damaged(session, wanted, feeds, rng, _WAIT)
        else:
            await session.run(wanted, feeds, timeout=_WAIT)


async def _perform_planted(name: str, rng: Random) -> None:
    """Make and run one call of an op whose nodes only the compiler makes."""
    arguments = accepted(OPS.get(name), rng)
    implied = implied_attrs(arguments.op_def)
    attrs = {key: value for key, value in arguments.attrs.items() if key not in implied}
    with af.Graph().as_default() as graph:
        call = _Call(arguments, rng, plain=True)
    async with af.Session(graph=graph, config=_config(rng)) as session:
        await damaged.run_planted(session, arguments.op_def, call.inputs, attrs, call.feeds, rng, _WAIT)


def _config(rng: Random) -> SessionConfig:
    return SessionConfig(
        optimizations=rng.random() < 0.7,
        executor="strands" if rng.random() < 0.8 else "reference",
        inline_budget=rng.choice((2e-4, -1.0)),
    )


class _Call:
    """A call in the default graph.

    Attributes:
        inputs: Arguments for the builder, by the names of the signature.
        tensors: The inputs that are tensors.
        feeds: Values to feed, by the names of tensors.
    """

    def __init__(self, arguments: Arguments, rng: Random, plain: bool = False) -> None:
        self.arguments = arguments
        self.rng = rng
        self.plain = plain  # inputs are tensors only
        self.tensors: list[Tensor] = []
        self.feeds: dict[str, Any] = {}
        self._before: list[Operation] = []
        self._handles: dict[handles.Resource, Tensor] = {}
        self.inputs: dict[str, Any] = {}
        for name, value in arguments.inputs.items():
            made = [self._given(item, name == arguments.flaw) for item in items_of(value)]
            self.inputs[name] = made if isinstance(value, list) else made[0]

    def built(self) -> Operation:
        """Return the node that the op's builder makes for the call."""
        op_def, rng = self.arguments.op_def, self.rng
        implied = implied_attrs(op_def)
        given = {
            name: value
            for name, value in self.arguments.attrs.items()
            if rng.random() < (0.03 if name in implied else 0.8 if op_def.attrs[name].has_default else 1)
        }
        before = af.get_default_graph().version
        with af.control_dependencies(self._before):
            apply_op(op_def.name, *self.inputs.values(), name="call", **given)
        made = af.get_default_graph().get_operations()[before:]
        return next(op for op in made if op.type == op_def.name)

    def imported(self) -> Operation:
        """Return the call as a node of an imported definition."""
        op_def = self.arguments.op_def
        attrs = dict(self.arguments.attrs)
        for arg in op_def.inputs:
            if arg.number_attr is not None and isinstance(self.inputs[arg.name], list):
                attrs[arg.number_attr] = len(self.inputs[arg.name])
        names = [t.name for t in self.tensors] + [f"^{op.name}" for op in self._before]
        return damaged.imported(op_def.name, names, attrs, self.rng)

    def _given(self, item: Item, is_flaw: bool) -> Any:
        if isinstance(item, Junk):
            return item.value
        made = self._handle(item) if isinstance(item, Held) else self._array(item, is_flaw)
        if isinstance(made, Tensor):
            self.tensors.append(made)
        return made

    def _array(self, item: Array, is_flaw: bool) -> Any:
        """Return the value itself, a constant, or a placeholder to feed.

        A flaw is most often fed, so that only the kernel can find it.
        """
        rng, value = self.rng, item.value
        way = rng.random()
        if not is_flaw and way < 0.15 and not self.plain:
            return value if rng.random() < 0.5 else value.tolist()
        if way < (0.2 if is_flaw else 0.5) and not item.dtype.is_quantized:
            return af.constant(value, item.dtype)
        known = None if rng.random() < 0.7 else [None if rng.random() < 0.5 else d for d in value.shape]
        tensor = af.placeholder(item.dtype, known)
        self.feeds[tensor.name] = value if rng.random() < 0.99 else rng.choice(values.JUNK)
        return tensor

    def _handle(self, item: Held) -> Tensor:
        """Return a handle of the item's resource; now and then one that another input of the call has already."""
        known = self._handles.get(item.of)
        if known is not None and self.rng.random() < 0.2:
            return known
        made = handles.make(item.of)
        self._handles[item.of] = made
        if made.dtype is dtypes.resource and self.rng.random() < 0.85:
            self._before += handles.fill(item.of, made, self.rng)
        return made
