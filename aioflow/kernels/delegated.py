"""The fallback kernel of a delegated part that no engine supports: it runs the part's nodes as in any step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.registry import Binding, BodySteps, binder
from aioflow.memory.values import Value


def body_of(binding: Binding) -> BodySteps:
    """Return the body of a delegated part. Raise InvalidArgumentError if it has no body."""
    if binding.body is None:
        raise InvalidArgumentError("the delegated part is not there", expected="a body", actual="none")
    return binding.body


@binder("_Delegated", fresh=True, takes_step=True)
def delegated(binding: Binding) -> Callable[..., tuple[Value, ...]]:
    body = body_of(binding)

    def call(inputs: Sequence[Value], step: object = None) -> tuple[Value, ...]:
        return tuple(body.call(inputs, step))

    return call
