"""Checkpoints: round trips, retention, restoring elsewhere, damage, crashes, and other readers of safetensors."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

import aioflow
from aioflow.errors import (
    AbortedError,
    AlreadyExistsError,
    DataLossError,
    DTypeError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    PermissionDeniedError,
    UnimplementedError,
)
from aioflow.formats import checkpoint as checkpoint_format
from aioflow.formats.checkpoint import CheckpointReader, write_checkpoint
from aioflow.formats.tensor_file import write_tensors
from aioflow.graph.default_graph import default_graph

VALUES: dict[str, Any] = {
    "float16": np.array([1.5, -2], np.float16),
    "bfloat16": np.array([[1.5], [3]], ml_dtypes.bfloat16),
    "float32": np.arange(6, dtype=np.float32).reshape(2, 3),
    "float64": np.array(np.pi),
    "int8": np.array([-1, 2], np.int8),
    "uint8": np.zeros((0, 3), np.uint8),
    "int16": np.array([-300], np.int16),
    "uint16": np.array([300], np.uint16),
    "int32": np.array(7, np.int32),
    "uint32": np.array([2**32 - 1], np.uint32),
    "int64": np.array([-(2**60)], np.int64),
    "uint64": np.array([2**64 - 1], np.uint64),
    "bool": np.array([[True, False]]),
    "float8_e5m2": np.array([[1.5, -57344]], ml_dtypes.float8_e5m2),
    "float8_e4m3fn": np.array([448, 2**-9], ml_dtypes.float8_e4m3fn),
    "float8_e4m3fnuz": np.array([-240], ml_dtypes.float8_e4m3fnuz),
    "float8_e4m3b11fnuz": np.array([30], ml_dtypes.float8_e4m3b11fnuz),
    "float8_e5m2fnuz": np.array([0.25], ml_dtypes.float8_e5m2fnuz),
    "float8_e8m0fnu": np.array([2.0**-127, 2.0**100], ml_dtypes.float8_e8m0fnu),
    "float4_e2m1fn": np.array([-6, 0.5, 3], ml_dtypes.float4_e2m1fn),
    "int4": np.array([[-8], [7]], ml_dtypes.int4),
    "uint4": np.array(15, ml_dtypes.uint4),
    "int2": np.array([-2, 1], ml_dtypes.int2),
    "uint2": np.array([3], ml_dtypes.uint2),
    "complex64": np.array([1 + 2j], np.complex64),
    "complex128": np.array([[1 - 2j]], np.complex128),
    "string": np.array([[b"", b"\x00\xff"], ["ä".encode(), b"end\x00"]], dtype=object),
}


def variables(**values: Any) -> dict[str, Any]:
    return {name: aioflow.Variable(value, name=name) for name, value in values.items()}


def listing(directory: Path, pattern: str = "*") -> list[str]:
    return sorted(p.name for p in directory.glob(pattern))


def read_bytes(path: Path) -> bytes:
    return path.read_bytes()


async def saved(path: Path, **values: Any) -> str:
    """Write a checkpoint of variables with these values, and return its prefix."""
    with aioflow.Graph().as_default():
        variables(**values)
        saver = aioflow.train.Saver()
        async with aioflow.Session() as session:
            await session.run(aioflow.global_variables_initializer())
            prefix = await saver.save(session, path)
    assert prefix is not None
    return prefix


async def test_every_dtype_makes_a_round_trip_into_another_graph(tmp_path: Path) -> None:
    prefix = await saved(tmp_path / "model", **VALUES)
    with aioflow.Graph().as_default():
        empty = {
            n: aioflow.Variable(np.zeros(v.shape, v.dtype) if n != "string" else np.full(v.shape, b"x", object), name=n)
            for n, v in VALUES.items()
        }
        saver = aioflow.train.Saver()
        async with aioflow.Session() as session:
            await saver.restore(session, prefix)
            got = await session.run(empty)
    for name, value in VALUES.items():
        assert got[name].dtype == value.dtype, name
        assert got[name].shape == value.shape, name
        assert np.array_equal(got[name], value), name


async def test_global_step_is_part_of_the_path(tmp_path: Path) -> None:
    step = aioflow.Variable(12, name="global_step")
    saver, padded = aioflow.train.Saver(), aioflow.train.Saver(pad_step_number=True)
    async with aioflow.Session() as session:
        await session.run(step.initializer)
        assert await saver.save(session, tmp_path / "m", global_step=step) == str(tmp_path / "m-12")
        assert await saver.save(session, tmp_path / "m", global_step=3) == str(tmp_path / "m-3")
        assert await padded.save(session, tmp_path / "p", global_step=step) == str(tmp_path / "p-00000012")
    assert CheckpointReader(str(tmp_path / "m-12")).step == 12
    assert aioflow.train.list_variables(tmp_path / "m-12") == [("global_step", [])]
    assert aioflow.train.load_variable(tmp_path / "m-12", "global_step") == 12
    assert aioflow.train.load_variable(tmp_path, "global_step:0") == 12


async def test_saver_nodes_have_the_published_names(tmp_path: Path) -> None:
    variables(a=1.0)
    aioflow.train.Saver()
    graph = default_graph()
    for name in ("save/Const", "save/SaveV2", "save/control_dependency", "save/RestoreV2", "save/restore_all"):
        graph.get_operation_by_name(name)


async def test_dict_renames_and_list_selects_variables(tmp_path: Path) -> None:
    prefix = await saved(tmp_path / "m", a=1.0, b=2.0)
    with aioflow.Graph().as_default():
        x, y = aioflow.Variable(0.0, name="x"), aioflow.Variable(0.0, name="b")
        renamed, listed = aioflow.train.Saver({"a": x}), aioflow.train.Saver([y])
        async with aioflow.Session() as session:
            await renamed.restore(session, prefix)
            await listed.restore(session, prefix)
            assert await session.run([x, y]) == [1.0, 2.0]


async def test_max_to_keep_and_the_state_file(tmp_path: Path) -> None:
    variables(a=1.0)
    saver = aioflow.train.Saver(max_to_keep=2)
    async with aioflow.Session() as session:
        await session.run(aioflow.global_variables_initializer())
        assert aioflow.train.latest_checkpoint(tmp_path) is None
        for step in range(4):
            await saver.save(session, tmp_path / "m", global_step=step)
    kept = [str(tmp_path / "m-2"), str(tmp_path / "m-3")]
    assert saver.last_checkpoints == kept
    assert aioflow.train.latest_checkpoint(tmp_path) == kept[-1]
    state = aioflow.train.get_checkpoint_state(tmp_path)
    assert state is not None
    assert list(state.all_model_checkpoint_paths) == kept
    assert len(state.all_model_checkpoint_timestamps) == 2
    files = listing(tmp_path)
    assert files == ["checkpoint", *(f"m-{s}{e}" for s in (2, 3) for e in (".manifest.json", ".meta", ".safetensors"))]
    assert [aioflow.train.checkpoint_exists(str(tmp_path / f"m-{s}")) for s in range(4)] == [False, False, True, True]


async def test_latest_checkpoint_in_a_moved_directory(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    await saved(tmp_path / "old" / "m", a=1.0)
    (tmp_path / "old").rename(tmp_path / "new")
    assert aioflow.train.latest_checkpoint(tmp_path / "new") == str(tmp_path / "new" / "m")


async def test_keep_checkpoint_every_n_hours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    variables(a=1.0)
    saver = aioflow.train.Saver(max_to_keep=1, keep_checkpoint_every_n_hours=1)
    async with aioflow.Session() as session:
        await session.run(aioflow.global_variables_initializer())
        for step in range(6):
            await saver.save(session, tmp_path / "m", global_step=step)
            now += 1500
    # Written at 1000, 2500, … seconds. The first one after 4600, the first one after 8200, and the newest are kept.
    assert listing(tmp_path, "*.manifest.json") == ["m-3.manifest.json", "m-5.manifest.json"]


async def test_recover_last_checkpoints_of_an_earlier_run(tmp_path: Path) -> None:
    first = await saved(tmp_path / "m-1", a=1.0)
    state = aioflow.train.get_checkpoint_state(tmp_path)
    assert state is not None
    with aioflow.Graph().as_default():
        variables(a=2.0)
        saver = aioflow.train.Saver(max_to_keep=1)
        saver.recover_last_checkpoints(state)
        saver.recover_last_checkpoints([first, str(tmp_path / "gone")])
        assert saver.last_checkpoints == [first]
        async with aioflow.Session() as session:
            await session.run(aioflow.global_variables_initializer())
            await saver.save(session, tmp_path / "m", global_step=2)
    assert not aioflow.train.checkpoint_exists(first)
    saver.set_last_checkpoints(["a"])
    assert saver.last_checkpoints == ["a"]
    saver.set_last_checkpoints_with_time([("b", 1.0)])
    assert saver.last_checkpoints == ["b"]


async def test_saving_under_the_same_name_replaces_the_checkpoint(tmp_path: Path) -> None:
    a = aioflow.Variable(1.0, name="a")
    saver = aioflow.train.Saver(max_to_keep=None)
    async with aioflow.Session() as session:
        await session.run(a.initializer)
        prefix = await saver.save(session, tmp_path / "m")
        await session.run(a.assign(5.0))
        assert await saver.save(session, tmp_path / "m", latest_filename="mine") == prefix
    assert aioflow.train.load_variable(tmp_path / "m", "a") == 5
    assert aioflow.train.latest_checkpoint(tmp_path, "mine") == prefix


async def test_checkpoint_during_training_is_consistent(tmp_path: Path) -> None:
    a = aioflow.Variable(np.zeros(1000, np.float32), name="a")
    saver = aioflow.train.Saver()
    step = a.assign_add(np.ones(1000, np.float32))
    async with aioflow.Session() as session:
        await session.run(a.initializer)
        async with asyncio.TaskGroup() as group:
            saving = group.create_task(saver.save(session, tmp_path / "m"))
            for _ in range(200):
                await session.run(step.op)
        await saving
    value = aioflow.train.load_variable(tmp_path / "m", "a")
    assert value.min() == value.max()


async def test_checkpoint_replaced_during_a_restore_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = await saved(tmp_path / "m", a=1.0, b=1.0)
    reader = CheckpointReader(prefix)
    assert reader.read("a") == 1
    write_checkpoint(prefix, {"a": np.float32(2), "b": np.float32(2)})
    with pytest.raises(AbortedError):
        reader.read("b")

    original = CheckpointReader.read
    replaced: list[str] = []

    def read(self: CheckpointReader, name: str) -> Any:
        if name == "b" and not replaced:
            replaced.append(name)
            write_checkpoint(prefix, {"a": np.float32(3), "b": np.float32(3)})
        return original(self, name)

    monkeypatch.setattr(CheckpointReader, "read", read)
    made = variables(a=0.0, b=0.0)
    saver = aioflow.train.Saver()
    async with aioflow.Session() as session:
        await saver.restore(session, prefix)
        assert await session.run(made) == {"a": 3, "b": 3}


# -- restoring into other variables -----------------------------------------------------------------------------------


async def restoring(prefix: str, **settings: Any) -> None:
    saver = aioflow.train.Saver(**settings)
    async with aioflow.Session() as session:
        await session.run(aioflow.global_variables_initializer())
        try:
            await saver.restore(session, prefix)
        finally:
            for variable in aioflow.global_variables():
                assert np.all(await session.run(variable) == 0), "a refused restore changed a variable"


async def test_error_names_missing_variables_and_existing_ones(tmp_path: Path) -> None:
    prefix = await saved(tmp_path / "m", a=1.0, b=2.0)
    variables(a=0.0, c=0.0)
    with pytest.raises(NotFoundError) as caught:
        await restoring(prefix)
    assert caught.value.actual == ["c"]
    assert "['a', 'b']" in str(caught.value.expected)


async def test_restore_rejects_another_shape_or_dtype(tmp_path: Path) -> None:
    prefix = await saved(tmp_path / "m", a=1.0, b=[1.0, 2.0])
    with aioflow.Graph().as_default():
        variables(a=0.0, b=[0.0, 0.0, 0.0])
        with pytest.raises(InvalidArgumentError) as caught:
            await restoring(prefix)
        assert "variable b" in caught.value.message
        assert (str(caught.value.expected), caught.value.actual) == ("(3,)", (2,))
    variables(a=0.0, b=[0, 0])
    with pytest.raises(DTypeError) as caught_dtype:
        await restoring(prefix)
    assert (caught_dtype.value.expected, caught_dtype.value.actual) == ("int32", "float32")


async def test_reshape_restores_the_same_number_of_elements(tmp_path: Path) -> None:
    prefix = await saved(tmp_path / "m", a=np.arange(6, dtype=np.float32))
    a = aioflow.Variable(np.zeros((2, 3), np.float32), name="a")
    saver = aioflow.train.Saver(reshape=True, restore_sequentially=True)
    async with aioflow.Session() as session:
        await saver.restore(session, prefix)
        assert (await session.run(a)).tolist() == [[0, 1, 2], [3, 4, 5]]


async def test_restoring_a_missing_checkpoint_fails(tmp_path: Path) -> None:
    variables(a=0.0)
    for path in (str(tmp_path / "none"), str(tmp_path / "none" / "deeper")):
        with pytest.raises(NotFoundError) as caught:
            await restoring(path)
        assert path in str(caught.value)
    with pytest.raises(NotFoundError):
        aioflow.train.load_checkpoint(tmp_path)
    assert not aioflow.train.checkpoint_exists(str(tmp_path / "none"))


# -- damage -----------------------------------------------------------------------------------------------------------


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def flip_last(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def flip_header(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b'"a"', b'"z"'))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


@pytest.mark.parametrize("damage", [cut, grow, flip_last, flip_header, empty, garbage, Path.unlink])
async def test_error_names_a_damaged_data_file(tmp_path: Path, damage: Callable[[Path], Any]) -> None:
    prefix = await saved(tmp_path / "m", a=np.zeros(5, np.float32))
    file = tmp_path / "m.safetensors"
    damage(file)
    variables(a=np.zeros(5, np.float32))
    with pytest.raises(OpError) as caught:
        await restoring(prefix)
    assert isinstance(caught.value, NotFoundError if damage is Path.unlink else DataLossError)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        cut,
        empty,
        garbage,
        lambda p: p.write_text(p.read_text().replace("float32", "float64")),
        lambda p: p.write_text("[]"),
    ],
)
async def test_error_names_a_damaged_manifest(tmp_path: Path, damage: Callable[[Path], Any]) -> None:
    prefix = await saved(tmp_path / "m", a=np.zeros(5, np.float32))
    file = tmp_path / "m.manifest.json"
    damage(file)
    variables(a=np.zeros(5, np.float32))
    with pytest.raises(DataLossError) as caught:
        await restoring(prefix)
    assert str(file) in str(caught.value)


def read_all(prefix: str) -> None:
    reader = CheckpointReader(prefix)
    for name in reader.names():
        reader.read(name)


@pytest.mark.blocks_loop("reads a damaged file hundreds of times where it stands, as programs without a loop do")
async def test_every_flipped_byte_raises_data_loss_error(quick_path: Path) -> None:
    prefix = await saved(quick_path / "m", a=np.arange(3, dtype=np.float32), s=np.array([b"ab", b"c"], object))
    file = quick_path / "m.safetensors"
    whole = file.read_bytes()
    for position in range(len(whole)):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        with pytest.raises(DataLossError):
            read_all(prefix)
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(DataLossError):
            CheckpointReader(prefix)


async def test_data_file_of_another_checkpoint_is_rejected(tmp_path: Path) -> None:
    await saved(tmp_path / "m", a=1.0)
    other = await saved(tmp_path / "n", a=2.0)
    (tmp_path / "m.safetensors").replace(tmp_path / "n.safetensors")
    with pytest.raises(DataLossError):
        CheckpointReader(other).read("a")


async def test_error_names_a_damaged_state_file(tmp_path: Path) -> None:
    await saved(tmp_path / "m", a=1.0)
    for text in ("{", "[]", '{"model_checkpoint_path": 3}'):
        (tmp_path / "checkpoint").write_text(text)
        with pytest.raises(DataLossError) as caught:
            aioflow.train.latest_checkpoint(tmp_path)
        assert str(tmp_path / "checkpoint") in str(caught.value)


NESTED = '{"a":' * 100_000 + "1" + "}" * 100_000
WRONG_VALUES: list[Any] = [None, True, -1, 2**70, 1.5, "x", "", [], [1], [[]], {}, {"x": 1}]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths to every value inside."""
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], other)
    return copy


async def test_deeply_nested_json_raises_data_loss_error(tmp_path: Path) -> None:
    prefix = await saved(tmp_path / "m", a=1.0)
    plain = tmp_path / "plain.safetensors"
    plain.write_bytes(len(NESTED).to_bytes(8, "little") + NESTED.encode())
    inner = json.dumps({"__metadata__": {"aioflow.dtypes": NESTED}})
    within = tmp_path / "within.safetensors"
    within.write_bytes(len(inner).to_bytes(8, "little") + inner.encode())
    for file in (plain, within):
        with pytest.raises(DataLossError, match=file.name):
            CheckpointReader(str(file))
    for name in ("m.manifest.json", "checkpoint"):
        (tmp_path / name).write_text(NESTED)
    with pytest.raises(DataLossError, match="manifest"):
        CheckpointReader(prefix)
    with pytest.raises(DataLossError, match="checkpoint"):
        aioflow.train.latest_checkpoint(tmp_path)


async def test_malformed_header_is_read_or_rejected(tmp_path: Path) -> None:
    await saved(tmp_path / "m", a=np.zeros(2, np.float32), s=np.array([b"x"], object))
    file = tmp_path / "m.safetensors"
    (tmp_path / "m.manifest.json").unlink()
    raw = file.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + size]), raw[8 + size :]
    inner = {**header, "__metadata__": {key: json.loads(text) for key, text in header["__metadata__"].items()}}
    for path in places(inner):
        for other in WRONG_VALUES:
            changed = replaced(inner, path, other)
            metadata = changed.get("__metadata__") if isinstance(changed, dict) else None
            if isinstance(metadata, dict):
                packed = {key: json.dumps(value) for key, value in metadata.items()}
                changed = {**changed, "__metadata__": packed}
            text = json.dumps(changed).encode()
            file.write_bytes(len(text).to_bytes(8, "little") + text + data)
            with contextlib.suppress(OpError):
                read_all(str(file))


async def test_malformed_manifest_or_state_is_read_or_rejected(tmp_path: Path) -> None:
    """The checksum of the manifest is recomputed, as in a forgery."""
    prefix = await saved(tmp_path / "m", a=np.zeros(2, np.float32))
    manifest = json.loads((tmp_path / "m.manifest.json").read_text())
    del manifest["sha256"]
    for path in places(manifest):
        for other in WRONG_VALUES:
            changed = replaced(manifest, path, other)
            if isinstance(changed, dict):
                digest = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()
                changed = {**changed, "sha256": digest}
            (tmp_path / "m.manifest.json").write_text(json.dumps(changed))
            with contextlib.suppress(OpError):
                read_all(prefix)
    state = {  # the JSON form of early versions
        "model_checkpoint_path": "m",
        "all_model_checkpoint_paths": ["m"],
        "all_model_checkpoint_timestamps": [1.5],
    }
    (tmp_path / "checkpoint").write_text(json.dumps(state))
    found = aioflow.train.get_checkpoint_state(tmp_path)
    assert found is not None
    assert found.all_model_checkpoint_timestamps == (1.5,)
    assert found.model_checkpoint_path == prefix
    for path in places(state):
        for other in WRONG_VALUES:
            (tmp_path / "checkpoint").write_text(json.dumps(replaced(state, path, other)))
            with contextlib.suppress(OpError):
                aioflow.train.latest_checkpoint(tmp_path)


# -- crashes ----------------------------------------------------------------------------------------------------------


class CrashError(BaseException):
    """A simulated end of the process."""


@pytest.mark.parametrize("first", [True, False])
def test_crash_at_any_call_leaves_the_old_or_the_new_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """Crash before the k-th call that changes the file system, for every k."""
    outcomes = []
    for k in range(40):
        prefix = str(tmp_path / f"{first}{k}")
        if not first:
            write_checkpoint(prefix, {"a": np.zeros(2, np.float32)})
        with monkeypatch.context() as patch:
            calls = _crash_before(patch, k)
            with contextlib.suppress(CrashError):
                write_checkpoint(prefix, {"a": np.ones(2, np.float32)})
        finished = calls[0] <= k
        try:
            value = float(CheckpointReader(prefix).read("a")[0])
        except NotFoundError:
            value = -1.0
        outcomes.append(value)
        write_checkpoint(prefix, {"a": np.full(2, 2, np.float32)})
        assert CheckpointReader(prefix).read("a").tolist() == [2, 2]
        if finished:
            break
    assert finished
    assert sorted(outcomes) == outcomes
    assert set(outcomes) == {-1.0 if first else 0.0, 1.0}
    assert listing(tmp_path, "*.pending") == []


def _crash_before(patch: pytest.MonkeyPatch, k: int) -> list[int]:
    calls = [0]

    def wrap(original: Any) -> Any:
        def step(*args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            if calls[0] > k:
                raise CrashError
            return original(*args, **kwargs)

        return step

    patch.setattr(Path, "replace", wrap(Path.replace))
    patch.setattr(os, "fsync", wrap(os.fsync))
    patch.setattr(checkpoint_format, "write_tensors", wrap(write_tensors))
    return calls


async def test_failed_save_leaves_no_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> Any:
        raise OSError(28, "No space left on device", "somewhere")

    monkeypatch.setattr(checkpoint_format, "write_tensors", full)
    with pytest.raises(aioflow.errors.ResourceExhaustedError) as caught:
        await saved(tmp_path / "m", a=1.0)
    assert "somewhere" in str(caught.value)
    assert listing(tmp_path) == []


async def test_error_names_an_unwritable_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OpError) as caught:
        await saved(tmp_path / "file" / "m", a=1.0)
    assert str(tmp_path / "file") in str(caught.value)
    assert caught.value.node == "save/SaveV2"


@pytest.mark.parametrize(
    ("name", "kind"),
    [("x" * 300, InvalidArgumentError), ("file/m", AlreadyExistsError), ("a\0b", InvalidArgumentError)],
)
def test_invalid_paths_raise_specific_errors(tmp_path: Path, name: str, kind: type[OpError]) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(kind):
        write_checkpoint(str(tmp_path / name), {"a": np.zeros(2)})
    with pytest.raises((kind, NotFoundError, FailedPreconditionError)):
        CheckpointReader(str(tmp_path / name))


def test_unreadable_state_file_raises_an_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    with pytest.raises(FailedPreconditionError):
        aioflow.train.get_checkpoint_state(tmp_path)
    assert aioflow.train.get_checkpoint_state(tmp_path / "nothing") is None


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
async def test_unwritable_directory_raises_permission_denied(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o500)
    with pytest.raises(PermissionDeniedError):
        await saved(tmp_path / "m", a=1.0)


# -- the ecosystem ----------------------------------------------------------------------------------------------------


async def test_safetensors_library_reads_the_data_file(tmp_path: Path) -> None:
    await saved(tmp_path / "m", **VALUES)
    path = str(tmp_path / "m.safetensors")
    whole = read_bytes(Path(path))
    plain = {n: v for n, v in VALUES.items() if v.dtype.kind in "iufb" and v.dtype.num < 256}  # NumPy's own dtypes
    with safetensors.safe_open(path, framework="np") as file:
        assert set(file.keys()) == set(VALUES)
        for name, value in plain.items():
            got = file.get_tensor(name)
            assert got.dtype == value.dtype
            assert np.array_equal(got, value)
        assert np.array_equal(file.get_tensor("complex64"), [[1, 2]])
    raw = dict(safetensors.deserialize(whole))  # type: ignore[no-untyped-call]  # the library has no type annotations
    assert raw["bfloat16"]["dtype"] == "BF16"
    assert bytes(raw["bfloat16"]["data"]) == VALUES["bfloat16"].tobytes()
    assert raw["float8_e5m2"]["dtype"] == "F8_E5M2"
    assert raw["float8_e4m3fn"]["dtype"] == "F8_E4M3"
    assert bytes(raw["float8_e4m3fn"]["data"]) == b"\x7e\x01"
    # One byte each, since safetensors has no 4-bit integers.
    assert [byte & 15 for byte in raw["int4"]["data"]] == [8, 7]


async def test_restore_from_a_file_of_the_safetensors_library(tmp_path: Path) -> None:
    path = tmp_path / "theirs.safetensors"
    values = {"a": np.arange(3, dtype=np.float32), "b": np.array([[True]]), "c": np.array(5, np.int64)}
    safetensors.numpy.save_file(values, path, metadata={"format": "np"})
    made = variables(a=np.zeros(3, np.float32), b=np.array([[False]]), c=np.array(0, np.int64))
    saver = aioflow.train.Saver()
    async with aioflow.Session() as session:
        await saver.restore(session, path)
        got = await session.run(made)
    for name, value in values.items():
        assert np.array_equal(got[name], value)
    assert aioflow.train.checkpoint_exists(str(path))
    cut(path)
    with pytest.raises(DataLossError):
        CheckpointReader(str(path))


async def test_manifest_is_plain_json(tmp_path: Path) -> None:
    await saved(tmp_path / "m-8", a=np.zeros((2, 3), np.float32), s=np.array(b"x", object))
    manifest = json.loads((tmp_path / "m-8.manifest.json").read_text())
    assert manifest["step"] == 8
    assert manifest["file"] == "m-8.safetensors"
    assert manifest["size"] == (tmp_path / "m-8.safetensors").stat().st_size
    assert manifest["tensors"]["a"]["dtype"] == "float32"
    assert manifest["tensors"]["a"]["shape"] == [2, 3]
    assert manifest["tensors"]["s"]["dtype"] == "string"


# -- arguments --------------------------------------------------------------------------------------------------------


async def test_invalid_arguments_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError):
        aioflow.train.Saver()
    a = aioflow.Variable(1.0, name="a")
    with pytest.raises(UnimplementedError):
        aioflow.train.Saver(saver_def=object())  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InvalidArgumentError):
        aioflow.train.Saver([a], defer_build=True)
    with pytest.raises(DTypeError):
        aioflow.train.Saver([aioflow.constant(1.0)])  # type: ignore[list-item]  # wrong on purpose
    with pytest.raises(InvalidArgumentError):
        aioflow.train.Saver([a, a.assign(1.0)])
    saver = aioflow.train.Saver()
    async with aioflow.Session() as session:
        with pytest.raises(FailedPreconditionError) as caught:
            await saver.save(session, tmp_path / "m")
        assert "uninitialized value a" in str(caught.value)
        with pytest.raises(InvalidArgumentError):
            await saver.save(session, "")
        with pytest.raises(InvalidArgumentError):
            await saver.restore(session, "")


async def test_deferred_saver_takes_the_variables_of_its_build(tmp_path: Path) -> None:
    saver = aioflow.train.Saver(defer_build=True)
    a = aioflow.Variable(1.0, name="a")
    async with aioflow.Session() as session:
        await session.run(a.initializer)
        prefix = await saver.save(session, tmp_path / "m")
    assert prefix is not None
    assert aioflow.train.list_variables(prefix) == [("a", [])]


async def test_empty_saver_does_nothing_if_allowed(tmp_path: Path) -> None:
    saver = aioflow.train.Saver(allow_empty=True)
    async with aioflow.Session() as session:
        assert await saver.save(session, tmp_path / "m") is None
        await saver.restore(session, tmp_path / "m")
    assert listing(tmp_path) == []
