"""Inputs of a model from a command line: NumPy files, inline JSON, or generated values; sizes of open dimensions."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile

import numpy as np

from aioflow.errors import DTypeError, InvalidArgumentError, OpError, ResourceExhaustedError
from aioflow.formats.files import file_errors
from aioflow.graph.arrays import blank, to_array
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import Dims, format_dims, is_compatible
from aioflow.interop.model import Model, Signature
from aioflow.interop.unsupported import UnsupportedError
from aioflow.memory.values import Array
from aioflow.saved.opening import ONNX, kind_of, open_model

_OPEN: Final = ("?", "-1")
_FILLS: Final = ("zeros", "ones", "random")
_LIKE_JSON: Final = tuple('[{"-0123456789')  # first characters of JSON values
_WORDS: Final = ("true", "false", "null")
_SEED: Final = 0  # fixed, so that random inputs are the same in every run


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a signature and its inputs."""
    parser.add_argument(
        "--inputs",
        nargs="+",
        action="extend",
        default=[],
        metavar="[NAME=]VALUE",
        help="x.npy, or x=x.npy, or all.npz with arrays of the inputs' names, or x='[[1, 2]]'",
    )
    parser.add_argument(
        "--fill", choices=_FILLS, help="value of inputs that --inputs omits; random values are the same in every run"
    )
    add_shape(parser)
    parser.add_argument(
        "--signature", metavar="NAME", help="signature to call; default: serving_default, or the only signature"
    )


def all_inputs(signature: Signature, arguments: argparse.Namespace) -> dict[str, Array]:
    """Return the inputs of a call, as the options of `add_inputs` define them.

    Raises:
        InvalidArgumentError: as in `given_inputs`, `sized` and `filled`; or an input is missing.
        DTypeError, ResourceExhaustedError: as in `filled`.
        OpError: as in `given_inputs`.
    """
    given = given_inputs(signature, arguments.inputs)
    shapes = sized(signature, arguments.shape)
    missing = [name for name in signature.inputs if name not in given]
    if missing and arguments.fill is None:
        raise InvalidArgumentError(
            f"inputs are missing: {', '.join(missing)}",
            expected=f"--inputs {missing[0]}=VALUE, or --fill zeros",
            actual=f"given: {', '.join(given) or 'none'}",
        )
    made = {name: filled(name, signature.inputs[name], shapes[name], arguments.fill) for name in missing}
    values = {**made, **given}
    # In the order of the signature, whatever the order of the options.
    return {name: values[name] for name in signature.all_inputs if name in values}


def add_shape(parser: argparse.ArgumentParser) -> None:
    """Add the option for the sizes of inputs."""
    parser.add_argument(
        "--shape",
        nargs="+",
        action="extend",
        type=input_shape,
        default=[],
        metavar="NAME=SIZES",
        help="sizes of an input, such as x=1,3,224,224; ? for an open dimension",
    )


def input_shape(text: str) -> tuple[str, Dims]:
    """Return the name and the sizes of "x=?,3". Raises ArgumentTypeError if the text is not of that form."""
    # From the right: a name may contain "=", sizes do not.
    name, equals, sizes = text.rpartition("=")
    # No sizes at all, as in "x=", is the shape of a scalar.
    parts = [part.strip() for part in sizes.split(",") if part]
    if not equals or not name or not all(part.isdecimal() or part in _OPEN for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form x=1,3,224,224, or x=?,3")
    return name, tuple(None if part in _OPEN else int(part) for part in parts)


def opened_model(arguments: argparse.Namespace) -> Model:
    """Open the model of a command. Raises as `open_model`.

    The shapes of `--shape` are used only for an ONNX model that cannot be imported without them. Otherwise the model
    keeps the shapes of its file, since `--shape` describes a single call.
    """
    kind = kind_of(arguments.model)
    try:
        return open_model(arguments.model, kind)
    except UnsupportedError:
        if kind is not ONNX or not arguments.shape:
            raise
        return open_model(arguments.model, kind, dict(arguments.shape))


def sized(signature: Signature, shapes: Sequence[tuple[str, Dims]]) -> dict[str, Dims]:
    """Return the shape of each input, with the sizes of the command line.

    Raises:
        InvalidArgumentError: there is no such input, or it cannot have that shape.
    """
    found: dict[str, Dims] = {name: tensor.dims for name, tensor in signature.inputs.items()}
    for name, sizes in shapes:
        if name not in found:
            raise InvalidArgumentError(f"no input {name!r}", expected=_known(signature), actual=name)
        tensor = signature.inputs[name]
        if not is_compatible(tensor.dims, sizes):
            raise InvalidArgumentError(
                f"input {name!r} cannot have that shape", expected=format_dims(tensor.dims), actual=format_dims(sizes)
            )
        found[name] = sizes
    return found


def _known(signature: Signature) -> str:
    names = ", ".join(signature.all_inputs)
    return f"one of {names}" if names else "none: the signature has no inputs"


def given_inputs(signature: Signature, texts: Sequence[str]) -> dict[str, Array]:
    """Return the values of a command line, by the names of the inputs.

    Raises:
        InvalidArgumentError: a value has no name although there are several inputs, or has the name of no input; or it
            is neither a NumPy file nor JSON, or an input has two values.
        OpError: a file cannot be read, or the input cannot have the value.
    """
    found: dict[str, Array] = {}
    for text in texts:
        for name, value in _given(signature, text).items():
            if name in found:
                raise InvalidArgumentError(f"input {name!r} is given twice", expected="once", actual=text)
            found[name] = value
    return found


def _given(signature: Signature, text: str) -> dict[str, Array]:
    name, equals, rest = text.partition("=")
    tensors = signature.all_inputs
    # Names of inputs take precedence over files whose names contain "=".
    if equals and name in tensors:
        return {name: _value(name, rest, tensors[name])}
    if text.endswith(".npz") and isinstance(arrays := _load(text), Mapping):
        unknown = [key for key in arrays if key not in tensors]
        if unknown:
            raise InvalidArgumentError(
                f"{text} has arrays that match no input", expected=_known(signature), actual=unknown
            )
        return {key: _as(key, value, tensors[key]) for key, value in arrays.items()}
    if len(signature.inputs) != 1:
        raise InvalidArgumentError(
            f"cannot tell which input {text!r} is for", expected=f"NAME=VALUE, the name {_known(signature)}"
        )
    ((only, tensor),) = signature.inputs.items()
    # The name of a file may contain "=". Only if there is no such file, the text before it is a wrong input name.
    if equals and name.isidentifier() and not Path(text).exists():
        raise InvalidArgumentError(f"no input {name!r}", expected=_known(signature), actual=name)
    return {only: _value(only, text, tensor)}


def _value(name: str, text: str, tensor: Tensor) -> Array:
    if text.endswith((".npy", ".npz")):
        loaded = _load(text)
        if isinstance(loaded, Mapping):
            if len(loaded) != 1 and name not in loaded:
                raise InvalidArgumentError(
                    f"{text} has several arrays", expected=f"one named {name}", actual=list(loaded)
                )
            # A file with one array may call it as it likes.
            loaded = loaded.get(name) if name in loaded else next(iter(loaded.values()))
        return _as(name, loaded, tensor)
    if not text.startswith(_LIKE_JSON) and text not in _WORDS:
        raise InvalidArgumentError(
            f"input {name!r} is neither a NumPy file nor JSON",
            expected="x.npy, x.npz, or JSON such as '[[1, 2]]'",
            actual=text,
        )
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            f"input {name!r} is not JSON: {error}", expected="JSON such as '[[1, 2]]'"
        ) from error
    return _as(name, value, tensor)


def _as(name: str, value: object, tensor: Tensor) -> Array:
    """Convert the value to the dtype of the input. Doubles, NumPy's default, become the floating dtype of the model."""
    if isinstance(value, np.ndarray) and value.dtype == np.float64 and tensor.dtype.is_floating:
        value = value.astype(tensor.dtype.np_dtype)
    if isinstance(value, np.ndarray) and value.dtype.kind in "SU":
        # Texts of a list are encoded by `to_array`.
        value = value.tolist()
    try:
        return to_array(value, tensor.dtype)
    except OpError as error:
        error.message = f"input {name!r}: {error.message}"
        raise


def _load(path: str) -> Any:
    with file_errors(path), open(path, "rb") as file:  # opened here: NumPy does not close a damaged file
        try:
            # Pickles execute code of the file.
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            with loaded:
                return {key: loaded[key] for key in loaded.files}
        except MemoryError as error:
            raise ResourceExhaustedError(
                f"{os.fspath(path)} declares an array that is too large",
                expected="arrays that fit into memory",
                actual=str(error),
            ) from error
        except (ValueError, EOFError, OverflowError, BadZipFile) as error:
            raise InvalidArgumentError(
                f"{os.fspath(path)} is not a NumPy file", expected="an array", actual=str(error)
            ) from error


def filled(name: str, tensor: Tensor, dims: Dims, fill: str) -> Array:
    """Return a generated input; an open dimension has the size 1.

    Raises:
        InvalidArgumentError: its rank is unknown.
        DTypeError: its elements are not numbers, bools or strings.
        ResourceExhaustedError: there is not enough memory.
    """
    if dims is None:
        raise InvalidArgumentError(f"input {name!r} has no known rank", expected=f"--shape {name}=…", actual="any rank")
    shape = [1 if size is None else size for size in dims]
    try:
        return _filled(name, tensor.dtype, shape, fill)
    except (MemoryError, ValueError) as error:
        # A DTypeError is a ValueError, too.
        if isinstance(error, OpError):
            raise
        raise ResourceExhaustedError(
            f"input {name!r} is too large", expected="a smaller --shape", actual=shape
        ) from error


def _filled(name: str, dtype: DType, shape: list[int], fill: str) -> Array:
    if dtype.name == "string":
        return blank(shape, object)
    if fill == "random":
        numbers = np.random.default_rng(_SEED)
        if dtype.is_floating or dtype.is_complex:
            return numbers.random(shape).astype(dtype.np_dtype)
        if dtype.is_bool or dtype.is_integer:
            # 0 and 1 are valid as indices, masks and tokens of most models.
            return numbers.integers(0, 2, shape).astype(dtype.np_dtype)
    if not (dtype.is_numeric or dtype.is_bool):
        raise DTypeError(f"input {name!r} cannot be generated", expected="numbers, bools or strings", actual=dtype.name)
    return blank(shape, dtype.np_dtype) if fill == "zeros" else np.ones(shape, dtype.np_dtype)
