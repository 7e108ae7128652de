"""`python -m tests.sweep.sim.replay SCENE SEED`: run one seed of one scene, and print the digest of its trace."""

from __future__ import annotations

import sys

from tests.sweep.sim.scenes import play
from tests.sweep.sim.stories import SCENES

if __name__ == "__main__":
    print(play(SCENES[sys.argv[1]], int(sys.argv[2])))
