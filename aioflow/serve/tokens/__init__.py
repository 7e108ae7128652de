"""Streams of tokens from a model that is called in a loop: many streams share each step.

A web service of your own runs `token_engine` with its model, a `TokenModel`. The model server uses the same engine.

`slots` assigns streams to slots and selects the next computation, without I/O. `engine` is the task that runs the
steps, `steps` calls a saved model and has its states, and `streams` decodes requests and encodes responses.
"""

from aioflow.serve.tokens.engine import Sampling as Sampling
from aioflow.serve.tokens.engine import TokenEngine as TokenEngine
from aioflow.serve.tokens.engine import TokenModel as TokenModel
from aioflow.serve.tokens.engine import Tokens as Tokens
from aioflow.serve.tokens.engine import token_engine as token_engine
from aioflow.serve.tokens.slots import SlotsStatistics as SlotsStatistics

__all__ = ["Sampling", "SlotsStatistics", "TokenEngine", "TokenModel", "Tokens", "token_engine"]
