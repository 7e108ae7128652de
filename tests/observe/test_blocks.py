"""Repeated blocks and the columns of pictures."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

import aioflow as af
from aioflow.observe.picture.blocks import Repeat, repeats
from aioflow.observe.picture.outline import Outline, outline
from aioflow.observe.picture.svg import as_svg

SVG = "{http://www.w3.org/2000/svg}"


def deep(blocks: int) -> tuple[af.Tensor, af.Tensor]:
    """Build a deep network without scopes: the same three nodes again and again, between different ones."""
    with af.Graph().as_default():
        x = af.placeholder("float32", [8], name="x")
        h = af.exp(x, name="first")
        for number in range(blocks):
            h = af.tanh(af.nn.relu(h, name=f"r{number}") + h, name=f"t{number}")
        return x, af.square(h, name="y")


def drawn(depth: int | None = None, opened: tuple[str, ...] = ()) -> Outline:
    x, y = deep(20)
    return outline(x.graph, [x], [y], depth, opened=opened)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("abcdef", []),
        ("xabababay", [Repeat(2, 2, 3)]),  # it ends where the stretch ends
        ("aaaaaaaaaa", [Repeat(0, 1, 10)]),
        ("abcabcxdedede", [Repeat(0, 3, 2), Repeat(7, 2, 3)]),
        ("ababab" * 2, [Repeat(0, 2, 6)]),  # not two blocks of three
    ],
)
def test_repetitions_are_found(text: str, found: list[Repeat]) -> None:
    assert repeats(text) == found


def test_repeated_blocks_are_one_box_that_opens() -> None:
    closed = drawn()
    assert [box.title for box in closed.boxes.values()] == ["Placeholder", "Exp", "20 × block", "Square"]
    (run,) = [box for box in closed.boxes.values() if box.role == "scope"]
    assert (run.nodes, run.ops["Tanh"]) == (60, 20)
    blocks = drawn(opened=(run.name,))
    assert [box.title for box in blocks.boxes.values()][2:4] == ["block 1 of 20", "block 2 of 20"]
    third = next(box.name for box in blocks.boxes.values() if box.title == "block 3 of 20")
    nodes = drawn(opened=(run.name, third))
    assert {"r2", "t2"} <= set(nodes.boxes)
    assert "r3" not in nodes.boxes


def test_chosen_depth_collapses_no_blocks() -> None:
    assert len(drawn(depth=0).boxes) == 63


def test_long_picture_has_columns_of_a_readable_shape() -> None:
    picture = ElementTree.fromstring(as_svg(drawn(depth=0), "deep"))
    width, height = (float(picture.attrib[name]) for name in ("width", "height"))
    assert 0.25 <= width / height <= 4
    boxes = [
        [float(group.findall(f"{SVG}rect")[-1].attrib[name]) for name in ("x", "y", "width", "height")]
        for group in picture.findall(f"{SVG}g")
    ]
    assert len(boxes) == 63
    for x, y, wide, high in boxes:
        assert 0 <= x <= x + wide <= width
        assert 0 <= y <= y + high <= height
        assert sum(a < x + wide and x < a + c and b < y + high and y < b + d for a, b, c, d in boxes) == 1, "itself"
    edges = picture.findall(f"{SVG}path")
    assert len(edges) == len(drawn(depth=0).edges)
    for edge in edges:
        points = re.findall(r"(-?[\d.]+),(-?[\d.]+)", edge.attrib["d"])
        for a, b in points:
            assert 0 <= float(a) <= width
            assert 0 <= float(b) <= height
        # An edge begins at a box and ends at one, in any column.
        for a, b in (points[0], points[-1]):
            assert any(
                x <= float(a) <= x + w and min(abs(float(b) - y), abs(float(b) - y - h)) < 0.2 for x, y, w, h in boxes
            )


def test_picture_has_dark_colors_unless_a_page_forbids_styles() -> None:
    assert "prefers-color-scheme:dark" in as_svg(drawn(), "deep")
    assert "<style" not in as_svg(drawn(), "deep", embedded=True)


def test_picture_marks_inputs_and_outputs_and_lists_the_nodes_of_closed_boxes(graph: af.Graph) -> None:
    x = af.placeholder("float32", [None, 2], name="x")
    with af.name_scope("layer"):
        h = af.nn.relu(af.matmul(x, af.ones([2, 2]), name="product"), name="relu")
    y = af.identity(h, name="y")
    found = outline(graph, [x], [y], 1)
    picture = ElementTree.fromstring(as_svg(found, "small", embedded=True))
    texts = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"input · x", "output · y", "+N: reads N constants and weights"} <= set(texts)
    labelled = as_svg(outline(graph, [x], [y], 1, outputs=[(y, "label")]), "small")
    assert "output · label" in labelled
    assert "output · y" not in labelled
    (scope,) = picture.iterfind(".//*[@data-scope]")
    assert scope.get("data-nodes") == "layer/product\nlayer/relu"
    assert "data-nodes" not in as_svg(found, "small")
