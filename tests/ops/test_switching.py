"""switch, merge and with_dependencies: dead results, resources, names, and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.control_flow_ops import merge, switch, with_dependencies
from aioflow.errors import DTypeError, InvalidArgumentError


@pytest.mark.parametrize("pred", [True, False])
async def test_results_of_the_other_side_are_dead(pred: bool) -> None:
    with af.Graph().as_default():
        p = af.placeholder("bool", [])
        variable = af.Variable([1.0, 2.0])
        off, on = switch(variable.handle, p)
        updated = af.raw_ops.AssignAddVariableOp(resource=on, value=[10.0, 10.0])
        sides = switch(variable, p, "float32", name="sides")
        output, index = merge(list(sides))
        gone = merge([sides[1 - pred], af.identity(sides[1 - pred])])
        async with af.Session() as session:
            await session.run(variable.initializer)
            assert await session.run(index, {p: pred}) == int(pred)
            for dead in (sides[1 - pred], *gone):
                with pytest.raises(InvalidArgumentError, match="does not have a value"):
                    await session.run(dead, {p: pred})
            await session.run(updated, {p: pred})
            assert (await session.run(output, {p: pred})).tolist() == ([11.0, 12.0] if pred else [1.0, 2.0])
        assert (off.dtype, sides[0].name, sides[0].dtype) == (af.resource, "sides:0", af.float32)


async def test_with_dependencies_returns_the_value_after_the_nodes() -> None:
    with af.Graph().as_default():
        variable = af.Variable(1.0)
        waited = with_dependencies([variable.assign(5.0)], af.constant(3.0, name="three"), name="waited")
        async with af.Session() as session:
            await session.run(variable.initializer)
            assert await session.run(waited) == np.float32(3.0)
            assert await session.run(variable) == np.float32(5.0)
        assert waited.name == "waited:0"


def test_wrong_arguments_are_rejected() -> None:
    with af.Graph().as_default():
        x = af.placeholder("float32", [2])
        rows = af.IndexedSlices(x, af.constant([0, 1]), af.constant([4]))
        without_shape = af.IndexedSlices(x, af.constant([0, 1]))
        sparse = af.SparseTensor([[0], [1]], x, [4])
        nothing: Any = None
        for call, error, message in (
            (lambda: merge([x, nothing]), InvalidArgumentError, "is None"),
            (lambda: merge([]), InvalidArgumentError, "Merge|attribute"),
            (lambda: merge([rows, without_shape]), InvalidArgumentError, "dense shape"),
            (lambda: merge([rows, sparse]), DTypeError, "several kinds"),
            (lambda: merge([x, sparse]), DTypeError, "several kinds"),
            (lambda: switch(x, 1), DTypeError, "bool"),
            (lambda: switch(rows, True, "int32"), DTypeError, "another dtype"),
            (lambda: with_dependencies(3, x), DTypeError, "the dependencies"),  # type: ignore[arg-type]  # the mistake
        ):
            with pytest.raises(error, match=message):
                call()
