"""Code generation: bound nodes become Python, one line per node, under the `if`s of their predicates.

A failing line number therefore identifies the node. Many nodes are divided into several functions.

There are five forms of the same body:

- `fast` runs inline on the event loop, where nothing can interrupt it.
- `stoppable` runs in a device's thread and checks for a stop request after every kernel.
- `probed` also reports every node's results to a probe.
- `loop` runs in a thread and leaves the stop check to the surrounding loop.
- `brief` is `fast` for a strand that may be restarted in a thread.

All forms but `fast` mark the critical section of a node with effects by `work.begin_critical()` and
`work.end_critical()`. A thread may be abandoned only outside of such a section, and a `brief` strand may be restarted
only before the first one.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from types import CodeType, FunctionType
from typing import Any, Final

import numpy as np

from aioflow.compiler.control_flow import Guard
from aioflow.compiler.ir import ClientGraph, Edge
from aioflow.concurrency.stopping import checkpoint
from aioflow.graph.shapes import Dims
from aioflow.kernels.convert import as_bool, as_int
from aioflow.kernels.joinable import body_alone
from aioflow.kernels.registry import KernelBody
from aioflow.memory.values import Value
from aioflow.runtime.bind import Argument, BoundNode, Choice, RaisedLoop, own, to_keep
from aioflow.runtime.branches import STEERING, common_depth
from aioflow.runtime.executor import NODES_OF_LINES
from aioflow.runtime.frames import DEAD
from aioflow.runtime.functions import MANY_ITEMS, Cuts
from aioflow.runtime.leaving import room_to_send, sent_away
from aioflow.runtime.liveness import Lifetimes, NodeLife
from aioflow.runtime.shortcuts import Shortcut
from aioflow.runtime.tasks import Task

_LARGE: Final = 64 * 1024  # bytes


class CodeVariant(enum.Enum):
    """The variants of a strand's code."""

    FAST = "fast"
    STOPPABLE = "stoppable"
    PROBED = "probed"
    LOOP = "loop"
    BRIEF = "brief"


_SUFFIX: Final[Mapping[CodeVariant, str]] = {
    CodeVariant.FAST: "",
    CodeVariant.STOPPABLE: "; step.requested and step.halt()",
    CodeVariant.PROBED: "; step.requested and step.halt(); probe({index}, ({outputs}))",
    CodeVariant.LOOP: "",
    CodeVariant.BRIEF: "",
}
PARAMETERS: Final[Mapping[CodeVariant, tuple[str, ...]]] = {
    CodeVariant.FAST: (),
    CodeVariant.STOPPABLE: ("step", "work"),
    CodeVariant.PROBED: ("probe", "step", "work"),
    CodeVariant.LOOP: ("step", "work"),
    CodeVariant.BRIEF: ("work",),
}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of generated code, and the position of the node that it computes, if any."""

    text: str
    node: int | None = None


class NodeWriter:
    """Writer of the text of a task's nodes. It collects the objects that the text refers to.

    Args:
        task: The task.
        graph: The subgraph of the task.
        constants: The values of constants.
        lifetimes: Where the values of the task die.
        inputs: The names of the values from outside.
        cuts: The functions that the text is divided into; None for one function.
        read: Values that are read besides the inputs of the nodes and the outputs of the task.

    Attributes:
        scope: The globals of the generated text, by name.
    """

    def __init__(
        self,
        task: Task,
        graph: ClientGraph,
        constants: Mapping[Edge, Value],
        lifetimes: Lifetimes,
        inputs: Mapping[Edge, str],
        cuts: Cuts | None = None,
        read: Iterable[Edge] = (),
    ) -> None:
        # A form without a parameter `step` passes this global None to the kernels that take a step.
        self.scope: dict[str, object] = {"to_keep": to_keep, "overwritable": overwritable, "step": None, "DEAD": DEAD}
        self._task = task
        self._graph = graph
        self._constants = constants
        self._slots: Mapping[Edge, int] = {} if cuts is None else cuts.slots
        self._names: dict[Edge, str] = {**inputs, **{edge: f"s[{slot}]" for edge, slot in self._slots.items()}}
        self._guards: dict[Edge, Guard] = {}
        self._built_in: dict[Edge, str] = {}
        self._read = {edge for b in task.nodes for edge in b.reads}.union(task.outputs, read)
        for i, bound in enumerate(task.nodes):
            self.scope[f"k{i}"] = body_alone(bound.call)
            for port in range(len(bound.node.outputs)):
                edge = Edge(bound.node.name, port)
                # An output in the slot list of a divided task already has the name of its slot.
                self._names.setdefault(edge, f"v{i}" if port == 0 else f"v{i}_{port}")
                self._guards[edge] = bound.guard
        self._leaves = sent_away(task)
        self._taken: dict[int, str] = {}  # for each raised loop, the list of its arguments
        self._dies: list[Sequence[Edge]] = [life.dies for life in lifetimes.nodes]
        # From here on all names are known. The text of a call is the same in all forms, so it is made once.
        self._calls = [
            self._call(i, b, life) for i, (b, life) in enumerate(zip(task.nodes, lifetimes.nodes, strict=True))
        ]

    def name(self, edge: Edge) -> str:
        """Return the name of a value in the text."""
        if edge not in self._constants:
            return self._names[edge]
        if edge not in self._built_in:
            self._built_in[edge] = self._global("c", self._constants[edge])
        return self._built_in[edge]

    def guard(self, edge: Edge) -> Guard:
        """Return the predicates under which a value is computed."""
        return self._guards.get(edge, ())

    def lines(self, form: CodeVariant, start: int, stop: int, depth: int) -> Iterator[Line]:
        """Yield the lines of the nodes from `start` to `stop`, indented by `depth` levels."""
        block: Guard = ()
        turned: list[bool] = []  # for each open block, whether it is an `else`
        leftover: list[tuple[Edge, Guard]] = []  # dropped inside a block that may not run, so dropped again after it
        for i in range(start, stop):
            bound = self._task.nodes[i]
            yield from self._turn(block, bound.guard, turned, leftover, depth)
            block = bound.guard
            text, dies = self._calls[i], self._dies[i]
            if isinstance(bound, RaisedLoop):  # owns the values that die here, to free them as soon as it can
                entering = [e for e in dies if e.node != bound.node.name]
                dies = [e for e in dies if e.node == bound.node.name]
                text = f"{self._taken[i]}{self._drops(entering, bound, leftover)}; {text}"
            if bound.is_waited_for and form is not CodeVariant.FAST:
                text = f"work.begin_critical(); {text}; work.end_critical()"
            # Steering nodes are not in the user's graph, so a probe must not see them.
            if bound.node.op not in STEERING:
                names = [self._names[Edge(bound.node.name, p)] for p in range(len(bound.node.outputs))]
                text += _SUFFIX[form].format(index=i, outputs="".join(f"{n}," for n in names))
            # The drops follow the suffix, because a probe also reads outputs that nothing else reads.
            yield Line("    " * (depth + len(block)) + text + self._drops(dies, bound, leftover), i)
        kept = [self._names[edge] for edge, _ in leftover if edge in self._slots]  # other names die with the function
        if kept:
            yield Line("    " * depth + "".join(f"{name} = " for name in kept) + "None")

    def function(self, name: str, form: CodeVariant, nodes: range) -> list[Line]:
        """Return the lines of one function with these nodes, for a task that is divided into functions."""
        head = Line(f"def {name}({', '.join(('s', *self.parameters(form)))}):")
        return [head, *self.lines(form, nodes.start, nodes.stop, 1)]

    def shortcut(self, number: int, shortcut: Shortcut) -> list[Line]:
        """Return the lines of the call that replaces the nodes of a shortcut.

        `made` is None if the shortcut does not apply to these values, so that the nodes must be computed one by one.
        """
        self.scope[f"shortcut{number}"] = shortcut.call
        reads = set(shortcut.inputs)
        dead = dict.fromkeys(e for position in shortcut.nodes for e in self._dies[position] if e in reads)
        return [
            Line(f"    made = shortcut{number}({', '.join(map(self.name, shortcut.inputs))})"),
            Line("    if made is not None:"),
            Line(f"        {', '.join(map(self.name, shortcut.outputs))} = made"),
            # Dropped as the replaced nodes would have done.
            *([Line(f"        {''.join(f'{self._names[edge]} = ' for edge in dead)}None")] if dead else []),
            Line("        del made"),
            Line("    else:"),
        ]

    def parameters(self, form: CodeVariant) -> tuple[str, ...]:
        """Return the parameters that functions of this form have besides values."""
        sends = form in (CodeVariant.FAST, CodeVariant.BRIEF) and any(b.kernel.sends for b in self._task.nodes)
        return (*PARAMETERS[form], "step") if sends else PARAMETERS[form]

    def _turn(
        self, block: Guard, following: Guard, turned: list[bool], leftover: list[tuple[Edge, Guard]], depth: int
    ) -> Iterator[Line]:
        """Yield the lines between a block and the next one."""
        if block == following:
            return
        level = common_depth(block, following)
        other = level < min(len(block), len(following)) and block[level][0] == following[level][0]
        other = other and not turned[level]  # an `else` cannot have an `else`
        del turned[level:]
        if other:
            yield Line("    " * (depth + level) + "else:")
            level += 1
            turned.append(True)
        names = [self._names[edge] for edge, guard in leftover if len(guard) <= level]
        leftover[:] = [(edge, guard) for edge, guard in leftover if len(guard) > level]
        if names:
            yield Line("    " * (depth + level) + "".join(f"{name} = " for name in names) + "None")
        for predicate, side in following[level:]:
            yield Line("    " * (depth + level) + f"if {'' if side else 'not '}{self.name(predicate)}:")
            level += 1
            turned.append(False)

    def _drops(self, dies: Sequence[Edge], bound: BoundNode, leftover: list[tuple[Edge, Guard]]) -> str:
        # `del` needs a variable that is assigned on this path, so the value must have the predicates of the node. A
        # slot of the list cannot be deleted. In all other cases None is assigned.
        names: dict[bool, list[str]] = {True: [], False: []}
        for edge in dies:
            same = set(self.guard(edge)) == set(bound.guard)
            names[same and edge not in self._slots].append(self._names[edge])
            if not same and len(bound.guard) > len(self.guard(edge)):
                leftover.append((edge, self.guard(edge)))
        text = f"; del {', '.join(names[True])}" if names[True] else ""
        return text + ("; " + "".join(f"{name} = " for name in names[False]) + "None" if names[False] else "")

    # -- one node ----------------------------------------------------------------------------------------------------

    def _call(self, index: int, bound: BoundNode, life: NodeLife) -> str:
        if isinstance(bound, Choice):
            return self._choice(bound)
        arguments = [self._argument(a, life) for a in bound.arguments]
        if isinstance(bound, RaisedLoop):
            self._taken[index] = f"values = [{', '.join(arguments)}]"
            call = f"k{index}.take(values, step)"
        else:
            out = self._out(bound, life)
            # An operator expression cannot write its result into a given array.
            if out is None and bound.kernel.expression is not None:
                return self._assigned(bound, bound.kernel.expression.format(*arguments))
            if out is not None:
                arguments.append(f"out={out}")
            if bound.kernel.takes_step:
                arguments.append("step=step")
            call = f"k{index}({', '.join(arguments)})"
        return self._assigned(bound, call)

    def _assigned(self, bound: BoundNode, call: str) -> str:
        names = [self._names[Edge(bound.node.name, p)] for p in range(len(bound.node.outputs))]
        if not names:
            return call
        # With one output, the trailing comma of the target unpacks a tuple of one item.
        if bound.unpacks:
            return f"{', '.join(names)}, = {call}" if len(names) == 1 else f"{', '.join(names)} = {call}"
        return f"{names[0]} = {call}"

    def _choice(self, bound: Choice) -> str:
        """Return assignments with a conditional expression, which reads only the value of the live side."""
        names = [self.name(e) for e in bound.node.inputs]
        texts = [self._pick(names)]
        which = Edge(bound.node.name, 1)
        if which in self._read:
            indices = [self._global("c", index) for index in bound.indices]
            # The predicate, if there is one, stays in front; the indices take the place of the values.
            texts.append(self._pick([*names[: -len(indices)], *indices]))
        made = [self._names[Edge(bound.node.name, port)] for port in range(len(texts))]
        return "; ".join(f"{name} = {text}" for name, text in zip(made, texts, strict=True))

    @staticmethod
    def _pick(names: Sequence[str]) -> str:
        if len(names) == 1:
            return names[0]
        predicate, if_false, if_true = names
        return f"{if_true} if {predicate} else {if_false}"

    def _argument(self, argument: Argument, life: NodeLife) -> str:
        # One itemgetter keeps the text short: compiling it cannot be interrupted.
        if argument.is_sequence and len(argument.sources) > MANY_ITEMS and self._are_slots(argument, life):
            return f"{self._global('g', itemgetter(*(self._slots[e] for e in argument.sources)))}(s)"
        items = [self._item(edge, argument, life) for edge in argument.sources]
        return f"({''.join(f'{i},' for i in items)})" if argument.is_sequence else items[0]

    def _are_slots(self, argument: Argument, life: NodeLife) -> bool:
        """Return whether the kernel receives the items of the slot list unchanged."""
        return argument.convert is None and all(e in self._slots and e not in life.copies for e in argument.sources)

    def _item(self, edge: Edge, argument: Argument, life: NodeLife) -> str:
        if edge in self._constants:
            value = self._constants[edge]
            if argument.convert is not None:
                # Converted once, when the code is generated, instead of in every step.
                value = argument.convert(value)
            return self._global("c", value)
        text = self._names[edge]
        if argument.convert is not None:
            text = f"{self._converter(edge, argument)}({text})"
        return f"to_keep({text})" if edge in life.copies else text

    def _converter(self, edge: Edge, argument: Argument) -> str:
        # For a scalar the converter would only call this built-in, after a check of the shape.
        if self._graph.spec(edge).dims == () and argument.convert in (as_int, as_bool):
            return "int" if argument.convert is as_int else "bool"
        return self._global("h", argument.convert)

    def _out(self, bound: BoundNode, life: NodeLife) -> str | None:
        """Return the text of the `out=` argument of an elementwise kernel, or None for a new array."""
        reused = None if life.reuse is None else self._reused(bound, life)
        room = room_to_send(bound, self._leaves)
        return reused if room is None else f"{self._global('r', room)}({reused or ''})"

    def _reused(self, bound: BoundNode, life: NodeLife) -> str:
        if life.reuse is None:
            return "None"
        name = self._names[life.reuse]
        if not life.guarded:
            return name
        others = [self._item(e, a, life) for a in bound.arguments for e in a.sources if e != life.reuse]
        return f"overwritable({', '.join((name, *others))})"

    def _global(self, prefix: str, value: object) -> str:
        # The scope only grows, so its size makes the name unique.
        name = f"{prefix}_{len(self.scope)}"
        self.scope[name] = value
        return name


@lru_cache(maxsize=4096)
def _code(text: str, filename: str) -> CodeType:
    """Return the code of the function that `text` defines.

    The cache serves plans that are registered again after a lost connection, and workers with equal parts.
    """
    # The module's constants contain the code of its only function.
    return next(found for found in compile(text, filename, "exec").co_consts if isinstance(found, CodeType))


def compiled(
    main: Sequence[Line],
    what: str,
    scope: Mapping[str, object],
    nodes: Sequence[BoundNode] = (),
    parts: Mapping[str, Sequence[Sequence[Line]]] | None = None,
) -> KernelBody:
    """Return the function that `main` defines, which computes `nodes`.

    Args:
        main: The lines of the function.
        what: The name for tracebacks, as in "<aioflow NAME>".
        scope: The globals of the function.
        nodes: The nodes that the lines refer to by position.
        parts: The functions that `main` calls: for each name of a tuple of functions, the lines of each.
    """
    known = dict(scope)
    lines: list[Line] = []

    def function(text: Sequence[Line]) -> KernelBody:
        checkpoint()
        code = _code(text_of(text), f"<aioflow {what}>")
        code = code.replace(co_firstlineno=code.co_firstlineno + len(lines))  # unique over all functions
        lines.extend(text)
        return FunctionType(code, known)

    for group, texts in (parts or {}).items():
        known[group] = tuple(function(text) for text in texts)
    made = function(main)
    # All functions made here have `known` as their globals, so it may be completed after them.
    known[NODES_OF_LINES] = [None if line.node is None else nodes[line.node].node.name for line in lines]
    return made


def text_of(lines: Sequence[Line]) -> str:
    """Return the Python text of the lines."""
    return "\n".join(line.text for line in lines) + "\n"


def failed_node(error: BaseException, functions: Iterable[KernelBody], nodes: Sequence[BoundNode]) -> BoundNode | None:
    """Return the node whose line in one of the `compiled` functions raised `error`, or None if it is no node's line."""
    scopes = [function.__globals__ for function in functions]
    trace = error.__traceback__
    while trace is not None:
        # By identity: scopes hold arrays, so `==` of two scopes has no truth value.
        scope = trace.tb_frame.f_globals
        name = scope[NODES_OF_LINES][trace.tb_lineno - 1] if any(scope is known for known in scopes) else None
        if name is not None:
            return next(b for b in nodes if b.node.name == name)
        trace = trace.tb_next
    return None


def overwritable(target: Any, *others: Value) -> Value:
    """Return `target` if an elementwise result over it and `others` may be written into it, otherwise None.

    Also None for scalars and for arrays below 64 KiB.
    """
    shape = getattr(target, "shape", ())
    if not shape or target.nbytes < _LARGE:
        return None
    for other in others:
        other_shape = getattr(other, "shape", ())
        if other_shape != shape and not _broadcasts_to(other_shape, shape):
            return None
    return target


def _broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Return whether an array of `shape` broadcasts to `target` without enlarging it."""
    beyond = len(target) - len(shape)
    return beyond >= 0 and all(size in (1, wanted) for size, wanted in zip(shape, target[beyond:], strict=True))


def finish(dims: Dims, owned: bool) -> Callable[[Value], Value] | None:
    """Return the function that prepares a fetched value for the caller, or None if it needs no preparation.

    The caller may modify the value, so a value with another holder is copied. A 0-d array becomes a scalar.
    """
    # A value of unknown rank may turn out to be a 0-d array.
    if dims is None or dims == ():
        return _scalar if owned else _scalar_copy
    return None if owned else own


def _scalar(value: Value) -> Value:
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _scalar_copy(value: Value) -> Value:
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else own(value)
