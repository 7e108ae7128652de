"""Requests with optional inputs: each is a step of its own, which feeds the defaults of the omitted inputs."""

from __future__ import annotations

from collections.abc import Mapping

from aioflow.interop.model import Signature
from aioflow.memory.values import Array
from aioflow.serve.calls import Single
from aioflow.serve.options import ModelOptions
from aioflow.session.session import Session


class OptionalInputs:
    """Calls of a signature with any of its optional inputs.

    All requests share one compiled step that is fed every input, so clients cannot cause the compilation of many steps.

    Attributes:
        call: The step.
    """

    def __init__(self, session: Session, signature: Signature, options: ModelOptions) -> None:
        self._session = session
        self._signature = signature
        self._defaults: dict[str, Array] = {}
        self.call = Single(session, Signature(signature.all_inputs, signature.outputs), options)

    async def __call__(self, given: Mapping[str, Array], timeout: float | None, priority: int) -> dict[str, Array]:
        """Return the outputs by name. Raises as `Single`."""
        if not self._defaults:
            self._defaults = await self._session.run(dict(self._signature.optional))
        values = {**self._defaults, **given}
        return await self.call([values[name] for name in self._signature.all_inputs], timeout, priority)
