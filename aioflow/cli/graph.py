"""`aioflow graph`: a picture of a model of any format, with collapsed scopes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Final

# The whole package, since importing it registers the ops and the portable kernels.
import aioflow as af
from aioflow.cli import tables
from aioflow.cli.arguments import Commands, add_computing, add_imports, computing, count, output_file, stored_file
from aioflow.cli.model_inputs import add_shape, opened_model
from aioflow.cli.progress import progress
from aioflow.errors import DTypeError, InvalidArgumentError, NotFoundError
from aioflow.formats.files import file_errors
from aioflow.graph.labelled import values_of
from aioflow.interop.model import Model, Signature
from aioflow.observe.picture.outline import Outline, outline
from aioflow.observe.picture.plans import PlannedGraph
from aioflow.observe.picture.svg import as_svg
from aioflow.observe.picture.texts import as_dot, as_json

_FORMS: Final[Mapping[str, Callable[[Outline, str], str]]] = {".svg": as_svg, ".dot": as_dot, ".json": as_json}
_MOST_BOXES: Final = 4000  # a larger picture takes minutes and is unreadable


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "graph",
        help="draw the graph of a model",
        description="Draw the graph of a model: an ONNX file, a SavedModel, a graph definition, or a folder of "
        "aioflow.saved. Weights, and nodes that depend only on weights, are counted with the nodes that "
        "read them. Options choose the file's graph, or the nodes that run.",
    )
    parser.add_argument(
        "model", type=stored_file, metavar="MODEL", help="path of a model file or folder; the format is detected"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=_picture,
        required=True,
        metavar="FILE",
        help=f"output file, with the suffix {' or '.join(_FORMS)}",
    )
    parser.add_argument(
        "--as",
        dest="form",
        choices=["loaded", "run"],
        default="loaded",
        help="the graph of the file, or the nodes that run, after optimization (loaded)",
    )
    parser.add_argument("--depth", type=count, metavar="N", help="number of scope levels to open; 0: all")
    parser.add_argument(
        "--open",
        nargs="+",
        action="extend",
        default=[],
        dest="opened",
        metavar="NAME",
        help="scopes and repeated blocks to open at any depth",
    )
    parser.add_argument(
        "--fetch",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="draw only the nodes that these tensors or operations need",
    )
    parser.add_argument("--signature", metavar="NAME", help="draw only the nodes that this signature needs")
    parser.add_argument("--all", action="store_true", help="draw all nodes, including those that no signature needs")
    add_shape(parser)
    add_computing(parser, "; only with --as run", default=None)
    add_imports(parser)
    parser.set_defaults(run=_run)


def _picture(text: str) -> Path:
    path = output_file(text)
    if path.suffix not in _FORMS:
        raise argparse.ArgumentTypeError(f"{text!r} has an unknown suffix; expected one of {', '.join(_FORMS)}")
    return path


def _run(arguments: argparse.Namespace) -> int:
    with progress(f"loading {arguments.model}"):
        model = opened_model(arguments)
    inputs = [tensor for signature in _signatures(model, arguments) for tensor in signature.inputs.values()]
    fetches = list(dict.fromkeys(_fetches(model, arguments)))
    named = {values_of(t): name for each in _signatures(model, arguments) for name, t in each.outputs.items()}
    depth, opened = arguments.depth, arguments.opened
    if arguments.form == "run":
        with af.Session(graph=model.graph, config=computing(arguments)) as session:
            running = PlannedGraph(session.plan(fetches, inputs), inputs)
        tensors = [fetch for fetch in fetches if isinstance(fetch, af.Tensor)]
        places = {tensor: index for index, tensor in enumerate(tensors)}
        outputs = {running.fetches[places[tensor]]: name for tensor, name in named.items() if tensor in places}
        fetched = list(running.fetches.values())
        found = outline(running, running.inputs, fetched, depth, opened=opened, outputs=outputs.items())
        counted, total = "that run, after optimization", len(running.get_operations())
    else:
        found = outline(model.graph, inputs, fetches, depth, opened=opened, outputs=named.items())
        counted, total = "of the loaded graph", len(model.graph.get_operations())
    if len(found.boxes) > _MOST_BOXES:
        raise InvalidArgumentError(
            f"the picture would have {len(found.boxes):,} boxes", expected="--depth, or --fetch", actual=found.depth
        )
    path: Path = arguments.output
    picture = _FORMS[path.suffix](found, PurePath(arguments.model).name)
    with file_errors(path):
        path.write_text(picture, encoding="utf-8")
    nodes = f"{sum(box.nodes for box in found.boxes.values()):,} of {tables.plural(total, 'node')} {counted},"
    boxes, edges = tables.plural(len(found.boxes), "box", "boxes"), tables.plural(len(found.edges), "edge")
    print(f"{nodes} in {boxes}, {edges}, scopes opened to depth {found.depth}: written to {path}")
    return 0


def _fetches(model: Model, arguments: argparse.Namespace) -> Sequence[af.Tensor | af.Operation]:
    if arguments.form == "run" and arguments.all:
        raise InvalidArgumentError("a step runs the nodes that a call needs", expected="--as loaded", actual="--all")
    if arguments.fetch:
        return [_element(model.graph, name) for name in arguments.fetch]
    if arguments.all:
        return []
    signatures = _signatures(model, arguments)
    outputs = [values_of(tensor) for signature in signatures for tensor in signature.outputs.values()]
    fed = {tensor.op for signature in signatures for tensor in signature.inputs.values()}
    # Operations come after their inputs, except for the back edges of loops, so one pass suffices.
    for op in model.graph.get_operations():
        # `fed` has all operations that depend on an input.
        if any(tensor.op in fed for tensor in op.inputs):
            fed.add(op)
    # Outputs that depend on no input are left out, unless there are no others.
    return [tensor for tensor in outputs if tensor.op in fed] or outputs


def _signatures(model: Model, arguments: argparse.Namespace) -> Sequence[Signature]:
    return [model.signature(arguments.signature)] if arguments.signature else list(model.signatures.values())


def _element(graph: af.Graph, name: str) -> af.Tensor | af.Operation:
    try:
        found = graph.as_graph_element(name)
    except (KeyError, ValueError, DTypeError) as error:
        raise NotFoundError(f"no such node: {name}", expected="a name such as y, or y:0", actual=str(error)) from error
    if not isinstance(found, af.Tensor | af.Operation):
        raise NotFoundError(f"no such node: {name}", expected="a name such as y, or y:0", actual=repr(found))
    return found
