"""`aioflow explain`: the placement of the nodes of a model of any format, and the predicted timeline of the step."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from statistics import median
from time import perf_counter
from typing import Final

# The whole package, since importing it registers the ops and the portable kernels.
import aioflow as af
from aioflow.cli.arguments import Commands, add_computing, add_imports, computing, file, output_file, stored_file
from aioflow.cli.backends import load_backends
from aioflow.cli.delegation import as_lines, delegation_of
from aioflow.cli.model_inputs import add_shape, opened_model, sized
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
from aioflow.formats.stores import is_url
from aioflow.graph.arrays import blank
from aioflow.graph.boundary import BOUNDARY
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.labelled import values_of
from aioflow.graph.opdef import traits_of
from aioflow.graph.shapes import Dims
from aioflow.interop.model import Model
from aioflow.memory.values import Array
from aioflow.runtime.device_list import list_devices
from aioflow.runtime.folding import fold
from aioflow.saved.opening import GRAPH, kind_of, open_graph
from aioflow.session.planner import cost_model

_TASK: Final = "/job:localhost/replica:0/task:0"
_TRACED: Final = 3
_TIMED: Final = 7
_MOST_DEVICES: Final = 1024  # of one type
_NAMED: Final = 4  # devices that an error names


@dataclass(frozen=True, slots=True)
class _Step:
    """The step to explain.

    Attributes:
        model: The model.
        request: The feeds and fetches.
        shapes: Shapes of feeds from the command line.
        has_values: False for a graph definition, which has no values of its variables.
    """

    model: Model
    request: StepRequest
    shapes: Mapping[af.Tensor, Dims]
    has_values: bool


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "explain",
        help="show the placement of a model's nodes and the predicted step",
        description="Show the placement of a model's nodes and the predicted step. The model is an ONNX file, a "
        "SavedModel, a graph definition, or a folder of aioflow.saved.",
    )
    parser.add_argument(
        "model",
        type=stored_file,
        metavar="MODEL",
        help="path of a model file or folder, or its URL in a store; the format is detected",
    )
    parser.add_argument(
        "--fetch",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="tensors (x:0) and operations (x) to fetch, instead of the outputs of a signature",
    )
    parser.add_argument(
        "--signature", metavar="NAME", help="signature to call; default: serving_default, or the only signature"
    )
    add_shape(parser)
    parser.add_argument(
        "--device-count",
        nargs="+",
        type=_count,
        default=[("CPU", 1)],
        metavar="TYPE=N",
        help="number of devices of each type (CPU=1)",
    )
    parser.add_argument("--target", metavar="aioflow://HOST:PORT", help="use the devices of this server's cluster")
    parser.add_argument(
        "--strategy",
        choices=["auto", *STRATEGIES],
        default="auto",
        help="how devices are chosen for nodes that request none; auto: the better of greedy and heft, or first if a "
        "split gains little (auto)",
    )
    parser.add_argument(
        "--soft", action="store_true", help="place nodes elsewhere if their requested device cannot run them"
    )
    parser.add_argument("--unoptimized", action="store_true", help="skip graph optimizations")
    _add_times(parser)
    add_computing(parser, default=None)
    add_imports(parser)
    parser.add_argument("--svg", type=output_file, metavar="FILE", help="draw the predicted timeline")
    parser.set_defaults(run=_run)


def _add_times(parser: argparse.ArgumentParser) -> None:
    """Add the options for the times that a prediction is made from."""
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
        help="run the step with zeros for feeds (and, without --target, for the variables of a graph definition), and "
        "use its times",
    )


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
    if arguments.unoptimized and arguments.fold_batch_norm:
        raise InvalidArgumentError(
            "--fold-batch-norm is an optimization", expected="it, or --unoptimized", actual="both of them"
        )
    config = replace(
        computing(arguments),
        device_count=counts,
        placement=arguments.strategy,
        allow_soft_placement=arguments.soft,
    )
    if arguments.unoptimized:
        config = replace(config, optimizations=False)
    step = _opened(arguments)
    found = _explain(arguments, step, config)
    if arguments.svg is not None:
        picture = found.to_svg(f"{PurePath(arguments.model).name}: predicted step")
        with file_errors(arguments.svg):
            arguments.svg.write_text(picture, encoding="utf-8")
    print(replace(found, is_optimized=not arguments.unoptimized))
    if arguments.target is None and config.delegate is not None:
        fetches = [*step.request.fetches, *step.request.targets]
        for line in as_lines(delegation_of(step.model.graph, fetches, step.request.feeds, config)):
            print(line.removeprefix("  "))
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


def _explain(arguments: argparse.Namespace, step: _Step, config: af.SessionConfig) -> Explanation:
    if arguments.target is None:
        # Devices need not exist here to be explained.
        devices = tuple(f"{_TASK}/device:{kind}:{i}" for kind, n in config.device_count.items() for i in range(n))
    else:
        devices = run(_devices_at(arguments.target))
    cluster = ClusterView(devices, allow_soft_placement=arguments.soft)
    given: Path | None = arguments.calibration
    costs = cost_model(config, find_calibration() if given is None else read_calibration(given))
    if arguments.target is None:
        _check_jobs(step)
    graph = _optimized(step.request, config)
    if not arguments.measure:
        return explain(graph, cluster, costs, arguments.strategy)
    seconds = run(_measure(step, arguments.target or "", config, costs))
    return replace(explain(graph, cluster, costs, arguments.strategy), measured_seconds=seconds)


async def _devices_at(target: str) -> tuple[str, ...]:
    """Return the devices of the cluster that a server belongs to."""
    async with af.Session(target, graph=af.Graph()) as session:
        return tuple(session.list_devices())


def _opened(arguments: argparse.Namespace) -> _Step:
    model, has_values = _model(arguments)
    shapes: dict[af.Tensor, Dims] = {}
    fed: list[af.Tensor] = []
    tensors: list[af.Tensor] = []
    targets: list[af.Operation] = []
    for name in arguments.fetch:
        element = model.graph.as_graph_element(name)
        if isinstance(element, af.Tensor):
            tensors.append(element)
        else:
            targets.append(element)
    if arguments.shape or not arguments.fetch:
        signature = model.signature(arguments.signature)
        sizes = sized(signature, arguments.shape)
        shapes = {tensor: sizes[name] for name, tensor in signature.inputs.items()}
        if not arguments.fetch:
            fed = list(signature.inputs.values())
            tensors = [values_of(tensor) for tensor in signature.outputs.values()]
    # A first pruning without feeds finds the placeholders that the step needs.
    unfed = prune(StepRequest((), tuple(tensors), tuple(targets)))
    placeholders = [name for name, node in unfed.nodes.items() if traits_of(node.op).must_be_fed]
    # All of them are fed with zeros in a measured run.
    fed += [model.graph.get_operation_by_name(name).outputs[0] for name in placeholders]
    return _Step(model, StepRequest(tuple(dict.fromkeys(fed)), tuple(tensors), tuple(targets)), shapes, has_values)


def _model(arguments: argparse.Namespace) -> tuple[Model, bool]:
    """Return the model, and whether it has the values of its variables."""
    path = arguments.model
    if is_url(path):
        try:
            return open_graph(path), False
        except NotFoundError:  # a folder
            return opened_model(arguments), True
    return opened_model(arguments), kind_of(path) is not GRAPH


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


def _optimized(request: StepRequest, config: af.SessionConfig) -> ClientGraph:
    graph = prune(request)
    for optimization in chosen_passes(config.optimizations):
        graph = optimization.run(graph, fold)
    return graph


async def _measure(step: _Step, target: str, config: af.SessionConfig, costs: CostModel) -> float:
    """Return the median seconds of a step fed with zeros. Record the times of its nodes in `costs`."""
    size = costs.unknown_size
    feeds: Mapping[af.Tensor, Array] = {
        tensor: _zeros(tensor.name, step.shapes.get(tensor, tensor.dims), tensor.dtype, size)
        for tensor in step.request.feeds
    }
    fetches = [*step.request.fetches, *step.request.targets]
    taken = []
    # The prediction is that of kernels: without an engine, every node has a time.
    async with af.Session(target, graph=step.model.graph, config=replace(config, delegate=None)) as session:
        await _prepare(session, step, target, size)
        for _ in range(_TRACED):
            metadata = af.RunMetadata()
            options = af.RunOptions(trace_level=af.TraceLevel.FULL)
            await session.run(fetches, feeds, options=options, run_metadata=metadata)
            # Traced steps give the times of nodes; tracing costs time, so untraced steps are timed separately.
            observe_step(costs, metadata.step_stats)
    async with af.Session(target, graph=step.model.graph, config=config) as session:
        await _prepare(session, step, target, size)
        await session.run(fetches, feeds)
        await session.prepared()
        for _ in range(_TIMED):
            started = perf_counter()
            await session.run(fetches, feeds)
            taken.append(perf_counter() - started)
    return median(taken)


async def _prepare(session: af.Session, step: _Step, target: str, unknown_size: int) -> None:
    """Give the variables their values. Not those of a cluster, whose own values would be lost."""
    if target:
        return
    if step.has_values:
        await step.model.initialize(session)
    else:
        await session.run(_initialized(step.model.graph, step.request, unknown_size))


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
