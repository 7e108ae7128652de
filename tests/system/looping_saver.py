"""A process that saves in a loop and prints the number of each save.

It continues from the latest checkpoint of a folder, or replaces one model.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import aioflow as af

KINDS: dict[str, dict[str, Any]] = {"plain": {}, "blocks": {"incremental": True}, "bundle": {"write_version": 2}}


async def main(folder: str, kind: str, saves: int) -> None:
    variable = af.Variable([0.0] * 100_000, name="v")
    saver = af.train.Saver(max_to_keep=2, **KINDS[kind])
    async with af.Session() as session:
        await session.run(variable.initializer)
        state = af.train.get_checkpoint_state(folder)
        step = 0
        if state is not None:
            await saver.restore(session, state.model_checkpoint_path)
            saver.recover_last_checkpoints(state)
            step = int(state.model_checkpoint_path.rpartition("-")[2])
        for next_step in range(step + 1, step + 1 + saves):
            await saver.save(session, f"{folder}/m", next_step)
            print(next_step, flush=True)


async def replace_model(folder: str, saves: int) -> None:
    variable = af.Variable([0.0] * 100_000, name="v")
    signature = af.saved.Signature({}, {"y": variable + 1.0})
    async with af.Session() as session:
        await session.run(variable.initializer)
        for number in range(saves):
            await af.saved.save(session, f"{folder}/model", signature, overwrite=True)
            print(number, flush=True)


if __name__ == "__main__":
    place, what, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    asyncio.run(replace_model(place, count) if what == "model" else main(place, what, count))
