"""Initial values from a checkpoint: names, scopes, variables and parts, and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import DTypeError, InvalidArgumentError, NotFoundError

TABLE = np.arange(8, dtype=np.float32).reshape(4, 2)


@pytest.fixture(params=[None, 2])
async def saved(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """Save a model in aioflow's format, or in TensorFlow's."""
    with af.Graph().as_default():
        with af.variable_scope("old"):
            af.get_variable("w", initializer=TABLE)
            af.get_variable("inner/b", initializer=3.0)
        af.get_variable("step", initializer=7)
        async with af.Session() as session:
            await session.run(af.global_variables_initializer())
            return await af.train.Saver(write_version=request.param).save(session, tmp_path / "model.ckpt")


async def initialized(*variables: Any) -> list[Any]:
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        return [np.asarray(value).tolist() for value in await session.run(list(variables))]


async def test_names_scopes_and_variables(saved: str) -> None:
    with af.Graph().as_default() as graph:
        with af.variable_scope("new"):
            w, b = af.get_variable("w", [4, 2]), af.get_variable("inner/b", [])
        own, plain = af.Variable(0, name="mine"), af.get_variable("kept", initializer=1.0)
        other = af.get_variable("other", [4, 2])
        targets: dict[str, Any] = {"old/": "new/", "step": own, "old/w": "other"}
        af.train.init_from_checkpoint(saved, targets)
        assert await initialized(w, b, own, plain, other) == [TABLE.tolist(), 3, 7, 1, TABLE.tolist()]
        assert w.initial_value.shape.as_list() == [4, 2]
        later = af.Variable(own.initialized_value() + 1)
        async with af.Session() as session:
            await session.run(later.initializer)
            assert await session.run(later) == 8
            await own.load(5, session)
            assert await session.run(own) == 5
        assert graph.get_operation_by_name("new/w/checkpoint_initializer").type == "RestoreV2"


async def test_root_directory_and_pairs(saved: str) -> None:
    with af.Graph().as_default():
        with af.variable_scope("old"):
            w, b = af.get_variable("w", [4, 2]), af.get_variable("inner/b", [])
        af.train.init_from_checkpoint(Path(saved).parent, [("/", "/")])
        assert await initialized(w, b) == [TABLE.tolist(), 3]
    with af.Graph().as_default():
        with af.variable_scope("new/old"):
            w, b = af.get_variable("w", [4, 2]), af.get_variable("inner/b", [])
        twin = af.get_variable("twin", [4, 2])
        af.train.init_from_checkpoint(saved, [("/", "new/"), ("old/w", twin)])
        assert await initialized(w, b, twin) == [TABLE.tolist(), 3, TABLE.tolist()]


async def test_partitioned_variables(saved: str) -> None:
    with af.Graph().as_default():
        split = af.fixed_size_partitioner(3)
        by_scope = af.get_variable("new/w", [4, 2], partitioner=split)
        by_name = af.get_variable("named", [4, 2], partitioner=split)
        by_parts = af.get_variable("listed", [4, 2], partitioner=split)
        pairs: list[Any] = [("old/", "new/"), ("old/w", "named"), ("old/w", list(by_parts))]
        af.train.init_from_checkpoint(saved, pairs)
        wholes = [whole.as_tensor() for whole in (by_scope, by_name, by_parts)]
        assert await initialized(*wholes) == [TABLE.tolist()] * 3


def test_wrong_assignments_are_refused(saved: str) -> None:
    with af.Graph().as_default():
        w = af.get_variable("w", [3, 2])
        parts = [af.get_variable(f"p{i}", [4, 2], partitioner=af.fixed_size_partitioner(2)) for i in range(2)]
        before = w.initializer
        wrong: list[tuple[Any, str]] = [
            ({"old/w": w}, r"\[3, 2\]|\(3, 2\)"),
            ({"missing": w}, "missing"),
            ({"old/w": "nothing"}, "nothing"),
            ({"old/": "/"}, "old/p0"),
            ({"old/w": [*list(parts[0])[:1], *list(parts[1])[1:]]}, "several"),
        ]
        for pairs, message in wrong:
            with pytest.raises(InvalidArgumentError, match=message):
                af.train.init_from_checkpoint(saved, pairs)
        wrong_target: Any = {"old/w": [1]}
        with pytest.raises(DTypeError):
            af.train.init_from_checkpoint(saved, wrong_target)
        for missing in ("nowhere", str(Path(saved).parent / "other")):
            with pytest.raises(NotFoundError):
                af.train.init_from_checkpoint(missing, {"old/w": w})
        assert w.initializer is before


def test_reader_by_prefix(saved: str) -> None:
    reader = af.train.NewCheckpointReader(saved)
    assert reader.get_variable_to_shape_map() == {"old/w": [4, 2], "old/inner/b": [], "step": []}
    assert reader.get_tensor("step") == 7
    with pytest.raises(NotFoundError):
        af.train.NewCheckpointReader(str(Path(saved).parent))
