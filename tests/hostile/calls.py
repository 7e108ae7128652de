"""Hostile calls of any op, made from its definition alone, so that an op that is added is tried without being asked.

A call is decided by a random generator and nothing else. It is made by the op's builder, or as a node of an imported
definition, or in a plan that was damaged on its way to a worker; and what can be differentiated is, now and then.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

import numpy as np

import aioflow as af
from aioflow.compiler.ir import Node, Part
from aioflow.config import SessionConfig
from aioflow.errors import OpError, UnavailableError
from aioflow.fetches import feed_converter
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.graphdef import GraphDef, NodeDef, TensorData
from aioflow.graph.opdef import OPS, ArgDef, AttrDef, OpDef
from aioflow.net.outbox import Outbox
from aioflow.net.plan_codec import decode_part, encode_part
from aioflow.net.task_worker import TaskWorker, WorkerSession
from aioflow.ops.apply import apply_op
from aioflow.runtime.step import Step
from aioflow.runtime.worker import Worker
from tests.hostile import values

__all__ = ["perform"]

_WAIT: Final = 0.3  # seconds that a step may wait for what will never come
_HANDLES: Final = (dtypes.resource, dtypes.variant)
_WAYS: Final = {"built": 6, "imported": 3, "planned": 2, "differentiated": 2}


async def perform(name: str, rng: Random) -> None:
    """Make one call of an op and run it; raises whatever comes of it."""
    op_def = OPS.get(name)
    way = rng.choices(list(_WAYS), list(_WAYS.values()))[0]
    with af.Graph().as_default() as graph:
        call = _Call(op_def, rng, plain=way == "imported")
        made = _imported(call) if way == "imported" else call.build()
        feeds = {f"{_PREFIX if way == 'imported' else ''}{name}": value for name, value in call.feeds.items()}
        wanted: list[Any] = [*made.outputs] if made.outputs else [made]
        if way == "differentiated":
            wanted += [g for g in af.gradients(made.outputs, call.tensors) if g is not None]
    config = SessionConfig(
        optimizations=rng.random() < 0.7,
        executor="strands" if rng.random() < 0.8 else "reference",
        inline_budget=rng.choice((2e-4, -1.0)),
    )
    async with af.Session(graph=graph, config=config) as session:
        if way == "planned":
            await _run_damaged(session, wanted, feeds, rng)
        else:
            await session.run(wanted, feeds, timeout=_WAIT)


# ── arguments ────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Call:
    """The arguments of one call, in the default graph.

    Attributes:
        attrs, inputs: By the names of the signature.
        tensors: The inputs that are tensors.
        feeds: By the names of tensors.
    """

    def __init__(self, op_def: OpDef, rng: Random, plain: bool = False) -> None:
        self.op_def = op_def
        self.rng = rng
        self.plain = plain  # inputs are tensors only
        self.tensors: list[Tensor] = []
        self.feeds: dict[str, Any] = {}
        self.before: list[Operation] = []
        self._shape = values.shape(rng)
        self._handle: Tensor | None = None
        self.implied = {n for a in op_def.inputs for n in (a.type_attr, a.list_attr, a.number_attr) if n is not None}
        self.attrs = {attr.name: self._attr(attr) for attr in op_def.attrs.values()}
        self.inputs = {arg.name: self._input(arg) for arg in op_def.inputs}

    def build(self) -> Operation:
        """The call as a node of the default graph."""
        rng = self.rng
        given = {
            name: value
            for name, value in self.attrs.items()
            if rng.random() < (0.05 if name in self.implied else 0.8 if self.op_def.attrs[name].has_default else 0.99)
        }
        before = af.get_default_graph().version
        with af.control_dependencies(self.before):
            apply_op(self.op_def.name, *self.inputs.values(), **given)
        made = af.get_default_graph().get_operations()[before:]
        return next(op for op in made if op.type == self.op_def.name)

    def _attr(self, attr: AttrDef) -> Any:
        if any(attr.name == arg.number_attr for arg in self.op_def.inputs):
            return self.rng.choice((0, 1, 2, 2, 3))
        return values.attribute(self.rng, attr.kind, attr.allowed)

    def _input(self, arg: ArgDef) -> Any:
        if not self.plain and self.rng.random() < 0.03:
            return self.rng.choice(values.JUNK)
        if not arg.is_sequence:
            return self._tensor(self._dtype(self.attrs[arg.type_attr]) if arg.type_attr is not None else arg.dtype)
        if arg.list_attr is not None:
            kinds = self.attrs[arg.list_attr]
            kinds = kinds if isinstance(kinds, list) else [dtypes.float32]
            return [self._tensor(self._dtype(kind)) for kind in kinds]
        kind = self._dtype(self.attrs[arg.type_attr]) if arg.type_attr is not None else arg.dtype
        count = self.attrs[arg.number_attr or ""]
        return [self._tensor(kind) for _ in range(count if count in range(5) else 1)]

    def _dtype(self, value: Any) -> DType:
        return value if isinstance(value, DType) else dtypes.float32

    def _tensor(self, kind: DType | None) -> Any:
        rng = self.rng
        if kind is None or rng.random() < 0.04:
            kind = values.dtype(rng)
        if kind in _HANDLES and rng.random() < 0.95:
            return self._noted(self._handle_of(kind))
        value = values.array(rng, kind, self._dims())
        way = rng.random()
        if way < 0.2 and not self.plain:
            return value if rng.random() < 0.5 else value.tolist()
        if way < 0.5 and (kind.is_numeric or kind.is_bool or kind is dtypes.string):
            return self._noted(af.constant(value, kind))
        known = None if rng.random() < 0.7 else [None if rng.random() < 0.5 else d for d in value.shape]
        tensor = af.placeholder(kind, known)
        self.feeds[tensor.name] = value if rng.random() < 0.97 else rng.choice(values.JUNK)
        return self._noted(tensor)

    def _noted(self, tensor: Tensor) -> Tensor:
        self.tensors.append(tensor)
        return tensor

    def _dims(self) -> tuple[int, ...]:
        way = self.rng.random()
        if way < 0.45:
            return self._shape
        if way < 0.65:
            return ()
        return (self.rng.choice((0, 1, 1, 2, 2, 3, 4)),) if way < 0.85 else values.shape(self.rng)

    # -- handles ------------------------------------------------------------------------------------------------------

    def _handle_of(self, kind: DType) -> Tensor:
        """A handle, of the kind of resource that the op is about most often."""
        makers = _makers(kind)
        if self._handle is not None and self._handle.dtype is kind and self.rng.random() < 0.3:
            return self._handle
        fitting = _akin(self.op_def, makers)
        maker = self.rng.choice(fitting if fitting and self.rng.random() < 0.8 else makers)
        handle = self._made(maker, kind)
        self._handle = handle
        if self.rng.random() < 0.7:
            self._use(maker, handle)
        return handle

    def _made(self, maker: OpDef, kind: DType) -> Tensor:
        attrs = {attr.name: self._like_own(attr) for attr in maker.attrs.values() if not attr.name.startswith("shared")}
        inputs = [self._plain_input(maker, arg, attrs) for arg in maker.inputs]
        apply_op(maker.name, *inputs, **attrs)
        made = next(op for op in reversed(af.get_default_graph().get_operations()) if op.type == maker.name)
        return next(t for t in made.outputs if t.dtype is kind)

    def _like_own(self, attr: AttrDef) -> Any:
        """An attribute that is valid, and fits those of the call, where it has one of the kind."""
        own = self.attrs if hasattr(self, "attrs") else {}
        kind = next((v for v in own.values() if isinstance(v, DType)), dtypes.float32)
        kinds = next((v for v in own.values() if isinstance(v, list) and v and isinstance(v[0], DType)), [kind])
        if attr.kind == "type":
            return kind if attr.allowed is None or kind in attr.allowed else attr.allowed[0]
        if attr.kind == "list(type)":
            return kinds if all(isinstance(k, DType) for k in kinds) else [kind]
        if attr.has_default and self.rng.random() < 0.7:
            return attr.default
        if attr.kind == "shape":
            return self._shape if self.rng.random() < 0.5 else None
        if attr.kind == "list(shape)":
            return []
        return attr.default if attr.has_default else values.attribute(self.rng, attr.kind, attr.allowed)

    def _plain_input(self, op_def: OpDef, arg: ArgDef, attrs: Mapping[str, Any]) -> Any:
        if arg.dtype in _HANDLES:
            return self._handle_of(arg.dtype) if self._handle is None else self._handle
        kind = arg.dtype or attrs.get(arg.type_attr or "")
        kind = kind if isinstance(kind, DType) and not kind.is_quantized else dtypes.float32
        if kind in _HANDLES:
            return self._handle_of(kind)
        dims = self._shape if arg.type_attr is not None else ()
        made = af.constant(values.array(self.rng, kind, dims), kind)
        return [made] if arg.is_sequence else made

    def _use(self, maker: OpDef, handle: Tensor) -> None:
        """Other calls with the same handle, before the one that is made."""
        users = [o for o in OPS if maker in _akin(o, _makers(handle.dtype)) and o.inputs and not o.outputs]
        users = [o for o in users if o.inputs[0].dtype is handle.dtype]
        if maker.name == "VarHandleOp":
            users = [OPS.get("AssignVariableOp")]
        for user in self.rng.choices(users, k=self.rng.choice((1, 1, 2))) if users else ():
            attrs = {attr.name: self._like_own(attr) for attr in user.attrs.values()}
            implied = {a for arg in user.inputs for a in (arg.type_attr, arg.list_attr, arg.number_attr)}
            inputs = [self._plain_input(user, arg, attrs) for arg in user.inputs[1:]]
            try:
                made = apply_op(user.name, handle, *inputs, **{k: v for k, v in attrs.items() if k not in implied})
            except OpError:
                continue
            self.before.append(made)


def _makers(kind: DType) -> list[OpDef]:
    """The ops that make a handle out of nothing, or out of what is no handle."""
    return [
        o
        for o in OPS
        if any(a.dtype is kind for a in o.outputs) and not any(a.dtype is kind or a.list_attr for a in o.inputs)
    ]


def _akin(op_def: OpDef, makers: Sequence[OpDef]) -> list[OpDef]:
    """The makers whose names have most in common with that of the op; those of variables, if none has anything."""
    own = _words(op_def.name)
    scores = [len(own & _words(maker.name)) for maker in makers]
    best = max(scores, default=0)
    akin = [maker for maker, score in zip(makers, scores, strict=True) if score == best]
    return akin if best else [maker for maker in makers if maker.name == "VarHandleOp"]


def _words(name: str) -> set[str]:
    return set(re.findall(r"[A-Z][a-z]+", name)) - {"Resource", "Op", "Get", "From"}


# ── imported ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_PREFIX: Final = "import/"


def _imported(call: _Call) -> Operation:
    """The call as a node of a definition that is imported: attributes may be missing, or of another kind."""
    rng = call.rng
    flat = [t for v in call.inputs.values() for t in (v if isinstance(v, list) else [v])]
    names = [t.name for t in flat if isinstance(t, Tensor)]
    attrs = {key: _plain(value) for key, value in call.attrs.items()}
    for arg in call.op_def.inputs:
        if arg.number_attr is not None and rng.random() < 0.9:
            attrs[arg.number_attr] = len(call.inputs[arg.name])
    if attrs and rng.random() < 0.25:
        del attrs[rng.choice(list(attrs))]
    if attrs and rng.random() < 0.15:
        attrs[rng.choice(list(attrs))] = _plain(rng.choice(values.JUNK))
    if names and rng.random() < 0.06:
        names.remove(rng.choice(names))
    if rng.random() < 0.06:
        names.append(rng.choice([*names, "call:0", "nothing:0", "^call"]))
    definition = af.get_default_graph().as_graph_def()
    node = NodeDef("call", call.op_def.name, tuple(names), "", attrs)
    definition = replace(definition, nodes=(*definition.nodes, node))
    if rng.random() < 0.2:
        definition = GraphDef.from_bytes(definition.to_bytes())
    if rng.random() < 0.2:
        definition = GraphDef.from_json(_damaged_text(definition.to_json(), rng))
    (made,) = af.import_graph_def(definition, return_elements=["call"])
    operation: Operation = made
    return operation


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        try:
            return TensorData.of(value)
        except (OpError, ValueError, TypeError):
            return 0
    return tuple(_plain(item) for item in value) if isinstance(value, list | tuple) else value


def _damaged_text(text: str, rng: Random) -> str:
    """JSON with one value in the place of another."""
    if rng.random() < 0.3:
        return text
    pieces = list(re.finditer(r'(?<=: )("[^"]*"|-?\d+|null|\[\]|true|false)', text))
    piece = rng.choice(pieces)
    other = rng.choice(("null", "[]", "{}", "-1", "1.5", '""', '"a"', "[1]", '{"$dtype": 1}', "9" * 25, "true"))
    return text[: piece.start()] + other + text[piece.end() :]


# ── planned ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _run_damaged(session: af.Session, wanted: Sequence[Any], feeds: Mapping[str, Any], rng: Random) -> None:
    """What a worker makes of the step's plan, if some of it was lost or altered on the way."""
    plan = session.plan(wanted, list(feeds))
    (part,) = plan.parts.values()
    ((device, graph),) = part.subgraphs.items()
    hit = rng.choice(list(graph.nodes))
    nodes = {name: _damaged(node, rng) if name == hit else node for name, node in graph.nodes.items()}
    sent = encode_part(Part(part.task, {device: replace(graph, nodes=nodes)}))
    received = decode_part(*sent)
    fed = [feed_converter(session.graph.get_tensor_by_name(name))(value) for name, value in feeds.items()]
    async with Outbox(_nobody) as outbox:
        worker = TaskWorker(Worker(), outbox).open_session()
        try:
            await _run_part(worker, received, session.config, fed, rng)
        finally:
            await worker.close()


async def _nobody(task: str) -> Any:
    raise UnavailableError(f"there is no {task}")


async def _run_part(
    worker: WorkerSession, part: Part, config: SessionConfig, values_fed: list[Any], rng: Random
) -> None:
    handle = await worker.register(part, 1, config)
    if rng.random() < 0.2:
        values_fed = values_fed[1:] if values_fed and rng.random() < 0.5 else [*values_fed, np.zeros(2)]
    step = Step(id=rng.choice((0, 1)))
    try:
        async with asyncio.timeout(_WAIT):
            await worker.run(handle, values_fed, step)
    except TimeoutError:
        pass
    finally:
        step.finish()


def _damaged(node: Node, rng: Random) -> Node:
    attrs = dict(node.attrs)
    what = rng.random()
    if attrs and what < 0.5:
        del attrs[rng.choice(list(attrs))]
    elif attrs and what < 0.8:
        attrs[rng.choice(list(attrs))] = rng.choice((0, -1, 2**62, "a", None, (), (1,), 1.5, True, dtypes.int8))
    elif node.inputs and what < 0.9:
        return replace(node, inputs=node.inputs[1:])
    elif node.outputs:
        return replace(node, outputs=node.outputs[1:])
    return replace(node, attrs=attrs)
