"""`examples/coroutine_nodes.py`: concurrent questions are all answered, and lost answers are requested again."""

from __future__ import annotations

import numpy as np
import pytest

from examples import coroutine_nodes


def test_every_question_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    report = coroutine_nodes.main(requests=3)
    questions = 3 * coroutine_nodes.USERS * 2
    scores = report["scores"]
    assert scores.shape == (3, coroutine_nodes.USERS)
    assert ((scores > 0) & (scores < 1)).all()
    # the users of the requests overlap, and a user's score does not depend on the request
    assert np.allclose(scores[0][1:], scores[1][:-1])
    assert report["asked"] > questions
    assert 8 <= report["most"] <= coroutine_nodes.LIMIT
    assert report["requests"] == ["request 0", "request 1", "request 2"]
    assert f"{report['asked']} questions" in capsys.readouterr().out
