"""Kernels that summarize numbers and tensors, and that merge summaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from aioflow.errors import DataLossError, InvalidArgumentError
from aioflow.formats.tensor_proto import encode_tensor
from aioflow.graph.dtypes import DType
from aioflow.kernels.convert import as_bytes, as_text
from aioflow.kernels.registry import Binding, binder, kernel
from aioflow.kernels.summary.histograms import add_histogram
from aioflow.kernels.text.strings import as_strings, string_values
from aioflow.memory.values import Array, Value
from aioflow.protos import Message, message, parse


def _made(summary: Message) -> Array:
    return as_strings([summary.SerializeToString()], ())


@kernel("ScalarSummary", device="CPU", fresh=True)
def scalar_summary(tags: Value, values: Array) -> Array:
    names = string_values(tags)
    if names.shape != np.shape(values):
        raise InvalidArgumentError("a scalar has one tag", expected=f"shape {names.shape}", actual=np.shape(values))
    summary = message("Summary")()
    # `simple_value` is a float32 in the message.
    numbers = np.asarray(values).astype(np.float32).reshape(-1)
    for tag, number in zip(names.reshape(-1).tolist(), numbers.tolist(), strict=True):
        summary.value.add(tag=as_text(tag), simple_value=number)
    return _made(summary)


@kernel("HistogramSummary", device="CPU", fresh=True, host={"tag": as_text})
def histogram_summary(tag: str, values: Array) -> Array:
    summary = message("Summary")()
    add_histogram(summary.value.add(tag=tag).histo, np.asarray(values))
    return _made(summary)


def _add_tensor(value: Message, tensor: Value, dtype: DType) -> None:
    # `encode_tensor` returns a serialized TensorProto, the type of the field.
    value.tensor.ParseFromString(encode_tensor(tensor, dtype))


@binder("TensorSummary", device="CPU", fresh=True)
def tensor_summary(binding: Binding) -> Callable[[Value], Array]:
    dtype, name = binding.input_dtypes[0], binding.name

    def run(tensor: Value) -> Array:
        summary = message("Summary")()
        _add_tensor(summary.value.add(node_name=name), tensor, dtype)
        return _made(summary)

    return run


@binder("TensorSummaryV2", device="CPU", fresh=True, host={"tag": as_text, "serialized_summary_metadata": as_bytes})
def tensor_summary_v2(binding: Binding) -> Callable[[str, Value, bytes], Array]:
    dtype = binding.input_dtypes[1]

    def run(tag: str, tensor: Value, metadata: bytes) -> Array:
        summary = message("Summary")()
        value = summary.value.add(tag=tag)
        _add_tensor(value, tensor, dtype)
        value.metadata.CopyFrom(_parsed("SummaryMetadata", metadata))
        return _made(summary)

    return run


def _parsed(name: str, data: bytes) -> Message:
    try:
        return parse(name, data)
    except DataLossError as error:
        raise InvalidArgumentError(
            f"an input is no {name}", expected="a serialized message", actual=data[:60]
        ) from error


@kernel("MergeSummary", device="CPU", fresh=True)
def merge_summary(inputs: Sequence[Value]) -> Array:
    merged = message("Summary")()
    seen: set[str] = set()
    for strings in inputs:
        for data in string_values(strings).reshape(-1).tolist():
            part = _parsed("Summary", data)
            for value in part.value:
                # A value of TensorSummary has the name of its node, and no tag.
                if value.tag and value.tag in seen:
                    raise InvalidArgumentError(
                        "two summaries have the same tag", expected="different tags", actual=repr(value.tag)
                    )
                seen.add(value.tag)
            merged.MergeFrom(part)
    return _made(merged)
