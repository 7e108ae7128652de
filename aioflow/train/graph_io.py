"""Graph definition files in TensorFlow's format. Files are written atomically."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from aioflow.errors import DataLossError, DTypeError, OpError, ResourceExhaustedError
from aioflow.formats.files import file_errors
from aioflow.formats.stores import is_url, joined, store_of
from aioflow.graph.graph import Graph
from aioflow.graph.graphdef import GraphDef

_MAX_BYTES: Final = 1 << 34


def write_graph(
    graph_or_graph_def: Graph | GraphDef, logdir: str | os.PathLike[str], name: str, as_text: bool = True
) -> str:
    """Write a graph definition to `logdir/name`. Blocks on the disk or the network.

    A missing folder is created.

    Args:
        graph_or_graph_def: The graph or its definition.
        logdir: A folder, or the URL of a folder in a store, as for checkpoints.
        name: Name of the file.
        as_text: Write readable text (.pbtxt) instead of binary (.pb). `read_graph` and TensorFlow read both.

    Returns:
        The path of the file.

    Raises:
        PermissionDeniedError, ResourceExhaustedError, …: the operating system refuses; the error names the file.
    """
    if isinstance(graph_or_graph_def, Graph):
        graph_def = graph_or_graph_def.as_graph_def()
    elif isinstance(graph_or_graph_def, GraphDef):
        graph_def = graph_or_graph_def
    else:
        raise DTypeError("not a graph", expected="Graph or GraphDef", actual=type(graph_or_graph_def).__name__)
    data = graph_def.to_text().encode() if as_text else graph_def.SerializeToString()
    place = joined(logdir, name)
    store, file = store_of(place)
    if not is_url(place):
        with file_errors(place):
            Path(place).parent.mkdir(parents=True, exist_ok=True)
    store.put(file, data)
    return place


def read_graph(path: str | os.PathLike[str]) -> GraphDef:
    """Read a graph definition from a file, binary or text. Blocks on the disk or the network.

    The file may come from `write_graph`, of this or an earlier release, or from TensorFlow. `path` is a path, or the
    URL of a file in a store.

    Raises:
        NotFoundError: there is no such file.
        DataLossError: the file is truncated or altered.
        InvalidArgumentError: the file holds something else, or an invalid part, which the error names.
        DTypeError, UnimplementedError: a part of the graph cannot be represented here.
        ResourceExhaustedError: the file is larger than any graph definition.
    """
    store, name = store_of(path)
    file = store.path(name)
    size = store.size(name)
    if size is not None and size > _MAX_BYTES:
        raise ResourceExhaustedError(f"{file} is too large", expected=f"at most {_MAX_BYTES} bytes", actual=size)
    data = store.read(name)
    try:
        if not data:
            raise DataLossError("the file is empty", expected="a graph definition")
        return GraphDef.FromString(data)
    except OpError as error:
        error.message = f"{file}: {error.message}"
        raise
