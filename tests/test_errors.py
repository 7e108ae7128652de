"""The classes of errors: TensorFlow's arguments beside aioflow's own, codes, pickling."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import aioflow as af
from aioflow import errors

CLASSES = [getattr(errors, name) for name in errors.__all__ if isinstance(getattr(errors, name), type)]
KINDS = [kind for kind in CLASSES if issubclass(kind, errors.OpError)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_class_accepts_both_forms_of_arguments(kind: type[errors.OpError]) -> None:
    own = kind("a message", node="n", op_type="Add", expected=1, actual=2)
    for error in (kind(None, None, "a message"), kind(node_def=None, op=None, message="a message")):
        assert (error.message, str(error), error.args) == ("a message", "a message", ("a message",))
        assert (error.op, error.node_def, error.node, error.error_code) == (None, None, None, kind.code)
    assert (own.message, own.node, own.op_type, own.op, own.error_code) == ("a message", "n", "Add", None, kind.code)
    assert kind(message="a message").message == "a message"
    for copied in (pickle.loads(pickle.dumps(own)), copy.copy(own)):
        assert (type(copied), str(copied), copied.__dict__) == (kind, str(own), own.__dict__)


def test_the_op_names_the_node_and_its_line() -> None:
    with af.Graph().as_default() as graph:
        op = af.no_op(name="n")
        error = errors.InvalidArgumentError(None, op, "wrong")
        assert (error.op, error.node, error.op_type, error.source) == (op, "n", "NoOp", op.source)
        assert __file__ in str(error)
        definition = errors.AbortedError(graph.as_graph_def().node[0], None, "wrong")
        assert (definition.node_def.name, definition.node, definition.op_type) == ("n", "n", "NoOp")
        restored = pickle.loads(pickle.dumps(error))
        assert (restored.op, restored.node, str(restored)) == (None, "n", str(error))


def test_codes_and_classes() -> None:
    assert errors.OpError(None, None, "gone", errors.NOT_FOUND).error_code == errors.NOT_FOUND == 5
    assert errors.exception_type_from_error_code(errors.DATA_LOSS) is errors.DataLossError
    assert errors.exception_type_from_error_code(errors.UNKNOWN) is errors.UnknownError
    assert [errors.error_code_from_exception_type(kind) for kind in KINDS] == [kind.code for kind in KINDS]
    assert errors.error_code_from_exception_type(OSError) == errors.UNKNOWN
    with pytest.raises(KeyError, match="no class of errors has this code"):
        errors.exception_type_from_error_code(0)


def test_other_arguments_are_rejected() -> None:
    wrong: list[Any] = [
        lambda *_: errors.OpError(),  # type: ignore[call-overload]  # the mistakes
        lambda *_: errors.OpError(None, "two"),  # type: ignore[call-overload]
        lambda *_: errors.OpError("message", message="again"),  # type: ignore[call-overload]
        lambda *_: errors.OpError("message", nodes="n"),  # type: ignore[call-overload]
    ]
    for call in wrong:
        with pytest.raises(TypeError, match=r"accepts \(message, .* or TensorFlow's arguments"):
            call()
