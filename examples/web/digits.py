"""What the services answer from: the classifier of the demo, and rows of pixels as clients send them."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, Final

import numpy as np

import aioflow as af
from aioflow.demo.digits import load_digits
from aioflow.demo.model import PIXELS, Model, build
from aioflow.errors import InvalidArgumentError
from aioflow.session.batching import BatchStatistics

__all__ = ["FOLDER", "build", "numbers_of", "restore_or_train", "rows_of"]

FOLDER: Final = Path(os.environ.get("MODEL", "model/digits"))
_STEPS: Final = 150


async def restore_or_train(session: af.Session, model: Model, folder: Path = FOLDER) -> None:
    """Give the variables the values of the newest checkpoint. Where there is none, train for a second and save one."""
    checkpoint = af.train.latest_checkpoint(folder)
    if checkpoint is not None:
        await model.saver.restore(session, checkpoint)
        return
    digits, _ = load_digits().split()
    await session.run(model.initialize)
    for _ in range(_STEPS):
        await session.run(model.train, {model.images: digits.images, model.labels: digits.labels})
    await model.saver.save(session, folder / "model", model.global_step)


def rows_of(value: Any) -> Any:
    """Rows of pixels [n, 64] of what JSON gave. Raises InvalidArgumentError."""
    try:
        with np.errstate(over="raise"):  # 1e300 is not a float32
            rows = np.asarray(value, np.float32)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"these are no rows of {PIXELS} numbers: {error}") from error
    if rows.ndim != 2 or rows.shape[1] != PIXELS or not rows.size:
        raise InvalidArgumentError("wrong rows", expected=f"shape [n, {PIXELS}], n >= 1", actual=rows.shape)
    if not np.isfinite(rows).all():
        raise InvalidArgumentError("a pixel is no finite number", expected="numbers in 0..1", actual="NaN or infinity")
    return rows


def numbers_of(statistics: BatchStatistics) -> dict[str, Any]:
    """What is to be shown of them, as JSON takes it."""
    numbers = {each.name: getattr(statistics, each.name) for each in dataclasses.fields(statistics)}
    return numbers | {"sizes": {str(size): count for size, count in statistics.sizes.items()}}
