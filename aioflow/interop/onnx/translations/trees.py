"""ai.onnx.ml: ensembles of decision trees, evaluated for all trees and rows at once, level by level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.translating import OnnxNode, translation
from aioflow.interop.onnx.translations.features import class_labels, labels_of, to_float, transformed
from aioflow.memory.values import Array
from aioflow.ops.apply import constant, make
from aioflow.ops.math.reduction import reduce_any, reduce_max, reduce_mean, reduce_min, reduce_sum

_ML: Final = "ai.onnx.ml"
_MODES: Final = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
_COMPARE: Final = {
    "LEQ": "LessEqual",
    "LT": "Less",
    "GTE": "GreaterEqual",
    "GT": "Greater",
    "EQ": "Equal",
    "NEQ": "NotEqual",
}
_TRANSFORMS: Final = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_AGGREGATES: Final = ("AVERAGE", "SUM", "MIN", "MAX")


@dataclass(frozen=True)
class _Forest:
    """The nodes of all trees. A leaf is its own child.

    Attributes:
        roots: First node of each tree.
        features: Column of the input that each node compares.
        splits: Value that each node compares with.
        modes: Comparison of each node, as an index of `_MODES`.
        yes: Child of each node if its comparison holds.
        no: Child of each node if it does not hold.
        missing: Whether the comparison of each node also holds for NaN.
        weights: Weight of each leaf, by node and target.
        votes: Whether a leaf has a weight, by node and target.
        depth: Number of comparisons on the way to the deepest leaf.
        members: Set of each "MEMBER" node, padded with NaN.
    """

    roots: Array
    features: Array
    splits: Array
    modes: Array
    yes: Array
    no: Array
    missing: Array
    weights: Array
    votes: Array
    depth: int
    members: Array | None = None

    def leaves(self, x: Tensor) -> Tensor:
        """Return the leaf in each tree for each row of `x`, of shape [rows, trees]."""
        rows = make("GatherV2", make("Shape", x), 0, 0)
        at = make("Tile", constant(self.roots[None].astype(np.int32)), make("Pack", [rows, constant(1)], axis=0))
        # Leaves are their own children, so rows that reach one early stay there.
        for _ in range(self.depth):
            at = make("SelectV2", self._holds(x, at), _of(self.yes, at), _of(self.no, at))
        return at

    def _holds(self, x: Tensor, at: Tensor) -> Tensor:
        # One value per row and tree: the column that the tree's current node compares.
        values = make("GatherV2", x, _of(self.features, at), 1, batch_dims=1)
        splits = _of(self.splits.astype(x.dtype.np_dtype), at)
        result: Tensor | None = None
        for mode in sorted(set(self.modes.tolist())):
            name = _MODES[mode]
            found = self._is_member(values, at) if name == "MEMBER" else make(_COMPARE[name], values, splits)
            chosen = make("Equal", _of(self.modes, at), mode)
            # All modes in use are computed for all nodes, and each node picks its own.
            result = found if result is None else make("SelectV2", chosen, found, result)
        if result is None:
            return make("ZerosLike", make("IsNan", values))
        if not self.missing.any():
            return result
        return make("LogicalOr", result, make("LogicalAnd", make("IsNan", values), _of(self.missing, at)))

    def _is_member(self, values: Tensor, at: Tensor) -> Tensor:
        members = _of(self.members.astype(values.dtype.np_dtype), at) if self.members is not None else values
        return reduce_any(make("Equal", make("ExpandDims", values, -1), members), -1)

    def scores(self, x: Tensor, aggregate: str) -> Tensor:
        """Return the score of each row and target, as float32 or float64."""
        at = self.leaves(x)
        weights = _of(self.weights, at)
        if aggregate == "SUM":
            return reduce_sum(weights, 1)
        if aggregate == "AVERAGE":
            return reduce_mean(weights, 1)
        reduce, nothing = (reduce_min, np.inf) if aggregate == "MIN" else (reduce_max, -np.inf)
        found = reduce(make("SelectV2", _of(self.votes, at), weights, nothing), 1)
        # No leaf of any tree voted for the target.
        return make("SelectV2", make("IsInf", found), 0, found)


def _of(table: Array, at: Tensor) -> Tensor:
    return make("GatherV2", constant(table), at, 0)


def _depth(roots: Array, yes: Array, no: Array) -> int:
    """Return the depth of the deepest leaf. Raise ValueError if a node is its own descendant."""
    level, depth = np.unique(roots), 0
    while True:
        # Nodes that are not their own children are no leaves.
        inner = level[(yes[level] != level) | (no[level] != level)]
        if not inner.size:
            return depth
        depth += 1
        # A path longer than the number of nodes repeats one.
        if depth > len(yes):
            raise ValueError("the nodes of a tree go round in a circle")
        level = np.unique(np.concatenate([yes[inner], no[inner]]))


# ── from opset 5 on ───────────────────────────────────────────────────────────────────────────────────────────────────


@translation("TreeEnsemble", since=5, domain=_ML)
def tree_ensemble(node: OnnxNode, x: Tensor) -> Tensor:
    aggregate = _AGGREGATES[node.attr("aggregate_function", 1)]
    scores = _forest_of_leaves(node).scores(to_float(x), aggregate)
    return make("Cast", transformed(node, scores, _TRANSFORMS[node.attr("post_transform", 0)]), DstT=x.dtype)


def _forest_of_leaves(node: OnnxNode) -> _Forest:
    """Return the trees of a node that lists leaves separately. They are appended to the nodes."""
    splits, modes = node.required("nodes_splits"), node.required("nodes_modes").astype(np.int32)
    count, leaf_weights = len(splits), node.required("leaf_weights")
    leaves = count + np.arange(len(leaf_weights))

    def child(name: str) -> Array:
        to, is_leaf = (np.array(node.required(f"nodes_{name}{kind}")) for kind in ("nodeids", "leafs"))
        # Leaves are numbered after the nodes, and are their own children.
        return np.concatenate([np.where(is_leaf == 1, to + count, to), leaves]).astype(np.int32)

    weights = np.zeros((count + len(leaves), node.required("n_targets")), leaf_weights.dtype)
    votes = np.zeros(weights.shape, bool)
    targets = np.array(node.required("leaf_targetids"))
    weights[leaves, targets], votes[leaves, targets] = leaf_weights, True
    yes, no, roots = child("true"), child("false"), np.array(node.required("tree_roots"))
    missing = node.attr("nodes_missing_value_tracks_true") or [0] * count
    return _Forest(
        roots,
        _padded(node.required("nodes_featureids"), len(leaves), np.int32),
        _padded(splits, len(leaves), splits.dtype),
        # A mode that occurs anyway: every mode in use costs a comparison at each level.
        _padded(modes, len(leaves), np.int32, modes[0]),
        yes,
        no,
        _padded(missing, len(leaves), np.bool_),
        weights,
        votes,
        _depth(roots, yes, no),
        _members(node, modes, len(leaves)),
    )


def _padded(values: npt.ArrayLike, more: int, dtype: npt.DTypeLike, filler: float = 0) -> Array:
    return np.concatenate([np.asarray(values), np.full(more, filler)]).astype(dtype)


def _members(node: OnnxNode, modes: Array, leaves: int) -> Array | None:
    """Return the sets of the nodes that have one. The attribute lists them in order, separated by NaN."""
    given = node.attr("membership_values")
    if given is None:
        return None
    ends = np.flatnonzero(np.isnan(given))
    sets = [part[~np.isnan(part)] for part in np.split(given, ends)]
    table = np.full((len(modes) + leaves, max(map(len, sets))), np.nan, given.dtype)
    # A NaN ends each set, so the split has one more part, without elements.
    for place, values in zip(np.flatnonzero(modes == _MODES.index("MEMBER")), sets, strict=False):
        table[place, : len(values)] = values
    return table


# ── up to opset 4 ─────────────────────────────────────────────────────────────────────────────────────────────────────


@translation("TreeEnsembleRegressor", domain=_ML)
def tree_ensemble_regressor(node: OnnxNode, x: Tensor) -> Tensor:
    forest = _forest_of_nodes(node, "target", node.required("n_targets"))
    scores = _with_base(node, forest.scores(to_float(x), node.attr("aggregate_function", "SUM")))
    return make("Cast", transformed(node, scores, node.attr("post_transform", "NONE")), DstT=dtypes.float32)


@translation("TreeEnsembleClassifier", domain=_ML)
def tree_ensemble_classifier(node: OnnxNode, x: Tensor) -> tuple[Tensor, Tensor]:
    labels = class_labels(node, "classlabels_strings", "classlabels_int64s")
    forest = _forest_of_nodes(node, "class", len(labels))
    kind = node.attr("post_transform", "NONE")
    if len(labels) == 2 and len(set(node.required("class_ids"))) == 1:
        return _of_two(node, forest, to_float(x), labels, kind)
    scores = _with_base(node, forest.scores(to_float(x), "SUM"))
    return labels_of(scores, labels), make("Cast", transformed(node, scores, kind), DstT=dtypes.float32)


def _of_two(node: OnnxNode, forest: _Forest, x: Tensor, labels: Array, kind: str) -> tuple[Tensor, Tensor]:
    """Return label and scores of a model in which only one of two classes has weights.

    If no weight is negative, the other class has the score 1 - score, otherwise or with "LOGISTIC" -score. onnxruntime,
    for which such models are written, applies no other transform than "LOGISTIC" to them.
    """
    (voted,) = set(node.required("class_ids"))
    base = _floats(node, "base_values")
    score = forest.scores(x, "SUM")[:, voted : voted + 1]
    if base is not None and base.size:
        score = score + constant(base[-1:].astype(score.dtype.np_dtype))
    probability = bool((forest.weights >= 0).all())
    second = make("Greater", score, 0.5 if probability else 0.0)
    label = make("GatherV2", constant(labels), make("Cast", make("Squeeze", second, squeeze_dims=[1]), DstT="int32"), 0)
    other = 1 - score if probability and kind != "LOGISTIC" else make("Neg", score)
    both = make("ConcatV2", [other, score], 1)
    scores = make("Sigmoid", both) if kind == "LOGISTIC" else both
    return label, make("Cast", scores, DstT=dtypes.float32)


def _with_base(node: OnnxNode, scores: Tensor) -> Tensor:
    base = _floats(node, "base_values")
    return scores if base is None or not base.size else scores + constant(base.astype(scores.dtype.np_dtype))


def _floats(node: OnnxNode, name: str) -> Array | None:
    """Return a list of floats, or the tensor attribute that replaces it."""
    given = node.attr(f"{name}_as_tensor")
    if given is not None:
        return np.asarray(given)
    floats = node.attr(name)
    return None if floats is None else np.array(floats, np.float32)


def _forest_of_nodes(node: OnnxNode, kind: str, targets: int) -> _Forest:
    """Return the trees of a node that identifies nodes by tree and number. Some of them are leaves."""
    trees, numbers = node.required("nodes_treeids"), node.required("nodes_nodeids")
    place = {pair: i for i, pair in enumerate(zip(trees, numbers, strict=True))}
    names = [mode.removeprefix("BRANCH_") for mode in node.required("nodes_modes")]
    # Leaves get a mode that occurs anyway: every mode in use costs a comparison at each level.
    usual = next((name for name in names if name != "LEAF"), "LEQ")

    def child(name: str) -> Array:
        to = node.required(f"nodes_{name}nodeids")
        return np.array([i if names[i] == "LEAF" else place[trees[i], to[i]] for i in range(len(names))], np.int32)

    splits, leaf_weights = _floats(node, "nodes_values"), _floats(node, f"{kind}_weights")
    if splits is None or leaf_weights is None:
        return node.refuse("no values or weights")
    weights = np.zeros((len(names), targets), leaf_weights.dtype)
    votes = np.zeros(weights.shape, bool)
    ids = (node.required(f"{kind}_{part}") for part in ("treeids", "nodeids", "ids"))
    for tree, number, target, weight in zip(*ids, leaf_weights, strict=True):
        # A leaf may list one target several times.
        weights[place[tree, number], target] += weight
        votes[place[tree, number], target] = True
    yes, no = child("true"), child("false")
    roots = np.array(_roots(trees, names, yes, no), np.int32)
    missing = node.attr("nodes_missing_value_tracks_true") or [0] * len(names)
    return _Forest(
        roots,
        np.array(node.required("nodes_featureids"), np.int32),
        splits,
        np.array([_MODES.index(usual if name == "LEAF" else name) for name in names], np.int32),
        yes,
        no,
        np.array(missing, np.bool_),
        weights,
        votes,
        _depth(roots, yes, no),
    )


def _roots(trees: Sequence[int], names: Sequence[str], yes: Array, no: Array) -> list[int]:
    """Return the node of each tree that is no child."""
    below = {int(to) for i, name in enumerate(names) if name != "LEAF" for to in (yes[i], no[i])}
    # Reversed, so that the first such node of a tree is kept.
    found: Mapping[int, int] = {tree: i for i, tree in reversed(list(enumerate(trees))) if i not in below}
    return [found[tree] for tree in sorted(found)]
