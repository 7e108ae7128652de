"""Checkpoints in stores that `fsspec` reaches, and in folders given by URLs."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import aioflow as af
from aioflow.errors import (
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    PermissionDeniedError,
    UnimplementedError,
    UnknownError,
)
from aioflow.formats.checkpoint import CheckpointReader, write_checkpoint
from tests.train.test_saver import VALUES, read_all

MEMORY: Any = fsspec.filesystem("memory")


@pytest.fixture(params=["memory", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of a folder that does not exist yet."""
    if request.param == "file":
        yield f"file://{tmp_path}/deep/run"
        return
    folder = f"/{uuid.uuid4().hex}/run"
    yield f"memory:/{folder}"
    if MEMORY.exists(folder):
        MEMORY.rm(folder, recursive=True)


def listing(place: str) -> list[str]:
    scheme, _, path = place.partition("://")
    if scheme == "file":
        return sorted(p.name for p in Path(path).iterdir())
    return sorted(str(found).rpartition("/")[2] for found in MEMORY.ls(path, detail=False))


@pytest.mark.parametrize("incremental", [False, True])
async def test_saver_saves_retains_and_restores(place: str, incremental: bool) -> None:
    made = {name: af.Variable(value, name=name) for name, value in VALUES.items()}
    count = af.Variable(0, name="count")
    saver = af.train.Saver(max_to_keep=2, incremental=incremental)
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        for step in range(4):
            await session.run(count.assign(step))
            await saver.save(session, f"{place}/m", global_step=step)
        assert len(saver.last_checkpoints) == 2
        latest = af.train.latest_checkpoint(place)
        assert latest is not None
        assert latest.endswith("/run/m-3")
        state = af.train.get_checkpoint_state(place)
        assert state is not None
        assert [path.rpartition("/")[2] for path in state.all_model_checkpoint_paths] == ["m-2", "m-3"]
        assert [af.train.checkpoint_exists(f"{place}/m-{s}") for s in range(4)] == [False, False, True, True]
        assert len(af.train.get_checkpoint_mtimes(state.all_model_checkpoint_paths)) == 2
        await session.run(count.assign(77))
        await saver.restore(session, latest)
        assert await session.run(count) == 3
        for name, value in VALUES.items():
            assert np.array_equal(await session.run(made[name]), value), name
        saver.recover_last_checkpoints(state)
        assert [path.rpartition("/")[2] for path in saver.last_checkpoints] == ["m-2", "m-3"]
    assert af.train.load_variable(place, "count") == 3
    assert af.train.load_variable(f"{place}/m-2", "count") == 2
    assert dict(af.train.list_variables(latest))["float32"] == [2, 3]
    kept = {name.split(".")[0] for name in listing(place)}
    assert kept == ({"checkpoint", "m-2", "m-3", "m-0"} if incremental else {"checkpoint", "m-2", "m-3"})


async def test_snapshot_is_written_to_a_store_during_steps(place: str) -> None:
    a = af.Variable(np.zeros((40_000, 8), np.float32), name="a")
    step = a.assign_add(af.ones([40_000, 8]))
    saver = af.train.Saver()
    async with af.Session() as session:
        await session.run(a.initializer)
        async with af.train.BackgroundSaver(saver) as beside:
            prefix = await beside.save(session, f"{place}/m", 0)
            for _ in range(5):
                await session.run(step.op)
    assert prefix is not None
    assert np.all(af.train.load_variable(prefix, "a") == 0)


def memory_folder() -> str:
    return f"memory://{uuid.uuid4().hex}"


def test_load_variable_from_a_tensor_file_in_a_store() -> None:
    place = memory_folder()
    write_checkpoint(f"{place}/m", {"a": np.arange(3)})
    (name,) = [n for n in listing(place) if n.endswith(".safetensors")]
    assert af.train.load_variable(f"{place}/{name}", "a").tolist() == [0, 1, 2]


@pytest.mark.parametrize("base", [None, ""])
def test_saving_again_replaces_the_checkpoint_completely(base: str | None) -> None:
    place = memory_folder()
    for i in range(3):
        write_checkpoint(f"{place}/m", {"a": np.full(3, i)}, base)
        assert len(listing(place)) == 2
    assert CheckpointReader(f"{place}/m").read("a").tolist() == [2, 2, 2]


@pytest.mark.parametrize("base", [None, ""])
@pytest.mark.parametrize("first", [True, False])
def test_store_failure_at_any_call_leaves_the_old_or_new_checkpoint(
    monkeypatch: pytest.MonkeyPatch, base: str | None, first: bool
) -> None:
    kind = type(MEMORY)
    seen = []
    for k in range(30):
        place = memory_folder()
        if not first:
            write_checkpoint(f"{place}/m", {"a": np.zeros(3)}, base)
        calls = [0]

        def failing(original: Any, calls: list[int] = calls, k: int = k) -> Any:
            def call(*args: Any, **options: Any) -> Any:
                calls[0] += 1
                if calls[0] > k:
                    raise OSError("the connection was lost")
                return original(*args, **options)

            return call

        with monkeypatch.context() as patch:
            for name in ("_open", "pipe_file", "rm_file", "ls", "info"):
                patch.setattr(kind, name, failing(getattr(kind, name)))
            try:
                write_checkpoint(f"{place}/m", {"a": np.ones(3)}, base)
            except UnknownError as error:
                assert place in str(error)  # noqa: PT017  # this call does not always fail
        try:
            seen.append(float(CheckpointReader(f"{place}/m").read("a")[0]))
        except NotFoundError:
            seen.append(-1.0)
        if calls[0] <= k:
            break
    assert seen == sorted(seen)
    assert set(seen) == {-1.0 if first else 0.0, 1.0}


@pytest.mark.parametrize("base", [None, ""])
def test_every_damaged_byte_raises_data_loss_error(base: str | None) -> None:
    place = memory_folder()
    write_checkpoint(f"{place}/m", {"a": np.arange(3.0), "s": np.array([b"ab"], object)}, base)
    (name,) = [n for n in listing(place) if not n.endswith(".json")]
    path = f"{place}/{name}".removeprefix("memory:/")
    whole = MEMORY.cat_file(path)
    for position in range(len(whole)):
        MEMORY.pipe_file(path, whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        with pytest.raises(DataLossError):
            read_all(f"{place}/m")
    MEMORY.pipe_file(path, whole[:-1])
    with pytest.raises(DataLossError):
        read_all(f"{place}/m")
    MEMORY.rm_file(path)
    with pytest.raises(NotFoundError):
        read_all(f"{place}/m")


def test_errors_of_a_store_are_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    place = memory_folder()
    for raised, kind in ((PermissionError("no"), PermissionDeniedError), (RuntimeError("odd"), UnknownError)):

        def refuse(*args: Any, raised: Exception = raised, **options: Any) -> Any:
            raise raised

        with monkeypatch.context() as patch:
            patch.setattr(type(MEMORY), "_open", refuse)
            with pytest.raises(kind) as caught:
                write_checkpoint(f"{place}/m", {"a": np.zeros(1)})
        assert place in str(caught.value)
    with pytest.raises(InvalidArgumentError):
        write_checkpoint("nosuchstore://x/m", {"a": np.zeros(1)})
    with pytest.raises(NotFoundError):
        CheckpointReader(f"{place}/m")


async def test_without_fsspec_the_error_has_the_install_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    af.Variable(1.0, name="a")
    saver = af.train.Saver()
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        with pytest.raises(OpError) as caught:
            await saver.save(session, "s3://bucket/m")
        assert isinstance(caught.value, UnimplementedError)
        assert "pip install 'aioflow-engine[fsspec]'" in str(caught.value)
        assert await saver.save(session, f"file://{tmp_path}/m") is not None


async def test_error_names_the_missing_package_of_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UnimplementedError, match="s3fs"):
        af.train.latest_checkpoint("s3://bucket/run")


async def test_monitored_session_resumes_from_a_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    place, steps = memory_folder(), []
    for last in (3, 5):
        with af.Graph().as_default():
            update = af.train.get_or_create_global_step().assign_add(1)
            async with af.train.MonitoredTrainingSession(
                checkpoint_dir=place, save_checkpoint_steps=2, hooks=[af.train.StopAtStepHook(last_step=last)]
            ) as session:
                while not session.should_stop():
                    steps.append(int(await session.run(update)))
    assert steps == [1, 2, 3, 4, 5]
    assert af.train.latest_checkpoint(place) == f"{place}/model.ckpt-5"
    assert "graph.pbtxt" in listing(place)
    assert listing(f"file://{tmp_path}") == []  # no local folder was created


async def test_supervisor_resumes_from_a_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    place = memory_folder()
    for reached in (1, 2):
        with af.Graph().as_default():
            update = af.train.get_or_create_global_step().assign_add(1)
            supervisor = af.train.Supervisor(logdir=place, save_model_secs=0)
            async with supervisor.managed_session() as session:
                assert int(await session.run(update)) == reached
                await supervisor.saver.save(session, supervisor.save_path, global_step=reached)
    assert listing(f"file://{tmp_path}") == []  # no local folder was created


@pytest.mark.parametrize("as_text", [True, False])
def test_graph_is_written_to_and_read_from_a_url(graph: af.Graph, place: str, as_text: bool) -> None:
    af.constant(1.0, name="c")
    path = af.train.write_graph(graph, place, "graph", as_text)
    assert af.train.read_graph(path) == graph.as_graph_def()
    assert af.train.read_graph(f"{place}/graph") == graph.as_graph_def()
    with pytest.raises(NotFoundError, match="none"):
        af.train.read_graph(f"{place}/none")


async def test_profiler_writes_traces_to_a_store(place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    update = af.train.get_or_create_global_step().assign_add(1, read_value=False)
    async with af.train.MonitoredSession(hooks=[af.train.ProfilerHook(save_steps=2, output_dir=place)]) as session:
        for _ in range(5):
            await session.run(update)
    events, *traces = listing(place)
    assert events.startswith("events.out.tfevents.")
    assert traces == ["timeline-2.json", "timeline-4.json"]
    assert listing(f"file://{tmp_path}/empty") == []  # no local folder was created


@pytest.mark.parametrize(
    "call",
    [
        lambda url: af.train.read_graph(f"{url}/graph.pbtxt"),
        lambda url: af.train.write_graph(af.Graph(), url, "graph.pbtxt"),
    ],
)
def test_graph_urls_of_unknown_schemes_are_rejected(call: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="nowhere"):
        call("nowhere://folder")
