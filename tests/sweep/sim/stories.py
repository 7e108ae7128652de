"""All scenes, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.sweep.sim.counting import counting, saving
from tests.sweep.sim.fencing import fencing
from tests.sweep.sim.programs import programs
from tests.sweep.sim.queueing import queueing
from tests.sweep.sim.restarting import restarting
from tests.sweep.sim.scenes import Scene
from tests.sweep.sim.settling import settling
from tests.sweep.sim.synchronous import synchronous
from tests.sweep.sim.vanishing import vanishing

SCENES: Final[Mapping[str, Scene]] = {
    scene.__name__: scene
    for scene in (counting, saving, fencing, programs, queueing, restarting, settling, synchronous, vanishing)
}
