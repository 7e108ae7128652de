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

Event: Message = message("Event")
HistogramProto: Message = message("HistogramProto")
LogMessage: Message = message("LogMessage")
MetaGraphDef: Message = message("MetaGraphDef")
SaverDef: Message = message("SaverDef")
SessionLog: Message = message("SessionLog")
Summary: Message = message("Summary")
SummaryDescription: Message = message("SummaryDescription")
SummaryMetadata: Message = message("SummaryMetadata")
TaggedRunMetadata: Message = message("TaggedRunMetadata")
