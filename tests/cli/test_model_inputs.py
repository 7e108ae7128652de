"""Inputs of a model from NumPy files: they have the dtype of the input, whatever the kind of file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.cli.model_inputs import given_inputs
from aioflow.errors import DTypeError
from aioflow.interop.model import Signature


def signature(dtype: Any) -> Signature:
    with af.Graph().as_default():
        x = af.placeholder(dtype, [1, 2], name="x")
        return Signature({"x": x}, {"x": x})


@pytest.mark.parametrize("how", ["{}.npy", "{}.npz", "x={}.npz"])
@pytest.mark.parametrize(
    ("dtype", "value"),
    [(af.float16, [[1.5, 2.0]]), (af.complex64, [[1.5, 2.0]]), (af.float32, [[1, 2]]), (af.string, [["a", "b"]])],
)
def test_file_is_converted_to_the_dtype_of_the_input(dtype: Any, value: Any, how: str, tmp_path: Path) -> None:
    np.save(tmp_path / "given.npy", value)
    np.savez(tmp_path / "given.npz", x=value)
    found = given_inputs(signature(dtype), [how.format(tmp_path / "given")])["x"]
    assert found.dtype == dtype.np_dtype
    assert found.tolist() == np.array(value, "S" if dtype is af.string else None).tolist()


@pytest.mark.parametrize("form", ["npy", "npz"])
def test_file_of_another_dtype_is_refused_with_the_name_of_the_input(form: str, tmp_path: Path) -> None:
    np.save(tmp_path / "given.npy", [[1.5, 2.0]])
    np.savez(tmp_path / "given.npz", x=[[1.5, 2.0]])
    with pytest.raises(DTypeError, match="input 'x': "):
        given_inputs(signature(af.int32), [str(tmp_path / f"given.{form}")])


def test_array_in_a_file_with_an_archives_name_is_the_input(tmp_path: Path) -> None:
    with (tmp_path / "given.npz").open("wb") as file:
        np.save(file, [[1.5, 2.0]])
    assert given_inputs(signature(af.float32), [str(tmp_path / "given.npz")])["x"].tolist() == [[1.5, 2.0]]
