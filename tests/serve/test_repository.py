"""Versions of models: found, loaded, replaced during requests, and unloaded."""

from __future__ import annotations

import asyncio
import weakref
from errno import EACCES
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow import errors
from aioflow.saved.opening import open_model
from aioflow.serve import ModelOptions, ModelSource, Repository
from aioflow.serve.protocol import InferRequest, MalformedRequestError, RequestedOutput
from aioflow.serve.repository import VersionState
from aioflow.serve.sources import parse_source
from tests.serve.folders import SECONDS, rows, save_model, scaled, slow, summed


async def answer(repository: Repository, name: str, x: Any, version: str | None = None, **more: Any) -> Any:
    with repository.used(name, version) as model:
        response = await model.infer(InferRequest({"x": x}, **more))
    assert response.model_name == name
    (value,) = response.outputs.values()
    return value


# ── model sources ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_parse_source_of_a_command_line(tmp_path: Path) -> None:
    assert parse_source("a=m") == ("a", ModelSource("m"))
    assert parse_source("a-1.b=/x/y:3") == ("a-1.b", ModelSource("/x/y", (3,)))
    assert parse_source("a=m:1,12") == ("a", ModelSource("m", (1, 12)))
    assert parse_source("a=m:all") == ("a", ModelSource("m", None))
    assert parse_source("a=s3://b/m") == ("a", ModelSource("s3://b/m"))
    assert parse_source("a=b=c") == ("a", ModelSource("b=c"))
    for wrong in ("a", "=m", "a=", "a/b=m", "..=m", "a b=m", ""):
        with pytest.raises(errors.InvalidArgumentError):
            parse_source(wrong)


async def test_numbered_folders_are_versions_and_the_newest_is_served(tmp_path: Path) -> None:
    for version in (1, 2, 10):
        await save_model(tmp_path / str(version), scaled(version))
    (tmp_path / "notes").mkdir()
    x = rows(2)
    for source, wanted in [
        (ModelSource(str(tmp_path)), [10]),
        (ModelSource(str(tmp_path), (2, 1)), [1, 2]),
        (ModelSource(str(tmp_path), None), [1, 2, 10]),
        (ModelSource(str(tmp_path / "2")), [1]),
    ]:
        async with Repository({"m": source}) as repository:
            await repository.load("m")
            assert repository.versions("m") == wanted
            by = 2 if source.path.endswith("/2") else max(wanted)
            np.testing.assert_allclose(await answer(repository, "m", x), x * by)
    with pytest.raises(errors.NotFoundError, match="no version 3"):
        ModelSource(str(tmp_path), (3,)).find()
    with pytest.raises(errors.NotFoundError, match="there is no model"):
        ModelSource(str(tmp_path / "missing")).find()


async def test_unreadable_versions_matter_only_if_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A requested version that cannot be read is reported as PermissionDeniedError, not as a fault of the server."""
    for version in (1, 2):
        await save_model(tmp_path / str(version), scaled(version))
    is_file = Path.is_file

    def closed(path: Path) -> bool:
        if path.parent.name == "1":
            raise PermissionError(EACCES, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", closed)  # patched, since file modes do not restrict root
    async with Repository({"m": tmp_path, "all": ModelSource(str(tmp_path), None)}) as repository:
        await repository.load("m")
        assert repository.versions("m") == [2]
        with pytest.raises(errors.PermissionDeniedError):
            await repository.load("all")


async def test_checkpoint_is_rejected_with_a_reason(tmp_path: Path) -> None:
    """A checkpoint's prefix is not a file, but "not found" would mislead a user who sees the checkpoint's files."""
    with af.Graph().as_default() as graph:
        saver = af.train.Saver({"w": af.Variable(1.0)})
        start = af.global_variables_initializer()
    async with af.Session(graph=graph) as session:
        await session.run(start)
        prefix = await saver.save(session, tmp_path / "model.ckpt")
    assert prefix is not None
    async with Repository({"weights": prefix}) as repository:
        with pytest.raises(errors.InvalidArgumentError, match=r"model 'weights': .* has no signature") as raised:
            await repository.load_all()
    assert "checkpoint" in str(raised.value.actual)


@pytest.mark.parametrize(("readiness", "is_ready"), [("all", False), ("any", True)])
async def test_one_model_that_fails_does_not_keep_others_from_loading(
    readiness: Any, is_ready: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    models = {name: tmp_path / name for name in ("bad", "m", "n")}
    for name in "mn":
        await save_model(models[name], scaled(2))
    async with Repository(models, readiness=readiness) as repository:
        await repository.load("m")
        assert not repository.is_ready  # the others have not failed: they are still to be loaded
        await repository.load_all(strict=False)
        assert repository.is_ready == is_ready
        assert repository.failures() == {"bad": "NotFoundError"}
        assert [(each.name, each.reason[:17]) for each in repository.index()] == [
            ("bad", "there is no model"),
            ("m", ""),
            ("n", ""),
        ]
        assert "model bad cannot be loaded: there is no model" in caplog.text
        with pytest.raises(errors.NotFoundError, match="model 'bad'"):
            await repository.load_all()
        await save_model(models["bad"], scaled(2))
        await repository.load("bad")
        assert (repository.is_ready, repository.failures()) == (True, {})


async def test_error_is_raised_if_no_model_can_be_loaded(tmp_path: Path) -> None:
    async with Repository({"a": tmp_path / "a", "b": tmp_path / "b"}, readiness="any") as repository:
        with pytest.raises(errors.NotFoundError, match="model 'a'"):
            await repository.load_all(strict=False)
        assert not repository.is_ready


# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_concurrent_requests_share_steps_and_each_gets_its_own_rows(tmp_path: Path) -> None:
    await save_model(tmp_path / "m", scaled(3))
    async with Repository({"m": tmp_path / "m"}) as repository:
        await repository.load("m")
        sent = [rows(1 + n % 3, n) for n in range(50)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(answer(repository, "m", x)) for x in sent]
        for x, task in zip(sent, tasks, strict=True):
            np.testing.assert_allclose(task.result(), x * 3, rtol=1e-6)
        (call,) = repository.get("m").calls.values()
        assert call.is_batched
        assert call.statistics().batches < 25


async def test_model_without_rows_takes_turns(tmp_path: Path) -> None:
    """The first size of the vector is unknown, but the sum has no rows, so the model cannot be batched."""
    await save_model(tmp_path / "m", summed)
    options = ModelOptions(max_batch_size=2, max_enqueued_batches=2)
    async with Repository({"m": tmp_path / "m"}, options) as repository:
        await repository.load("m")
        assert not next(iter(repository.get("m").calls.values())).is_batched
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(answer(repository, "m", np.full(n, 2, np.float32))) for n in range(5)
            ]  # one runs, four wait
        assert [float(task.result()) for task in tasks] == [0, 2, 4, 6, 8]


async def test_unbatched_model_limits_its_queue_and_expires_late_requests(tmp_path: Path) -> None:
    await save_model(tmp_path / "m", slow(2**31 - 1))
    options = ModelOptions(batch="never", max_batch_size=1, max_enqueued_batches=1, warmup=False, timeout=30.0)
    x = np.ones([1, 1], np.float32)
    async with Repository({"m": tmp_path / "m"}, options) as repository, asyncio.timeout(SECONDS):
        await repository.load("m")
        call = next(iter(repository.get("m").calls.values()))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(answer(repository, "m", x)) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(errors.ResourceExhaustedError) as raised:
                await answer(repository, "m", x)
            assert raised.value.retry_after is not None
            tasks[0].cancel()
            tasks[1].cancel()
        with pytest.raises(errors.DeadlineExceededError):
            await answer(repository, "m", x, timeout=0.01)
        found = call.statistics()
        assert (found.cancelled, found.rejected, found.expired, found.running_batches) == (2, 1, 1, 0)


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (InferRequest({}), "other inputs"),
        (InferRequest({"x": rows(), "z": rows()}), "other inputs"),
        (InferRequest({"x": rows().astype(np.float64)}), "datatype"),
        (InferRequest({"x": rows()[:, :2]}), "shape"),
        (InferRequest({"x": rows()[0]}), "shape"),
        (InferRequest({"x": rows()}, [RequestedOutput("q")]), "no output 'q'"),
        (InferRequest({"x": rows()}, parameters={"signature": "train"}), "signature"),
        (InferRequest({"x": rows()}, parameters={"signature": ["train"]}), "signature"),
    ],
)
async def test_request_that_does_not_fit_the_model_is_rejected(
    request_: InferRequest, says: str, tmp_path: Path
) -> None:
    await save_model(tmp_path / "m", scaled(3))
    async with Repository({"m": tmp_path / "m"}) as repository:
        await repository.load("m")
        with pytest.raises(MalformedRequestError, match=says):
            await repository.get("m").infer(request_)


# ── changes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_reload_loses_no_request_and_mixes_no_versions(tmp_path: Path) -> None:
    """Clients send requests while newer versions are loaded; each response comes from the version that it names."""
    await save_model(tmp_path / "1", scaled(1))
    async with Repository({"m": tmp_path}) as repository, asyncio.timeout(SECONDS):
        await repository.load("m")
        seen: set[int] = set()
        is_over = False

        async def client(seed: int) -> None:
            x = rows(2, seed)
            while not is_over:
                with repository.used("m") as model:
                    response = await model.infer(InferRequest({"x": x}))
                by = int(response.model_version)
                seen.add(by)
                np.testing.assert_allclose(response.outputs["y"], x * by, rtol=1e-6)
                # A loop that never waits can keep the GIL from the loading thread for half a minute.
                await asyncio.to_thread(bool)

        async with asyncio.TaskGroup() as group:
            for seed in range(8):
                group.create_task(client(seed))
            for version in (2, 3, 4):
                await save_model(tmp_path / str(version), scaled(version))
                before = repository.get("m")
                await repository.load("m")
                assert repository.versions("m") == [version]
                while not before.session.closed:  # noqa: ASYNC110  # a session has no event for it
                    await asyncio.sleep(0)
            is_over = True
        assert seen >= {1, 2, 3}


async def test_replaced_version_is_freed(tmp_path: Path) -> None:
    """The weights of the replaced version are freed without a call of the user."""
    await save_model(tmp_path / "m", scaled(2))
    async with Repository({"m": tmp_path / "m"}) as repository, asyncio.timeout(SECONDS):
        await repository.load("m")
        await answer(repository, "m", rows())
        graph = weakref.ref(repository.get("m").model.graph)
        await repository.load("m")
        while graph() is not None:  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0)


async def test_replaced_version_is_freed_once_the_loop_drops_its_reference(tmp_path: Path) -> None:
    """A garbage collection that comes too early finds nothing, so that another one must follow."""
    await save_model(tmp_path / "m", scaled(2))
    async with Repository({"m": tmp_path / "m"}) as repository, asyncio.timeout(SECONDS):
        await repository.load("m")
        graph = weakref.ref(repository.get("m").model.graph)
        asyncio.get_running_loop().call_later(0.02, id, graph())
        await repository.load("m")
        while graph() is not None:  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0)


async def test_failed_reload_keeps_the_loaded_version(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await save_model(tmp_path / "1", scaled(5))
    async with Repository({"m": tmp_path}) as repository:
        await repository.load("m")
        (tmp_path / "2").mkdir()
        with pytest.raises(errors.InvalidArgumentError):
            await repository.load("m")
        assert "model m could not be reloaded and is unchanged" in caplog.text
        assert repository.is_ready
        np.testing.assert_allclose(await answer(repository, "m", rows()), rows() * 5, rtol=1e-6)


async def test_unload_waits_for_requests_and_load_restores_the_model(tmp_path: Path) -> None:
    await save_model(tmp_path / "m", scaled(2))
    async with Repository({"m": tmp_path / "m"}) as repository, asyncio.timeout(SECONDS):
        assert [(each.name, each.state) for each in repository.index()] == [("m", VersionState.UNAVAILABLE)]
        with pytest.raises(errors.UnavailableError, match="loaded"):
            repository.get("m")
        await repository.load("m")
        model = repository.get("m")
        with model.used():
            async with asyncio.TaskGroup() as group:
                unloading = group.create_task(repository.unload("m"))
                while repository.is_ready and not unloading.done():
                    await asyncio.sleep(0)
                    if repository.index()[0].state is VersionState.UNLOADING:
                        break
                assert not unloading.done()
                # The running request is still answered.
                np.testing.assert_allclose((await model.infer(InferRequest({"x": rows()}))).outputs["y"], rows() * 2)
                with pytest.raises(errors.NotFoundError):
                    repository.get("m")
                with pytest.raises(errors.UnavailableError), model.used():
                    pass
                model._users -= 1
                model._unused.set()
                await unloading
            model._users += 1
        assert model.session.closed
        assert repository.is_ready  # an unloaded model does not count
        await repository.load("m")
        np.testing.assert_allclose(await answer(repository, "m", rows()), rows() * 2)


async def test_unknown_models_and_sources_are_reported(tmp_path: Path) -> None:
    await save_model(tmp_path / "m", scaled(2))
    async with Repository({"m": tmp_path / "m", "gone": tmp_path / "gone"}) as repository:
        await repository.load("m")
        assert not repository.is_ready
        for version in ("2", "x", "", "-1", "9" * 5000):
            with pytest.raises(errors.NotFoundError):
                repository.get("m", version)
        with pytest.raises(errors.NotFoundError, match="no model"):
            repository.get("other")
        with pytest.raises(errors.NotFoundError):
            await repository.load("gone")
        states = {each.name: (each.state, each.reason) for each in repository.index()}
        assert states["gone"][0] is VersionState.UNAVAILABLE
        assert states["gone"][1]
        with pytest.raises(errors.UnavailableError):
            repository.get("gone")
    with pytest.raises(errors.UnavailableError):
        await repository.load("m")
    with pytest.raises(errors.ClosedSessionError):
        await repository.__aenter__()
    with pytest.raises(errors.InvalidArgumentError):
        Repository({"a/b": tmp_path})


async def test_client_that_disconnects_does_not_stop_a_load(tmp_path: Path) -> None:
    await save_model(tmp_path / "m", scaled(2))
    async with Repository({"m": tmp_path / "m"}) as repository, asyncio.timeout(SECONDS):
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(repository.load("m"))
            await asyncio.sleep(0)
            asking.cancel()
        assert asking.cancelled()
        while not repository.is_ready:  # noqa: ASYNC110  # no task waits for that load
            await asyncio.sleep(0)


async def test_exit_closes_every_session_and_stops_a_load(tmp_path: Path) -> None:
    await save_model(tmp_path / "m", scaled(2))
    begun, may_end = asyncio.Event(), asyncio.Event()
    opened = 0

    async with Repository({"m": tmp_path / "m"}) as repository:
        await repository.load("m")
        session = repository.get("m").session
    assert session.closed

    loop = asyncio.get_running_loop()

    def opener(path: Any) -> Any:
        nonlocal opened
        opened += 1
        loop.call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result(SECONDS)
        return open_model(path)

    repository = Repository({"m": tmp_path / "m"}, opener=opener)
    async with asyncio.timeout(SECONDS):
        async with asyncio.TaskGroup() as group, repository:
            loading = group.create_task(_refused(repository))
            await begun.wait()
        assert isinstance(loading.result(), errors.UnavailableError)
    may_end.set()
    await asyncio.sleep(0)
    assert opened == 1


async def _refused(repository: Repository) -> BaseException | None:
    try:
        await repository.load("m")
    except errors.OpError as error:
        return error
    return None


async def test_models_of_one_process_share_threads_but_no_variables(tmp_path: Path) -> None:
    await save_model(tmp_path / "a", scaled(2))
    await save_model(tmp_path / "b", scaled(3))
    async with Repository({"a": tmp_path / "a", "b": tmp_path / "b"}) as repository:
        await repository.load_all()
        np.testing.assert_allclose(await answer(repository, "a", rows()), rows() * 2)
        np.testing.assert_allclose(await answer(repository, "b", rows()), rows() * 3)
        devices = [next(iter(repository.get(name).session.worker.devices.values())) for name in "ab"]
        assert devices[0].backend.executor is devices[1].backend.executor
        assert devices[0].resources is not devices[1].resources


@pytest.mark.parametrize("first", [None, 2])
async def test_models_of_other_formats_are_served(tmp_path: Path, first: int | None) -> None:
    """Serve an ONNX file in a numbered folder and a SavedModel.

    With a fixed first size, each request is a step of its own.
    """
    pytest.importorskip("onnx", reason="aioflow-engine[onnx] is not installed")
    with af.Graph().as_default() as graph:
        x = af.placeholder("float32", [first, 3], name="x")
        y = af.identity(x * 4.0, name="y")
    (tmp_path / "onnx" / "3").mkdir(parents=True)
    async with af.Session(graph=graph) as session:
        signature = af.saved.Signature({"x": x}, {"y": y})
        await af.interop.onnx.export(session, {"y": y}, {"x": x}, path=tmp_path / "onnx" / "3" / "model.onnx")
        await af.interop.tensorflow.save_saved_model(session, tmp_path / "saved", {"serving_default": signature})
    async with Repository({"onnx": tmp_path / "onnx", "saved": tmp_path / "saved"}) as repository:
        await repository.load_all()
        assert repository.versions("onnx") == [3]
        for name in ("onnx", "saved"):
            np.testing.assert_allclose(await answer(repository, name, rows(2)), rows(2) * 4, rtol=1e-6)
            assert next(iter(repository.get(name).calls.values())).is_batched == (first is None)


async def test_model_may_have_a_memory_budget_of_its_own(tmp_path: Path) -> None:
    def heavy() -> Any:
        x = af.placeholder("float32", [None, 100], name="x")
        return {"x": x}, {"y": af.matmul(x, af.Variable(np.ones([100, 10], np.float32)))}

    for version in (1, 2):
        await save_model(tmp_path / str(version), heavy)
    options: dict[str | None, ModelOptions] = {
        "fits": ModelOptions(memory_budget=6000),
        "not": ModelOptions(memory_budget=3000),
    }
    models = {name: ModelSource(str(tmp_path), (1,)) for name in ("fits", "not")}
    async with Repository(
        models | {"two": ModelSource(str(tmp_path), None)}, {**options, "two": options["fits"]}
    ) as found:
        await found.load("fits")
        await found.load("fits")  # the replaced version does not count
        for name in ("not", "two"):
            with pytest.raises(errors.ResourceExhaustedError, match="memory"):
                await found.load(name)


async def test_all_weights_share_one_memory_budget(tmp_path: Path) -> None:
    def heavy() -> Any:
        x = af.placeholder("float32", [None, 100], name="x")
        return {"x": x}, {"y": af.matmul(x, af.Variable(np.ones([100, 10], np.float32)))}

    await save_model(tmp_path / "a", heavy)
    await save_model(tmp_path / "b", heavy)
    async with Repository({"a": tmp_path / "a", "b": tmp_path / "b"}, memory_budget=6000) as repository:
        assert repository.memory is not None
        await repository.load("a")
        assert repository.memory.taken == 4000
        for name in "ab":  # a replacement needs memory for both versions
            with pytest.raises(errors.ResourceExhaustedError, match=f"model '{name}'"):
                await repository.load(name)
        assert (await answer(repository, "a", np.ones([1, 100], np.float32)))[0, 0] == 100
        await repository.unload("a")
        assert repository.memory.taken == 0
        await repository.load("b")
        assert repository.memory.taken == 4000
    assert repository.memory.taken == 0


async def test_model_that_fails_to_warm_up_is_ready(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The warm-up feeds empty strings, which are not PNG images."""

    def pictures() -> Any:
        texts = af.placeholder("string", [None], name="x")
        sizes = af.map_fn(lambda text: af.reduce_sum(af.cast(af.image.decode_png(text), "int32")), texts, dtype="int32")
        return {"x": texts}, {"y": sizes}

    await save_model(tmp_path / "m", pictures)
    async with Repository({"m": tmp_path / "m"}) as repository:
        await repository.load("m")
        assert "is not warmed up" in caplog.text
        async with af.Session() as session:
            picture = await session.run(af.image.encode_png(np.ones([2, 2, 1], np.uint8)))
        x = np.array([picture], object)
        assert (await answer(repository, "m", x)).tolist() == [4]
        with pytest.raises(errors.InvalidArgumentError):
            await answer(repository, "m", np.array([b"no picture"], object))
