"""Surveys of files with weights only: safetensors, and checkpoints of aioflow and TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from aioflow.formats.checkpoint import CheckpointReader
from aioflow.formats.tensor_bundle import OBJECT_GRAPH
from aioflow.interop import safetensors
from aioflow.saved.findings import Parameter, Survey, parameter
from aioflow.saved.opening import CHECKPOINT, WEIGHTS, checkpoint_prefix, checkpoints_in, whole_weights


def weights(path: str) -> Survey:
    """Survey safetensors: a file, the files of an index, or all files of a folder without an index."""
    place = Path(path)
    whole = whole_weights(place)
    if whole is not None:
        opened = safetensors.open(whole)
        found = [_described(opened, name) for name in opened.names()]
        return Survey(WEIGHTS, "", {"files": str(len(opened.files))}, {}, tuple(found))
    files = sorted(place.glob("*.safetensors")) if place.is_dir() else [place]
    found = []
    for file in files:
        # Without an index, several files may use one name for different tensors.
        opened, prefix = safetensors.open(file), f"{file.name}: " if len(files) > 1 else ""
        found += [_described(opened, name, prefix) for name in opened.names()]
    return Survey(WEIGHTS, "", {"files": str(len(files))}, {}, tuple(found))


def _described(opened: safetensors.Weights, name: str, prefix: str = "") -> Parameter:
    entry = opened.entry(name)
    return Parameter(prefix + name, entry.dtype.name, entry.shape, entry.end - entry.begin)


def checkpoint(path: str) -> Survey:
    """Survey a checkpoint, or the newest one of a folder."""
    place = Path(path)
    if not place.is_dir():
        prefix = checkpoint_prefix(place) or path
        return Survey(CHECKPOINT, "", {}, {}, tuple(values(prefix)))
    prefixes = checkpoints_in(place)
    # `kind_of` returns CHECKPOINT for a folder only if it has one.
    newest = prefixes[-1]
    versions = {"newest": Path(newest).name, "of": str(len(prefixes))}
    return Survey(CHECKPOINT, "", versions, {}, tuple(values(newest)))


def values(prefix: str) -> Iterator[Parameter]:
    """Yield the tensors of a checkpoint, without its object graph."""
    reader = CheckpointReader(prefix)
    for name in reader.names():
        if name != OBJECT_GRAPH:
            dtype = reader.dtype(name)
            yield parameter(name, dtype.name, reader.shape(name), dtype.size)
