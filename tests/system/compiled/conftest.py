"""Fixtures that keep the programs compiled by the tests in a temporary folder that all tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aioflow_numpy import crew
from aioflow_numpy.compiled import blocks, depthwise, patches, pools, small, updates, wanted
from aioflow_numpy.compiled.code import Programs, ProgramStore


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """Return the compiled programs of the tests."""
    return Programs(ProgramStore(Path(tmp_path_factory.mktemp("compiled"))))


@pytest.fixture(autouse=True)
def _their_programs(programs: Programs) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (blocks, depthwise, patches, pools, small, updates, crew):
            patch.setattr(module, "programs", lambda: programs)
        patch.setattr(wanted, "_EARLIER", 1)  # independent of what other tests have stored
        blocks._form.cache_clear()  # forget the costs of chains in other tests
        small._spent.cache_clear()
        yield
