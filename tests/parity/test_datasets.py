"""The table of datasets, against TensorFlow."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.dataset_cases import CASES, plain, spec_of


@pytest.mark.parametrize("name", CASES)
def test_tensorflow_makes_the_elements_of_the_table(tf: Any, name: str) -> None:
    case = CASES[name]
    found: list[Any] = []
    with tf.Graph().as_default(), tf.Session() as session:
        dataset = case.build(tf)
        assert spec_of(tf.data.get_output_types(dataset), tf.data.get_output_shapes(dataset)) == case.spec
        iterator = tf.data.make_initializable_iterator(dataset)
        element = iterator.get_next()
        session.run(iterator.initializer)
        while True:
            try:
                found.append(plain(session.run(element)))
            except tf.errors.OutOfRangeError:
                break
            except tf.errors.OpError as error:
                found.append(type(error).__name__)
    assert found == case.elements
