"""`aioflow explain`: the placement of the nodes of a saved graph, and the predicted timeline of the step."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from statistics import median
from time import perf_counter
from typing import Final

# The whole package, since importing it registers the ops and the portable kernels.
import aioflow as af
from aioflow.cli.arguments import Commands, add_imports, file, output_file, stored_file
from aioflow.cli.backends import load_backends
from aioflow.cli.program import run
from aioflow.compiler.ir import ClientGraph
from aioflow.compiler.optimize.passes import chosen_passes
from aioflow.compiler.place.calibration import DEFAULT_SPEEDS, find_calibration, read_calibration
from aioflow.compiler.place.cluster import ClusterView
from aioflow.compiler.place.cost_model import CostModel, observe_step
from aioflow.compiler.place.report import Explanation, explain
from aioflow.compiler.place.strategies import STRATEGIES
from aioflow.compiler.prune import StepRequest, prune
from aioflow.errors import InvalidArgumentError, NotFoundError
from aioflow.formats.files import file_errors
from aioflow.graph.arrays import blank
from aioflow.graph.boundary import BOUNDARY
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.opdef import traits_of
from aioflow.memory.values import Array
from aioflow.runtime.device_list import list_devices
from aioflow.session.planner import cost_model
from aioflow.train.graph_io import read_graph

_TASK: Final = "/job:localhost/replica:0/task:0"
_TRACED: Final = 3
_TIMED: Final = 7
_MOST_DEVICES: Final = 1024  # of one type
_NAMED: Final = 4  # devices that an error names


@dataclass(frozen=True, slots=True)
class _Step:
    """The step to explain: a graph with its feeds and fetches."""

    graph: af.Graph
    request: StepRequest


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser("explain", help="show the placement of a saved graph's nodes and the predicted step")
    parser.add_argument(
        "graph", type=stored_file, help="file written by aioflow.train.write_graph, or its URL in a store"
    )
    parser.add_argument(
        "--fetch",
        nargs="+",
        action="extend",
        required=True,
        metavar="NAME",
        help="tensors (x:0) and operations (x) to fetch",
    )
    parser.add_argument(
        "--device-count",
        nargs="+",
        type=_count,
        default=[("CPU", 1)],
        metavar="TYPE=N",
        help="number of devices of each type (CPU=1)",
    )
    parser.add_argument("--target", metavar="aioflow://HOST:PORT", help="use the devices of this server's cluster")
    parser.add_argument("--strategy", choices=["auto", *STRATEGIES], default="auto")
    parser.add_argument(
        "--soft", action="store_true", help="place nodes elsewhere if their requested device cannot run them"
    )
    parser.add_argument("--unoptimized", action="store_true", help="skip graph optimizations")
    parser.add_argument(
        "--calibration",
        type=file,
        metavar="FILE",
        help="calibration file to use instead of that of `aioflow calibrate`",
    )
    parser.add_argument(
        "--run",
        action="store_true",
        dest="measure",
        help="run the step with zeros for feeds (and for variables, without --target), and use its times",
    )
    add_imports(parser)
    parser.add_argument("--svg", type=output_file, metavar="FILE", help="draw the predicted timeline")
    parser.set_defaults(run=_run)


def _count(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    # `float` compares numbers of any length; `int` refuses texts of more than 4300 digits.
    if not name.isalpha() or not number.isdecimal() or not 0 < float(number) <= _MOST_DEVICES:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form CPU=4, with at most {_MOST_DEVICES}")
    return name.upper(), int(number)


def _run(arguments: argparse.Namespace) -> int:
    # A device type that this machine lacks is allowed if default speeds for it are known.
    known = {backend.device_type for backend in load_backends()} | set(DEFAULT_SPEEDS)
    counts = dict(arguments.device_count)
    for kind in counts:
        if kind not in known:
            raise NotFoundError(f"no such backend: {kind}")
    if arguments.measure and arguments.target is None:
        _find_devices(counts)
    found = _explain(arguments)
    if arguments.svg is not None:
        picture = found.to_svg(f"{PurePath(arguments.graph).name}: predicted step")
        with file_errors(arguments.svg):
            arguments.svg.write_text(picture, encoding="utf-8")
    print(found)
    return 0


def _find_devices(counts: Mapping[str, int]) -> None:
    """Raise NotFoundError if this machine does not have the devices for a measured run."""
    present = Counter(device.device_type for device in list_devices(af.SessionConfig(device_count=counts)))
    for kind, number in counts.items():
        if present[kind] < number:
            raise NotFoundError(
                "this machine has too few devices for a run",
                expected=f"{kind}={number}",
                actual=f"{kind}={present[kind]}",
            )


def _explain(arguments: argparse.Namespace) -> Explanation:
    counts = dict(arguments.device_count)
    if arguments.target is None:
        # Devices need not exist here to be explained.
        devices = tuple(f"{_TASK}/device:{kind}:{i}" for kind, count in counts.items() for i in range(count))
    else:
        devices = run(_devices_at(arguments.target))
    cluster = ClusterView(devices, allow_soft_placement=arguments.soft)
    config = af.SessionConfig(
        device_count=counts,
        placement=arguments.strategy,
        allow_soft_placement=arguments.soft,
        optimizations=not arguments.unoptimized,
    )
    given: Path | None = arguments.calibration
    costs = cost_model(config, find_calibration() if given is None else read_calibration(given))
    step = _read(arguments.graph, arguments.fetch)
    if arguments.target is None:
        _check_jobs(step)
    graph = _optimized(step.request, not arguments.unoptimized)
    if not arguments.measure:
        return explain(graph, cluster, costs, arguments.strategy)
    seconds = run(_measure(step, arguments.target or "", config, costs))
    return replace(explain(graph, cluster, costs, arguments.strategy), measured_seconds=seconds)


async def _devices_at(target: str) -> tuple[str, ...]:
    """Return the devices of the cluster that a server belongs to."""
    async with af.Session(target, graph=af.Graph()) as session:
        return tuple(session.list_devices())


def _read(path: str, names: Sequence[str]) -> _Step:
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
    # A first pruning without feeds finds the placeholders that the step needs.
    unfed = prune(StepRequest((), tuple(tensors), tuple(targets)))
    placeholders = [name for name, node in unfed.nodes.items() if traits_of(node.op).must_be_fed]
    # All of them are fed with zeros in a measured run.
    feeds = tuple(graph.get_operation_by_name(name).outputs[0] for name in placeholders)
    return _Step(graph, StepRequest(feeds, tuple(tensors), tuple(targets)))


def _check_jobs(step: _Step) -> None:
    """Raise InvalidArgumentError if a node requests a job, since without a cluster there are no jobs."""
    own = DeviceSpec.from_string(_TASK)
    asked: dict[str, str] = {}  # one node for each requested device
    for name, node in prune(step.request).nodes.items():
        spec = DeviceSpec.from_string(node.device)
        if node.op not in BOUNDARY and not DeviceSpec(spec.job, spec.replica, spec.task).matches(own):
            asked.setdefault(node.device, name)
    if asked:
        some = ", ".join(f"{device} (node {name!r})" for device, name in list(asked.items())[:_NAMED])
        raise InvalidArgumentError(
            f"nodes request {some}, but without --target there is no cluster",
            expected="--target aioflow://HOST:PORT, a running server of the cluster",
            actual="no --target",
        )


def _optimized(request: StepRequest, optimize: bool) -> ClientGraph:
    graph = prune(request)
    for optimization in chosen_passes(optimize):
        graph = optimization.run(graph, _never)
    return graph


def _never(*_: object) -> None:
    """Fold no constants, since folding needs a device."""
    return None


async def _measure(step: _Step, target: str, config: af.SessionConfig, costs: CostModel) -> float:
    """Return the median seconds of a step fed with zeros. Record the times of its nodes in `costs`."""
    size = costs.unknown_size
    feeds: Mapping[af.Tensor, Array] = {
        tensor: _zeros(tensor.name, tensor.dims, tensor.dtype, size) for tensor in step.request.feeds
    }
    fetches = [*step.request.fetches, *step.request.targets]
    taken = []
    async with af.Session(target, graph=step.graph, config=config) as session:
        if not target:
            # Not with a target: the assignments would overwrite the values of the cluster.
            await session.run(_initialized(step.graph, step.request, size))
        for _ in range(_TRACED):
            metadata = af.RunMetadata()
            options = af.RunOptions(trace_level=af.TraceLevel.FULL)
            await session.run(fetches, feeds, options=options, run_metadata=metadata)
            # Traced steps give the times of nodes; tracing costs time, so untraced steps are timed separately.
            observe_step(costs, metadata.step_stats)
        for _ in range(_TIMED):
            started = perf_counter()
            await session.run(fetches, feeds)
            taken.append(perf_counter() - started)
    return median(taken)


def _initialized(graph: af.Graph, request: StepRequest, unknown_size: int) -> list[af.Operation]:
    """Add assignments of zeros to the step's variables: a saved graph does not tell which nodes initialize them."""
    made = []
    with graph.as_default():
        for name in [name for name, node in prune(request).nodes.items() if traits_of(node.op).is_variable]:
            handle = graph.get_operation_by_name(name)
            zeros = _zeros(name, handle.attrs["shape"], handle.attrs["dtype"], unknown_size)
            made.append(af.raw_ops.AssignVariableOp(resource=handle.outputs[0], value=zeros))
    return made


def _zeros(name: str, dims: Iterable[int | None] | None, dtype: af.DType, unknown_size: int) -> Array:
    if dims is None:
        raise InvalidArgumentError(
            f"cannot feed zeros for {name}: its rank is unknown", expected="a rank", actual="unknown"
        )
    shape = [unknown_size if size is None else size for size in dims]
    return blank(shape, dtype.np_dtype)
