"""Assets: files whose paths a graph holds in tensors, and which are copied along with a model."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from aioflow.arguments import check_kind
from aioflow.errors import InvalidArgumentError
from aioflow.formats.stores import store_of
from aioflow.graph import dtypes
from aioflow.graph.graph import Graph, Tensor


def assets_of(graph: Graph, assets: Any) -> dict[Tensor, str]:
    """Return the checked assets of a model: tensors with paths.

    Raises:
        DTypeError: `assets` is not a mapping, a key is not a tensor, or a value is not a path.
        InvalidArgumentError: a tensor cannot be the path of a file.
    """
    check_kind(assets, Mapping, "the assets", "a dictionary from tensors to paths")
    found: dict[Tensor, str] = {}
    for key, path in assets.items():
        tensor: Any = graph.as_graph_element(key, allow_operation=False)
        if tensor.dtype is not dtypes.string or tensor.dims not in ((), None) or len(tensor.op.outputs) > 1:
            raise InvalidArgumentError(
                f"{tensor.name} cannot be the path of an asset", expected="a string scalar", actual=repr(tensor)
            )
        check_kind(path, (str, os.PathLike), f"the asset of {tensor.name}", "a str or a path")
        found[tensor] = os.fspath(path)
    return found


def asset_names(paths: Iterable[str], mark: str = "") -> dict[str, str]:
    """Return a unique file name in one folder for each path, as similar to the original name as possible.

    Args:
        paths: The paths.
        mark: Text to insert before the suffix of each name.
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for path in dict.fromkeys(paths):
        _, last = store_of(path)
        # At most 200 characters: file systems allow 255 bytes, and a mark and a number may be added.
        stem, dot, suffix = re.sub(r"[\\\0:]", "_", last)[-200:].rpartition(".")
        # `rpartition` puts a name without a dot into its last part.
        stem, suffix = (stem, dot + suffix) if stem else (suffix, "")
        name, number = f"{stem}{mark}{suffix}", 0
        while name.lower() in taken:  # some file systems are case-insensitive
            number += 1
            name = f"{stem}_{number}{mark}{suffix}"
        taken.add(name.lower())
        found[path] = name
    return found


def keeping_assets(graph: Graph, assets: Collection[Tensor], kept: Collection[str]) -> list[str]:
    """Return the names of nodes that pass the path or content of an asset to a variable or table.

    Args:
        graph: The graph.
        assets: Tensors with the paths of assets.
        kept: Names of the nodes of relevant variables and tables.
    """
    wanted = set(assets)
    return [
        op.name
        for op in graph.get_operations()
        if wanted.intersection(op.inputs) and any(t.dtype is dtypes.resource and t.op.name in kept for t in op.inputs)
    ]
