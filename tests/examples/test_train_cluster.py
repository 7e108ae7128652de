"""Training on processes or on Ray: the weights at the end are the same, whichever task is killed.

`tests/distributed/test_ray.py` runs the example on Ray, since it has a Ray cluster.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest

from aioflow.demo.digits import load_digits
from examples import train_cluster as example


def undisturbed() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return the weights after the same steps in plain NumPy."""
    training, _ = load_digits().split()
    weights = np.zeros((64, 10), np.float32)
    for number in range(example.STEPS):
        some = np.random.default_rng(number).integers(0, len(training), example.BATCH)
        images, labels = training.images[some], training.labels[some]
        scores = np.exp(images @ weights)
        wrong = scores / scores.sum(axis=1, keepdims=True) - np.eye(10, dtype=np.float32)[labels]
        weights -= 0.5 * (images.T @ wrong) / example.BATCH
    return weights


def check(report: example.Report) -> None:
    """Check the accuracy, the step counts and the weights of a run."""
    assert report.accuracy > 0.9
    assert report.counted == [1] * example.STEPS
    np.testing.assert_allclose(report.weights, undisturbed(), rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
@pytest.mark.parametrize("kill", [None, "worker", "ps"])
async def test_a_killed_task_does_not_change_the_result(kill: str | None) -> None:
    report = await example.main(kill=kill)
    check(report)
    assert {task for task, times in report.restarts.items() if times} == (
        {f"/job:{kill}/replica:0/task:0"} if kill else set()
    )


def test_the_command_line_selects_the_cluster() -> None:
    assert vars(example.parsed([])) == {"on": "processes", "kill": None}
    assert vars(example.parsed(["--on", "ray", "--kill", "ps"])) == {"on": "ray", "kill": "ps"}
