"""Message classes that are public names. Importing this module imports protobuf."""

from aioflow.protos.messages import Message, message


def _public(name: str) -> Message:
    """Return the class of a message, with this module as its `__module__`."""
    made = message(name)
    # protobuf leaves `__module__` unset, but `help` and pickle need it.
    made.__module__ = __name__
    return made


AttrValue: Message = _public("AttrValue")
ConfigProto: Message = _public("ConfigProto")
Event: Message = _public("Event")
GPUOptions: Message = _public("GPUOptions")
GraphOptions: Message = _public("GraphOptions")
HistogramProto: Message = _public("HistogramProto")
LogMessage: Message = _public("LogMessage")
MetaGraphDef: Message = _public("MetaGraphDef")
NameAttrList: Message = _public("NameAttrList")
OptimizerOptions: Message = _public("OptimizerOptions")
SaverDef: Message = _public("SaverDef")
SessionLog: Message = _public("SessionLog")
Summary: Message = _public("Summary")
SummaryDescription: Message = _public("SummaryDescription")
SummaryMetadata: Message = _public("SummaryMetadata")
TensorInfo: Message = _public("TensorInfo")
TaggedRunMetadata: Message = _public("TaggedRunMetadata")
