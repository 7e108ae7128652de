"""The result of importing a model in any format: a graph, signatures to call it, and the source of its values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from aioflow.errors import NotFoundError
from aioflow.graph.graph import Graph, Tensor
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


@dataclass(frozen=True, slots=True)
class TokenState:
    """A tensor that each step returns and the next step is fed, such as cached keys and values.

    Attributes:
        input, output: Its names in the signature.
        row_axis: The axis of the streams.
        length_axis: The axis of the tokens, if the output has the entries of the new tokens only, and the input those
            of all past tokens. None if the output replaces the input.
    """

    input: str
    output: str
    row_axis: int = 0
    length_axis: int | None = None


@dataclass(frozen=True, slots=True)
class TokenLoop:
    """A loop over tokens: each step reads new tokens of some streams and returns the logits of the following ones.

    A step must treat its rows separately. It must ignore the entries of a state beyond the length of its stream.

    Attributes:
        tokens: Input with the new tokens: integers [rows, tokens].
        logits: Output with the logits of the token after the last: floats [rows, vocabulary].
        max_length: Maximum number of tokens of a stream, with its prompt.
        states: The states. They are zeros at the start of a stream.
        lengths: Input with the number of past tokens of each stream: integers [rows]; None if there is no such input.
        step: Signature that reads one token of each of any number of streams.
        prompt: Signature that reads any number of tokens of one stream, with the names of `step`; None for `step`.
        end_token: The token that ends a stream, if any.
        encoding: "utf-8" if the tokens below 256 are the bytes of a text, None if the model has no text.
    """

    tokens: str
    logits: str
    max_length: int
    states: tuple[TokenState, ...] = ()
    lengths: str | None = None
    step: str = "serving_default"
    prompt: str | None = None
    end_token: int | None = None
    encoding: str | None = None


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
