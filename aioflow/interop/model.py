"""The result of importing a model in any format: a graph, signatures to call it, and the source of its values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from aioflow.errors import NotFoundError
from aioflow.graph.graph import Graph, Tensor
from aioflow.interop.token_loop import TokenLoop
from aioflow.ops.variables.variable import Variable
from aioflow.session.session import Session

DEFAULT_SIGNATURE: Final = "serving_default"


@dataclass(frozen=True)
class Signature:
    """One way to call a model.

    Attributes:
        inputs: Tensors by their names in the model, in the order of the model.
        outputs: Likewise. An output that ONNX represents as a list of dictionaries is a `LabelledTensor`, which ops
            accept as a tensor.
        method: Kind of call, like TensorFlow's `method_name`; "" if the format has no such property.
        optional: Inputs with a default value, which a call may omit.
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
    """Do nothing: a model with constant weights has no values to load."""


@dataclass(frozen=True)
class Model:
    """A model in its own graph.

        model = aioflow.interop.onnx.load("model.onnx")
        async with aioflow.Session(graph=model.graph) as session:
            await model.initialize(session)
            values = await session.run(model.outputs, {model.inputs["x"]: x})

    Attributes:
        graph: The graph; its nodes have the model's names.
        signatures: The ways to call the model, by name.
        variables: The variables by their names in the model; empty if all weights are constants. Their initializers
            assign the values of the file.
        initialize: Assigns the values of the file to the variables, in a session of the graph, and creates all other
            resources that the model needs before a call.
        source: A readable description of the model's origin and of the program that wrote it.
        assets: String scalars that are paths of files, with these paths, as accepted by `aioflow.saved.save(assets=)`.
        token_loop: How to generate tokens with the model; None if it does not declare that.
    """

    graph: Graph
    signatures: Mapping[str, Signature]
    variables: Mapping[str, Variable] = field(default_factory=dict)
    initialize: Callable[[Session], Awaitable[None]] = _nothing
    source: str = ""
    assets: Mapping[Tensor, str] = field(default_factory=dict)
    token_loop: TokenLoop | None = None

    def signature(self, name: str | None = None) -> Signature:
        """Return the signature with this name; by default "serving_default", or the only one.

        Raises:
            NotFoundError: no signature has this name, or there are several and none is the default.
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
