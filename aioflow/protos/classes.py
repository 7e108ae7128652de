"""Classes of messages that are public names: with the first of them protobuf is imported."""

from aioflow.protos.messages import Message, message

__all__ = ["MetaGraphDef", "SaverDef"]

MetaGraphDef: Message = message("MetaGraphDef")
SaverDef: Message = message("SaverDef")
