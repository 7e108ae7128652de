"""Templates against TensorFlow's: names and sharing of their variables."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.template_cases import CASES


@pytest.mark.parametrize("name", CASES)
def test_tensorflow_makes_the_names_of_the_table(tf: Any, name: str) -> None:
    with tf.Graph().as_default():
        assert CASES[name].program(tf) == CASES[name].result
