"""A session, a graph and scopes that are entered in one cell of IPython and left in another."""

from __future__ import annotations

import sys
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

CELLS = (
    """
import aioflow as af
graph = af.Graph()
with graph.as_default():
    x = af.placeholder("float32", [])
    y = x + 1.0
session = af.Session(graph=graph)
""",
    """
entered = await session.__aenter__()
scope = graph.name_scope("a")
scope.__enter__()
first = await session.run(y, {x: 1.0})
""",
    """
second = await session.run(y, {x: 2.0})
assert (first, second, session.run_sync(y, {x: 3.0})) == (2.0, 3.0, 4.0)
scope.__exit__(None, None, None)
await session.__aexit__(None, None, None)
""",
    """
again = af.Session(graph=graph).__enter__()
assert again.run_sync(y, {x: 3.0}) == 4.0
block = graph.as_default()
block.__enter__()
""",
    """
again.__exit__(None, None, None)
block.__exit__(None, None, None)
""",
    """
assert session.closed and again.closed
assert af.get_default_session() is None
assert af.get_default_graph() is not graph
assert graph.get_name_scope() == ""
""",
)


def main() -> int:
    config = Config()
    config.HistoryManager.enabled = False
    shell: Any = InteractiveShell.instance(config=config)
    return 0 if all(shell.run_cell(cell).success for cell in CELLS) else 1


if __name__ == "__main__":
    sys.exit(main())
