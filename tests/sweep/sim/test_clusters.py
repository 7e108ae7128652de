"""Simulated clusters: servers, clients and the network between them, with all faults, seed by seed.

The scenes define what must never happen. A failure prints its seed, the trace, and the command that repeats it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sweep.sim.scenes import Violation, play
from tests.sweep.sim.stories import SCENES

ORDINARY = {
    "counting": 30,
    "saving": 30,
    "fencing": 50,
    "programs": 10,
    "queueing": 30,
    "restarting": 20,
    "settling": 20,
    "synchronous": 20,
    "vanishing": 10,
}
BLOCK = 10
MANY = 2500


def ordinary() -> Iterator[tuple[str, int]]:
    return ((name, first) for name, count in ORDINARY.items() for first in range(0, count, BLOCK))


@pytest.mark.blocks_loop("a simulation runs without a stop")
@pytest.mark.parametrize(("name", "first"), list(ordinary()))
def test_scenes_raise_no_violation(name: str, first: int) -> None:
    for seed in range(first, first + BLOCK):
        play(SCENES[name], seed)


@pytest.mark.sim
@pytest.mark.blocks_loop("a simulation runs without a stop")
@pytest.mark.parametrize("block", range(MANY // 25))
def test_thousands_of_scenes_raise_no_violation(block: int) -> None:
    names = list(SCENES)
    for seed in range(1000 + block * 25, 1000 + (block + 1) * 25):
        play(SCENES[names[seed % len(names)]], seed)


_DIGESTS = """
import sys
from aioflow.kernels.registry import KERNELS
KERNELS.load()
from tests.sweep.sim.scenes import play
from tests.sweep.sim.stories import SCENES
ballast = [bytearray(1000 * int(sys.argv[1])) for _ in range(100)]  # objects lie elsewhere
for name, scene in SCENES.items():
    print(name, play(scene, 5))
"""


def test_seed_replays_identically_in_every_process() -> None:
    root = str(Path(__file__).parents[3])
    outputs = []
    for seed in ("1", "2"):
        path = os.pathsep.join([root, os.path.join(root, "backends")])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        command = [sys.executable, "-c", _DIGESTS, seed]
        outputs.append(
            subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
        )
    assert outputs[0].stdout == outputs[1].stdout
    assert len(outputs[0].stdout.splitlines()) == len(SCENES)


def test_different_seeds_run_differently() -> None:
    assert play(SCENES["counting"], 1) != play(SCENES["counting"], 3)


def test_violation_reports_its_seed_and_replay_command() -> None:
    async def counting(net: object) -> None:
        raise Violation("it is wrong")

    with pytest.raises(Violation) as raised:
        play(counting, 7)
    (note,) = raised.value.__notes__
    assert note.startswith("seed 7, ")
    assert "python -m tests.sweep.sim.replay counting 7" in note
