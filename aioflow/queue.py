"""`aioflow.queue`: queues, under TensorFlow 1's names."""

from aioflow.loading.later import load_later as _load_later
from aioflow.ops.queues.queues import FIFOQueue as FIFOQueue
from aioflow.ops.queues.queues import PaddingFIFOQueue as PaddingFIFOQueue
from aioflow.ops.queues.queues import PriorityQueue as PriorityQueue
from aioflow.ops.queues.queues import QueueBase as QueueBase
from aioflow.ops.queues.queues import RandomShuffleQueue as RandomShuffleQueue

__all__ = [
    "FIFOQueue",
    "PaddingFIFOQueue",
    "PriorityQueue",
    "QueueBase",
    "RandomShuffleQueue",
]

_load_later(__name__)
