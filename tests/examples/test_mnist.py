"""`examples/mnist.py` on files in the format of MNIST: real digits, enlarged to 28×28."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioflow.demo.digits import Digits, load_digits
from examples import mnist


def _write_idx(path: Path, array: np.ndarray[Any, Any]) -> None:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


def _write_split(folder: Path, name: str, digits: Digits) -> None:
    large = np.kron(digits.images.reshape(-1, 8, 8), np.ones((1, 3, 3)))
    framed = np.pad(large * 255, ((0, 0), (2, 2), (2, 2))).astype(np.uint8)
    _write_idx(folder / f"{name}-images-idx3-ubyte.gz", framed)
    _write_idx(folder / f"{name}-labels-idx1-ubyte.gz", digits.labels.astype(np.uint8))


@pytest.mark.parametrize(("model", "epochs", "least"), [("mlp", 4, 0.93), ("lenet", 1, 0.75)])
def test_training_learns(tmp_path: Path, model: str, epochs: int, least: float) -> None:
    train, test = load_digits().split(seed=0)
    _write_split(tmp_path, "train", train)
    _write_split(tmp_path, "t10k", test)
    arguments = ["--data", str(tmp_path), "--model", model, "--epochs", str(epochs), "--batch", "32"]
    assert mnist.main(arguments) > least


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"\x01\x02\x03\x04\x05\x06\x07\x08"))
    with pytest.raises(ValueError, match="not an IDX file"):
        mnist.read_idx(path)
