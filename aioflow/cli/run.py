"""`aioflow run`: call a model of any format once, and measure the time."""

from __future__ import annotations

import argparse
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeAlias
from zipfile import ZipFile

import numpy as np

# The whole package, since importing it registers the ops and the portable kernels.
import aioflow as af
from aioflow.cli import program, tables
from aioflow.cli.arguments import Commands, add_computing, add_imports, computing, output_file, positive, stored_file
from aioflow.cli.delegation import as_lines
from aioflow.cli.model_inputs import add_inputs, all_inputs, opened_model
from aioflow.cli.progress import progress
from aioflow.compiler.place.timeline_svg import time_text
from aioflow.config import AUTO
from aioflow.errors import InvalidArgumentError, OpError
from aioflow.formats.files import file_errors
from aioflow.graph.graph import Tensor
from aioflow.graph.labelled import labels_of, values_of
from aioflow.interop.model import Model, Signature
from aioflow.memory.values import Array, Value

_SHOWN: Final = 4  # shown elements of an output


_Output: TypeAlias = Array | list[Any]  # a list of arrays, such as an ONNX sequence


class _Times(NamedTuple):
    """Measured times, in seconds."""

    opening: float
    first: float
    steps: list[float]


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "run",
        help="call a model: ONNX, SavedModel, graph definition, or a folder of aioflow.saved",
        description="Call a model: an ONNX file, a SavedModel, a graph definition, or a folder of aioflow.saved.",
    )
    parser.add_argument(
        "model", type=stored_file, metavar="MODEL", help="path of a model file or folder; the format is detected"
    )
    add_inputs(parser)
    parser.add_argument(
        "--output", type=output_file, metavar="FILE", help="write the outputs to FILE.npz, or one to FILE.npy"
    )
    parser.add_argument("--output-folder", type=Path, metavar="FOLDER", help="write each output to FOLDER/NAME.npy")
    parser.add_argument("--repeat", type=positive, default=0, metavar="N", help="run N more steps and show their times")
    add_computing(parser, " with --repeat, otherwise none")
    add_imports(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    try:
        return program.run(_call(arguments))
    except (OpError, OSError):
        if arguments.debug:
            traceback.print_exc(file=sys.stderr)
        raise


async def _call(arguments: argparse.Namespace) -> int:
    _check_output(arguments.output)
    started = perf_counter()
    with progress(f"loading {arguments.model}"):
        model = opened_model(arguments)
    signature = model.signature(arguments.signature)
    values = all_inputs(signature, arguments)
    feeds = {signature.all_inputs[name]: value for name, value in values.items()}
    fetches = {name: values_of(each) for name, each in signature.outputs.items()}
    # Preparing an engine takes longer than one step.
    is_asked = arguments.repeat or arguments.delegate != AUTO
    config = computing(arguments)
    if not is_asked:
        config = replace(config, delegate=None)
    async with af.Session(graph=model.graph, config=config) as session:
        with progress("initializing"):
            await model.initialize(session)
        opened = perf_counter()
        with progress("the first step"):
            outputs: Mapping[str, _Output] = await session.run(fetches, feeds)
        first = perf_counter()
        if config.delegate is not None:
            with progress("preparing"):
                await session.prepared()
            if arguments.delegate != AUTO:  # the user wants the results of this engine
                outputs = await session.run(fetches, feeds)
        # `first` includes the compilation of the step.
        times = _Times(opened - started, first - opened, await _repeated(session, fetches, feeds, arguments.repeat))
        engine = next(as_lines(session.delegation(fetches, list(feeds))), "") if config.delegate is not None else ""
    for line in _report(model, signature, values, outputs, times):
        print(line)
    if engine:
        print(engine.strip())
    for path in _written(arguments, signature, outputs):
        print(f"written to {path}")
    return 0


async def _repeated(
    session: af.Session, fetches: Mapping[str, Tensor], feeds: Mapping[Tensor, Value], count: int
) -> list[float]:
    taken = []
    with progress("steps", count) as shown:
        for _ in range(count):
            started = perf_counter()
            await session.run(fetches, feeds)
            taken.append(perf_counter() - started)
            shown.advance()
    return taken


# ── output ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _report(
    model: Model, signature: Signature, inputs: Mapping[str, _Output], outputs: Mapping[str, _Output], times: _Times
) -> Iterator[str]:
    yield model.source
    table = [("in", name, *_kind(signature.all_inputs[name].dtype.name, value), "") for name, value in inputs.items()]
    for name, value in outputs.items():
        tensor = signature.outputs[name]
        summary = _labelled(labels, value) if (labels := labels_of(tensor)) else _summary(value)
        table.append(("out", name, *_kind(tensor.dtype.name, value), summary))
    yield from tables.rows(table)
    yield f"ready after {time_text(times.opening)}, first step {time_text(times.first)}"
    if times.steps:
        middle, ends = median(times.steps), (min(times.steps), max(times.steps))
        count = tables.plural(len(times.steps), "step")
        fastest, slowest = map(time_text, ends)
        rate = f"{1 / middle:,.0f}" if middle < 0.1 else f"{1 / middle:.2g}"
        yield f"{count}: median {time_text(middle)}, {fastest} to {slowest}, {rate} a second"


def _kind(dtype: str, value: _Output) -> tuple[str, str]:
    if isinstance(value, list):  # a list of tensors, such as an ONNX sequence
        return dtype, f"a list of {len(value):,}"
    return dtype, tables.shape_text(np.shape(value))


def _summary(value: _Output) -> str:
    if isinstance(value, list):
        return "; ".join(_summary(item) for item in value[:_SHOWN])
    array = np.asarray(value)
    some = ", ".join(_element(item) for item in array.reshape(-1)[:_SHOWN])
    shown = f"{some}, …" if array.size > _SHOWN else some
    # "V" is the kind of ml_dtypes' small floats.
    if array.size <= 1 or array.dtype.kind not in "fiu" + "V":
        return shown
    numbers = array.astype(np.float64)
    with np.errstate(all="ignore"):
        return f"min {numbers.min():.4g}  mean {numbers.mean():.4g}  max {numbers.max():.4g}  {shown}"


def _labelled(labels: Sequence[str | int], rows: _Output) -> str:
    """Return the first row with its labels."""
    if not len(rows):
        return ""
    some = [f"{label}: {_element(item)}" for label, item in zip(labels[:_SHOWN], rows[0], strict=False)]
    more = ", …" if len(labels) > _SHOWN else ""
    return f"{{{', '.join(some)}{more}}}" + ("; …" if len(rows) > 1 else "")


def _element(item: object) -> str:
    if isinstance(item, bytes):
        return repr(item.decode(errors="replace"))
    return f"{item:.4g}" if isinstance(item, float | np.floating) else str(item)


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_output(path: Path | None) -> None:
    if path is not None and path.suffix not in (".npz", ".npy"):
        raise InvalidArgumentError(
            "outputs can be written only as NumPy files", expected="--output x.npz or x.npy", actual=str(path)
        )


def _written(arguments: argparse.Namespace, signature: Signature, outputs: Mapping[str, _Output]) -> Iterator[Path]:
    arrays = dict(pair for name, value in outputs.items() for pair in _stored(name, value))
    path: Path | None = arguments.output
    # Before the labels are added, since a .npy file holds a single array.
    if path is not None and path.suffix == ".npy":
        yield _write(path, arrays)
    for name, tensor in signature.outputs.items():
        if labels := labels_of(tensor):
            arrays[f"{name}.labels"] = np.array(labels)
    if path is not None and path.suffix == ".npz":
        yield _write(path, arrays)
    folder: Path | None = arguments.output_folder
    if folder is not None:
        with file_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        for name, array in arrays.items():
            # Names of outputs may contain slashes and colons.
            plain = re.sub(r"[^\w.-]", "_", name)
            yield _write(folder / f"{plain}.npy", {name: array})


def _write(path: Path, arrays: Mapping[str, Array]) -> Path:
    with file_errors(path):
        if path.suffix == ".npz":
            # Not `numpy.savez`, which takes the names as keyword arguments: an output may be called `file`.
            with ZipFile(path, "w") as archive:
                for name, array in arrays.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                        np.save(file, array)
            return path
        if len(arrays) != 1:
            raise InvalidArgumentError(
                f"{path} can hold only one output", expected="FILE.npz", actual=f"{len(arrays)} outputs"
            )
        np.save(path, next(iter(arrays.values())))
    return path


def _stored(name: str, value: _Output) -> Iterator[tuple[str, Array]]:
    """Yield the arrays of an output by name: each item of a list has its number."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield f"{name}.{number}", _storable(item)
    else:
        yield name, _storable(value)


def _storable(value: object) -> Array:
    """Return the value as an array; strings as NumPy's byte strings, since NumPy would pickle arrays of objects."""
    array = np.asarray(value)
    return array.astype(bytes) if array.dtype == object else array
