"""ONNX's domain ai.onnx.ml against onnxruntime: trees, linear models, features."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import aioflow
from aioflow.interop import onnx
from tests.interop.onnx.one_node import one_node, run_model
from tests.interop.onnx.test_maps import zip_map

ML = "ai.onnx.ml"
X = np.random.default_rng(2).standard_normal((7, 4)).astype(np.float32)


async def same(op: str, inputs: dict[str, Any], outputs: tuple[str, ...] = ("y",), opset: int = 3, **kw: Any) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    for known in (True, False):
        model = one_node(op, inputs, outputs, opset=opset, domain=ML, known_shapes=known, **kw)
        for each in model.graph.output:
            each.ClearField("type")
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        for found, wanted in zip(await run_model(model, inputs), session.run(None, inputs), strict=True):
            assert found.shape == wanted.shape
            if found.dtype == object:
                np.testing.assert_array_equal(found, np.array([t.encode() for t in wanted.flat]).reshape(wanted.shape))
            else:
                assert found.dtype == wanted.dtype
                np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def forest(trees: int, kinds: tuple[str, ...], seed: int = 0) -> dict[str, Any]:
    """Return the node attributes of random trees, and their leaves."""
    random = np.random.default_rng(seed)
    made: dict[str, list[Any]] = {k: [] for k in ("treeids", "nodeids", "featureids", "values", "modes", "yes", "no")}
    leaves = []
    for tree in range(trees):
        numbers = [0]
        while numbers:
            number = numbers.pop()
            leaf = number > 6 or (number > 2 and random.random() < 0.4)
            children = (0, 0) if leaf else (2 * number + 1, 2 * number + 2)
            numbers += [] if leaf else children
            row = (tree, number, int(random.integers(4)), float(random.standard_normal()))
            for name, value in zip(made, (*row, "LEAF" if leaf else str(random.choice(kinds)), *children), strict=True):
                made[name].append(value)
            leaves += [(tree, number)] if leaf else []
    names = {"yes": "truenodeids", "no": "falsenodeids"}
    return {f"nodes_{names.get(k, k)}": v for k, v in made.items()} | {"leaves": leaves}


def weighted(made: dict[str, Any], kind: str, targets: int, *, positive: bool = False) -> dict[str, Any]:
    """Add a weight for each leaf and target to the attributes."""
    leaves = [(*leaf, target) for leaf in made.pop("leaves") for target in range(targets)]
    weights = np.random.default_rng(7).standard_normal(len(leaves))
    trees, numbers, ids = (list(column) for column in zip(*leaves, strict=True))
    return made | {
        f"{kind}_treeids": trees,
        f"{kind}_nodeids": numbers,
        f"{kind}_ids": ids,
        f"{kind}_weights": (abs(weights) / len(leaves) if positive else weights).tolist(),
    }


KINDS = [("BRANCH_LEQ",), ("BRANCH_LT", "BRANCH_GTE"), ("BRANCH_GT",), ("BRANCH_LEQ", "BRANCH_NEQ", "BRANCH_EQ")]


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("kinds", KINDS)
async def test_tree_ensemble_regressor(kinds: tuple[str, ...], aggregate: str) -> None:
    made = weighted(forest(5, kinds), "target", 3)
    x = X.copy()
    x[2, 1] = np.nan
    count = len(made["nodes_modes"])
    made["nodes_missing_value_tracks_true"] = np.random.default_rng(1).integers(0, 2, count).tolist()
    await same(
        "TreeEnsembleRegressor",
        {"x": x},
        n_targets=3,
        aggregate_function=aggregate,
        base_values=[1.0, 2.0, 3.0],
        **made,
    )


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("labels", [{"classlabels_int64s": [3, 5, 9]}, {"classlabels_strings": ["a", "b", "c"]}])
async def test_tree_ensemble_classifier(labels: dict[str, Any], transform: str) -> None:
    made = weighted(forest(5, ("BRANCH_LEQ",)), "class", 3)
    await same("TreeEnsembleClassifier", {"x": X}, ("label", "scores"), post_transform=transform, **labels, **made)


@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("base", [{}, {"base_values": [0.3]}])
async def test_tree_ensemble_classifier_of_two_classes(base: dict[str, Any], transform: str, positive: bool) -> None:
    made = weighted(forest(5, ("BRANCH_LEQ",)), "class", 1, positive=positive)
    await same(
        "TreeEnsembleClassifier",
        {"x": X},
        ("label", "scores"),
        classlabels_int64s=[4, 6],
        post_transform=transform,
        **base,
        **made,
    )


LINEAR: dict[str, Any] = {"coefficients": np.arange(12.0).tolist(), "intercepts": [0.5, -1.0, 2.0]}


@pytest.mark.parametrize(
    ("op", "outputs", "attributes"),
    [
        ("LinearRegressor", ("y",), {"targets": 3, **LINEAR}),
        ("LinearClassifier", ("label", "y"), {"classlabels_ints": [1, 2, 7], "post_transform": "SOFTMAX", **LINEAR}),
        ("LinearClassifier", ("label", "y"), {"classlabels_strings": ["p", "q", "r"], **LINEAR}),
        ("Normalizer", ("y",), {"norm": "MAX"}),
        ("Normalizer", ("y",), {"norm": "L1"}),
        ("Normalizer", ("y",), {"norm": "L2"}),
        ("Scaler", ("y",), {"offset": [1.0, 2.0, 3.0, 4.0], "scale": [0.5, 2.0, 1.0, 3.0]}),
        ("Scaler", ("y",), {"offset": [1.0], "scale": [0.5]}),
        ("Binarizer", ("y",), {"threshold": 0.25}),
        ("Imputer", ("y",), {"replaced_value_float": float(X[1, 1]), "imputed_value_floats": [1.0, 2.0, 3.0, 4.0]}),
    ],
    ids=str,
)
async def test_features(op: str, outputs: tuple[str, ...], attributes: dict[str, Any]) -> None:
    await same(op, {"x": X}, outputs, opset=1, **attributes)


async def test_category_mapper_and_encoders() -> None:
    keys, numbers = ["a", "b", "c"], np.array([[1, 30], [20, 7]])
    await same("CategoryMapper", {"x": numbers}, opset=1, cats_strings=keys, cats_int64s=[10, 20, 30])
    await same("LabelEncoder", {"x": numbers}, opset=2, keys_int64s=[20, 30], values_floats=[0.5, 1.5])
    await same("OneHotEncoder", {"x": numbers}, opset=1, cats_int64s=[20, 1, 7])


@pytest.mark.parametrize("shape", [["N", 4], None])
@pytest.mark.parametrize(
    "labels", [{"classlabels_int64s": [4, 9, -2, 0]}, {"classlabels_strings": ["d", "ä", "a", "z"]}]
)
async def test_zip_map(labels: dict[str, Any], shape: list[Any] | None) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = zip_map(shape, **labels)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for x in (X, X[:1], X[:0]):
        [wanted] = session.run(None, {"x": x})
        loaded = onnx.load(model)
        async with aioflow.Session(graph=loaded.graph) as ours:
            found = (await ours.run(loaded.outputs, {loaded.inputs["x"]: x}))["maps"]
        assert found == wanted
        assert list(map(list, found)) == list(map(list, wanted))


def ensemble(random: np.random.Generator, dtype: type, modes: list[int], targets: int) -> dict[str, Any]:
    """Return random trees in the form of opset 5, with separate lists of nodes and leaves."""
    made: dict[str, list[Any]] = {
        f"nodes_{name}": []
        for name in ("featureids", "modes", "trueleafs", "falseleafs", "truenodeids", "falsenodeids", "splits")
    }
    members: list[float] = []
    weights: list[float] = []

    def node(depth: int) -> int:
        number = len(made["nodes_modes"])
        mode = int(random.choice(modes))
        row = (int(random.integers(4)), mode, 0, 0, 0, 0, float(random.integers(-2, 3)))
        for column, value in zip(made.values(), row, strict=True):
            column.append(value)
        if mode == 6:
            members.extend([*random.choice(np.arange(-2.0, 3), int(random.integers(1, 4)), replace=False), np.nan])
        for side in ("true", "false"):
            is_leaf = depth == 0 or random.random() < 0.3
            if is_leaf:
                weights.append(float(random.standard_normal()))
            made[f"nodes_{side}leafs"][number] = int(is_leaf)
            made[f"nodes_{side}nodeids"][number] = len(weights) - 1 if is_leaf else node(depth - 1)
        return number

    roots = [node(int(random.integers(4))) for _ in range(4)]
    count = len(made["nodes_modes"])
    return (
        made
        | {
            "n_targets": targets,
            "tree_roots": roots,
            "nodes_splits": numpy_helper.from_array(np.array(made["nodes_splits"], dtype)),
            "nodes_modes": numpy_helper.from_array(np.array(made["nodes_modes"], np.uint8)),
            "nodes_missing_value_tracks_true": random.integers(0, 2, count).tolist(),
            "leaf_targetids": random.integers(0, targets, len(weights)).tolist(),
            "leaf_weights": numpy_helper.from_array(np.array(weights, dtype)),
        }
        | ({"membership_values": numpy_helper.from_array(np.array(members, dtype))} if members else {})
    )


@pytest.mark.parametrize("aggregate", range(4))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("modes", [[0], [0, 1, 2, 3, 4, 5], [6], [0, 6]], ids=str)
async def test_tree_ensemble_of_opset_5(modes: list[int], dtype: type, aggregate: int) -> None:
    """Skip transforms: onnxruntime has swapped ONNX's SOFTMAX and LOGISTIC."""
    random = np.random.default_rng(aggregate)
    x: np.ndarray[Any, Any] = random.integers(-2, 3, (9, 4)).astype(dtype)
    x[random.random(x.shape) < 0.15] = np.nan
    made = ensemble(random, dtype, modes, 1 + aggregate % 3)
    await same("TreeEnsemble", {"x": x}, opset=5, aggregate_function=aggregate, **made)
