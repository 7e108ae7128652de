"""The stage that combines all elements into one."""

from __future__ import annotations

from aioflow.errors import OpError
from aioflow.kernels.data.functions import ElementFunction, located
from aioflow.kernels.data.stages import Components, DatasetValue, Path, Pipeline, Stage, StagePosition

_CHUNK = 64


class ReduceStage(Stage):
    """One element: the state after a function of the state and each element."""

    def __init__(self, dataset: DatasetValue, pipeline: Pipeline, path: Path) -> None:
        self._dataset, self._pipeline, self._path = dataset, pipeline, path
        self._function: ElementFunction = dataset.function
        self._is_done = False

    async def fetch(self, want: int) -> list[Components]:
        """Return the only element."""
        if self._is_done:
            return []
        self._is_done = True
        current: Components = tuple(self._dataset.args)
        up = self._dataset.inputs[0].open(self._pipeline, self._path)
        number = 0
        try:
            while found := await up.fetch(_CHUNK):
                for element in found:
                    (outcome,) = await self._function.each([(*current, *element)], 1)
                    if isinstance(outcome, OpError):
                        raise located(outcome, self._dataset.name, number)
                    current = outcome
                    number += 1
        finally:
            await up.close()
        return [current]

    def state(self) -> StagePosition:
        """Return whether the element was returned."""
        return self._is_done

    async def restore(self, state: StagePosition) -> None:
        """Continue at a position."""
        self._is_done = bool(state)
