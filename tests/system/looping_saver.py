"""A process that goes on from the latest checkpoint of a folder, saves in a loop, and prints each step it has saved."""

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


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
