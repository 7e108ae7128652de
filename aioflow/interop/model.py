"""What a model file becomes, whatever its format: a graph, how to call it, and where its values come from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from aioflow.errors import NotFoundError
from aioflow.graph.graph import Graph
from aioflow.graph.tensor import Tensor
from aioflow.ops.variables.variable import Variable
from aioflow.session.session import Session

__all__ = ["DEFAULT_SIGNATURE", "Model", "Signature"]

DEFAULT_SIGNATURE: Final = "serving_default"


@dataclass(frozen=True)
class Signature:
    """One way to call a model.

    Attributes:
        inputs, outputs: Tensors by the names that the model gives them, in its order. An output that ONNX has as a list
            of dictionaries is a `LabelledTensor`, which ops take as a tensor.
        method: What kind of call it is, as TensorFlow's `method_name`; "" where the format has no such thing.
        optional: Inputs with a default value, which a call may leave out.
    """

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    method: str = ""
    optional: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def all_inputs(self) -> Mapping[str, Tensor]:
        """The inputs, those with a default value last."""
        return {**self.inputs, **self.optional}


async def _nothing(session: Session) -> None:
    """A model of constants needs no values."""


@dataclass(frozen=True)
class Model:
    """A model in a graph of its own.

        model = aioflow.interop.onnx.load("model.onnx")
        async with aioflow.Session(graph=model.graph) as session:
            await model.initialize(session)
            values = await session.run(model.outputs, {model.inputs["x"]: x})

    Attributes:
        graph: The graph; its nodes have the model's names.
        signatures: The ways to call it, by name.
        variables: Its variables by the names that the model has for them; empty where all weights are constants. Their
            initializers give them the values of the file.
        initialize: Gives the variables the values of the file, in a session of the graph, and makes whatever else the
            model needs before it can be called.
        source: Where it came from and what wrote it, for people.
        assets: String scalars that are paths of files, with these paths: as `aioflow.saved.save(assets=)` takes them.
    """

    graph: Graph
    signatures: Mapping[str, Signature]
    variables: Mapping[str, Variable] = field(default_factory=dict)
    initialize: Callable[[Session], Awaitable[None]] = _nothing
    source: str = ""
    assets: Mapping[Tensor, str] = field(default_factory=dict)

    def signature(self, name: str | None = None) -> Signature:
        """The signature of that name; by default "serving_default", or the only one there is.

        Raises:
            NotFoundError: there is none of that name, or several and none is the default.
        """
        if name is None:
            name = next(iter(self.signatures)) if len(self.signatures) == 1 else DEFAULT_SIGNATURE
        found = self.signatures.get(name)
        if found is None:
            raise NotFoundError("no such signature", expected=f"one of {sorted(self.signatures)}", actual=repr(name))
        return found

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        """The inputs of the default signature."""
        return self.signature().inputs

    @property
    def optional(self) -> Mapping[str, Tensor]:
        """The inputs of the default signature that have a default value."""
        return self.signature().optional

    @property
    def outputs(self) -> Mapping[str, Tensor]:
        """The outputs of the default signature."""
        return self.signature().outputs
