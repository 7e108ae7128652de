"""Datasets against the table: elements and specs, in a graph and outside, and restarts at every position."""

from __future__ import annotations

from typing import Any

import pytest

import aioflow as af
from aioflow.errors import OpError, OutOfRangeError
from tests.support.dataset_cases import CASES, DatasetCase, plain, spec_of


async def in_graph(case: DatasetCase) -> list[Any]:
    """Return the elements that steps get from an initializable iterator."""
    found: list[Any] = []
    with af.Graph().as_default():
        iterator = case.build(af).make_initializable_iterator()
        element = iterator.get_next()
        async with af.Session() as session:
            await session.run(iterator.initializer)
            while True:
                try:
                    found.append(plain(await session.run(element)))
                except OutOfRangeError:
                    return found
                except OpError as error:
                    found.append(type(error).__name__)


async def outside(elements: af.data.DatasetIterator, most: int = 1000) -> list[Any]:
    """Return the next elements that `async for` yields."""
    found: list[Any] = []
    while len(found) < most:
        try:
            found.append(plain(await anext(elements)))
        except StopAsyncIteration:
            break
        except OpError as error:
            found.append(type(error).__name__)
    return found


@pytest.mark.parametrize("name", CASES)
async def test_elements_are_those_of_tensorflow(name: str) -> None:
    case = CASES[name]
    assert await in_graph(case) == case.elements
    with af.Graph().as_default():
        dataset = case.build(af)
        spec = spec_of(af.data.get_output_types(dataset), af.data.get_output_shapes(dataset))
        assert spec == case.spec
        async with aiter(dataset) as elements:
            assert await outside(elements) == case.elements


@pytest.mark.parametrize("name", CASES)
async def test_a_restart_at_any_position_continues_with_the_next_element(name: str) -> None:
    expected = CASES[name].elements
    with af.Graph().as_default():
        dataset = CASES[name].build(af)
        async with aiter(dataset) as elements:
            positions = [elements.state()]
            for number in range(len(expected)):
                await outside(elements, 1)
                if number % 3 == 0:
                    positions.append(elements.state())
        for number, position in enumerate(positions):
            done = 0 if number == 0 else 3 * (number - 1) + 1
            async with aiter(dataset) as elements:
                await elements.restore(position)
                assert await outside(elements) == expected[done:], position
