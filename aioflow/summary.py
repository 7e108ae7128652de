"""Summaries and event files: the public namespace `aioflow.summary`, after `tf.summary` of the TensorFlow 1 API."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from aioflow.loading.later import load_later as _load_later
from aioflow.ops.summary import audio as audio
from aioflow.ops.summary import get_summary_description as get_summary_description
from aioflow.ops.summary import histogram as histogram
from aioflow.ops.summary import image as image
from aioflow.ops.summary import merge as merge
from aioflow.ops.summary import merge_all as merge_all
from aioflow.ops.summary import scalar as scalar
from aioflow.ops.summary import tensor_summary as tensor_summary
from aioflow.ops.summary import text as text

# ruff: noqa: TC004
# Loaded on first use: building summaries needs no messages.
if _TYPE_CHECKING:
    from aioflow.observe.file_writer import FileWriter as FileWriter
    from aioflow.observe.file_writer import FileWriterCache as FileWriterCache
    from aioflow.protos.classes import Event as Event
    from aioflow.protos.classes import SessionLog as SessionLog
    from aioflow.protos.classes import Summary as Summary
    from aioflow.protos.classes import SummaryDescription as SummaryDescription
    from aioflow.protos.classes import TaggedRunMetadata as TaggedRunMetadata

__all__ = [
    "Event",
    "FileWriter",
    "FileWriterCache",
    "SessionLog",
    "Summary",
    "SummaryDescription",
    "TaggedRunMetadata",
    "audio",
    "get_summary_description",
    "histogram",
    "image",
    "merge",
    "merge_all",
    "scalar",
    "tensor_summary",
    "text",
]

_load_later(
    __name__,
    {
        "FileWriter": "aioflow.observe.file_writer",
        "FileWriterCache": "aioflow.observe.file_writer",
        **dict.fromkeys(
            ("Event", "SessionLog", "Summary", "SummaryDescription", "TaggedRunMetadata"), "aioflow.protos.classes"
        ),
    },
)
