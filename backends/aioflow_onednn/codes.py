"""The numbers of oneDNN's C API, version 3 (dnnl_types.h)."""

from __future__ import annotations

from enum import Enum, IntEnum, IntFlag


class Status(IntEnum):
    """The status that every function returns."""

    SUCCESS = 0
    OUT_OF_MEMORY = 1
    INVALID_ARGUMENTS = 2
    UNIMPLEMENTED = 3
    LAST_IMPL_REACHED = 4
    RUNTIME_ERROR = 5
    NOT_REQUIRED = 6


class DataType(IntEnum):
    """Dtype of the elements of a memory object."""

    BF16 = 2
    F32 = 3
    S32 = 4
    S8 = 5
    U8 = 6


class PropKind(IntEnum):
    """The purpose of a primitive: training, inference or a gradient."""

    FORWARD_TRAINING = 64
    FORWARD_INFERENCE = 96
    BACKWARD = 128


class Normalization(IntFlag):
    """Flags for the operands of a batch normalization besides its input."""

    STATISTICS = 1
    SCALE = 2
    SHIFT = 4


class Algorithm(IntEnum):
    """Algorithms of primitives and of operations on their results."""

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


class ArgumentRole(IntEnum):
    """The role of a memory object among the arguments of a primitive."""

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
    ADDED = 0x8000 | 2  # the second operand of the first operation on a result (post-op)


class Query(Enum):
    """Queries of a primitive descriptor for memory descriptors: the kind of an argument, and its index in that kind."""

    SRC = (129, 0)
    DIFF_SRC = (130, 0)
    WEIGHTS = (131, 0)
    BIAS = (131, 1)
    DIFF_WEIGHTS = (132, 0)
    DST = (133, 0)
    DIFF_DST = (134, 0)
    WORKSPACE = (135, 0)
    SCRATCHPAD = (136, 0)
    # With the argument's own number as index:
    MEAN = (255, 49)
    VARIANCE = (255, 50)
    SCALE = (255, 51)
    SHIFT = (255, 52)
    DIFF_SCALE = (255, 255)
    DIFF_SHIFT = (255, 256)
    ADDED = (255, 0x8000 | 2)


class CpuRuntime(IntEnum):
    """The threading runtime of a build of the library."""

    NONE = 0
    SEQUENTIAL = 1
    OPENMP = 2
    TBB = 4
    THREADPOOL = 8
