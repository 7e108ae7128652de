"""Classes of messages that are public names: with the first of them protobuf is imported."""

from aioflow.protos.messages import Message, message

__all__ = [
    "Event",
    "HistogramProto",
    "LogMessage",
    "MetaGraphDef",
    "SaverDef",
    "SessionLog",
    "Summary",
    "SummaryDescription",
    "SummaryMetadata",
    "TaggedRunMetadata",
]


def _public(name: str) -> Message:
    """The class of a message, which says that it is from here: protobuf says of none, and `help` and pickle ask it."""
    made = message(name)
    made.__module__ = __name__
    return made


Event: Message = _public("Event")
HistogramProto: Message = _public("HistogramProto")
LogMessage: Message = _public("LogMessage")
MetaGraphDef: Message = _public("MetaGraphDef")
SaverDef: Message = _public("SaverDef")
SessionLog: Message = _public("SessionLog")
Summary: Message = _public("Summary")
SummaryDescription: Message = _public("SummaryDescription")
SummaryMetadata: Message = _public("SummaryMetadata")
TaggedRunMetadata: Message = _public("TaggedRunMetadata")
