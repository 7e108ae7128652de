"""Write the files of this release that later releases must read: `python -m tests.saved.data.write`.

Run it once for each release, before the version is raised, and commit the files. Never change files of earlier
releases: they record what those releases wrote.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

import aioflow as af
from aioflow.release import RELEASE
from aioflow.saved import Signature, save
from tests.saved.models import BIAS, WEIGHTS

__all__ = ["FILES", "GRAPHS", "META_GRAPH", "SCALES", "TABLE", "VOCABULARY", "folder_of", "write"]

VOCABULARY = b"one\ntwo\n"
SCALES = np.linspace(-1, 1, 1024, dtype=np.float32)  # large enough to be stored among the weights
TABLE = np.arange(8, dtype=np.int64).reshape(4, 2)

# The files of each release, beside those of the model.
GRAPHS = ("graph.json", "graph.aiograph", "graph.pbtxt", "graph.pb")
META_GRAPH = "layer.meta"  # since 0.2.0
FILES = ("model/aioflow.json", "checkpoint.safetensors", "incremental.manifest.json", META_GRAPH, *GRAPHS)


def folder_of(release: str = RELEASE) -> Path:
    """Return the folder with the files of a release."""
    return Path(__file__).parent / release


async def write(folder: Path) -> None:
    """Write a model, checkpoints and graph definitions that use most features of the formats."""
    vocabulary = folder / "vocabulary.txt"
    vocabulary.write_bytes(VOCABULARY)
    with af.Graph().as_default() as graph:
        x = af.placeholder("float32", [None, 3], name="x")
        n = af.placeholder("int32", [], name="n")
        w = af.Variable(WEIGHTS, name="layer/w")
        b = af.Variable(BIAS, name="layer/b", trainable=False)
        table = af.Variable(TABLE, name="table")

        @af.function
        def layer(value: af.Tensor) -> af.Tensor:
            return af.tanh(af.matmul(value, w) + b)

        y = af.identity(layer(x), name="y")
        total = af.while_loop(lambda i, _: i < n, lambda i, s: (i + 1, s + i), (af.constant(0), af.constant(0)))[1]
        rows = af.gather(table, [3, 0], name="rows")
        path = af.constant(str(vocabulary), name="path")

        @af.function
        def scaled(value: af.Tensor) -> af.Tensor:
            return value * af.constant(SCALES, name="scales")

        both = af.add(scaled(x[0, 0]), af.constant(SCALES, name="scales"), name="both")
        calls = {
            "serving_default": Signature({"x": x}, {"y": y}),
            "sum": Signature({"n": n}, {"total": af.identity(total, name="total")}),
            "words": Signature({}, {"words": af.read_file(path, name="words"), "rows": rows}, "lookup"),
            "scale": Signature({"x": x}, {"both": both}),
        }
        saver = af.train.Saver()
        in_blocks = af.train.Saver(incremental=True)
        async with af.Session() as session:
            await session.run(af.global_variables_initializer())
            await save(session, folder / "model", calls, assets={path: vocabulary})
            # The meta graph of this graph would contain the absolute path of the vocabulary.
            for each, name in ((saver, "checkpoint"), (in_blocks, "incremental")):
                await each.save(session, folder / name, write_state=False, write_meta_graph=False)
    vocabulary.unlink()
    with af.Graph().as_default() as graph:
        v = af.constant(WEIGHTS, name="weights")
        words = af.constant(["a", "b"], name="words")
        af.matmul(af.placeholder("float32", [None, 3], name="x"), v, name="y")
        af.string_join([words, words], name="joined")
    definition = graph.as_graph_def()
    (folder / "graph.json").write_text(definition.to_json(), encoding="utf-8")
    (folder / "graph.aiograph").write_bytes(definition.to_bytes())
    af.train.write_graph(graph, folder, "graph.pbtxt")
    af.train.write_graph(graph, folder, "graph.pb", as_text=False)
    with af.Graph().as_default():
        w = af.Variable(WEIGHTS, name="layer/w")
        af.matmul(af.placeholder("float32", [None, 3], name="x"), w, name="y")
        af.train.Saver().export_meta_graph(folder / META_GRAPH)


if __name__ == "__main__":
    folder_of().mkdir()
    asyncio.run(write(folder_of()))
