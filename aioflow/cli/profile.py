"""`aioflow profile`: the time of a model by op and by node, from some traced steps."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

# The whole package, since importing it registers the ops and the portable kernels.
import aioflow as af
from aioflow.cli import program, tables
from aioflow.cli.arguments import Commands, add_computing, add_imports, computing, output_file, positive, stored_file
from aioflow.cli.estimates import node_flops
from aioflow.cli.model_inputs import add_inputs, all_inputs, opened_model
from aioflow.cli.progress import progress
from aioflow.compiler.delegate import Delegation
from aioflow.compiler.place.timeline_svg import time_text
from aioflow.errors import OpError
from aioflow.formats.files import file_errors
from aioflow.graph.boundary import BOUNDARY
from aioflow.graph.graph import Tensor
from aioflow.interop.model import Model, Signature
from aioflow.memory.values import Value
from aioflow.observe import chrome_trace
from aioflow.ops.delegated import DELEGATED
from aioflow.runtime.stats import NodeStats, RunMetadata

_STEPS: Final = 10
_WARM: Final = 3  # steps before, not counted: the first ones compile, and measure which strands run inline
_SLOWEST: Final = 20


@dataclasses.dataclass(slots=True)
class _Row:
    """The cost of one op, or of one node.

    Attributes:
        name: Name of the op or node.
        op: Name of the op.
        count: Executions per step.
        seconds: Seconds per step.
        share: Share of the total time of all nodes.
        flops: Floating-point operations per step; 0 if unknown.
    """

    name: str
    op: str
    count: float = 0.0
    seconds: float = 0.0
    share: float = 0.0
    flops: float = 0.0


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "profile",
        help="show the time that each op of a model takes",
        description="Run a few steps of a model of any format, time every node, and show the slowest ops and nodes. "
        "Rates are computed from the shapes.",
    )
    parser.add_argument(
        "model", type=stored_file, metavar="MODEL", help="path of a model file or folder; the format is detected"
    )
    add_inputs(parser)
    parser.add_argument(
        "--steps", type=positive, default=_STEPS, metavar="N", help=f"number of traced steps ({_STEPS})"
    )
    parser.add_argument(
        "--trace",
        type=output_file,
        metavar="FILE.json",
        help="write a trace of the last step for Perfetto and chrome://tracing",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    add_computing(parser)
    add_imports(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    return program.run(_profile(arguments))


async def _profile(arguments: argparse.Namespace) -> int:
    with progress(f"loading {arguments.model}"):
        model = opened_model(arguments)
    signature = model.signature(arguments.signature)
    values = all_inputs(signature, arguments)
    feeds = {signature.all_inputs[name]: value for name, value in values.items()}
    traced, seconds, found = await _traced(model, signature, feeds, arguments.steps, computing(arguments))
    flops = _flops(model, signature, values)
    nodes = [node for step in traced for device in step.step_stats for node in device.nodes]
    nodes, flops = _with_parts(nodes, flops, found)
    by_op, by_node = (_rows(nodes, flops, len(traced), key) for key in (lambda n: n.op, lambda n: n.node))
    if arguments.trace is not None:
        with file_errors(arguments.trace):
            arguments.trace.write_text(
                json.dumps(chrome_trace(traced[-1], model.graph), ensure_ascii=False), encoding="utf-8"
            )
    if arguments.json:
        print(json.dumps(_document(arguments, seconds, by_op, by_node), indent=2))
        return 0
    for line in _report(model, seconds, by_op, by_node, found.engine if found.parts else None):
        print(line)
    if arguments.trace is not None:
        print(f"\nthe last step: written to {arguments.trace}")
    return 0


async def _traced(
    model: Model, signature: Signature, feeds: Mapping[Tensor, Value], steps: int, config: af.SessionConfig
) -> tuple[list[RunMetadata], list[float], Delegation]:
    """Return the records of the steps, the seconds of each, and the nodes that an engine computes."""
    fetches, options = dict(signature.outputs), af.RunOptions(trace_level=af.RunOptions.FULL_TRACE)
    found, seconds = [], []
    async with af.Session(graph=model.graph, config=config) as session:
        await model.initialize(session)
        with progress("steps", _WARM + steps) as shown:
            for number in range(_WARM + steps):
                # An engine prepares its parts in the background; the counted steps must use them.
                if number == _WARM:
                    await session.prepared()
                metadata = RunMetadata()
                started = perf_counter()
                await session.run(fetches, feeds, options=options, run_metadata=metadata)
                if number >= _WARM:
                    seconds.append(perf_counter() - started)
                    found.append(metadata)
                shown.advance()
        return found, seconds, session.delegation(fetches, list(feeds))


def _flops(model: Model, signature: Signature, values: Mapping[str, Value]) -> Mapping[str, float]:
    shapes = {name: getattr(value, "shape", ()) for name, value in values.items()}
    try:
        return node_flops(model, signature, shapes)
    except OpError:  # some shapes are known only at run time; show times without rates
        return {}


def _with_parts(
    nodes: Sequence[NodeStats], flops: Mapping[str, float], found: Delegation
) -> tuple[list[NodeStats], Mapping[str, float]]:
    """Return the nodes and their flops, with each delegated part named after its engine and its nodes."""
    parts = {name: part for part in found.parts for name in part}
    shown, work = [], dict(flops)
    for node in nodes:
        part = parts.get(node.node) if node.op == DELEGATED else None
        if part is not None:
            # The node's own name keeps parts with the same first node apart.
            name = f"{tables.plural(len(part), 'node')}, {part[0]} … {node.node}"
            work[name] = sum(flops.get(each, 0.0) for each in part)
            node = dataclasses.replace(node, op=str(found.engine), node=name)
        shown.append(node)
    return shown, work


def _rows(
    nodes: Sequence[NodeStats], flops: Mapping[str, float], steps: int, key: Callable[[NodeStats], str]
) -> list[_Row]:
    """Sum up the nodes by `key`, slowest first."""
    found: dict[str, _Row] = {}
    # 1 avoids a division by 0 if no node has a duration.
    total = sum(node.duration for node in nodes if node.op not in BOUNDARY) or 1.0
    for node in nodes:
        # Feeds and fetches are no work of the model.
        if node.op in BOUNDARY:
            continue
        row = found.setdefault(key(node), _Row(key(node), node.op))
        # All steps are in `nodes`, so each counts as its share of one step.
        row.count += 1 / steps
        row.seconds += node.duration / steps
        row.share += node.duration / total
        row.flops += flops.get(node.node, 0.0) / steps
    return sorted(found.values(), key=lambda row: (-row.seconds, row.name))


# ── output ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _report(
    model: Model, seconds: Sequence[float], by_op: Sequence[_Row], by_node: Sequence[_Row], engine: str | None
) -> Iterator[str]:
    yield model.source
    busy, middle = sum(row.seconds for row in by_op), median(seconds)
    steps = tables.plural(len(seconds), "traced step")
    yield f"{steps}: median {time_text(middle)}, of which nodes take {time_text(busy)}"
    yield ""
    yield from tables.rows([("op", *_HEADS), *((row.name, *_cells(row)) for row in by_op)], right=range(1, 6))
    yield ""
    some = by_node[:_SLOWEST]
    yield f"the {len(some)} slowest of {tables.plural(len(by_node), 'node')}"
    table = [(*_HEADS, "op", "node"), *((*_cells(row), row.op, row.name) for row in some)]
    yield from tables.rows(table, right=range(5))
    if engine is not None:
        yield f"\n{engine} computes its nodes as one; use --delegate none to time each node"


_HEADS: Final = ("count", "total", "mean", "share", "GFLOP/s")


def _cells(row: _Row) -> tuple[str, ...]:
    # 10⁹ operations per second.
    rate = f"{row.flops / row.seconds / 1e9:,.2f}" if row.flops and row.seconds else ""
    mean = row.seconds / row.count
    return f"{row.count:,.6g}", time_text(row.seconds), time_text(mean), f"{row.share:.1%}", rate


def _document(
    arguments: argparse.Namespace, seconds: Sequence[float], by_op: Sequence[_Row], by_node: Sequence[_Row]
) -> dict[str, object]:
    trace: Path | None = arguments.trace
    return {
        "path": arguments.model,
        "steps": len(seconds),
        "seconds": list(seconds),
        "trace": None if trace is None else str(trace),
        "ops": [{key: value for key, value in dataclasses.asdict(row).items() if key != "name"} for row in by_op],
        "nodes": [dataclasses.asdict(row) for row in by_node],
    }
