"""`aioflow.traits`: properties that an op declares for the compiler, placement and backends; see docs/extending.md."""

from aioflow.graph.costs import FREE as FREE
from aioflow.graph.costs import LIGHT as LIGHT
from aioflow.graph.costs import PER_ELEMENT as PER_ELEMENT
from aioflow.graph.costs import Cost as Cost
from aioflow.graph.costs import Operand as Operand
from aioflow.graph.traits import ANY as ANY
from aioflow.graph.traits import BOOLS as BOOLS
from aioflow.graph.traits import FLOATS as FLOATS
from aioflow.graph.traits import NUMBERS as NUMBERS
from aioflow.graph.traits import WRITING as WRITING
from aioflow.graph.traits import Effect as Effect
from aioflow.graph.traits import Half as Half
from aioflow.graph.traits import Laws as Laws
from aioflow.graph.traits import Memory as Memory
from aioflow.graph.traits import Neutral as Neutral
from aioflow.graph.traits import Traits as Traits
from aioflow.graph.traits import bookkeeping as bookkeeping
from aioflow.graph.traits import control_flow as control_flow
from aioflow.graph.traits import elementwise as elementwise
from aioflow.graph.traits import encoded as encoded
from aioflow.graph.traits import files as files
from aioflow.graph.traits import handle as handle
from aioflow.graph.traits import instant as instant
from aioflow.graph.traits import movement as movement
from aioflow.graph.traits import opaque as opaque
from aioflow.graph.traits import passes_on as passes_on
from aioflow.graph.traits import product as product
from aioflow.graph.traits import python_function as python_function
from aioflow.graph.traits import random as random
from aioflow.graph.traits import reading as reading
from aioflow.graph.traits import reduction as reduction
from aioflow.graph.traits import reshapes as reshapes
from aioflow.graph.traits import source as source
from aioflow.graph.traits import sparse as sparse
from aioflow.graph.traits import state_change as state_change
from aioflow.graph.traits import state_read as state_read
from aioflow.graph.traits import text as text
from aioflow.graph.traits import transcendental as transcendental
from aioflow.graph.traits import view as view
from aioflow.graph.traits import waiting as waiting
from aioflow.loading.later import load_later as _load_later

__all__ = [
    "ANY",
    "BOOLS",
    "FLOATS",
    "FREE",
    "LIGHT",
    "NUMBERS",
    "PER_ELEMENT",
    "WRITING",
    "Cost",
    "Effect",
    "Half",
    "Laws",
    "Memory",
    "Neutral",
    "Operand",
    "Traits",
    "bookkeeping",
    "control_flow",
    "elementwise",
    "encoded",
    "files",
    "handle",
    "instant",
    "movement",
    "opaque",
    "passes_on",
    "product",
    "python_function",
    "random",
    "reading",
    "reduction",
    "reshapes",
    "source",
    "sparse",
    "state_change",
    "state_read",
    "text",
    "transcendental",
    "view",
    "waiting",
]

_load_later(__name__)
