"""Builtin base classes of errors: `except` clauses of published TensorFlow code catch them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aioflow
from aioflow.errors import AlreadyExistsError, FailedPreconditionError, NotFoundError, UnimplementedError

# Typed Any, since type checkers would reject these wrong arguments.
NOTHING: Any = None
NUMBER: Any = 3


def x() -> Any:
    return aioflow.placeholder("float32", [2], name="x")


def elsewhere() -> Any:
    with aioflow.Graph().as_default():
        return aioflow.placeholder("float32", [1])


def run(fetches: Any, feeds: Any = None) -> Any:
    with aioflow.Session() as session:
        return session.run_sync(fetches, feeds)


def finalized(build: Callable[[], Any]) -> Any:
    aioflow.get_default_graph().finalize()
    return build()


def one_without_a_gradient() -> Any:
    graph, given = aioflow.get_default_graph(), x()
    with graph.gradient_override_map({"Square": f"Nobody{uuid.uuid4().hex}"}):
        squared = aioflow.square(given)
    return aioflow.gradients(squared, given)


def registered_twice() -> None:
    name = f"Twice{uuid.uuid4().hex}"
    for _ in range(2):
        aioflow.RegisterGradient(name)(lambda op, grad: grad)


def restored() -> Any:
    aioflow.get_variable("v", [2])
    with aioflow.Session() as session:
        return asyncio.run(aioflow.train.Saver().restore(session, Path("is", "not", "there")))


WRONG: dict[str, tuple[Callable[[], Any], tuple[type[Exception], ...]]] = {
    "a node by name": (
        lambda: aioflow.get_default_graph().get_operation_by_name("nobody"),
        (KeyError, NotFoundError),
    ),
    "a tensor by name": (lambda: aioflow.get_default_graph().get_tensor_by_name("nobody:0"), (KeyError,)),
    "a node by a number": (lambda: aioflow.get_default_graph().get_operation_by_name(NUMBER), (TypeError,)),
    "an element that is none": (lambda: aioflow.get_default_graph().as_graph_element(object()), (TypeError,)),
    "an attribute": (lambda: x().op.get_attr("nothing"), (ValueError, NotFoundError)),
    "a fetch by name": (lambda: run("nobody:0"), (ValueError, NotFoundError)),
    "a feed by name": (lambda: run(x(), {"nobody:0": 1}), (TypeError, NotFoundError)),
    "a feed of a node": (lambda: run(x(), {x().op: 1}), (TypeError,)),
    "a feed too large": (lambda: run(x(), {aioflow.placeholder("int32", []): 2**40}), (TypeError,)),
    "no session": (lambda: asyncio.run(x().eval()), (ValueError, FailedPreconditionError)),
    "a session of a number": (lambda: aioflow.Session(graph=NUMBER), (TypeError,)),
    "a callable of nothing": (lambda: aioflow.Session().make_callable(NOTHING), (TypeError,)),
    "a callable of another graph": (lambda: aioflow.Session().make_callable(elsewhere()), (ValueError,)),
    "a node in a finalized graph": (lambda: finalized(x), (RuntimeError, FailedPreconditionError)),
    "a collection of a finalized graph": (
        lambda: finalized(lambda: aioflow.add_to_collection("c", 1)),
        (RuntimeError, FailedPreconditionError),
    ),
    "a gradient twice": (registered_twice, (KeyError, AlreadyExistsError)),
    "no gradient": (one_without_a_gradient, (LookupError, UnimplementedError)),
    "a checkpoint": (restored, (ValueError, NotFoundError)),
    "a job": (lambda: aioflow.train.ClusterSpec({"w": ["a:1"]}).num_tasks("v"), (ValueError, NotFoundError)),
    "a ragged list": (lambda: aioflow.constant([[1], [2, 3]], "int32"), (ValueError, TypeError)),
    "a list for a tensor": (lambda: aioflow.shape_n(NUMBER), (TypeError,)),
    "a padding": (lambda: aioflow.nn.max_pool(aioflow.ones([1, 4, 4, 1]), 2, 1, NUMBER), (TypeError,)),
    "an attribute of 64 bits": (lambda: aioflow.as_string(x(), width=2**70), (ValueError,)),
    "a sparse tensor of two graphs": (
        lambda: aioflow.SparseTensor(aioflow.placeholder("int64", [1, 1]), elsewhere(), [3]),
        (ValueError,),
    ),
    "a gradient of another graph": (lambda: aioflow.gradients(elsewhere(), x()), (ValueError,)),
    "a variable of another shape": (
        lambda: aioflow.get_variable("v", [2], initializer=lambda shape, **_: aioflow.zeros([3])),
        (ValueError,),
    ),
    "a variable saved twice": (lambda: aioflow.train.Saver([aioflow.get_variable("v", [2])] * 2), (ValueError,)),
    "a tuple of nothing": (lambda: aioflow.tuple([]), (ValueError,)),
    "an array of several sizes": (lambda: aioflow.TensorArray("float32", [1, 2]), (ValueError,)),
    "an array, scattered": (
        lambda: aioflow.TensorArray("float32", 3).scatter([0, 1], [1.0]),
        (ValueError,),
    ),
    "a queue without room": (lambda: aioflow.train.shuffle_batch([x()], 2, 5, 10), (ValueError,)),
    "a batch of lists of two lengths": (lambda: aioflow.train.batch_join([[x()], [x(), x()]], 2), (ValueError,)),
}


@pytest.mark.parametrize("name", WRONG)
def test_error_is_an_op_error_and_the_builtin_kind(name: str) -> None:
    call, kinds = WRONG[name]
    with pytest.raises(kinds) as caught:
        call()
    assert all(isinstance(caught.value, kind) for kind in (*kinds, aioflow.OpError))


def test_a_float_tensor_takes_an_integer_of_any_size() -> None:
    assert run(aioflow.constant(1.0) + 2**70) == 2.0**70
