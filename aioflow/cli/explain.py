"""`aioflow explain`: where the nodes of a saved graph would run, and the step that is predicted for that."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

import numpy as np

# The whole package: that is what registers the ops and the portable kernels.
import aioflow as af
from aioflow.cli.backends import load_backends
from aioflow.compiler.ir import ClientGraph
from aioflow.compiler.optimize.passes import chosen_passes
from aioflow.compiler.place.calibration import find_calibration
from aioflow.compiler.place.cluster import ClusterView
from aioflow.compiler.place.cost_model import CostModel, observe_step
from aioflow.compiler.place.report import Explanation, explain
from aioflow.compiler.place.strategies import STRATEGIES
from aioflow.compiler.prune import StepRequest, prune
from aioflow.errors import InvalidArgumentError, OpError
from aioflow.kernels.checkpoint_format import file_errors
from aioflow.planner import cost_model
from aioflow.train.graph_io import read_graph

__all__ = ["add_parser"]

_TASK: Final = "/job:localhost/replica:0/task:0"
_TRACED: Final = 3
_TIMED: Final = 7


@dataclass(frozen=True, slots=True)
class _Step:
    """What is explained: a graph with what is fed and fetched."""

    graph: af.Graph
    request: StepRequest


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "explain", help="show where the nodes of a saved graph would run, and the step that is predicted"
    )
    parser.add_argument("graph", type=Path, help="a file of aioflow.train.write_graph")
    parser.add_argument("--fetch", nargs="+", required=True, metavar="NAME", help="tensors (x:0) and operations (x)")
    parser.add_argument(
        "--device-count", nargs="+", type=_count, default=[("CPU", 1)], metavar="TYPE=N", help="default: CPU=1"
    )
    parser.add_argument("--strategy", choices=["auto", *STRATEGIES], default="auto")
    parser.add_argument("--soft", action="store_true", help="place elsewhere what cannot be where it asks to be")
    parser.add_argument("--unoptimized", action="store_true", help="the graph as it is, without optimizations")
    parser.add_argument("--calibration", type=Path, metavar="FILE", help="instead of the one of `aioflow calibrate`")
    parser.add_argument("--run", action="store_true", dest="measure", help="run it, fed with zeros, and use its times")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the predicted timeline")
    parser.set_defaults(run=_run)


def _count(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not name.isalpha() or not number.isdecimal() or not int(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form CPU=4")
    return name.upper(), int(number)


def _run(arguments: argparse.Namespace) -> int:
    load_backends()
    try:
        found = _explain(arguments)
        if arguments.svg is not None:
            with file_errors(arguments.svg):
                arguments.svg.write_text(found.to_svg(f"{arguments.graph.name}: predicted step"), encoding="utf-8")
    except OpError as error:
        print(error, file=sys.stderr)
        return 1
    print(found)
    return 0


def _explain(arguments: argparse.Namespace) -> Explanation:
    counts = dict(arguments.device_count)
    devices = tuple(f"{_TASK}/device:{kind}:{i}" for kind, count in counts.items() for i in range(count))
    cluster = ClusterView(devices, allow_soft_placement=arguments.soft)
    config = af.SessionConfig(
        device_count=counts,
        placement=arguments.strategy,
        allow_soft_placement=arguments.soft,
        optimizations=not arguments.unoptimized,
    )
    costs = cost_model(config, find_calibration(arguments.calibration))
    step = _read(arguments.graph, arguments.fetch)
    graph = _optimized(step.request, not arguments.unoptimized)
    if not arguments.measure:
        return explain(graph, cluster, costs, arguments.strategy)
    seconds = asyncio.run(_measure(step, config, costs))
    return replace(explain(graph, cluster, costs, arguments.strategy), measured_seconds=seconds)


def _read(path: Path, names: Sequence[str]) -> _Step:
    definition = read_graph(path)
    graph = af.Graph()
    with graph.as_default():
        af.import_graph_def(definition, name="")
    tensors: list[af.Tensor] = []
    targets: list[af.Operation] = []
    for name in names:
        element = graph.as_graph_element(name)
        if isinstance(element, af.Tensor):
            tensors.append(element)
        else:
            targets.append(element)
    unfed = prune(StepRequest((), tuple(tensors), tuple(targets)))
    placeholders = [name for name, node in unfed.nodes.items() if node.op == "Placeholder"]
    feeds = tuple(graph.get_operation_by_name(name).outputs[0] for name in placeholders)
    return _Step(graph, StepRequest(feeds, tuple(tensors), tuple(targets)))


def _optimized(request: StepRequest, optimize: bool) -> ClientGraph:
    graph = prune(request)
    for optimization in chosen_passes(optimize):
        graph = optimization.run(graph, _never)
    return graph


def _never(*_: object) -> None:
    """Fold no constants: that takes a device."""
    return None


async def _measure(step: _Step, config: af.SessionConfig, costs: CostModel) -> float:
    """Median seconds of a step fed with zeros. The times of its nodes go into `costs`."""
    feeds: Mapping[Any, Any] = {tensor: _zeros(tensor, costs.unknown_size) for tensor in step.request.feeds}
    fetches = [*step.request.fetches, *step.request.targets]
    taken = []
    async with af.Session(graph=step.graph, config=config) as session:
        for _ in range(_TRACED):
            metadata = af.RunMetadata()
            options = af.RunOptions(trace_level=af.TraceLevel.FULL)
            await session.run(fetches, feeds, options=options, run_metadata=metadata)
            observe_step(costs, metadata.step_stats)
        for _ in range(_TIMED):
            started = perf_counter()
            await session.run(fetches, feeds)
            taken.append(perf_counter() - started)
    return median(taken)


def _zeros(tensor: af.Tensor, unknown_size: int) -> Any:
    if tensor.dims is None:
        raise InvalidArgumentError(
            f"{tensor.name} has no static rank, so there are no zeros for it", expected="a rank", actual="unknown"
        )
    shape = [unknown_size if size is None else size for size in tensor.dims]
    return np.zeros(shape, tensor.dtype.np_dtype) if tensor.dtype.name != "string" else np.full(shape, b"", object)
