"""Pictures of graphs: the boxes of the outline and their layout."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

import aioflow as af
from aioflow.observe.picture.layers import _crossings, _monotone, _Near, laid_out
from aioflow.observe.picture.outline import Outline, outline


def names(found: Outline) -> dict[str, str]:
    """Return the title of each box by its name."""
    return {box.name: box.title for box in found.boxes.values()}


def edges(found: Outline) -> set[tuple[str, str]]:
    return {(found.boxes[source].name, found.boxes[target].name) for source, target in found.edges}


# -- outline ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def layers(graph: af.Graph) -> tuple[af.Tensor, af.Tensor]:
    """Build x → two layers with weights in scopes of two levels → y."""
    x = h = af.placeholder("float32", [None, 4], name="x")
    for i in range(2):
        with af.name_scope(f"layer{i}"):
            w = af.Variable(af.ones([4, 4]), name="w")
            h = af.matmul(h, w * 2.0, name="product")
            with af.name_scope("activation"):
                h = af.nn.relu(h + 1.0, name="relu")
    return x, af.identity(h, name="y")


def test_outline_opens_single_scopes(layers: tuple[af.Tensor, af.Tensor]) -> None:
    x, y = layers
    ends = {"x", "y"}
    assert set(names(outline(x.graph, [x], [y], 1, opened=["layer1"]))) == {
        *ends, "layer0", "layer1/product", "layer1/activation"
    }  # fmt: skip
    both = ["layer1", "layer1/activation", "no"]
    found = set(names(outline(x.graph, [x], [y], 1, opened=both)))
    assert found == {*ends, "layer0", "layer1/product", "layer1/activation/add", "layer1/activation/relu"}
    closed_above = outline(x.graph, [x], [y], 1, opened=["layer1/activation"])
    assert set(names(closed_above)) == {*ends, "layer0", "layer1"}


def test_scope_has_the_device_of_its_placed_nodes(layers: tuple[af.Tensor, af.Tensor]) -> None:
    x, y = layers
    found = outline(x.graph, [x], [y], 1, {"layer0/product": "/CPU:0", "layer1/product": "/CPU:0"})
    assert [box.device for box in found.boxes.values()] == ["", "/CPU:0", "/CPU:0", ""]


def test_weights_are_counted_at_their_readers(layers: tuple[af.Tensor, af.Tensor]) -> None:
    x, y = layers
    found = outline(x.graph, [x], [y], depth=0)
    assert names(found) == {
        "x": "Placeholder",
        **{f"layer{i}/product": "MatMul" for i in range(2)},
        **{f"layer{i}/activation/add": "AddV2" for i in range(2)},
        **{f"layer{i}/activation/relu": "Relu" for i in range(2)},
        "y": "Identity",
    }
    assert {box.name: box.weights for box in found.boxes.values() if box.weights} == {
        "layer0/product": 2, "layer1/product": 2, "layer0/activation/add": 1, "layer1/activation/add": 1,
    }  # fmt: skip
    assert next(box.output for box in found.boxes.values() if box.name == "y") == "float32 [?, 4]"
    assert [box.role for box in found.boxes.values()] == ["input", *["node"] * 6, "output"]


def test_scopes_are_collapsed_below_the_depth(layers: tuple[af.Tensor, af.Tensor]) -> None:
    x, y = layers
    one, two = (outline(x.graph, [x], [y], depth=depth) for depth in (1, 2))
    assert set(names(one)) == {"x", "layer0", "layer1", "y"}
    assert edges(one) == {("x", "layer0"), ("layer0", "layer1"), ("layer1", "y")}
    assert one.boxes["layer0/"].ops == {"MatMul": 1, "AddV2": 1, "Relu": 1}
    assert {name for name in names(two) if "activation" in name} == {"layer0/activation", "layer1/activation"}
    assert outline(x.graph, [x], [y]).depth == 3, "all of it can be read"


def test_outline_omits_nodes_not_needed_for_fetches(layers: tuple[af.Tensor, af.Tensor]) -> None:
    x, _ = layers
    found = outline(x.graph, [x], [x.graph.get_tensor_by_name("layer0/product:0")], depth=1)
    assert set(names(found)) == {"x", "layer0/product"}


def test_graph_without_inputs_shows_its_sources(graph: af.Graph) -> None:
    numbers = af.random_uniform([3], name="numbers")
    found = outline(graph, [], [af.add(numbers, 1.0, name="y")], depth=1)
    assert "y" in names(found)
    assert any("numbers" in name for name in names(found))


def test_control_dependency_is_an_edge_without_tensors(graph: af.Graph) -> None:
    x = af.placeholder("float32", [], name="x")
    before = af.identity(x, name="before")
    with af.control_dependencies([before]):
        y = af.negative(x, name="y")
    found = outline(graph, [x], [y])
    assert {key: [t.name for t in tensors] for key, tensors in found.edges.items()} == {
        ("x", "before"): ["x:0"],
        ("x", "y"): ["x:0"],
        ("before", "y"): [],
    }


# -- layout -----------------------------------------------------------------------------------------------------------

GRAPHS = st.integers(1, 24).flatmap(
    lambda count: st.tuples(
        st.lists(st.floats(10, 200), min_size=count, max_size=count),
        st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda e: e[0] != e[1])),
    )
)


@given(GRAPHS)
def test_boxes_do_not_overlap_and_edges_go_down(given: tuple[list[float], set[tuple[int, int]]]) -> None:
    sizes, pairs = given
    widths = {f"n{i}": width for i, width in enumerate(sizes)}
    arrows = sorted((f"n{a}", f"n{b}") for a, b in pairs)
    found = laid_out(widths, arrows, 5.0)
    assert found.places.keys() == widths.keys()
    for (a, left), (b, right) in combinations(found.places.items(), 2):
        if left.layer == right.layer:
            assert abs(left.x - right.x) >= (widths[a] + widths[b]) / 2 + 5.0 - 1e-6
    for source, target in arrows:
        step = found.places[target].layer - found.places[source].layer
        upwards = (source, target) in found.turned
        assert step < 0 if upwards else step > 0
        layers = [point.layer for point in found.paths[source, target]]
        between = range(found.places[source].layer, found.places[target].layer, -1 if upwards else 1)
        assert layers == list(between)[1:]


@given(st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda e: e[0] < e[1])))
def test_acyclic_graph_has_no_reversed_edges(pairs: set[tuple[int, int]]) -> None:
    widths = {f"n{i}": 10.0 for i in range(10)}
    assert not laid_out(widths, [(f"n{a}", f"n{b}") for a, b in pairs], 5.0).turned


def test_chain_is_straight_and_fork_symmetric() -> None:
    found = laid_out(dict.fromkeys("abcde", 50.0), [("a", "b"), ("b", "c"), ("b", "d"), ("c", "e"), ("d", "e")], 10.0)
    x = {name: place.x for name, place in found.places.items()}
    assert x["a"] == pytest.approx(x["b"], abs=0.5)
    assert (x["c"] + x["d"]) / 2 == pytest.approx(x["b"], abs=0.5)
    assert [found.places[name].layer for name in "abcde"] == [0, 1, 2, 2, 3]


def test_crossings_are_removed() -> None:
    pairs = [("a", "z"), ("b", "y"), ("c", "x")]
    found = laid_out(dict.fromkeys("abcxyz", 10.0), pairs, 5.0)
    tops = sorted("abc", key=lambda name: found.places[name].x)
    ends = sorted("xyz", key=lambda name: found.places[name].x)
    assert [dict(pairs)[name] for name in tops] == ends


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_crossings_match_the_count_by_pairs(pairs: list[tuple[int, int]]) -> None:
    below: _Near = {f"a{i}": [f"b{b}" for a, b in pairs if a == i] for i in range(6)}
    slow = sum((a - c) * (b - d) < 0 for (a, b), (c, d) in combinations(pairs, 2))
    assert _crossings([[f"a{i}" for i in range(6)], [f"b{i}" for i in range(6)]], below) == slow


@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(0.01, 10)), min_size=1, max_size=30))
def test_monotone_places_match_isotonic_regression(pulls: list[tuple[float, float]]) -> None:
    wishes, weights = (np.array(column) for column in zip(*pulls, strict=True))
    wanted = IsotonicRegression().fit_transform(np.arange(len(wishes)), wishes, sample_weight=weights)
    np.testing.assert_allclose(_monotone(wishes.tolist(), weights.tolist()), wanted, rtol=1e-6, atol=1e-6)
