"""A process that saves steps 1 and 2, and stops before the state file lists the second.

It prints "written" at that point, and continues when a line arrives on its standard input.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import aioflow as af


async def main(prefix: str, incremental: bool) -> None:
    variable = af.Variable(1.0, name="v")
    saver = af.train.Saver(incremental=incremental)
    async with af.Session() as session:
        await session.run(variable.initializer)
        await saver.save(session, prefix, global_step=1)
        await session.run(variable.assign(2.0))
        finish: Any = vars(af.train.Saver)["_finish"]

        def waiting(*args: Any) -> None:
            print("written", flush=True)
            sys.stdin.readline()
            finish(*args)

        setattr(af.train.Saver, "_finish", waiting)  # noqa: B010  # nothing else runs in this process
        await saver.save(session, prefix, global_step=2)
    print("saved", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2] == "incremental"))
