"""Compile a strand to straight-line Python: one line a node, so that a failing line number names the node.

Three forms of the same body: `fast` runs inline on the loop, where nothing can interrupt it; `stoppable` runs in a
device's thread and looks for a stop request after every kernel; `probed` reports every node's results to a probe.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from aioflow.compiler.ir import ClientGraph, Edge
from aioflow.graph.shapes import Dims
from aioflow.runtime.bind import Argument, BoundNode, own
from aioflow.runtime.liveness import Lifetimes, NodeLife, analyse
from aioflow.runtime.units import Unit

__all__ = ["FIRST_LINE", "Form", "StrandCode", "finish"]

FIRST_LINE: Final = 2  # the line of the first node in the generated source
_LARGE: Final = 64 * 1024  # bytes


class Form(enum.Enum):
    """Which variant of a strand."""

    FAST = "fast"
    STOPPABLE = "stoppable"
    PROBED = "probed"


_SUFFIX: Final[Mapping[Form, str]] = {
    Form.FAST: "",
    Form.STOPPABLE: "; stop.requested and stop.halt()",
    Form.PROBED: "; probe({index}, ({outputs}))",
}
_PARAMETER: Final[Mapping[Form, tuple[str, ...]]] = {
    Form.FAST: (),
    Form.STOPPABLE: ("stop",),
    Form.PROBED: ("probe", "stop"),
}


class StrandCode:
    """The generated code of one strand, compiled form by form when it is first needed.

    A form is a function of the values of `unit.inputs`, in order (then the stop request or the probe), that returns the
    values of `unit.outputs` as a tuple.
    """

    def __init__(self, unit: Unit, graph: ClientGraph, constants: Mapping[Edge, Any], fed: frozenset[Edge]) -> None:
        self.unit = unit
        self._graph = graph
        self._lifetimes: Lifetimes = analyse(unit, graph, fed)
        self._globals: dict[str, Any] = {"own": own, "overwritable": overwritable, "stop": None}
        self._names: dict[Edge, str] = {e: f"a{i}" for i, e in enumerate(unit.inputs)}
        self._constants = constants
        self._compiled: dict[Form, Callable[..., tuple[Any, ...]]] = {}
        for i, bound in enumerate(unit.nodes):
            self._globals[f"k{i}"] = bound.call
            for port in range(len(bound.node.outputs)):
                self._names[Edge(bound.node.name, port)] = f"v{i}" if port == 0 else f"v{i}_{port}"
        self._lines = [
            self._line(i, b, life) for i, (b, life) in enumerate(zip(unit.nodes, self._lifetimes.nodes, strict=True))
        ]

    @property
    def owned(self) -> frozenset[Edge]:
        """The outputs that nobody else holds."""
        return self._lifetimes.owned

    def function(self, form: Form) -> Callable[..., tuple[Any, ...]]:
        """The compiled function of that form."""
        found = self._compiled.get(form)
        if found is None:
            scope = dict(self._globals)
            exec(compile(self.source(form), f"<aioflow strand {form.value}>", "exec"), scope)
            found = self._compiled[form] = scope["strand"]
        return found

    def source(self, form: Form) -> str:
        """The Python text of that form."""
        parameters = [self._names[e] for e in self.unit.inputs]
        lines = [f"def strand({', '.join((*parameters, *_PARAMETER[form]))}):"]
        for i, (call, drop) in enumerate(self._lines):
            names = [
                self._names[Edge(self.unit.nodes[i].node.name, p)] for p in range(len(self.unit.nodes[i].node.outputs))
            ]
            suffix = _SUFFIX[form].format(index=i, outputs="".join(f"{n}," for n in names))
            lines.append(f"    {call}{suffix}{drop}")
        lines.append(f"    return ({''.join(f'{self._names[e]},' for e in self.unit.outputs)})")
        return "\n".join(lines) + "\n"

    def _line(self, index: int, bound: BoundNode, life: NodeLife) -> tuple[str, str]:
        arguments = [self._argument(a, life) for a in bound.arguments]
        if bound.kernel.expression is not None and life.reuse is None:
            call = bound.kernel.expression.format(*arguments)
        else:
            if life.reuse is not None:
                arguments.append(f"out={self._reused(bound, life)}")
            if bound.kernel.takes_stop:
                arguments.append("stop=stop")
            call = f"k{index}({', '.join(arguments)})"
        names = [self._names[Edge(bound.node.name, p)] for p in range(len(bound.node.outputs))]
        if not names:
            assigned = "pass" if bound.node.op == "NoOp" else call
        elif bound.unpacks:
            assigned = f"{', '.join(names)}, = {call}" if len(names) == 1 else f"{', '.join(names)} = {call}"
        else:
            assigned = f"{names[0]} = {call}"
        drops = [self._names[e] for e in life.dies if e in self._names]
        return assigned, f"; del {', '.join(drops)}" if drops else ""

    def _argument(self, argument: Argument, life: NodeLife) -> str:
        items = [self._item(edge, argument, life) for edge in argument.sources]
        return f"({''.join(f'{i},' for i in items)})" if argument.is_sequence else items[0]

    def _item(self, edge: Edge, argument: Argument, life: NodeLife) -> str:
        if edge in self._constants:
            value = self._constants[edge]
            if argument.convert is not None:
                value = argument.convert(value)
            return self._global("c", value)
        text = self._names[edge]
        if argument.convert is not None:
            text = f"{self._global('h', argument.convert)}({text})"
        return f"own({text})" if edge in life.copies else text

    def _reused(self, bound: BoundNode, life: NodeLife) -> str:
        if life.reuse is None:
            return "None"
        name = self._names[life.reuse]
        if not life.guarded:
            return name
        others = [self._item(e, a, life) for a in bound.arguments for e in a.sources if e != life.reuse]
        return f"overwritable({', '.join((name, *others))})"

    def _global(self, prefix: str, value: Any) -> str:
        name = f"{prefix}_{len(self._globals)}"
        self._globals[name] = value
        return name


def overwritable(target: Any, *others: Any) -> Any:
    """`target` if an elementwise result over it and `others` may be written into it, otherwise None."""
    shape = getattr(target, "shape", ())
    if not shape or target.nbytes < _LARGE:
        return None
    for other in others:
        other_shape = getattr(other, "shape", ())
        if other_shape != shape and np.broadcast_shapes(shape, other_shape) != shape:
            return None
    return target


def finish(dims: Dims, owned: bool) -> Callable[[Any], Any] | None:
    """What a fetched value still needs before the caller gets it, or None.

    The caller may modify what it gets, so a value that somebody else holds is copied; a 0-d array becomes a scalar.
    """
    if dims is None or dims == ():
        return _scalar if owned else _scalar_copy
    return None if owned else own


def _scalar(value: Any) -> Any:
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _scalar_copy(value: Any) -> Any:
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else own(value)


def failed_node(nodes: Sequence[BoundNode], error: BaseException) -> BoundNode | None:
    """The node whose generated line raised `error`, or None if the line belongs to none."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith("<aioflow strand"):
            index = trace.tb_lineno - FIRST_LINE
            return nodes[index] if 0 <= index < len(nodes) else None
        trace = trace.tb_next
    return None
