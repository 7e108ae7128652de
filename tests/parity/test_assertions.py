"""The assert functions against TensorFlow's: whether a call or its node fails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.assertion_cases import CALL, CASES, DTYPE, PASSES, STEP, AssertionCase


def outcome(tf: Any, case: AssertionCase, way: str) -> str:
    """Call TensorFlow's function in a graph of its own, and run its node."""
    values = [np.asarray(value) for value in case.values]
    with tf.Graph().as_default(), tf.Session() as session:
        if way == "known":
            arguments, feeds = [tf.constant(value) for value in values], {}
        else:
            shapes = [None if way == "open" else value.shape for value in values]
            arguments = [
                tf.placeholder("string" if value.dtype == object else value.dtype.name, shape)
                for value, shape in zip(values, shapes, strict=True)
            ]
            feeds = dict(zip(arguments, values, strict=True))
        try:
            node = case.build(tf, *arguments)
        except TypeError:
            return DTYPE
        except (ValueError, tf.errors.InvalidArgumentError):
            return CALL
        try:
            session.run(node, feeds)
        except tf.errors.InvalidArgumentError:
            return STEP
        return PASSES


@pytest.mark.parametrize("way", ["known", "fed", "open"])
@pytest.mark.parametrize("name", CASES)
def test_tensorflow_fails_where_the_table_says(tf: Any, name: str, way: str) -> None:
    case = CASES[name]
    assert outcome(tf, case, way) == {"known": case.known, "fed": case.fed, "open": case.open or case.fed}[way]
