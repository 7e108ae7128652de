"""`aioflow.control_flow_ops`: control flow, under the names of TensorFlow 1's module `python.ops.control_flow_ops`.

Beside the public names, it has `switch`, `merge` and `with_dependencies`, which TensorFlow's own programs use.
"""

from aioflow.loading.later import load_later as _load_later
from aioflow.ops.control.branches_and_loops import case as case
from aioflow.ops.control.branches_and_loops import cond as cond
from aioflow.ops.control.branches_and_loops import switch_case as switch_case
from aioflow.ops.control.branches_and_loops import while_loop as while_loop
from aioflow.ops.control.primitives import Assert as Assert
from aioflow.ops.control.switching import merge as merge
from aioflow.ops.control.switching import switch as switch
from aioflow.ops.control.switching import with_dependencies as with_dependencies
from aioflow.ops.core import group as group
from aioflow.ops.core import no_op as no_op
from aioflow.ops.core import tuple_ as tuple

__all__ = [
    "Assert",
    "case",
    "cond",
    "group",
    "merge",
    "no_op",
    "switch",
    "switch_case",
    "tuple",
    "while_loop",
    "with_dependencies",
]

_load_later(__name__)
