"""Micro-batching: concurrent calls become rows of one step."""

from aioflow.session.batching.batched import Batched
from aioflow.session.batching.batching import Batching
from aioflow.session.batching.rows import Padding
from aioflow.sync.batch_driver import BatchStatistics

__all__ = ["BatchStatistics", "Batched", "Batching", "Padding"]
