"""The estimated cost of a call of a model, from shapes alone: operations, memory, seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from aioflow.compiler.ir import ClientGraph, Node, OutputSpec
from aioflow.compiler.optimize.order_memory import peak_bytes
from aioflow.compiler.optimize.passes import chosen_passes
from aioflow.compiler.place.calibration import Calibration, find_calibration
from aioflow.compiler.prune import StepRequest, prune
from aioflow.config import SessionConfig
from aioflow.graph.boundary import BOUNDARY
from aioflow.graph.costs import MULTIPLYING_RATES, Operand, moved
from aioflow.graph.graph import Graph
from aioflow.graph.graphdef import GraphDef
from aioflow.graph.labelled import values_of
from aioflow.graph.opdef import traits_of
from aioflow.graph.shapes import Dims
from aioflow.graph.traits import Effect
from aioflow.interop.model import Model, Signature
from aioflow.ops.importer import import_graph_def
from aioflow.session.planner import cost_model

_CPU: Final = "CPU"


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated cost of one call.

    Attributes:
        shapes: Shapes of the inputs; an unknown size counts as 1.
        made: Shapes of the outputs that follow.
        flops: Floating-point operations: two for each multiply-add of a product or convolution, one for each element of
            any other result.
        moved_bytes: Bytes that the nodes read and write.
        peak_bytes: Peak memory of results, without weights.
        seconds: Sum of the nodes' times, by this machine's calibration or by the default one.
        is_calibrated: Whether `seconds` uses this machine's calibration.
        open_nodes: Number of nodes with results whose sizes are known only at run time; these sizes also count as 1.
        loops: Number of loops, nested ones included. One iteration of each is counted.
        made_tensors: Number of floating-point arrays that nodes compute from constants alone, and that act as weights.
            No file stores them, so no survey counts them.
        made_bytes: Total size of these arrays.
    """

    shapes: Mapping[str, Dims]
    made: Mapping[str, Dims]
    flops: float
    moved_bytes: int
    peak_bytes: int
    seconds: float
    is_calibrated: bool
    open_nodes: int
    loops: int
    made_tensors: int
    made_bytes: int


def estimated(model: Model, signature: Signature, shapes: Mapping[str, Dims]) -> Estimate:
    """Estimate a call with inputs of these shapes. A loop counts as one iteration, a branch as both of its sides.

    Raises:
        OpError: a node cannot have inputs of the shapes that follow from these. It may be a node of a branch that a
            call would not take.
    """
    request = _request(model.graph, signature, shapes)
    step, calibration = _optimized(request), find_calibration()
    costs = replace(cost_model(SessionConfig(), calibration), unknown_size=1)
    read = {(edge.node, edge.port) for node in step.nodes.values() for edge in node.inputs}
    flops = seconds = 0.0
    size = open_nodes = 0
    operands = {name: costs.operands(node) for name, node in step.nodes.items()}
    for name, node in step.nodes.items():
        inputs = [operands[edge.node][edge.port] for edge in node.inputs]
        open_nodes += any(
            (spec.dims is None or None in spec.dims) and (name, port) in read for port, spec in enumerate(node.outputs)
        )
        flops += _flops(node, inputs, operands[name])
        if not traits_of(node.op).cost.is_free:
            size += int(moved(node.attrs, inputs, operands[name]))
        seconds += costs.seconds(node, inputs, operands[name], _CPU)
    loops = {node.attrs["frame_name"] for node in step.nodes.values() if "frame_name" in node.attrs}
    made = [operands[name][0].size for name in _made(step)]
    return Estimate(
        shapes,
        {name: tensor.dims for name, tensor in zip(signature.outputs, request.fetches, strict=True)},
        flops,
        size,
        peak_bytes(step, 1),
        seconds,
        calibration != Calibration(),
        open_nodes,
        len(loops),
        len(made),
        sum(made),
    )


def node_flops(model: Model, signature: Signature, shapes: Mapping[str, Dims]) -> dict[str, float]:
    """Return the floating-point operations of each node of a call with inputs of these shapes.

    They are counted as in `Estimate`.

    Raises:
        OpError: as in `estimated`.
    """
    step = _optimized(_request(model.graph, signature, shapes))
    costs = replace(cost_model(SessionConfig(), find_calibration()), unknown_size=1)
    operands = {name: costs.operands(node) for name, node in step.nodes.items()}
    return {
        name: _flops(node, [operands[edge.node][edge.port] for edge in node.inputs], operands[name])
        for name, node in step.nodes.items()
    }


def _made(step: ClientGraph) -> set[str]:
    """Return the nodes that compute weights: floating-point arrays from constants alone, with non-constant readers."""
    fixed: set[str] = set()
    found: set[str] = set()
    for name, node in step.nodes.items():
        before = set(node.predecessors())
        if traits_of(node.op).effect is Effect.NONE and node.op not in BOUNDARY and before <= fixed:
            fixed.add(name)
            continue
        for source in before & fixed:
            owner = step.nodes[source]
            # A view or an identity shares the memory of its source, which is the array to count.
            while owner.inputs and (shared := traits_of(owner.op).origin(0)) is not None:
                owner = step.nodes[owner.inputs[shared].node]
            if owner.inputs and owner.outputs and _is_weight(owner.outputs[0]):
                found.add(owner.name)
    return found


def _is_weight(spec: OutputSpec) -> bool:
    return spec.dtype.is_floating and bool(spec.dims) and prod(size or 0 for size in spec.dims or ()) > 1


def _flops(node: Node, inputs: list[Operand], outputs: list[Operand]) -> float:
    traits = traits_of(node.op)
    cost = traits.cost
    if cost.is_free or not traits.is_numeric:
        return 0.0
    if cost.rate in MULTIPLYING_RATES:
        return 2.0 * cost.work(node.attrs, inputs, outputs)
    computes = cost.rate != "movement" and cost.work(node.attrs, inputs, outputs) > 0
    return float(sum(operand.elements for operand in (inputs if cost.rate == "reduction" else outputs))) * computes


def _request(graph: Graph, signature: Signature, shapes: Mapping[str, Dims]) -> StepRequest:
    """Return the step, from the graph itself, or from a copy of it in which the inputs have these shapes."""
    changed = {t.op.name: shapes[name] for name, t in signature.inputs.items() if shapes[name] != t.dims}
    feeds = list(signature.inputs.values())
    fetches = [values_of(each) for each in signature.outputs.values()]
    # The shape of a placeholder is an attribute of its node, so other shapes need a copy of the graph.
    if changed:
        definition = graph.as_graph_def()
        nodes = [
            replace(node, attrs={**node.attrs, "shape": changed[node.name]}) if node.name in changed else node
            for node in definition.nodes
        ]
        graph = Graph()
        with graph.as_default():
            import_graph_def(GraphDef(tuple(nodes), definition.version, definition.functions), name="")
        feeds, fetches = ([graph.get_tensor_by_name(t.name) for t in tensors] for tensors in (feeds, fetches))
    return StepRequest(tuple(feeds), tuple(fetches))


def _optimized(request: StepRequest) -> ClientGraph:
    graph = prune(request)
    for optimization in chosen_passes(True):
        graph = optimization.run(graph, _never)
    return graph


def _never(*_: object) -> None:
    """Fold no constants, since folding needs a device."""
    return None
