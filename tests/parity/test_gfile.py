"""Results and errors of `gfile` against TensorFlow's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.gfile_cases import EVERYWHERE, LOCAL, fill, outcome

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("name", [*EVERYWHERE, *LOCAL])
def test_tensorflow_does_what_the_table_says(tf: Any, name: str, tmp_path: Path) -> None:
    case = {**EVERYWHERE, **LOCAL}[name]
    fill(tf.gfile, str(tmp_path))
    assert outcome(case, tf.gfile, str(tmp_path), (tf.errors.OpError, TypeError)) == case[1]
