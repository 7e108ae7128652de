"""Folders in which graphs sent to a server may open files."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import PermissionDeniedError
from aioflow.net.server import Server
from tests.net.clusters import cluster, inproc


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "a.txt").write_text("a")
    found = tmp_path / "secret.txt"
    found.write_text("secret")
    return found


async def test_server_opens_files_only_in_allowed_folders(file: Path) -> None:
    name = af.placeholder(af.string, [])
    contents, written = af.io.read_file(name), af.io.write_file(name, "x")
    inside = str(file.parent / "given" / "a.txt")
    for allowed in ([], [file.parent / "given"]):
        server = Server({"ps": inproc(1)}, "ps", 0, allow_dirs=allowed)
        async with server, af.Session(server.target) as session:
            for node in (contents, written):
                with pytest.raises(PermissionDeniedError, match="allow_dirs") as raised:
                    await session.run(node, {name: str(file)})
                assert raised.value.node in ("ReadFile", "WriteFile")
            if allowed:
                assert await session.run(contents, {name: inside}) == b"a"
                await session.run(written, {name: inside})
    local = [af.io.read_file(name) for name in (str(file), inside)]
    async with af.Session() as session:
        assert await session.run(local) == [b"secret", b"x"]


async def test_allowed_folders_apply_per_server_and_not_to_local_sessions(file: Path) -> None:
    spec = {"ps": inproc(1), "worker": inproc(1)}
    with af.device("/job:ps"):
        there = af.io.read_file(str(file))
    with af.device("/job:worker"):
        here = af.io.read_file(str(file))
    local = af.io.read_file(str(file))
    async with (
        Server(spec, "ps", 0, allow_dirs=[file.parent]),
        Server(spec, "worker", 0) as worker,
        af.Session(worker.target) as session,
    ):
        assert await session.run(there) == b"secret"
        with pytest.raises(PermissionDeniedError):
            await session.run(here)
    async with af.Session() as session:
        assert await session.run(local) == b"secret"


async def test_computed_file_names_are_checked_too(file: Path) -> None:
    # Names from constants, a reader's queue and a loop all reach the same check in the kernel.
    folder, rest = str(file.parent / "given"), "/../secret.txt"
    queue = af.FIFOQueue(2, [af.string], [[]])
    fill = queue.enqueue_many([[folder + rest, folder + "/a.txt"]])
    _, record = af.WholeFileReader().read(queue)
    joined = af.io.read_file(af.string_join([folder, rest]))
    in_loop = af.while_loop(
        lambda i, _: i < 1, lambda i, _: (i + 1, af.io.read_file(folder + rest)), [af.constant(0), af.constant("")]
    )[1]
    server = Server({"ps": inproc(1)}, "ps", 0, allow_dirs=[folder])
    async with server, af.Session(server.target) as session, asyncio.timeout(60):
        for node in (joined, in_loop):
            with pytest.raises(PermissionDeniedError):
                await session.run(node)
        await session.run(fill)
        with pytest.raises(PermissionDeniedError):
            await session.run(record)
        assert await session.run(record) == b"a", "the reader goes on with the next file"


async def test_checkpoint_folder_of_the_own_session_is_allowed(file: Path) -> None:
    # As in published programs: the chief's server writes to the folder that its monitored session was given.
    step = af.train.get_or_create_global_step()
    update = step.assign_add(1)
    spec = {"worker": inproc(1)}
    folder = file.parent / "run"
    async with Server(spec, "worker", 0) as server:
        async with af.train.MonitoredTrainingSession(server.target, checkpoint_dir=folder) as session:
            await session.run(update)
        saved = af.train.latest_checkpoint(folder)
        assert saved is not None
        with af.Graph().as_default():
            async with af.Session(server.target) as session:
                assert np.asarray(await session.run(af.io.matching_files(f"{folder}/*"))).size
                with pytest.raises(PermissionDeniedError):
                    await session.run(af.io.read_file(str(file)))


@pytest.mark.parametrize("tcp", [False, True])
async def test_checkpoints_of_remote_variables_are_written_by_the_chief(file: Path, tcp: bool) -> None:
    # A parameter server without `allow_dirs` opens no files, so the chief's server writes and reads the checkpoints.
    folder = file.parent / "run"
    async with cluster("ps", "worker", tcp=tcp) as (_, worker):
        for restored in (0, 1):
            with af.Graph().as_default():
                with af.device("/job:ps"):
                    table = af.get_variable("table", [1000, 100], initializer=af.ones_initializer())
                    step = af.train.get_or_create_global_step()
                    update = af.group(table.assign_add(af.ones([1000, 100])), step.assign_add(1))
                async with af.train.MonitoredTrainingSession(worker.target, checkpoint_dir=folder) as session:
                    assert int(await session.run(step)) == restored
                    await session.run(update)
                async with af.Session(worker.target) as session:
                    await session.clear()
        reader = af.train.load_checkpoint(folder)
        np.testing.assert_array_equal(reader.read("table"), np.full([1000, 100], 3))


async def test_file_nodes_keep_their_device_and_are_refused(file: Path) -> None:
    nodes = [af.io.read_file(str(file))]
    with af.device("/job:ps"):
        nodes.append(af.io.read_file(str(file), name="there"))
    async with cluster("ps", "worker") as (_, worker), af.Session(worker.target) as session:
        for node in nodes:
            with pytest.raises(PermissionDeniedError, match="--allow-dir"):
                await session.run(node)
