"""Replacing a model while others read it: each reader sees one whole version, and failures change nothing."""

from __future__ import annotations

import asyncio
import gc
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import aioflow as af
from aioflow import errors
from aioflow.formats.checkpoint import write_checkpoint
from aioflow.formats.stores import store_at
from aioflow.formats.temporary_files import temporary_file
from aioflow.saved import Model, Signature, load, save, writing
from aioflow.saved.places import ModelFolder
from tests.saved.models import calling
from tests.support.cancelling import cancel_at_each_turn
from tests.support.full_disk import room_for
from tests.support.loops import LOOPS, on_each_loop, run_on
from tests.support.waiting import until, until_collected

PATIENCE = 30  # seconds

Location = Path | str


def text_of(folder: Path, number: int) -> Path:
    folder.mkdir(exist_ok=True)
    text = folder / "version.txt"
    text.write_text(str(number))
    return text


async def save_version(place: Location, number: int, folder: Path) -> None:
    """Save a model of six parts that all hold its version number.

    The parts are two variables, a small and a large constant, and an asset that is read as a number.
    """
    text = text_of(folder, number)
    with af.Graph().as_default():
        path = af.constant(str(text))
        parts: dict[str, Any] = {f"v{i}": af.Variable(np.full(1000, number), name=f"v{i}") for i in range(2)}
        parts["small"] = af.constant(number)
        parts["large"] = af.constant(np.full(2000, number))
        asset = af.string_to_number(af.read_file(path), af.int32)
        outputs = {name: af.reduce_max(part) for name, part in parts.items()}
        async with af.Session() as session:
            await session.run(af.global_variables_initializer())
            await save(session, place, Signature({}, {**outputs, "asset": asset}), {path: text}, overwrite=True)


async def version_of(model: Model) -> int:
    """Return the version number of a model, and check that the initializers set the same values as `initialize`."""
    async with calling(model) as session:
        found = set((await session.run(dict(model.outputs))).values())
        with model.graph.as_default():
            await session.run(af.global_variables_initializer())
        found |= set((await session.run(dict(model.outputs))).values())
    assert len(found) == 1, f"a mixture of {found}"
    return int(found.pop())


def names(place: Location) -> list[str]:
    """Return all names below a folder, including hidden files and empty folders."""
    if isinstance(place, Path):
        return sorted(str(path.relative_to(place)) for path in place.rglob("*"))
    return sorted(fsspec.filesystem("memory").find(place.removeprefix("memory:/"), withdirs=False))


@pytest.fixture(params=["folder", "store"])
def place(request: pytest.FixtureRequest, quick_path: Path) -> Location:
    return quick_path / "model" if request.param == "folder" else f"memory://{uuid.uuid4().hex}/model"


# ── concurrent readers ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("moment", ["manifest", "read", "check"])
def test_load_during_replacements_returns_one_version(
    place: Location, quick_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The model is replaced between any two file reads of the loader."""
    asyncio.run(save_version(place, 1, quick_path / "1"))
    done = getattr(ModelFolder, moment)
    calls = []

    def interrupted(self: ModelFolder, *args: Any) -> Any:
        found = done(self, *args)
        calls.append(found)
        if len(calls) <= 3:
            monkeypatch.setattr(ModelFolder, moment, done)
            asyncio.run(save_version(place, 1 + len(calls), quick_path / "later"))
            monkeypatch.setattr(ModelFolder, moment, interrupted)
        return found

    monkeypatch.setattr(ModelFolder, moment, interrupted)
    model = load(place)
    monkeypatch.setattr(ModelFolder, moment, done)
    assert 1 < asyncio.run(version_of(model)) <= 1 + len(calls)


def test_load_gives_up_on_a_model_that_is_replaced_endlessly(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(save_version(quick_path / "model", 1, quick_path / "1"))
    done = ModelFolder.manifest
    monkeypatch.setattr(ModelFolder, "manifest", lambda self: done(self).replace(b"\n", b"\n" * len(calls) + b"\n"))
    calls: list[None] = []
    monkeypatch.setattr(ModelFolder, "keep", lambda *_: calls.append(None))
    with pytest.raises(errors.AbortedError, match="again and again"):
        load(quick_path / "model")


async def test_loaded_model_keeps_its_version_after_a_replacement(place: Location, quick_path: Path) -> None:
    """At the time of the replacement, the weights have not been read, and assets are opened on each call."""
    await save_version(place, 1, quick_path / "1")
    before, model = names(place), load(place)
    async with calling(load(place)) as session:
        await save_version(place, 2, quick_path / "2")
        assert await session.run("v0/Read/ReadVariableOp:0") is not None
        value = session.graph.get_tensor_by_name("v0/Read/ReadVariableOp:0")
        assert set(await session.run(value)) == {1}
    assert await version_of(model) == 1
    assert await version_of(load(place)) == 2
    assert set(before) < set(names(place)), "the files of both are there"


async def test_next_save_removes_unused_files(place: Location, quick_path: Path) -> None:
    await save_version(place, 1, quick_path / "1")
    one = len(names(place))
    model = load(place)
    await save_version(place, 2, quick_path / "2")
    assert len(names(place)) > one
    gone = weakref.ref(model.graph)
    del model
    until_collected(gone)
    for number in range(3, 6):
        await save_version(place, number, quick_path / str(number))
    assert await version_of(load(place)) == 5
    # In a store, `save` cannot tell whether the previous version still has readers.
    assert len(names(place)) == (one if isinstance(place, Path) else 2 * one - 1)


async def test_version_stays_while_it_is_loaded(quick_path: Path) -> None:
    place = quick_path / "model"
    models: list[Model] = []
    graphs: list[str] = []
    for number in range(1, 5):
        await save_version(place, number, quick_path / str(number))
        graphs += [name for name in names(place) if name.startswith("graph") and name not in graphs]
        models.append(load(place))
    assert [await version_of(model) for model in models] == [1, 2, 3, 4]
    graph = models[0].graph  # the graph alone must keep the version
    assert [name for name in names(place) if name.startswith("graph")] == sorted(graphs)
    gone = [weakref.ref(model.graph) for model in models[1:]]
    models.clear()
    until_collected(*gone)
    await save_version(place, 5, quick_path / "5")
    last = [name for name in names(place) if name.startswith("graph") and name not in graphs]
    assert sorted([*last, graphs[0]]) == [name for name in names(place) if name.startswith("graph")]
    del graph


async def test_model_in_a_store_replaced_twice_must_be_loaded_again(quick_path: Path) -> None:
    place = f"memory://{uuid.uuid4().hex}/model"
    await save_version(place, 1, quick_path / "1")
    model = load(place)
    for number in (2, 3):
        await save_version(place, number, quick_path / str(number))
    with pytest.raises(errors.AbortedError, match="load it again"):
        await version_of(model)
    assert await version_of(load(place)) == 3


async def test_link_may_be_redirected_after_the_load(quick_path: Path) -> None:
    for number in (1, 2):
        await save_version(quick_path / str(number), number, quick_path / "texts")
    newest = quick_path / "newest"
    newest.symlink_to(quick_path / "1")
    model = load(newest)
    newest.unlink()
    newest.symlink_to(quick_path / "2")
    assert await version_of(model) == 1
    assert await version_of(load(newest)) == 2


def test_concurrent_readers_and_a_writer(quick_path: Path) -> None:
    """Each reader sees whole versions, never an older one than before."""
    place = quick_path / "model"
    asyncio.run(save_version(place, 0, quick_path / "texts"))
    over = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        last = 0
        try:
            while not over.is_set():
                found = asyncio.run(version_of(load(place)))
                assert found >= last
                last = found
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(1, 20):
        asyncio.run(save_version(place, number, quick_path / "texts"))
    over.set()
    for reader in readers:
        reader.join(PATIENCE)
    assert not failures


# ── failures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def full(*_: Any) -> None:
    raise errors.ResourceExhaustedError("the disk is full")


def _no_ops(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(writing, "ops_used", full)


def _no_weights(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(writing, "write_checkpoint", full)


def _half_of_the_weights(patch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        write_checkpoint(*args)
        full()

    patch.setattr(writing, "write_checkpoint", fail)


def _no_manifest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(writing, "replace_manifest", full)


@pytest.mark.parametrize("fault", [_no_ops, _no_weights, _half_of_the_weights, _no_manifest])
async def test_failed_replacement_leaves_the_folder_unchanged(
    place: Location, quick_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None]
) -> None:
    await save_version(place, 1, quick_path / "1")
    before = names(place)
    with monkeypatch.context() as patch:
        fault(patch)
        with pytest.raises(errors.ResourceExhaustedError, match="full"):
            await save_version(place, 2, quick_path / "2")
    assert names(place) == before
    assert await version_of(load(place)) == 1


async def test_manifest_stored_despite_an_error_keeps_its_files(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"memory://{uuid.uuid4().hex}/model"
    await save_version(place, 1, quick_path / "1")
    kind: Any = type(store_at(place))
    done = kind.put

    def put(self: Any, name: str, data: bytes) -> None:
        done(self, name, data)
        if name == "aioflow.json":
            raise errors.UnavailableError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(kind, "put", put)
        with pytest.raises(errors.UnavailableError):
            await save_version(place, 2, quick_path / "2")
    assert await version_of(load(place)) == 2


async def test_missing_asset_is_reported_before_anything_is_read(
    place: Location, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await save_version(place, 1, quick_path / "1")
    before = names(place)
    with af.Graph().as_default():
        path, v = af.constant("none"), af.Variable(1.0)
        signature = Signature({}, {"y": af.identity(path), "v": v + 1.0})
        async with af.Session() as session:  # the variable has no value, but the asset must be checked first
            with pytest.raises(errors.NotFoundError, match="nowhere"):
                await save(session, place, signature, {path: quick_path / "nowhere"}, overwrite=True)
    assert names(place) == before


async def test_cancelled_replacement_leaves_the_folder_unchanged(
    place: Location, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await save_version(place, 1, quick_path / "1")
    before = names(place)
    begun, may_go_on = threading.Event(), threading.Event()

    def slow(*args: Any) -> None:
        write_checkpoint(*args)
        begun.set()
        assert may_go_on.wait(PATIENCE)

    monkeypatch.setattr(writing, "write_checkpoint", slow)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(save_version(place, 2, quick_path / "2"))
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        task.cancel()
        asyncio.get_running_loop().call_soon(may_go_on.set)
    assert task.cancelled()
    assert names(place) == before
    assert await version_of(load(place)) == 1


MARK = "-0123456789ab"


@pytest.mark.parametrize("lives", [False, True])
async def test_save_removes_files_of_a_killed_save(quick_path: Path, lives: bool) -> None:
    place = quick_path / "model"
    await save_version(place, 1, quick_path / "1")
    before = names(place)
    left = [f"graph{MARK}.aiograph", f".ops{MARK}.json.0123456789ab.tmp", f"weights{MARK}.safetensors.pending"]
    left += [f"assets/text{MARK}.txt"]
    for name in left:
        (place / name).touch()
    with temporary_file(place / f"version{MARK}") as mark:
        if not lives:
            (place / mark.path).rename(place / f".version{MARK}.000000000000.tmp")
            mark.file.close()
        await save_version(place, 2, quick_path / "2")
        assert [name for name in names(place) if MARK in name] == (
            sorted([*left, str(mark.path.relative_to(place))]) if lives else []
        )
    assert await version_of(load(place)) == 2
    if not lives:
        assert len(names(place)) == len(before)


async def test_save_without_space_leaves_the_folder_unchanged(quick_path: Path) -> None:
    place = quick_path / "model"
    with room_for(1 << 30) as room:
        await save_version(place, 1, quick_path / "1")
    model = names(place)
    for tenth in range(10):
        with room_for(room.used * tenth // 10), pytest.raises(errors.ResourceExhaustedError):
            await save_version(place, 2, quick_path / "2")
        assert names(place) == model
        with room_for(room.used * tenth // 10), pytest.raises(errors.ResourceExhaustedError):
            await save_version(quick_path / "new" / "model", 2, quick_path / "2")
        assert names(quick_path / "new") == []
    assert await version_of(load(place)) == 1


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("overwrite", [False, True])
def test_cancelled_save_leaves_one_version(
    quick_path: Path, loop: Callable[[], asyncio.AbstractEventLoop], overwrite: bool
) -> None:
    place = quick_path / "model"

    async def main() -> None:
        with af.Graph().as_default():
            v = af.Variable(np.zeros(1000, np.float32), name="v")
            signature = Signature({}, {"y": v + 1.0})
            async with af.Session() as session:
                await session.run(v.initializer)
                if overwrite:
                    await save(session, place, signature)

                async def work() -> None:
                    await save(session, place, signature, overwrite=True)

                async def then() -> None:
                    await asyncio.to_thread(check)

                await cancel_at_each_turn(work, then)
                await save(session, place, signature, overwrite=True)

    def check() -> None:
        found = names(place)
        assert not [name for name in found if name.startswith(".")]
        assert len(found) in (0, 5)
        assert not list(quick_path.glob(".*"))

    run_on(loop, main())
    check()
    assert load(place).outputs


@on_each_loop
async def test_cancelled_initialization_of_a_loaded_model(quick_path: Path) -> None:
    await save_version(quick_path / "model", 1, quick_path / "1")
    model = load(quick_path / "model")
    await cancel_at_each_turn(lambda: version_of(model))
    assert await version_of(model) == 1


# ── stores ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def temporary(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Create temporary folders in a folder of the test, and yield it."""
    folder = quick_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    until(lambda: gc.collect() >= 0 and not list(folder.iterdir()))  # they are deleted with the models


async def test_model_in_a_store_runs_with_its_assets(quick_path: Path, temporary: Path) -> None:
    place = f"memory://{uuid.uuid4().hex}/model"
    await save_version(place, 7, quick_path / "7")
    model = load(place)
    assert await version_of(model) == 7
    (path,) = model.assets.values()
    assert Path(path).is_relative_to(temporary)
    async with calling(model) as session:
        await save(session, quick_path / "again", model.signatures, model.assets)
    assert await version_of(load(quick_path / "again")) == 7
    graph = model.graph
    del model
    gc.collect()
    assert names(temporary)[1:] == [str(Path(path).relative_to(temporary))], "for as long as the graph is there"
    del graph, session


async def test_altered_asset_in_a_store_is_rejected(quick_path: Path, temporary: Path) -> None:
    place = f"memory://{uuid.uuid4().hex}/model"
    await save_version(place, 7, quick_path / "7")
    (asset,) = [name for name in names(place) if "/assets/" in name]
    fsspec.filesystem("memory").pipe_file(asset, b"8")
    with pytest.raises(errors.DataLossError, match="altered"):
        load(place)


@pytest.mark.parametrize("there", ["folder", "store"])
async def test_model_may_be_copied_between_folder_and_store(quick_path: Path, there: str) -> None:
    """The copy is made like that of a store's own tools."""
    store = f"memory://{uuid.uuid4().hex}/model"
    source, target = (store, str(quick_path / "model")) if there == "folder" else (str(quick_path / "model"), store)
    await save_version(source, 7, quick_path / "7")
    fs = fsspec.filesystem("memory")
    if there == "folder":
        fs.get(source, target, recursive=True)
    else:
        fs.put(source, target, recursive=True)
    assert await version_of(load(target)) == 7
    await save_version(target, 8, quick_path / "8")
    assert await version_of(load(target)) == 8
