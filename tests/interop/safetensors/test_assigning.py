"""`safetensors.assign`: name maps, assignment without a copy, and one error that lists every misfit."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy as library

import aioflow as af
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.formats.files import read_whole
from aioflow.interop import safetensors
from aioflow.interop.safetensors import Transposed, WeightsError

Layers = dict[str, Any]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    tensors = {f"h.{i}.{n}": rng.normal(size=s).astype("f") for i in range(2) for n, s in SHAPES.items()}
    library.save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


SHAPES = {"weight": (2, 3), "bias": (3,)}


def layers(count: int = 2, **other: Any) -> Layers:
    """Return variables layer_i/kernel and layer_i/bias, by their names in the file."""
    made = {}
    for i in range(count):
        with af.variable_scope(f"layer_{i}"):
            made[f"h.{i}.weight"] = af.get_variable("kernel", SHAPES["weight"], **other)
            made[f"h.{i}.bias"] = af.get_variable("bias", SHAPES["bias"], **other)
    return made


BY_PATTERN = {r"layer_(\d+)/kernel": r"h.\1.weight", r"layer_(\d+)/bias": r"h.\1.bias"}


def by_function(name: str) -> str:
    layer, _, part = name.partition("/")
    return f"h.{layer.removeprefix('layer_')}.{'weight' if part == 'kernel' else part}"


@pytest.mark.parametrize("kind", ["variables", "patterns", "function"])
async def test_assign_accepts_each_kind_of_name_map(kind: str, file: Path) -> None:
    made = layers()
    names: Any = {"variables": {v: n for n, v in made.items()}, "patterns": BY_PATTERN, "function": by_function}[kind]
    async with af.Session() as session:
        await safetensors.assign(session, file, names)
        values = await session.run(made)
    for name, expected in library.load_file(file).items():
        np.testing.assert_array_equal(values[name], expected, strict=True)


async def test_assign_by_equal_names_needs_no_map(tmp_path: Path) -> None:
    v = af.get_variable("scope/v", [2])
    await safetensors.save(tmp_path / "m.safetensors", {"scope/v": np.array([1, 2], "f")})
    async with af.Session() as session:
        await safetensors.assign(session, tmp_path / "m.safetensors")
        np.testing.assert_array_equal(await session.run(v), [1.0, 2.0])


async def test_assigned_variable_shares_memory_with_the_file(file: Path) -> None:
    made = layers()
    weights = safetensors.open(file)
    async with af.Session() as session:
        await safetensors.assign(session, weights, BY_PATTERN)
        held = _held(session, "layer_1/kernel")
        assert np.shares_memory(held, weights["h.1.weight"])
        fetched = await session.run(made["h.1.weight"])
        fetched += 1.0  # in place: the fetched copy belongs to the caller
        np.testing.assert_array_equal(held, weights.read("h.1.weight"))


def _held(session: af.Session, name: str) -> Any:
    (device,) = session.worker.devices.values()
    return device.resources.find("", name).read()


UPDATES: dict[str, Callable[[Any], Any]] = {
    "assign_add": lambda v: v.assign_add(np.ones(SHAPES["weight"], "f")),
    "scatter_add": lambda v: v.scatter_add(af.IndexedSlices(af.ones([1, 3]), af.constant([1]))),
    "scatter_nd_update": lambda v: v.scatter_nd_update([[0, 1]], [5.0]),
    "sgd": lambda v: af.train.GradientDescentOptimizer(0.1).minimize(af.reduce_sum(af.square(v)), var_list=[v]),
    "momentum": lambda v: af.train.MomentumOptimizer(0.1, 0.9).minimize(af.reduce_sum(af.square(v)), var_list=[v]),
    "adam": lambda v: af.train.AdamOptimizer(0.1).minimize(af.reduce_sum(af.square(v)), var_list=[v]),
    "sparse adam": lambda v: af.train.AdamOptimizer(0.1).minimize(
        af.reduce_sum(af.square(af.gather(v, [1]))), var_list=[v]
    ),
}


@pytest.mark.parametrize("update", UPDATES)
async def test_update_of_mapped_variable_copies_first(update: str, file: Path) -> None:
    """Check that values equal those of a variable with its own memory and that the file does not change."""
    contents = read_whole(str(file))
    weights = safetensors.open(file)
    mapped, own = (af.get_variable(n, SHAPES["weight"]) for n in ("mapped", "own"))
    steps = [UPDATES[update](v) for v in (mapped, own)]
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        await safetensors.assign(session, weights, {mapped: "h.0.weight"}, ignore=".*")
        await own.load(weights.read("h.0.weight"), session)
        for _ in range(3):
            await session.run(steps)
        first, second = await session.run([mapped, own])
    assert not np.array_equal(first, weights["h.0.weight"])
    np.testing.assert_array_equal(first, second, strict=True)
    assert read_whole(str(file)) == contents


@pytest.mark.parametrize("executor", ["strands", "reference"])
async def test_load_copies_read_only_view_of_writable_array(executor: str) -> None:
    v = af.get_variable("v", [4])
    given = np.arange(4, dtype="f")
    view = given.view()
    # Read-only as a view, yet its owner can still write to the memory.
    view.flags.writeable = False
    async with af.Session(config=af.SessionConfig(executor=executor)) as session:
        await v.load(view, session)
        given[0] = 7.0
        np.testing.assert_array_equal(await session.run(v), [0.0, 1.0, 2.0, 3.0])


async def test_assign_lists_every_misfit_in_one_error(file: Path) -> None:
    layers(1)
    af.get_variable("layer_1/kernel", [3, 2])
    af.get_variable("layer_1/bias", [3], af.float64)
    af.get_variable("layer_2/bias", [3])
    af.get_variable("head", [3])
    weights = dict(safetensors.open(file)) | {"other": np.zeros(1)}
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        before = await session.run(af.global_variables())
        with pytest.raises(WeightsError) as caught:
            await safetensors.assign(session, weights, BY_PATTERN)
        for value, old in zip(await session.run(af.global_variables()), before, strict=True):
            np.testing.assert_array_equal(value, old)
    error = caught.value
    assert error.missing == ["h.2.bias", "head"]
    assert error.unexpected == ["other"]
    assert [(m.variable, m.name) for m in error.misfits] == [
        ("layer_1/kernel", "h.1.weight"),
        ("layer_1/bias", "h.1.bias"),
    ]
    for shown in ("h.2.bias", "head", "other", "float32 (2, 3)", "float32 (3, 2)", "float64"):
        assert shown in str(error)


@pytest.mark.parametrize("pattern", [r"layr_(\d+)/kernel", r"layer_(\d+)/k.*"])
async def test_pattern_that_names_no_variable_is_reported(pattern: str, file: Path) -> None:
    """Cover a pattern that matches nothing, and one with matches that all got names from an earlier pattern."""
    layers()
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        with pytest.raises(WeightsError) as caught:
            await safetensors.assign(session, file, {**BY_PATTERN, pattern: "h.0.weight"})
    error = caught.value
    assert (error.missing, error.unexpected, error.unused) == ([], [], [pattern])
    assert pattern in str(error)


async def test_misspelled_pattern_is_reported_with_its_leftovers(file: Path) -> None:
    layers()
    names = {r"layr_(\d+)/kernel": r"h.\1.weight", r"layer_(\d+)/bias": r"h.\1.bias"}
    async with af.Session() as session:
        with pytest.raises(WeightsError) as caught:
            await safetensors.assign(session, file, names)
    error = caught.value
    assert error.missing == ["layer_0/kernel", "layer_1/kernel"]
    assert error.unexpected == ["h.0.weight", "h.1.weight"]
    assert error.unused == [r"layr_(\d+)/kernel"]


async def test_name_missing_from_the_file_is_reported_with_its_variable(file: Path) -> None:
    layers(3)
    async with af.Session() as session:
        with pytest.raises(WeightsError, match=r"h\.2\.bias for layer_2/bias, h\.2\.weight for layer_2/kernel"):
            await safetensors.assign(session, file, BY_PATTERN)


async def test_assign_not_strict_returns_the_leftovers(file: Path) -> None:
    made = layers(1)
    other = af.get_variable("other", [2], initializer=af.constant_initializer(7.0))
    async with af.Session() as session:
        await session.run(other.initializer)
        left = await safetensors.assign(session, file, {**BY_PATTERN, "none": "x"}, strict=False)
        assert left == (["other"], ["h.1.bias", "h.1.weight"], ["none"])
        values = await session.run(made)
        assert (await session.run(other)).tolist() == [7.0, 7.0], "it keeps what it has"
    stored = library.load_file(file)
    for name, value in values.items():
        np.testing.assert_array_equal(value, stored[name])


async def test_assign_not_strict_still_raises_for_misfits(file: Path) -> None:
    af.get_variable("h.0.bias", [4])
    async with af.Session() as session:
        with pytest.raises(WeightsError) as caught:
            await safetensors.assign(session, file, strict=False)
    assert [misfit.name for misfit in caught.value.misfits] == ["h.0.bias"]


async def test_ignore_excludes_unassigned_tensors(file: Path) -> None:
    made = layers(1)
    async with af.Session() as session:
        with pytest.raises(WeightsError) as caught:
            await safetensors.assign(session, file, BY_PATTERN, ignore=r"h\.1\.bias")
        assert caught.value.unexpected == ["h.1.weight"]
        await safetensors.assign(session, file, BY_PATTERN, ignore=[r"h\.1\.bias", r"h\.1\.w.*"])
        await session.run(made)


async def test_name_function_returns_none_to_skip_a_variable(file: Path) -> None:
    made = layers()
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        before = await session.run(made["h.0.bias"])
        await safetensors.assign(
            session, file, lambda n: None if n.endswith("bias") else by_function(n), ignore=r".*\.bias"
        )
        np.testing.assert_array_equal(await session.run(made["h.0.bias"]), before)


async def test_transposed_assigns_axes_in_another_order(tmp_path: Path) -> None:
    dense, conv = np.arange(6, dtype="f").reshape(3, 2), np.arange(24, dtype="f").reshape(4, 3, 2, 1)
    await safetensors.save(tmp_path / "m.safetensors", {"dense.weight": dense, "conv.weight": conv})
    kernel, filters = af.get_variable("kernel", [2, 3]), af.get_variable("filters", [2, 1, 3, 4])
    names = {kernel: Transposed("dense.weight"), filters: Transposed("conv.weight", (2, 3, 1, 0))}
    async with af.Session() as session:
        await safetensors.assign(session, tmp_path / "m.safetensors", names)
        first, second = await session.run([kernel, filters])
        np.testing.assert_array_equal(first, dense.T)
        np.testing.assert_array_equal(second, conv.transpose(2, 3, 1, 0))
        for axes in [(0,), (0, 0), (0, 2), (1, 0, 2)]:
            with pytest.raises(WeightsError, match="axes"):
                await safetensors.assign(
                    session, tmp_path / "m.safetensors", {kernel: Transposed("dense.weight", axes)}, ignore=".*"
                )


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.float64])
async def test_floats_are_cast_on_request_only(kind: Any, tmp_path: Path) -> None:
    array = np.array([[1.5, -2.25], [3.0, 0.125]], kind)
    await safetensors.save(tmp_path / "m.safetensors", {"v": array})
    v = af.get_variable("v", [2, 2])
    async with af.Session() as session:
        with pytest.raises(WeightsError, match="float32"):
            await safetensors.assign(session, tmp_path / "m.safetensors")
        await safetensors.assign(session, tmp_path / "m.safetensors", {v: Transposed("v")}, cast=True)
        np.testing.assert_array_equal(await session.run(v), array.astype("f").T, strict=True)


async def test_integers_are_never_cast(tmp_path: Path) -> None:
    await safetensors.save(tmp_path / "m.safetensors", {"v": np.array([1, 2])})
    af.get_variable("v", [2])
    async with af.Session() as session:
        with pytest.raises(WeightsError, match="int64"):
            await safetensors.assign(session, tmp_path / "m.safetensors", cast=True)


async def test_two_variables_share_one_tensor_but_not_updates(file: Path) -> None:
    initial = af.zeros([3])
    first, second = af.Variable(initial), af.Variable(initial)
    async with af.Session() as session:
        await safetensors.assign(session, file, {first: "h.0.bias", second: "h.0.bias"}, ignore=".*")
        a, b = await session.run([first, second])
        await session.run(first.assign_add([1.0, 1.0, 1.0]))
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(await session.run(second), b)


async def test_unaligned_tensors_are_copied(tmp_path: Path) -> None:
    """Use a file whose writer did not pad the header."""
    array = np.arange(3, dtype="f")
    raw = json.dumps({"v": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}).encode()
    # The header's length is 3 modulo 4, so the float32 data is unaligned.
    raw += b" " * (3 - len(raw) % 4)
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + array.tobytes())
    v = af.get_variable("v", [3])
    async with af.Session() as session:
        await safetensors.assign(session, tmp_path / "m.safetensors")
        assert _held(session, "v").flags.aligned
        np.testing.assert_array_equal(await session.run(v), array)


async def test_assign_supports_other_dtypes_and_scalars(tmp_path: Path) -> None:
    tensors = {
        "flags": np.array([True, False]),
        "step": np.array(7, np.int64),
        "z": np.array([1 + 2j], np.complex64),
        "text": np.array([b"a", b"bc"], object),
    }
    await safetensors.save(tmp_path / "m.safetensors", tensors)
    made = {name: af.Variable(value, name=name) for name, value in tensors.items()}
    async with af.Session() as session:
        await safetensors.assign(session, tmp_path / "m.safetensors")
        for name, value in (await session.run(made)).items():
            np.testing.assert_array_equal(value, tensors[name])


@pytest.mark.parametrize("names", [{3: "a"}, {"v": 3}, 3, lambda name: 3])
async def test_assign_rejects_name_map_of_wrong_type(names: Any, file: Path) -> None:
    af.get_variable("v", [3])
    async with af.Session() as session:
        with pytest.raises(DTypeError):
            await safetensors.assign(session, file, names)


@pytest.mark.parametrize("names", [{"(": "a"}, {"v": r"\1"}, {"v": r"\g<no>"}])
async def test_assign_rejects_invalid_patterns(names: Any, file: Path) -> None:
    af.get_variable("v", [3])
    async with af.Session() as session:
        with pytest.raises(InvalidArgumentError):
            await safetensors.assign(session, file, names)


async def test_assign_reports_unknown_dtype(tmp_path: Path) -> None:
    raw = json.dumps({"v": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}).encode()
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + b"\0")
    af.get_variable("v", [2])
    async with af.Session() as session:
        with pytest.raises(WeightsError, match="F4"):
            await safetensors.assign(session, tmp_path / "m.safetensors")
