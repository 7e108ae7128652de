"""Compiled programs of the tests are kept in a folder of their own, for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aioflow_numpy import compiled_blocks, compiled_depthwise, compiled_patches, compiled_pools, compiled_updates, crew
from aioflow_numpy.compiled import wanted
from aioflow_numpy.compiled.code import Programs
from aioflow_numpy.compiled.store import Store


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """Those of the tests."""
    return Programs(Store(Path(tmp_path_factory.mktemp("compiled"))))


@pytest.fixture(autouse=True)
def _their_programs(programs: Programs) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (compiled_blocks, compiled_depthwise, compiled_patches, compiled_pools, compiled_updates, crew):
            patch.setattr(module, "programs", lambda: programs)
        patch.setattr(wanted, "_EARLIER", 1)  # whatever is kept of other tests
        compiled_blocks._form.cache_clear()  # what the chains of other tests have cost
        yield
