"""Outlines as text for other programs: the Graphviz language and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

from aioflow.observe.picture.outline import Outline
from aioflow.observe.picture.svg import colours

_SHAPES = {"input": "ellipse", "output": "ellipse", "scope": "box3d", "node": "box"}


def as_dot(outline: Outline, title: str) -> str:
    """Return the outline as input for `dot` and the other Graphviz programs."""
    return "\n".join(_dot(outline, title)) + "\n"


def _dot(outline: Outline, title: str) -> Iterator[str]:
    fills = colours(outline)
    yield f"digraph {_quoted(title)} {{"
    yield f"  label={_quoted(title)}; labelloc=t; rankdir=TB;"
    yield '  node [fontname="Helvetica", fontsize=11, style=filled, fillcolor=white];'
    for name, box in outline.boxes.items():
        lines = [box.title, f"{box.nodes} nodes" if box.role == "scope" else box.name]
        lines += [f"output {name}" for name in box.outputs]
        lines += [box.output] if box.output else []
        fill = f", fillcolor={_quoted(fills[box.device])}" if box.device in fills else ""
        label = "\n".join(lines)
        yield f"  {_quoted(name)} [label={_quoted(label)}, shape={_SHAPES[box.role]}{fill}];"
    for (source, target), tensors in outline.edges.items():
        style = "" if tensors else " [style=dashed]"
        yield f"  {_quoted(source)} -> {_quoted(target)}{style};"
    yield "}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def as_json(outline: Outline, title: str) -> str:
    """Return the boxes and edges that are drawn, as JSON."""
    boxes = [
        {
            "name": box.name,
            "title": box.title,
            "role": box.role,
            "outputs": list(box.outputs),
            "nodes": box.nodes,
            "ops": dict(box.ops.most_common()),
            "weights": box.weights,
            "output": box.output,
            "device": box.device,
        }
        for box in outline.boxes.values()
    ]
    edges = [
        {
            "from": outline.boxes[source].name,
            "to": outline.boxes[target].name,
            "tensors": [tensor.name for tensor in tensors],
        }
        for (source, target), tensors in outline.edges.items()
    ]
    return json.dumps({"title": title, "depth": outline.depth, "boxes": boxes, "edges": edges}, indent=2) + "\n"
