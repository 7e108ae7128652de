"""The model behind the services: the classifier of the demo."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, Final

import aioflow as af
from aioflow.demo.digits import load_digits
from aioflow.demo.model import DigitsModel, build

__all__ = ["FOLDER", "build", "numbers_of", "restore_or_train"]

FOLDER: Final = Path(os.environ.get("MODEL", "model/digits"))
_STEPS: Final = 150


async def restore_or_train(session: af.Session, model: DigitsModel, folder: Path = FOLDER) -> None:
    """Restore the newest checkpoint. If there is no checkpoint, train for a second and save one."""
    checkpoint = af.train.latest_checkpoint(folder)
    if checkpoint is not None:
        await model.saver.restore(session, checkpoint)
        return
    digits, _ = load_digits().split()
    await session.run(model.initialize)
    for _ in range(_STEPS):
        await session.run(model.train, {model.images: digits.images, model.labels: digits.labels})
    await model.saver.save(session, folder / "model", model.global_step)


def numbers_of(statistics: af.BatchStatistics) -> dict[str, Any]:
    """Return the statistics in a form that JSON can encode."""
    numbers = {each.name: getattr(statistics, each.name) for each in dataclasses.fields(statistics)}
    return numbers | {"sizes": {str(size): count for size, count in statistics.sizes.items()}}
