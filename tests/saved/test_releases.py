"""Compatibility between releases: files of each release, and files of a fictitious later one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow import errors
from aioflow.formats import manifests
from aioflow.formats.checkpoint import CheckpointReader
from aioflow.release import RELEASE
from aioflow.saved import load
from tests.saved.altering import change_checkpoint, change_graph, change_manifest, change_ops
from tests.saved.data.write import FILES, GRAPHS, META_GRAPH, SCALES, TABLE, VOCABULARY, folder_of, write
from tests.saved.models import BIAS, GIVEN, WANTED, WEIGHTS, calling, outputs

RELEASES = sorted(path.name for path in folder_of().parent.iterdir() if (path / "model").is_dir())
LATER = {"version": 9, "min_reader": 1, "min_release": "0.1.0", "written_with": {"love": True}}
MUCH_LATER = {"version": 9, "min_reader": 8, "min_release": "7.3.0"}


def test_files_of_this_release_exist() -> None:
    missing = [name for name in FILES if not (folder_of(RELEASE) / name).is_file()]
    assert not missing, "run `python -m tests.saved.data.write` and commit what it writes"


@pytest.mark.parametrize("release", RELEASES)
async def test_model_of_each_release_is_readable(release: str) -> None:
    found = load(folder_of(release) / "model")
    assert f"aioflow {release}" in found.source
    assert set(found.signatures) == {"serving_default", "sum", "words", "scale"}
    async with calling(found) as session:
        y = await session.run(found.outputs["y"], {found.inputs["x"]: GIVEN})
        np.testing.assert_allclose(y, WANTED, rtol=1e-6)
        adding, lookup = found.signature("sum"), found.signature("words")
        assert await session.run(adding.outputs["total"], {adding.inputs["n"]: 5}) == 10
        words = await session.run(dict(lookup.outputs))
        scale = found.signature("scale")
        both = await session.run(scale.outputs["both"], {scale.inputs["x"]: GIVEN})
    assert words["words"] == VOCABULARY
    np.testing.assert_array_equal(words["rows"], TABLE[[3, 0]])
    np.testing.assert_allclose(both, (GIVEN[0, 0] + 1) * SCALES, rtol=1e-6)
    assert lookup.method == "lookup"
    with found.graph.as_default():
        assert [v.op.name for v in af.trainable_variables()] == ["layer/w", "table"]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", ["checkpoint", "incremental"])
def test_checkpoints_of_each_release_are_readable(release: str, name: str) -> None:
    reader = CheckpointReader(str(folder_of(release) / name))
    stored: dict[str, np.ndarray[Any, Any]] = {"layer/w": WEIGHTS, "layer/b": BIAS, "table": TABLE}
    for key, wanted in stored.items():
        value = reader.read(key)
        assert value.dtype == wanted.dtype
        np.testing.assert_array_equal(value, wanted)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", GRAPHS)
async def test_graph_definitions_of_each_release_are_readable(release: str, name: str) -> None:
    definition = af.train.read_graph(folder_of(release) / name)
    with af.Graph().as_default():
        x, y, joined = af.import_graph_def(definition, return_elements=["x:0", "y:0", "joined:0"])
        async with af.Session() as session:
            value, text = await session.run([y, joined], {x: GIVEN})
    np.testing.assert_allclose(value, sum(GIVEN[:, [k]] * WEIGHTS[k] for k in range(3)), rtol=1e-6)
    assert text.tolist() == [b"aa", b"bb"]


@pytest.mark.parametrize("release", [each for each in RELEASES if (folder_of(each) / META_GRAPH).is_file()])
async def test_meta_graphs_of_each_release_restore_its_checkpoints(release: str) -> None:
    with af.Graph().as_default() as graph:
        saver = af.train.import_meta_graph(folder_of(release) / META_GRAPH)
        assert saver is not None
        async with af.Session() as session:
            await saver.restore(session, folder_of(release) / "checkpoint")
            y, x = graph.get_tensor_by_name("y:0"), graph.get_tensor_by_name("x:0")
            value = await session.run(y, {x: GIVEN})
    np.testing.assert_allclose(value, sum(GIVEN[:, [k]] * WEIGHTS[k] for k in range(3)), rtol=1e-6)


async def test_formats_have_not_changed_since_the_release(tmp_path: Path) -> None:
    """A format that changed since the files were written needs a new version."""
    await write(tmp_path)
    for name in ("model/aioflow.json", "model/weights.manifest.json", "checkpoint.manifest.json", "graph.json"):
        now, then = (_shape(json.loads((folder / name).read_bytes())) for folder in (tmp_path, folder_of()))
        assert now == then, name


def _shape(document: Any) -> Any:
    """Return a document with the type names of the values in place of the values, without attributes of ops.

    New attributes of ops may be added without a new version.
    """
    if isinstance(document, dict):
        return {key: key if key == "attrs" else _shape(value) for key, value in document.items()}
    if isinstance(document, list):
        return [_shape(value) for value in document]
    return type(document).__name__


# ── files of a later release ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder_of() / "model", tmp_path / "model"))


def _walk(document: Any) -> Iterator[dict[str, Any]]:
    """Yield every mapping of a manifest that has fixed keys."""
    yield document
    yield from (*document["signatures"].values(), document["graph"], document["weights"])
    for items in (document["variables"], document["assets"]):
        yield from items


def _add_fields(document: Any) -> None:
    for each in list(_walk(document)):
        each["added_later"] = [1, {"two": 3}]
    document |= LATER


@pytest.mark.parametrize("where", [change_manifest, change_graph, change_checkpoint])
async def test_later_version_is_read_if_it_permits_this_reader(model: Path, where: Any) -> None:
    where(model, _add_fields if where is change_manifest else lambda document: document.update(LATER))
    np.testing.assert_allclose((await outputs(model, x=GIVEN))["y"], WANTED, rtol=1e-6)


@pytest.mark.parametrize("where", [change_manifest, change_graph, change_checkpoint, change_ops])
def test_unreadable_later_version_names_the_required_release(model: Path, where: Any) -> None:
    where(model, lambda document: document.update(MUCH_LATER))
    with pytest.raises(errors.UnimplementedError, match="newer than this release reads") as caught:
        load(model)
    assert caught.value.expected == "aioflow 7.3.0 or later"
    assert str(model) in str(caught.value)


@pytest.mark.parametrize("where", [change_manifest, change_graph, change_checkpoint])
def test_unknown_feature_names_the_required_release(model: Path, where: Any) -> None:
    required = {"sharding": "0.9.2", "paging": "0.10.1"}
    where(model, lambda document: document.update(requires=required))
    with pytest.raises(errors.UnimplementedError, match=r"'paging' \(since 0\.10\.1\), 'sharding'") as caught:
        load(model)
    assert caught.value.expected == "aioflow 0.10.1 or later"


@pytest.mark.parametrize("where", [change_manifest, change_graph, change_checkpoint])
@pytest.mark.parametrize(
    "wrong", [{"requires": ["sharding"]}, {"requires": {"a": 1}}, {"min_reader": "1"}, {"min_release": 3}]
)
def test_malformed_reader_requirements_are_rejected(model: Path, where: Any, wrong: dict[str, Any]) -> None:
    where(model, lambda document: document.update(wrong))
    with pytest.raises(errors.DataLossError):
        load(model)


def test_checkpoint_of_a_later_release_is_read_if_it_permits_it(tmp_path: Path) -> None:
    shutil.copytree(folder_of(), tmp_path / "files")
    path = tmp_path / "files" / "checkpoint.manifest.json"
    content = json.loads(path.read_bytes())
    del content["sha256"]
    path.write_bytes(manifests.sealed(content | LATER))
    np.testing.assert_array_equal(CheckpointReader(str(path).removesuffix(".manifest.json")).read("table"), TABLE)
    path.write_bytes(manifests.sealed(content | MUCH_LATER))
    with pytest.raises(errors.UnimplementedError, match=r"aioflow 7\.3\.0 or later"):
        CheckpointReader(str(path).removesuffix(".manifest.json"))


# ── changed ops ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _product(document: Any) -> dict[str, Any]:
    (function,) = [f for f in document["functions"] if any(n["op"] == "MatMul" for n in f["nodes"])]
    (node,) = [n for n in function["nodes"] if n["op"] == "MatMul"]
    attrs: dict[str, Any] = node["attrs"]
    return attrs


async def test_attribute_missing_in_an_earlier_release_gets_its_default(model: Path) -> None:
    change_graph(model, lambda document: _product(document).pop("transpose_a"))
    np.testing.assert_allclose((await outputs(model, x=GIVEN))["y"], WANTED, rtol=1e-6)


@pytest.mark.parametrize(
    ("default", "value", "is_read"),
    [
        ("any", "any", True),
        ("any", "fastest", False),
        ([1, 2], [1, 2], True),
        ([1, 2], [2, 1], False),
        ({"$dtype": "float32"}, {"$dtype": "float32"}, True),
    ],
)
async def test_unknown_attribute_with_its_default_value_is_dropped(
    model: Path, default: Any, value: Any, is_read: bool
) -> None:
    change_graph(model, lambda document: _product(document).update(precision=value))

    def add(document: Any) -> None:
        (op,) = [node for node in document["nodes"] if node["op"] == "MatMul"]
        op["attrs"]["precision"] = default

    change_ops(model, add)
    if is_read:
        np.testing.assert_allclose((await outputs(model, x=GIVEN))["y"], WANTED, rtol=1e-6)
        return
    with pytest.raises(errors.OpError, match="precision") as caught:
        load(model)
    assert caught.value.op_type == "MatMul"


def test_unregistered_op_is_named(model: Path) -> None:
    def rename(document: Any) -> None:
        (node,) = [node for node in document["nodes"] if node["op"] == "ReadFile"]
        node["op"] = "ReadFileFaster"

    change_graph(model, rename)
    with pytest.raises(errors.NotFoundError, match="ReadFileFaster"):
        load(model)
