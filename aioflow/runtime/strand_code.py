"""The generated code of one strand.

It is one function, or several if the strand is long or if some of its nodes become one call (`shortcuts`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from aioflow.compiler.ir import ClientGraph, Edge
from aioflow.memory.values import Value
from aioflow.runtime.bind import BoundNode
from aioflow.runtime.codegen import CodeVariant, Line, NodeWriter, compiled, failed_node, text_of
from aioflow.runtime.frames import DEAD
from aioflow.runtime.functions import Cuts, cut, takes_long
from aioflow.runtime.liveness import Lifetimes, analyse
from aioflow.runtime.shortcuts import Shortcut, shortcuts
from aioflow.runtime.tasks import Task

_SOME: Final = 256  # values that are freed at once


class StrandCode:
    """The generated code of one strand; each form is compiled when it is first needed.

    A form is a function of the values of `task.inputs`, in order, followed by `NodeWriter.parameters` of the form. It
    returns the values of `task.outputs` as a tuple. An output whose predicates did not hold is DEAD.

    Attributes:
        task: The task.
        sends: Whether a value is sent to another device.
        is_long: Whether compiling it takes longer than an event loop may be blocked.
    """

    def __init__(self, task: Task, graph: ClientGraph, constants: Mapping[Edge, Value], fed: frozenset[Edge]) -> None:
        self.task = task
        self.sends = any(b.kernel.sends for b in task.nodes)
        self._lifetimes: Lifetimes = analyse(task, graph, fed)
        self._shortcuts = shortcuts(task, constants)
        self._cuts = cut(task, *_sections(task, self._shortcuts))
        self.is_long = takes_long(task)
        self._writer = NodeWriter(
            task, graph, constants, self._lifetimes, {e: f"a{i}" for i, e in enumerate(task.inputs)}, self._cuts
        )
        self._compiled: dict[CodeVariant, Callable[..., tuple[Value, ...]]] = {}

    @property
    def owned(self) -> frozenset[Edge]:
        """The outputs without another holder."""
        return self._lifetimes.owned

    def function(self, form: CodeVariant) -> Callable[..., tuple[Value, ...]]:
        """Return the compiled function of a form."""
        found = self._compiled.get(form)
        if found is None:
            main, parts = self._main(form), {f"parts{i}": lines for i, lines in enumerate(self._parts(form))}
            found = compiled(main, f"strand {form.value}", self._writer.scope, self.task.nodes, parts)
            self._compiled[form] = found
        return found

    def source(self, form: CodeVariant) -> str:
        """Return the Python text of a form."""
        parts = [lines for section in self._parts(form) for lines in section]
        return "\n".join(text_of(lines) for lines in (*parts, self._main(form)))

    def failed_node(self, error: BaseException) -> BoundNode | None:
        """Return the node whose generated line raised `error`, or None if it is no node's line."""
        return failed_node(error, self._compiled.values(), self.task.nodes)

    def _parts(self, form: CodeVariant) -> list[list[list[Line]]]:
        """Return the functions of each section."""
        sections = () if self._cuts is None else self._cuts.sections
        return [[self._writer.function("part", form, piece) for piece in pieces] for pieces in sections]

    def _main(self, form: CodeVariant) -> list[Line]:
        writer, task = self._writer, self.task
        parameters = writer.parameters(form)
        if self._cuts is not None:
            # A shortcut replaces several nodes by one call, and a probe has to see each of them.
            return self._main_of_parts(parameters, self._cuts, {} if form is CodeVariant.PROBED else self._by_start())
        lines = [Line(f"def strand({', '.join((*(writer.name(e) for e in task.inputs), *parameters))}):")]
        # Outputs under predicates stay DEAD unless their branch assigns them.
        maybe_dead = [writer.name(e) for e in task.outputs if writer.guard(e)]
        if maybe_dead:
            lines.append(Line(f"    {''.join(f'{name} = ' for name in maybe_dead)}DEAD"))
        lines += writer.lines(form, 0, len(task.nodes), 1)
        lines.append(Line(f"    return ({''.join(f'{writer.name(e)},' for e in task.outputs)})"))
        return lines

    def _by_start(self) -> dict[int, Shortcut]:
        return {shortcut.nodes.start: shortcut for shortcut in self._shortcuts}

    def _main_of_parts(self, parameters: Sequence[str], cuts: Cuts, by_start: Mapping[int, Shortcut]) -> list[Line]:
        """Return the lines of the main function of a divided strand. Its size does not depend on the number of values.

        Args:
            parameters: The parameters besides values.
            cuts: The functions.
            by_start: The shortcuts to use, by the position of their first node.
        """
        writer, task = self._writer, self.task
        blank: list[Value] = [DEAD if writer.guard(e) else None for e in task.outputs]
        blank += [None] * (len(cuts.slots) - len(task.inputs) - len(blank))
        writer.scope["blank"] = blank
        # The remaining values are freed in batches: other threads cannot run while thousands of values are freed.
        writer.scope["ends"] = [*range(len(cuts.slots) - _SOME, len(task.outputs), -_SOME), len(task.outputs)]
        lines = [Line("def strand(*given):")]
        if parameters:
            lines.append(Line(f"    *given, {', '.join(parameters)} = given"))
        return [
            *lines,
            # Without `del`, the tuple would keep all inputs alive until the end.
            Line("    s = [*blank, *given]; del given"),
            *(
                line
                for i, pieces in enumerate(cuts.sections)
                for line in self._section(i, pieces, parameters, by_start)
            ),
            Line("    for end in ends:"),
            Line("        del s[end:]"),
            Line("    return tuple(s)"),
        ]

    def _section(
        self, number: int, pieces: Sequence[range], parameters: Sequence[str], by_start: Mapping[int, Shortcut]
    ) -> Iterator[Line]:
        """Yield the lines that call the functions of a section, or its shortcut instead."""
        shortcut = by_start.get(pieces[0].start)
        indent = "    "
        if shortcut is not None:
            yield from self._writer.shortcut(number, shortcut)
            indent *= 2
        yield Line(f"{indent}for part in parts{number}:")
        yield Line(f"{indent}    part({', '.join(('s', *parameters))})")


def _sections(task: Task, found: Sequence[Shortcut]) -> tuple[list[range], list[Edge], bool]:
    """Return the arguments of `cut` after the task."""
    count = len(task.nodes)
    bounds = sorted({0, count, *(bound for each in found for bound in (each.nodes.start, each.nodes.stop))})
    shared = [edge for each in found for edge in (*each.inputs, *each.outputs)]
    return [range(*pair) for pair in pairwise(bounds)] or [range(count)], shared, bool(found)
