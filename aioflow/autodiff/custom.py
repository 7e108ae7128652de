"""User-defined gradients: for an op, for a function, or for the nodes of one scope."""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, ParamSpec, TypeVar

from aioflow.arguments import check_text
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.gradient_registry import gradient, not_differentiable
from aioflow.graph.graph import GraphKeys, Operation, Tensor
from aioflow.ops.apply import convert_to_tensor, make_list
from aioflow.ops.core import identity
from aioflow.ops.sparse.indexed_slices import Gradient
from aioflow.ops.variables.variable import Variable

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")


class RegisterGradient:
    """Decorator that registers a function as the gradient of `op_type`.

    The function receives the node and one gradient per output. It returns one gradient per input (a tensor,
    IndexedSlices or None). The name need not be that of an op: `Graph.gradient_override_map` can assign it to nodes
    later.

    Raises:
        AlreadyRegisteredError: the name already has a gradient. The error is also a KeyError.
    """

    def __init__(self, op_type: str) -> None:
        check_text(op_type, "the name of an op")
        self._op_type = op_type

    def __call__(self, f: F) -> F:
        """Register `f` and return it."""
        gradient(self._op_type, takes_slices=True)(f)
        return f


def no_gradient(op_type: str) -> None:
    """Declare that no gradient flows back through ops of this type.

    Raises:
        AlreadyRegisteredError: the op already has a gradient. The error is also a KeyError.
    """
    check_text(op_type, "the name of an op")
    not_differentiable(op_type)


NotDifferentiable: Final = no_gradient
NoGradient: Final = no_gradient


def custom_gradient(f: Callable[P, tuple[R, Callable[..., object]]]) -> Callable[P, R]:
    """Decorate a function `f(*args)` that returns its result and the function that computes the gradient.

    The gradient function `grad(*dys)` receives one gradient per result and returns one gradient per argument. If `f`
    reads trainable variables, `grad` must also accept `variables=`. It then returns a pair: the gradients with respect
    to the arguments, and those with respect to these variables.

    Raises:
        InvalidArgumentError: `grad` returns the wrong number of gradients.
        DTypeError: `f` does not return a pair, or it reads variables and `grad` does not accept `variables`.
    """

    build: Callable[..., Any] = f

    @functools.wraps(f)
    def decorated(*args: Any, **kwargs: object) -> Any:
        # Copies mark the boundary of `f`: the search for the variables that `f` reads stops at them.
        inputs = [identity(convert_to_tensor(a)) for a in args]
        made = build(*inputs, **kwargs)
        if not isinstance(made, tuple) or len(made) != 2 or not callable(made[1]):
            raise DTypeError(
                f"{f.__name__} does not fit custom_gradient", expected="(result, gradient function)", actual=repr(made)
            )
        result, grad = made
        results = [convert_to_tensor(r) for r in (result if isinstance(result, list | tuple) else [result])]
        variables = _variables_between(results, inputs)
        if variables and "variables" not in inspect.signature(grad).parameters:
            raise DTypeError(
                f"{f.__name__} reads variables, so its gradient function must take `variables`",
                expected="grad(*dys, variables=None)",
                actual=f"grad{inspect.signature(grad)}",
            )
        # One node carries everything, so the reverse walk applies `grad` there and does not visit the nodes of `f`.
        outputs = make_list("IdentityN", [*results, *inputs, *(v.handle for v in variables)])
        outputs[0].op.gradient_function = _node_gradient(grad, len(results), len(inputs), variables)
        mine = outputs[: len(results)]
        return type(result)(mine) if isinstance(result, list | tuple) else mine[0]

    return decorated


def _node_gradient(
    grad: Callable[..., Any], results: int, inputs: int, variables: Sequence[Variable]
) -> Callable[..., list[object]]:
    """Return the gradient of the node that carries results, inputs and variables; the results get None."""

    def node_gradient(op: Operation, *incoming: Gradient | None) -> list[object]:
        by_variables: list[object] = []
        if variables:
            by_inputs, by_variables = grad(*incoming[:results], variables=list(variables))
        else:
            by_inputs = grad(*incoming[:results])
        flat = list(by_inputs) if isinstance(by_inputs, list | tuple) else [by_inputs]
        if len(flat) != inputs or len(by_variables) != len(variables):
            raise InvalidArgumentError(
                "a custom gradient function returned the wrong number of gradients",
                expected=f"{inputs} for the arguments, {len(variables)} for variables",
                actual=f"{len(flat)} and {len(by_variables)}",
            ).at(op.name, op.type, op.source)
        return [None] * results + flat + list(by_variables)

    return node_gradient


def _variables_between(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Variable]:
    """Return the trainable variables that `results` depend on other than through `inputs`."""
    # The search starts at the results and never passes an input: what the inputs depend on is not `f`'s own.
    seen = {t.op for t in inputs}
    queue = deque(t.op for t in results if t.op not in seen)
    seen.update(queue)
    handles: list[Tensor] = []
    while queue:
        op = queue.popleft()
        if op.op_def.traits.is_variable:
            handles.append(op.outputs[0])
        for tensor in op.inputs:
            if tensor.op not in seen:
                seen.add(tensor.op)
                queue.append(tensor.op)
    if not handles:
        return []
    # Variables that are not trainable need no gradient, so `grad` is not told of them.
    known = results[0].graph.get_collection(GraphKeys.TRAINABLE_VARIABLES)
    return [v for v in known if any(v.handle is h for h in handles)]


def grad_pass_through(f: Callable[P, R]) -> Callable[P, R]:
    """Return `f` with the gradient of the identity: the incoming gradients pass to the arguments unchanged."""

    @custom_gradient
    def passing(*args: P.args, **kwargs: P.kwargs) -> tuple[R, Callable[..., object]]:
        def grad(*dys: Tensor, variables: Sequence[Variable] | None = None) -> object:
            return dys if variables is None else (dys, [None] * len(variables))

        return f(*args, **kwargs), grad

    functools.update_wrapper(passing, f)
    return passing
