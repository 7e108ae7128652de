"""Slices of a variable of shape [3, 4], and values that are assigned to them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

CASES: Final[dict[str, tuple[Any, Any]]] = {
    "a row": (1, np.ones(4)),
    "an element": ((1, 2), 9.0),
    "columns": (np.s_[:, 1:3], np.ones((3, 2))),
    "strides": (np.s_[::2, ::-1], np.arange(8.0).reshape(2, 4)),
    "a scalar for a row": (-1, 5.0),
    "a row for several": (np.s_[:2], np.arange(4.0)),
    "a column for several": (np.s_[:, 1:3], np.arange(3.0)[:, None]),
    "a new dimension": (np.s_[None, 1], np.ones((1, 4))),
    "a leading dimension": (1, np.ones((1, 1, 4))),
    "nothing": (np.s_[2:1], np.ones((0, 4))),
    "an ellipsis": (np.s_[..., 0], np.arange(3.0)),
    "everything": (np.s_[:], np.ones((3, 4))),
}
REFUSED: Final[dict[str, tuple[Any, Any]]] = {
    "too few elements": (1, np.ones(3)),
    "too many rows": (1, np.ones((2, 4))),
    "several rows for one": (np.s_[1:2], np.ones((2, 4))),
}
