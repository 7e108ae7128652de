"""`aioflow inspect`: signatures, ops and weights of a model of any format, its unsupported ops, and estimated costs.

The exit status is 0 if the model can be run, 1 if it has ops that cannot be imported, and 2 if it cannot be read.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import traceback
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

# The whole package, since importing it registers the ops and the portable kernels.
import aioflow  # noqa: F401  # imported for its effect
from aioflow.cli import tables
from aioflow.cli.arguments import Commands, add_computing, add_imports, computing, stored_file
from aioflow.cli.delegation import as_document, as_lines, delegation_of
from aioflow.cli.devices import readable_size
from aioflow.cli.estimates import Estimate, estimated
from aioflow.cli.model_inputs import add_shape, opened_model, sized
from aioflow.cli.progress import progress
from aioflow.compiler.delegate import Delegation
from aioflow.compiler.place.timeline_svg import time_text
from aioflow.errors import OpError
from aioflow.graph.graph import Tensor
from aioflow.graph.labelled import labels_of
from aioflow.interop.model import Model
from aioflow.interop.unsupported import UnsupportedError, UnsupportedOp
from aioflow.saved.opening import kind_of
from aioflow.saved.surveys import Survey, survey

_NODES: Final = 5  # named nodes for each unsupported op
_TENSORS: Final = 20  # shown tensors of a weights file without a graph


@dataclasses.dataclass(frozen=True, slots=True)
class _Found:
    """All findings about a model."""

    path: str
    survey: Survey
    model: Model | None
    unsupported: Sequence[UnsupportedOp]
    estimates: Mapping[str, Estimate | OpError]
    delegations: Mapping[str, Delegation | OpError]


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "inspect",
        help="show the contents of a model, its unsupported ops, and the estimated cost of a call",
        description="Show the signatures, ops and weights of a model, its ops that cannot be imported, and the "
        "estimated cost of a call. The exit status is 1 if there are such ops.",
    )
    parser.add_argument(
        "model", type=stored_file, metavar="MODEL", help="path of a model file or folder; the format is detected"
    )
    add_shape(parser)
    add_computing(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    add_imports(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    try:
        found = _found(arguments)
    except (OpError, OSError):
        if arguments.debug:
            traceback.print_exc(file=sys.stderr)
        raise
    if arguments.json:
        print(json.dumps(_document(found), indent=2))
    else:
        for line in _report(found):
            print(line)
    return 1 if found.unsupported else 0


def _found(arguments: argparse.Namespace) -> _Found:
    path, kind = arguments.model, kind_of(arguments.model)
    surveyed = survey(path, kind)
    # Weights alone have no graph to import.
    if not kind.open:
        return _Found(path, surveyed, None, surveyed.unsupported, {}, {})
    # The import would fail with the same list.
    if surveyed.unsupported:
        return _Found(path, surveyed, None, surveyed.unsupported, {}, {})
    try:
        with progress(f"loading {path}"):
            model = opened_model(arguments)
    # Only the import finds unsupported attributes and dtypes.
    except UnsupportedError as error:
        return _Found(path, surveyed, None, error.unsupported, {}, {})
    estimates: dict[str, Estimate | OpError] = {}
    for name, signature in model.signatures.items():
        # With several signatures, a shape counts for those that have the input; with one, `sized` reports an unknown
        # name.
        wanted = [
            (key, sizes) for key, sizes in arguments.shape if len(model.signatures) == 1 or key in signature.inputs
        ]
        shapes = sized(signature, wanted)
        try:
            estimates[name] = estimated(model, signature, shapes)
        except OpError as error:  # the other findings are still shown
            estimates[name] = error
    delegations = {
        name: delegation_of(model.graph, dict(each.outputs), list(each.all_inputs.values()), computing(arguments))
        for name, each in model.signatures.items()
    }
    return _Found(path, surveyed, model, (), estimates, delegations)


# ── as text ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _report(found: _Found) -> Iterator[str]:
    surveyed = found.survey
    versions = ", ".join(f"{what} {version}" for what, version in surveyed.versions.items())
    facts = [surveyed.kind.name, versions, f"by {surveyed.producer}" if surveyed.producer else ""]
    yield f"{found.path}: {'; '.join(fact for fact in facts if fact)}"
    yield from _sizes(surveyed)
    if found.model is not None:
        for name in found.model.signatures:
            yield ""
            yield from _call(found, name)
    if surveyed.ops:
        yield ""
        yield "ops"
        yield from tables.packed([(op, f"{count:,}") for op, count in _by_count(surveyed.ops)])
    if found.unsupported:
        yield ""
        yield from _missing(found.unsupported)
    elif not surveyed.kind.open:
        yield ""
        yield from _tensors(surveyed)


def _sizes(surveyed: Survey) -> Iterator[str]:
    if surveyed.ops:
        nodes = tables.plural(sum(surveyed.ops.values()), "node")
        yield f"  {nodes} of {tables.plural(len(surveyed.ops), 'op')} in the file"
    count, size = _weights(surveyed)
    if surveyed.parameters:
        tensors = tables.plural(len(surveyed.parameters), "tensor")
        yield f"  {tables.plural(count, 'parameter')} in {tensors}, {readable_size(size)}"


def _weights(surveyed: Survey) -> tuple[int, int]:
    """Return the number of parameters and their total bytes."""
    count = 0
    for parameter in surveyed.parameters:
        elements = 1
        for size in parameter.shape:
            # Python integers, because a damaged file may state sizes whose product overflows int64.
            elements *= size
        count += elements
    return count, sum(parameter.size for parameter in surveyed.parameters)


def _call(found: _Found, name: str) -> Iterator[str]:
    model, estimate = found.model, found.estimates[name]
    if model is None:
        return
    signature = model.signatures[name]
    yield f"signature {name}{f', {signature.method}' if signature.method else ''}"
    coming, made = ({key: t.dims for key, t in each.items()} for each in (signature.inputs, signature.outputs))
    if isinstance(estimate, Estimate):
        # The estimate has inferred shapes, which state more than those of the file.
        coming, made = dict(estimate.shapes), dict(estimate.made)
    table = [("in", key, t.dtype.name, tables.shape_text(coming[key])) for key, t in signature.inputs.items()]
    table += [("opt", key, t.dtype.name, tables.shape_text(t.dims)) for key, t in signature.optional.items()]
    table += [("out", key, t.dtype.name, tables.shape_text(made[key])) for key, t in signature.outputs.items()]
    yield from tables.rows(table)
    yield from _costs(estimate) if isinstance(estimate, Estimate) else _no_costs(estimate)
    yield from as_lines(found.delegations[name])


def _no_costs(error: OpError) -> Iterator[str]:
    yield f"  no estimate for these sizes: {error.message}"
    if error.node is not None:
        yield f"  at {error.node}"


def _costs(estimate: Estimate) -> Iterator[str]:
    work = f"{tables.decimal(estimate.flops, 'FLOP')}, " if estimate.flops else ""
    yield f"  about {work}{time_text(estimate.seconds)} on one CPU device"
    if not estimate.is_calibrated:
        yield "  based on rates of another machine; run `aioflow calibrate` to measure this one"
    results = f"{readable_size(estimate.peak_bytes)} of results at once"
    yield f"  {results}, {readable_size(estimate.moved_bytes)} read and written, weights included"
    if estimate.loops:
        yield f"  with one iteration of {'the loop' if estimate.loops == 1 else f'each of {estimate.loops} loops'}"
    if estimate.made_tensors:
        tensors = tables.plural(estimate.made_tensors, "tensor")
        yield f"  besides the parameters, nodes create {tensors} of constants, {readable_size(estimate.made_bytes)}"
    if any(dims is None or None in dims for dims in estimate.shapes.values()):
        yield "  with size 1 for each open dimension; set them with --shape NAME=SIZES"
    elif estimate.open_nodes:
        yield f"  and more for {tables.plural(estimate.open_nodes, 'node')} whose sizes are known only at run time"


def _by_count(ops: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(ops.items(), key=lambda item: (-item[1], item[0]))


def _missing(unsupported: Sequence[UnsupportedOp]) -> Iterator[str]:
    groups: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for each in unsupported:
        groups[each.op, each.why].append(each.node)
    ops = len({op for op, _ in groups})
    yield f"unsupported: {tables.plural(ops, 'op')} in {tables.plural(len(unsupported), 'node')}"
    table = []
    for (op, why), nodes in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        more = f", and {len(nodes) - _NODES:,} more" if len(nodes) > _NODES else ""
        table.append((op, f"{len(nodes):,}", why, f"at {', '.join(nodes[:_NODES])}{more}"))
    yield from tables.rows(table, right=[1])


def _tensors(surveyed: Survey) -> Iterator[str]:
    largest = sorted(surveyed.parameters, key=lambda parameter: -parameter.size)
    yield "tensors" if len(largest) <= _TENSORS else f"the {_TENSORS} largest tensors"
    table = [(p.name, p.dtype, tables.shape_text(p.shape), readable_size(p.size)) for p in largest[:_TENSORS]]
    yield from tables.rows(table, right=[3])


# ── as JSON ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _document(found: _Found) -> dict[str, object]:
    surveyed = found.survey
    count, size = _weights(surveyed)
    signatures = {} if found.model is None else found.model.signatures
    return {
        "path": found.path,
        "format": surveyed.kind.name,
        "producer": surveyed.producer,
        "versions": dict(surveyed.versions),
        "signatures": {
            name: {
                "method": signature.method,
                "inputs": [_tensor(key, tensor) for key, tensor in signature.inputs.items()],
                "optional_inputs": [_tensor(key, tensor) for key, tensor in signature.optional.items()],
                "outputs": [_tensor(key, tensor) for key, tensor in signature.outputs.items()],
                "estimate": _estimate(found.estimates[name]),
                "delegation": as_document(found.delegations[name]),
            }
            for name, signature in signatures.items()
        },
        "ops": dict(_by_count(surveyed.ops)),
        "unsupported": [dataclasses.asdict(each) for each in found.unsupported],
        "parameters": {
            "count": count,
            "bytes": size,
            "tensors": [dataclasses.asdict(parameter) for parameter in surveyed.parameters],
        },
    }


def _estimate(estimate: Estimate | OpError) -> dict[str, object]:
    return dataclasses.asdict(estimate) if isinstance(estimate, Estimate) else {"error": estimate.message}


def _tensor(name: str, tensor: Tensor) -> dict[str, object]:
    dims = tensor.dims
    labels = labels_of(tensor)
    found: dict[str, object] = {
        "name": name,
        "tensor": tensor.name,
        "dtype": tensor.dtype.name,
        "shape": None if dims is None else list(dims),
    }
    return found | ({"labels": list(labels)} if labels else {})
