"""A model for the services, trained once for all of them."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

import aioflow as af
from examples.web.digits import build, restore_or_train
from tests.examples.web.services import Oracle


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the shared checkpoint."""
    folder = tmp_path_factory.mktemp("digits")

    async def train() -> None:
        model = build()
        async with af.Session(graph=model.graph) as session:
            await restore_or_train(session, model, folder)

    asyncio.run(train())
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """Return a copy of the shared checkpoint's folder."""
    return Path(shutil.copytree(trained, tmp_path / "digits"))


@pytest.fixture
def oracle(trained: Path) -> Oracle:
    """Return an oracle for the expected answers of the services."""
    return Oracle(trained)
