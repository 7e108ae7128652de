"""The scenes, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.sim.counting import counting, saving
from tests.sim.fencing import fencing
from tests.sim.programs import programs
from tests.sim.queueing import queueing
from tests.sim.restarting import restarting
from tests.sim.scenes import Scene
from tests.sim.settling import settling
from tests.sim.synchronous import synchronous
from tests.sim.vanishing import vanishing

SCENES: Final[Mapping[str, Scene]] = {
    scene.__name__: scene
    for scene in (counting, saving, fencing, programs, queueing, restarting, settling, synchronous, vanishing)
}
