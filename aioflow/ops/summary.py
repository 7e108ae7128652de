"""Summaries: nodes that return a serialized `Summary` message for an event file, which TensorBoard displays."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from aioflow.arguments import check_text
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.graph import GraphKeys, Tensor
from aioflow.graph.graphdef import NodeDef
from aioflow.graph.opdef import define_op
from aioflow.graph.traits import encoded, reading
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.scoping import add_to_collection, get_collection, name_scope
from aioflow.protos import Message, is_message, message, to_bytes

_LOGGER: Final = logging.getLogger("aioflow.summary")
_NO_TAG: Final = re.compile(r"[^-/\w.]")

# ── definitions ───────────────────────────────────────────────────────────────────────────────────────────────────────

define_op(
    "ScalarSummary",
    "tags: string, values: T",
    "summary: string",
    ["T: {reals}"],
    shape=lambda ctx: (),
    traits=encoded(),
)
define_op(
    "HistogramSummary",
    "tag: string, values: T",
    "summary: string",
    ["T: {reals} = float32"],
    shape=lambda ctx: (),
    traits=encoded(cost=reading(20)),
)
define_op(
    "ImageSummary",
    "tag: string, tensor: T",
    "summary: string",
    [
        "max_images: int >= 1 = 3",
        "T: {uint8, float32, float16, float64} = float32",
        "bad_color: tensor = uint8([255, 0, 0, 255])",
    ],
    shape=lambda ctx: (),
    traits=encoded(),
)
define_op(
    "AudioSummary",
    "tag: string, tensor: float32",
    "summary: string",
    ["sample_rate: float", "max_outputs: int >= 1 = 3"],
    shape=lambda ctx: (),
    traits=encoded(),
)
define_op(
    "AudioSummaryV2",
    "tag: string, tensor: float32, sample_rate: float32",
    "summary: string",
    ["max_outputs: int >= 1 = 3"],
    shape=lambda ctx: (),
    traits=encoded(),
)
define_op(
    "TensorSummary",
    "tensor: T",
    "summary: string",
    ["T: type", "description: string = ''", "labels: list(string) = []", "display_name: string = ''"],
    shape=lambda ctx: (),
    traits=encoded(),
)
define_op(
    "TensorSummaryV2",
    "tag: string, tensor: T, serialized_summary_metadata: string",
    "summary: string",
    ["T: type"],
    shape=lambda ctx: (),
    traits=encoded(),
)
define_op(
    "MergeSummary",
    "inputs: N*string",
    "summary: string",
    ["N: int >= 1"],
    shape=lambda ctx: (),
    traits=encoded(),
)

not_differentiable(
    *("ScalarSummary", "HistogramSummary", "ImageSummary", "AudioSummary", "AudioSummaryV2"),
    *("TensorSummary", "TensorSummaryV2", "MergeSummary"),
)

# ── tags and collections ──────────────────────────────────────────────────────────────────────────────────────────────


def _clean(name: str | None, what: str) -> str | None:
    """Return the name with each character that node names do not allow replaced by an underscore."""
    if name is None:
        return None
    check_text(name, what)
    cleaned = _NO_TAG.sub("_", name).lstrip("/")
    if cleaned != name:
        _LOGGER.info("%r is no name for a summary: it is called %r", name, cleaned)
    return cleaned


@contextmanager
def _summary_scope(
    name: str | None, family: str | None, values: Sequence[object], default_name: str | None = None
) -> Iterator[tuple[str, str]]:
    """Open a name scope for a summary. Yield the tag, which is unique in the graph like the scope, and the scope."""
    name, family = _clean(name, "the name of a summary"), _clean(family, "the family of a summary")
    with name_scope(name if family is None else f"{family}/{name}", default_name, values) as scope:
        tag = scope.rstrip("/")
        yield (tag if family is None else f"{family}/{tag}"), scope


def _collected(
    made: Tensor, collections: Iterable[str] | None, default: Sequence[str] = (GraphKeys.SUMMARIES,)
) -> Tensor:
    for key in default if collections is None else collections:
        add_to_collection(key, made)
    return made


# ── builders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def scalar(
    name: str, tensor: TensorLike, collections: Iterable[str] | None = None, family: str | None = None
) -> Tensor:
    """Return a summary with one number.

    Args:
        name: The tag, and the name of the node. The enclosing name scopes are a prefix of both.
        tensor: A real number of shape ().
        collections: Collections that receive the node; [GraphKeys.SUMMARIES] by default, which `merge_all` merges.
        family: First part of the tag, by which TensorBoard groups summaries.

    Returns:
        A string, a serialized `Summary` message.
    """
    with _summary_scope(name, family, [tensor]) as (tag, scope):
        return _collected(make("ScalarSummary", tag, tensor, name=scope), collections)


def histogram(
    name: str, values: TensorLike, collections: Iterable[str] | None = None, family: str | None = None
) -> Tensor:
    """Return a summary with a histogram of numbers; each bucket is 10 % wider than the previous one.

    Args:
        name: As for `scalar`.
        values: Real numbers of any shape. The step fails with InvalidArgumentError if one is NaN or infinite.
        collections: As for `scalar`.
        family: As for `scalar`.
    """
    with _summary_scope(name, family, [values], "HistogramSummary") as (tag, scope):
        return _collected(make("HistogramSummary", tag, values, name=scope), collections)


def image(
    name: str,
    tensor: TensorLike,
    max_outputs: int = 3,
    collections: Iterable[str] | None = None,
    family: str | None = None,
) -> Tensor:
    """Return a summary with PNG images, under the tags "NAME/image/0", …, or "NAME/image" if `max_outputs` is 1.

    Args:
        name: As for `scalar`.
        tensor: [batch, height, width, channels] with 1 (gray), 3 or 4 (with alpha) channels. uint8 values are kept.
            Floats are scaled image by image: without negative values, 0 is black and the largest value white; otherwise
            0 is in the middle. A NaN or infinite pixel becomes red.
        max_outputs: Maximum number of images per batch.
        collections: As for `scalar`.
        family: As for `scalar`.
    """
    with _summary_scope(name, family, [tensor]) as (tag, scope):
        return _collected(make("ImageSummary", tag, tensor, max_images=max_outputs, name=scope), collections)


def audio(
    name: str,
    tensor: TensorLike,
    sample_rate: TensorLike,
    max_outputs: int = 3,
    collections: Iterable[str] | None = None,
    family: str | None = None,
) -> Tensor:
    """Return a summary with WAV sounds, under the tags "NAME/audio/0", …, or "NAME/audio" if `max_outputs` is 1.

    Args:
        name: As for `scalar`.
        tensor: [batch, frames, channels] or [batch, frames], float32 from -1 to 1.
        sample_rate: Frames per second, of shape ().
        max_outputs: Maximum number of sounds per batch.
        collections: As for `scalar`.
        family: As for `scalar`.
    """
    with _summary_scope(name, family, [tensor]) as (tag, scope):
        rate = convert_to_tensor(sample_rate, dtypes.float32, name="sample_rate")
        made = make("AudioSummaryV2", tag, tensor, rate, max_outputs=max_outputs, name=scope)
        return _collected(made, collections)


def text(name: str, tensor: TensorLike, collections: Iterable[str] | None = None) -> Tensor:
    """Return a summary with strings, which TensorBoard reads as Markdown: a vector as a list, a matrix as a table.

    Args:
        name: As for `scalar`.
        tensor: Strings of any shape.
        collections: As for `scalar`.

    Raises:
        DTypeError: the tensor does not hold strings.
    """
    value = convert_to_tensor(tensor)
    if value.dtype is not dtypes.string:
        raise DTypeError("a summary of text is made of strings", expected="string", actual=value.dtype)
    metadata = message("SummaryMetadata")()
    metadata.plugin_data.plugin_name = "text"
    return tensor_summary(name, value, collections=collections, summary_metadata=metadata)


def tensor_summary(
    name: str,
    tensor: TensorLike,
    summary_description: str | None = None,
    collections: Iterable[str] | None = None,
    summary_metadata: Message | None = None,
    family: str | None = None,
    display_name: str | None = None,
) -> Tensor:
    """Return a summary with a tensor, for a TensorBoard plugin.

    Args:
        name: As for `scalar`.
        tensor: A tensor of any dtype and shape.
        summary_description: Description in the metadata.
        collections: As for `scalar`.
        summary_metadata: A `SummaryMetadata` message that names the plugin.
        family: As for `scalar`.
        display_name: Display name in the metadata.

    Raises:
        DTypeError: `summary_metadata` is not a `SummaryMetadata` message.
    """
    if summary_metadata is not None and not is_message(summary_metadata, "SummaryMetadata"):
        raise DTypeError("not the metadata of a summary", expected="SummaryMetadata", actual=summary_metadata)
    metadata = message("SummaryMetadata")()
    if summary_metadata is not None:
        # A message of another descriptor pool, such as TensorFlow's, can be merged only as bytes.
        metadata.MergeFromString(summary_metadata.SerializeToString())
    if summary_description is not None:
        metadata.summary_description = summary_description
    if display_name is not None:
        metadata.display_name = display_name
    with _summary_scope(name, family, [tensor]) as (tag, scope):
        return _collected(make("TensorSummaryV2", tag, tensor, to_bytes(metadata), name=scope), collections)


def merge(inputs: Sequence[TensorLike], collections: Iterable[str] | None = None, name: str | None = None) -> Tensor:
    """Return one summary with the values of several.

    Args:
        inputs: Serialized `Summary` messages of any shape. The step fails with InvalidArgumentError if two share a tag.
        collections: Collections that receive the node; none by default.
        name: The name of the node and its scope.
    """
    name = _clean(name, "the name of a summary")
    with name_scope(name, "Merge", inputs):
        return _collected(make("MergeSummary", inputs, name=name), collections, ())


def merge_all(key: str = GraphKeys.SUMMARIES, scope: str | None = None, name: str | None = None) -> Tensor | None:
    """Return one summary with the values of all summaries in a collection of the default graph; None if it is empty.

    Args:
        key: The collection.
        scope: A regular expression; only summaries whose names begin with a match are merged.
        name: The name of the node and its scope.
    """
    found = get_collection(key, scope)
    return merge(found, name=name) if found else None


def get_summary_description(node_def: NodeDef) -> Message:
    """Return the `SummaryDescription` of a node of op "TensorSummary", which occurs in older graphs.

    Raises:
        InvalidArgumentError: the node has another op, or its description is invalid.
    """
    from google.protobuf import json_format

    if node_def.op != "TensorSummary":
        raise InvalidArgumentError(
            f"node {node_def.name!r} has no description", expected="op 'TensorSummary'", actual=node_def.op
        )
    description = node_def.attrs.get("description", "")
    try:
        return json_format.Parse(description, message("SummaryDescription")())
    except json_format.ParseError as error:
        raise InvalidArgumentError("not a description", expected="its JSON", actual=repr(description)) from error
