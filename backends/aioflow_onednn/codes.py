"""The numbers of oneDNN's C API, version 3 (dnnl_types.h)."""

from __future__ import annotations

from enum import Enum, IntEnum, IntFlag

__all__ = ["Algorithm", "Argument", "CpuRuntime", "DataType", "Normalization", "PropKind", "Query", "Status"]


class Status(IntEnum):
    """What every function returns."""

    SUCCESS = 0
    OUT_OF_MEMORY = 1
    INVALID_ARGUMENTS = 2
    UNIMPLEMENTED = 3
    LAST_IMPL_REACHED = 4
    RUNTIME_ERROR = 5
    NOT_REQUIRED = 6


class DataType(IntEnum):
    """Of the elements of a memory."""

    BF16 = 2
    F32 = 3


class PropKind(IntEnum):
    """What a primitive is part of."""

    FORWARD_TRAINING = 64
    FORWARD_INFERENCE = 96
    BACKWARD = 128


class Normalization(IntFlag):
    """What a batch normalization is given, beside its input."""

    STATISTICS = 1
    SCALE = 2
    SHIFT = 4


class Algorithm(IntEnum):
    """How a convolution is computed, or what follows it."""

    CONVOLUTION_DIRECT = 1
    ELTWISE_RELU = 0x20
    ELTWISE_SWISH = 0x2C
    ELTWISE_CLIP = 0x2E
    POOLING_MAX = 0x1FF
    POOLING_AVG_EXCLUDE_PADDING = 0x3FF
    LRN_ACROSS_CHANNELS = 0xAFF
    BINARY_ADD = 0x1FFF0
    SOFTMAX_ACCURATE = 0x30000
    SOFTMAX_LOG = 0x30001


class Argument(IntEnum):
    """What a memory is to the primitive that is given it."""

    SRC = 1
    DST = 17
    WEIGHTS = 33
    BIAS = 41
    MEAN = 49
    VARIANCE = 50
    SCALE = 51
    SHIFT = 52
    WORKSPACE = 64
    SCRATCHPAD = 80
    DIFF_SRC = 129
    DIFF_DST = 145
    DIFF_WEIGHTS = 161
    DIFF_SCALE = 255
    DIFF_SHIFT = 256
    ADDED = 0x8000 | 2  # the second operand of what is done first with a result


class Query(Enum):
    """What a primitive descriptor is asked for: the kind of an argument, and which of that kind."""

    SRC = (129, 0)
    DIFF_SRC = (130, 0)
    WEIGHTS = (131, 0)
    BIAS = (131, 1)
    DIFF_WEIGHTS = (132, 0)
    DST = (133, 0)
    DIFF_DST = (134, 0)
    WORKSPACE = (135, 0)
    SCRATCHPAD = (136, 0)
    # By the argument's own number:
    MEAN = (255, 49)
    VARIANCE = (255, 50)
    SCALE = (255, 51)
    SHIFT = (255, 52)
    DIFF_SCALE = (255, 255)
    DIFF_SHIFT = (255, 256)
    ADDED = (255, 0x8000 | 2)


class CpuRuntime(IntEnum):
    """By which threads a build of the library computes."""

    NONE = 0
    SEQUENTIAL = 1
    OPENMP = 2
    TBB = 4
    THREADPOOL = 8
