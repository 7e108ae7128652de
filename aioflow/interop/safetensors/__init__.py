r"""Weights in safetensors files, in the layout of Hugging Face: read without a copy, assigned to variables, written.

weights = safetensors.open("gpt2")  # a file, or a folder with one or several
async with aioflow.Session(graph) as session:
    await safetensors.assign(session, weights, {r"layer_(\d+)/kernel": r"h.\1.weight"})
"""

from aioflow.interop.safetensors.assigning import Leftover as Leftover
from aioflow.interop.safetensors.assigning import Misfit as Misfit
from aioflow.interop.safetensors.assigning import Transposed as Transposed
from aioflow.interop.safetensors.assigning import WeightsError as WeightsError
from aioflow.interop.safetensors.assigning import assign as assign
from aioflow.interop.safetensors.weights import Weights as Weights
from aioflow.interop.safetensors.weights import open as open
from aioflow.interop.safetensors.weights import save as save

__all__ = ["Leftover", "Misfit", "Transposed", "Weights", "WeightsError", "assign", "open", "save"]
