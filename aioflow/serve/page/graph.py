"""The picture of a served model's graph, with its nodes on the devices where the plan of its step places them."""

from __future__ import annotations

from collections.abc import Collection

from aioflow.concurrency.threads import in_thread
from aioflow.errors import NotFoundError
from aioflow.graph.labelled import values_of
from aioflow.interop.model import Signature
from aioflow.observe.picture.outline import outline
from aioflow.observe.picture.svg import as_svg
from aioflow.serve.models import ServedModel


async def draw(model: ServedModel, signature: str | None, opened: Collection[str]) -> str:
    """Return the SVG of a signature's step. Compiles and draws in a thread.

    Args:
        model: The model.
        signature: The signature; None for the default.
        opened: The scopes whose contents are drawn.

    Raises:
        NotFoundError: there is no such signature.
    """
    name = model.signature_name if signature is None else signature
    if name not in model.calls:
        raise NotFoundError("no such signature", expected=f"one of {sorted(model.calls)}", actual=repr(name)[:60])
    title = f"{model.name}, version {model.version}" + ("" if name == model.signature_name else f": {name}")
    return await in_thread(_drawn, model, model.model.signatures[name], title, opened, effects=False)


def _drawn(model: ServedModel, signature: Signature, title: str, opened: Collection[str]) -> str:
    inputs, outputs = list(signature.inputs.values()), [values_of(each) for each in signature.outputs.values()]
    plan = model.session.plan(outputs, inputs)
    devices = {node.name: device for device, node in plan.placed_nodes()}
    return as_svg(outline(model.model.graph, inputs, outputs, None, devices, opened), title)
