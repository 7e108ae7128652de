"""Damaged or malicious model folders: each is rejected with a typed error, whatever its content.

`tox -e fuzz` tries 100,000 of them. A failure reports the seed and the number of the case.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aioflow as af
from aioflow import errors
from aioflow.formats.checkpoint import write_checkpoint
from aioflow.formats.graphs import documents
from aioflow.formats.tensor_file import TensorFile
from aioflow.saved import Signature, load, save
from aioflow.saved.manifest import MANIFEST
from tests.saved.altering import (
    Change,
    change_checkpoint,
    change_graph,
    change_manifest,
    change_ops,
    put,
)
from tests.saved.data.write import SCALES, TABLE, folder_of
from tests.saved.models import BIAS, WEIGHTS


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder_of() / "model", tmp_path / "model"))


FILES = (
    "aioflow.json",
    "graph.aiograph",
    "ops.json",
    "weights.manifest.json",
    "weights.safetensors",
    "assets/vocabulary.txt",
)


@pytest.mark.parametrize("name", FILES)
def test_missing_file_is_reported(model: Path, name: str) -> None:
    (model / name).unlink()
    with pytest.raises((errors.NotFoundError, errors.DataLossError), match="model"):
        load(model)


@pytest.mark.parametrize("name", FILES)
def test_truncated_file_is_reported(model: Path, name: str) -> None:
    data = (model / name).read_bytes()
    (model / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(errors.DataLossError) as caught:
        load(model)
    assert str(model) in str(caught.value)


@pytest.mark.parametrize("name", [name for name in FILES if name != "weights.safetensors"])
def test_altered_file_is_reported(model: Path, name: str) -> None:
    data = bytearray((model / name).read_bytes())
    data[len(data) // 2] ^= 1
    (model / name).write_bytes(data)
    with pytest.raises(errors.DataLossError) as caught:
        load(model)
    assert str(model) in str(caught.value)


@pytest.mark.parametrize("name", FILES)
def test_link_out_of_the_folder_is_not_followed(model: Path, tmp_path: Path, name: str) -> None:
    (model / name).rename(tmp_path / "elsewhere")
    (model / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(errors.PermissionDeniedError, match="leads out"):
        load(model)


def test_asset_folder_that_links_out_is_not_followed(model: Path, tmp_path: Path) -> None:
    (model / "assets").rename(tmp_path / "elsewhere")
    (model / "assets").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(errors.PermissionDeniedError, match="leads out"):
        load(model)


def test_link_to_the_model_folder_is_followed(model: Path, tmp_path: Path) -> None:
    (tmp_path / "newest").symlink_to(model)
    assert load(tmp_path / "newest").signatures


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
@pytest.mark.parametrize("name", FILES)
def test_named_pipe_does_not_block_the_load(model: Path, name: str) -> None:
    (model / name).unlink()
    os.mkfifo(model / name)
    with pytest.raises(errors.DataLossError):
        load(model)


@pytest.mark.parametrize(
    "name", ["../outside", "/etc/passwd", "a/b", "..", ".", "", "a\\b", "C:x", "\0", MANIFEST, 7, None]
)
@pytest.mark.parametrize("entry", ["graph", "ops", "weights", "assets"])
def test_file_name_that_leads_elsewhere_is_rejected(model: Path, entry: str, name: Any) -> None:
    def rename(content: Any) -> None:
        file = content[entry][0] if entry == "assets" else content[entry]
        file["name"] = f"assets/{name}" if entry == "assets" and name else name

    change_manifest(model, rename)
    with pytest.raises((errors.DataLossError, errors.NotFoundError)):
        load(model)


def _constant(document: Any) -> Any:
    """Return the attributes of a constant that is stored among the weights."""
    return next(node["attrs"] for node in document["nodes"] if node["name"] == "scales")


MISFITS: dict[str, tuple[Callable[[Path, Change], None], Change]] = {
    "a signature of a tensor that is none": (
        change_manifest,
        lambda c: c["signatures"]["sum"]["outputs"][0].update(tensor="nothing:0"),
    ),
    "a signature of another dtype": (
        change_manifest,
        lambda c: c["signatures"]["sum"]["outputs"][0].update(dtype="float32"),
    ),
    "a signature of another shape": (
        change_manifest,
        lambda c: c["signatures"]["serving_default"]["inputs"][0].update(shape=[None, 4]),
    ),
    "an input twice": (
        change_manifest,
        lambda c: c["signatures"]["sum"]["inputs"].extend(c["signatures"]["sum"]["inputs"]),
    ),
    "a variable less": (change_manifest, lambda c: c["variables"].pop()),
    "a variable more": (change_manifest, lambda c: c["variables"].append({**c["variables"][0], "name": "more"})),
    "a variable of another shape": (change_manifest, lambda c: c["variables"][0].update(shape=[2, 2])),
    "no weights": (change_manifest, lambda c: c.update(weights=None)),
    "an asset that is no placeholder": (change_manifest, lambda c: c["assets"][0].update(tensor="y:0")),
    "an asset in a variable": (change_manifest, lambda c: c["assets"][0].update(tensor="layer/w:0")),
    "files to forget elsewhere": (change_manifest, lambda c: c.update(replaced=[["graph.aiograph", "../outside"]])),
    "nothing to forget": (change_manifest, lambda c: c.update(replaced=[[]])),
    "a huge file": (change_manifest, lambda c: c["graph"].update(size=2**62)),
    "a rank without end": (
        change_manifest,
        lambda c: c["signatures"]["sum"]["inputs"][0].update(shape=[1] * 10_000),
    ),
    "a graph of another variable": (
        change_graph,
        lambda d: next(n for n in d["nodes"] if n["name"] == "layer/b")["attrs"].update(shape=[5]),
    ),
    "a variable as large as the world": (
        change_graph,
        lambda d: next(n for n in d["nodes"] if n["name"] == "layer/b")["attrs"].update(shape=[2**40, 2**40]),
    ),
    "a graph without its function": (change_graph, lambda d: d.update(functions=[])),
    "a cycle": (
        change_graph,
        lambda d: next(n for n in d["nodes"] if n["name"] == "y").update(inputs=["y"]),
    ),
    "two nodes of one name": (change_graph, lambda d: d["nodes"].append(d["nodes"][0])),
    "weights of another dtype": (change_checkpoint, lambda c: c.update(header_sha256="0" * 64)),
    "weights of another version": (change_checkpoint, lambda c: c.update(version=2)),
    "weights elsewhere": (change_checkpoint, lambda c: c.update(file="../outside.safetensors")),
    "a constant that is not there": (change_graph, lambda d: _constant(d).update(_stored_value="constant:none:value")),
    "a constant without a name": (change_graph, lambda d: _constant(d).update(_stored_value=[1])),
    "a constant of another dtype": (change_graph, lambda d: _constant(d).update(_stored_value="table")),
    "ops that are none": (change_ops, lambda d: d.update(nodes=[{"name": 3}])),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_manifest_that_does_not_fit_the_model_is_rejected(model: Path, misfit: str) -> None:
    where, change = MISFITS[misfit]
    where(model, change)
    with pytest.raises(errors.OpError):
        load(model)


def test_weights_of_another_shape_are_rejected(model: Path) -> None:
    """The checkpoint is intact, but of another model."""
    constants = {"constant:scales:value": SCALES}
    write_checkpoint(str(model / "weights"), {"layer/w": WEIGHTS, "layer/b": WEIGHTS, "table": TABLE, **constants})
    put(model, "weights", (model / "weights.manifest.json").read_bytes())
    with pytest.raises(errors.InvalidArgumentError, match="layer/b has a different shape"):
        load(model)
    write_checkpoint(str(model / "weights"), {"layer/w": WEIGHTS, "layer/b": BIAS, **constants})
    put(model, "weights", (model / "weights.manifest.json").read_bytes())
    with pytest.raises(errors.NotFoundError, match="lacks table"):
        load(model)


def test_altered_constant_is_rejected_on_load(model: Path) -> None:
    path = model / "weights.safetensors"
    file = TensorFile(path)
    data = bytearray(path.read_bytes())
    data[8 + len(file.header) + file.tensors["constant:scales:value"].begin] ^= 1
    path.write_bytes(data)
    with pytest.raises(errors.DataLossError, match="constant:scales:value has been altered"):
        load(model)


def test_constants_without_a_weights_file_are_rejected(model: Path) -> None:
    change_manifest(model, lambda content: content.update(weights=None, variables=[]))
    with pytest.raises(errors.DataLossError, match="no weights"):
        load(model)


async def test_altered_weights_are_rejected_when_they_are_read(model: Path) -> None:
    found = load(model)
    data = bytearray((model / "weights.safetensors").read_bytes())
    data[-1] ^= 1
    (model / "weights.safetensors").write_bytes(data)
    async with af.Session(graph=found.graph) as session:
        with pytest.raises(errors.DataLossError, match="altered"):
            await found.initialize(session)
        with pytest.raises(errors.DataLossError, match="altered"):
            await session.run([variable.initializer for variable in found.variables.values()])


# ── random damage ────────────────────────────────────────────────────────────────────────────────────────────────────

JUNK: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 1e308, "", "x", "../x", "^x:0", "\0", "float32", "resource", "é" * 300,
    [], [[]], [None], {}, {"a": 1}, {"$dtype": "string"}, {"$tensor": {}}, [1] * 70,
)  # fmt: skip


def _places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in items:
        found += _places(value, (*path, key))
    return found


def _altered(document: Any, rng: random.Random) -> None:
    """Replace a random value by junk or by another part of the document, or delete it."""
    places = _places(document)
    *outer, key = rng.choice(places)
    holder = document
    for step in outer:
        holder = holder[step]
    kind = rng.random()
    if kind < 0.2:
        del holder[key]
    elif kind < 0.4:
        other = document
        for step in rng.choice(places):
            other = other[step]
        holder[key] = json.loads(json.dumps(other, default=lambda data: data.decode("latin-1")))
    else:
        holder[key] = rng.choice(JUNK)


def _bytes_altered(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(rng.randrange(1, 4)):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(data[: rng.randrange(len(data) + 1)] if rng.random() < 0.2 else data)


def _damage(folder: Path, rng: random.Random) -> list[str]:
    """Damage a model and return the names of the changed files."""
    which = rng.random()
    if which < 0.15:
        name = rng.choice(FILES)
        _bytes_altered(folder / name, rng)
        return [name]
    if which < 0.3:
        data = bytearray((folder / "graph.aiograph").read_bytes())
        body = data[22:]
        body[rng.randrange(len(body))] = rng.randrange(256)
        head = struct.pack("<8sHIQ", documents.MAGIC, documents.FORMAT_VERSION, zlib.crc32(body), len(body))
        put(folder, "graph", head + body)
        return [MANIFEST, "graph.aiograph"]
    where, name = rng.choice(
        [
            (change_manifest, MANIFEST),
            (change_graph, "graph.aiograph"),
            (change_graph, "graph.aiograph"),
            (change_ops, "ops.json"),
            (change_checkpoint, "weights.manifest.json"),
        ]
    )
    where(folder, lambda document: _altered(document, rng))
    return [MANIFEST, name]


def _each(count: int, seed: int, folder: Path) -> None:
    whole = {name: (folder / name).read_bytes() for name in FILES}
    refused = 0
    for case in range(count):
        rng = random.Random(f"{seed}-{case}")
        changed = _damage(folder, rng)
        try:
            load(folder)
        except errors.OpError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}, case {case}: {type(error).__name__}: {error}") from error
        for name in changed:
            (folder / name).write_bytes(whole[name])
    assert refused > count / 2
    assert load(folder).signatures, "the folder is whole again"


def test_damaged_folder_loads_or_raises_an_op_error(model: Path) -> None:
    _each(200, 0, model)


async def _write_small(folder: Path) -> None:
    """Write a model with every kind of file and few nodes."""
    (folder / "vocabulary.txt").write_bytes(b"a")
    with af.Graph().as_default():
        x = af.placeholder("float32", [None], name="x")
        w = af.Variable(BIAS, name="w")
        path = af.constant("vocabulary", name="path")
        outputs = {"y": x * w, "text": af.read_file(path), "z": af.identity(af.constant(SCALES, name="scales"))}
        async with af.Session() as session:
            await session.run(w.initializer)
            await save(session, folder / "model", Signature({"x": x}, outputs), {path: folder / "vocabulary.txt"})


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(1, 21))
def test_hundred_thousand_damaged_folders_load_or_raise_an_op_error(quick_path: Path, seed: int) -> None:
    """Most cases use a small model, since functions, branches and loops take longer to load."""
    if seed % 5 == 0:
        shutil.copytree(folder_of() / "model", quick_path / "model")
    else:
        asyncio.run(_write_small(quick_path))
    _each(5000, seed, quick_path / "model")
