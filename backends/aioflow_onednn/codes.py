"""The numbers of oneDNN's C API, version 3 (dnnl_types.h)."""

from __future__ import annotations

from enum import Enum, IntEnum

__all__ = ["Algorithm", "Argument", "CpuRuntime", "DataType", "PropKind", "Query", "Status"]


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

    F32 = 3


class PropKind(IntEnum):
    """What a primitive is part of."""

    FORWARD_INFERENCE = 96


class Algorithm(IntEnum):
    """How a convolution is computed, or what an activation is."""

    CONVOLUTION_DIRECT = 1
    ELTWISE_RELU = 0x20
    ELTWISE_CLIP = 0x2E


class Argument(IntEnum):
    """What a memory is to the primitive that is given it."""

    SRC = 1
    DST = 17
    WEIGHTS = 33
    BIAS = 41
    SCRATCHPAD = 80
    DIFF_SRC = 129
    DIFF_DST = 145
    DIFF_WEIGHTS = 161


class Query(Enum):
    """What a primitive descriptor is asked for: the kind of an argument, and which of that kind."""

    SRC = (129, 0)
    DIFF_SRC = (130, 0)
    WEIGHTS = (131, 0)
    BIAS = (131, 1)
    DIFF_WEIGHTS = (132, 0)
    DST = (133, 0)
    DIFF_DST = (134, 0)
    SCRATCHPAD = (136, 0)


class CpuRuntime(IntEnum):
    """By which threads a build of the library computes."""

    NONE = 0
    SEQUENTIAL = 1
    OPENMP = 2
    TBB = 4
    THREADPOOL = 8
