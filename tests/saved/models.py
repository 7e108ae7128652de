"""Models for the tests of saving, and their results in plain NumPy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import aioflow as af
from aioflow.saved import Model, Signature

__all__ = ["BIAS", "GIVEN", "WANTED", "WEIGHTS", "Built", "built", "calling", "graph_with_a_layer", "outputs"]

WEIGHTS = np.arange(6, dtype=np.float32).reshape(3, 2) / 4
BIAS = np.array([0.5, -0.25], np.float32)
GIVEN = np.array([[1, 2, 3], [-1, 0.5, 0]], np.float32)
WANTED = np.tanh(np.array([sum(GIVEN[:, [k]] * WEIGHTS[k] for k in range(3))], np.float32)[0] + BIAS)


class Built(NamedTuple):
    """A graph with one layer, and its input and output."""

    graph: af.Graph
    x: af.Tensor
    y: af.Tensor

    @property
    def signature(self) -> Signature:
        return Signature({"x": self.x}, {"y": self.y})


def graph_with_a_layer() -> Built:
    """Build y = tanh(x·w + b) in a function, beside a variable that y does not need."""
    with af.Graph().as_default() as graph:
        x = af.placeholder("float32", [None, 3], name="x")
        w = af.Variable(WEIGHTS, name="layer/w")
        b = af.Variable(BIAS, name="layer/b", trainable=False)
        af.Variable(np.zeros(3, np.float32), name="beside")

        @af.function
        def layer(value: Any) -> Any:
            return af.tanh(af.matmul(value, w) + b)

        return Built(graph, x, af.identity(layer(x), name="y"))


@asynccontextmanager
async def built() -> AsyncIterator[tuple[af.Session, Built]]:
    """Yield a session with the initialized layer, and the layer."""
    model = graph_with_a_layer()
    with model.graph.as_default():
        start = af.global_variables_initializer()
    async with af.Session(graph=model.graph) as session:
        await session.run(start)
        yield session, model


@asynccontextmanager
async def calling(model: Model) -> AsyncIterator[af.Session]:
    """Yield a session in which the model is initialized."""
    async with af.Session(graph=model.graph) as session:
        await model.initialize(session)
        yield session


async def outputs(folder: Path | str, **inputs: Any) -> Any:
    """Load the model of a folder and return its outputs for some inputs."""
    model = af.saved.load(folder)
    async with calling(model) as session:
        return await session.run(dict(model.outputs), {model.inputs[name]: value for name, value in inputs.items()})
