"""`python -m benchmarks.others`: all benchmarks other than steps against TensorFlow's.

The second column is the baseline of each row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from benchmarks.checkpointing import CHECKPOINT_ROWS
from benchmarks.compiling import COMPILING_ROWS
from benchmarks.devices import DEVICE_ROWS
from benchmarks.first_run import FIRST_RUN_ROWS
from benchmarks.fusion import FUSION_ROWS
from benchmarks.import_order import IMPORT_ORDER_ROWS
from benchmarks.network import NETWORK_ROWS
from benchmarks.records import RECORD_ROWS
from benchmarks.resources import RESOURCE_ROWS
from benchmarks.tables import Row, program

__all__ = ["OTHER_ROWS"]

OTHER_ROWS: Final[tuple[Callable[[], Row], ...]] = (
    *RECORD_ROWS,
    *RESOURCE_ROWS,
    *IMPORT_ORDER_ROWS,
    *COMPILING_ROWS,
    *FIRST_RUN_ROWS,
    *DEVICE_ROWS,
    *FUSION_ROWS,
    *NETWORK_ROWS,
    *CHECKPOINT_ROWS,
)

if __name__ == "__main__":
    program("others", __doc__, OTHER_ROWS)
