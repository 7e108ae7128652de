"""Outputs as classes, by Triton's classification extension: the highest elements of each row with their labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.formats.files import file_errors
from aioflow.graph import dtypes
from aioflow.graph.dtypes import as_dtype
from aioflow.memory.values import Array
from aioflow.serve.protocol import MalformedRequestError


def read_labels(path: str) -> tuple[str, ...]:
    """Return the lines of a file of labels, one for each class, in UTF-8.

    Raises:
        OpError: the file cannot be read.
        InvalidArgumentError: it is not text.
    """
    try:
        # Lines end at newlines only: `splitlines` would also divide a label at other separators, such as U+2028.
        with file_errors(path), open(path, encoding="utf-8-sig") as file:
            return tuple(line.rstrip("\n") for line in file)
    except UnicodeDecodeError as error:
        raise InvalidArgumentError("the file of labels is not text", expected="UTF-8", actual=path) from error


def classified(array: Array, name: str, count: int, labels: Sequence[str | int], has_rows: bool) -> Array:
    """Return the `count` highest elements as strings "value:index" or "value:index:label", the highest first.

    Args:
        array: The output.
        name: Its name, for errors.
        count: The number of classes of each row; all if the row has fewer.
        labels: The labels by index. A class beyond them has none.
        has_rows: Whether the first axis counts rows even if it is the only one.

    Raises:
        MalformedRequestError: the output is not numeric.
    """
    dtype = as_dtype(array.dtype)
    if not (dtype.is_floating or dtype.is_integer):
        raise MalformedRequestError(f"output {name!r} cannot be classified", expected="numbers", actual=dtype.name)
    has_rows = has_rows or array.ndim > 1
    rows = array.reshape(len(array), math.prod(array.shape[1:])) if has_rows and array.ndim else array.reshape(1, -1)
    if dtype is dtypes.bfloat16:
        rows = rows.astype(np.float32)
    count = min(count, rows.shape[1])
    # NaN is the lowest, although NumPy sorts it last.
    keys = np.where(np.isnan(rows), -np.inf, rows) if dtype.is_floating else rows
    # Stable on the reversed row: the first of equal elements comes first.
    order = rows.shape[1] - 1 - np.argsort(keys[:, ::-1], axis=1, kind="stable")[:, ::-1][:, :count]
    form = "{:f}" if dtype.is_floating else "{:d}"
    found = np.empty(order.shape, np.object_)
    for row, columns in enumerate(order.tolist()):
        for at, column in enumerate(columns):
            text = f"{form.format(rows[row, column].item())}:{column}"
            if column < len(labels):
                text += f":{labels[column]}"
            found[row, at] = text.encode()
    return found if has_rows and array.ndim else found[0]
