"""Graph definitions in files, as text or as bytes. A file appears whole under its name, or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from aioflow.errors import DTypeError, OpError, ResourceExhaustedError
from aioflow.formats.files import file_errors
from aioflow.formats.stores import is_url, joined, store_of
from aioflow.graph.encoding import MAGIC
from aioflow.graph.graph import Graph
from aioflow.graph.graphdef import GraphDef

__all__ = ["read_graph", "write_graph"]

_MAX_BYTES: Final = 1 << 34


def write_graph(
    graph_or_graph_def: Graph | GraphDef, logdir: str | os.PathLike[str], name: str, as_text: bool = True
) -> str:
    """Write a graph definition to `logdir/name`, and make the folder if there is none. Blocks on the disk
    or the network.

    Args:
        logdir: A folder, or the URL of one in a store, as for checkpoints.
        as_text: JSON that people can read; otherwise the compact form. `read_graph` reads both.

    Returns:
        The path.

    Raises:
        PermissionDeniedError, ResourceExhaustedError, …: the system refuses; the error names the file.
    """
    if isinstance(graph_or_graph_def, Graph):
        graph_def = graph_or_graph_def.as_graph_def()
    elif isinstance(graph_or_graph_def, GraphDef):
        graph_def = graph_or_graph_def
    else:
        raise DTypeError("not a graph", expected="Graph or GraphDef", actual=type(graph_or_graph_def).__name__)
    data = graph_def.to_json().encode() if as_text else graph_def.to_bytes()
    place = joined(logdir, name)
    store, file = store_of(place)
    if not is_url(place):
        with file_errors(place):
            Path(place).parent.mkdir(parents=True, exist_ok=True)
    store.put(file, data)
    return place


def read_graph(path: str | os.PathLike[str]) -> GraphDef:
    """The graph definition in a file that `write_graph` wrote, in either form. Blocks on the disk or the network.

    Args:
        path: A path, or the URL of a file in a store.

    Raises:
        NotFoundError: there is no such file.
        DataLossError: it is truncated or altered.
        InvalidArgumentError: it holds something else.
        ResourceExhaustedError: it is larger than any graph definition.
    """
    store, name = store_of(path)
    file = store.path(name)
    size = store.size(name)
    if size is not None and size > _MAX_BYTES:
        raise ResourceExhaustedError(f"{file} is too large", expected=f"at most {_MAX_BYTES} bytes", actual=size)
    data = store.read(name)
    try:
        return GraphDef.from_bytes(data) if data.startswith(MAGIC) else GraphDef.from_json(data)
    except OpError as error:
        error.message = f"{file}: {error.message}"
        raise
