"""Operations and tensors as the modules below `graph.graph` see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from aioflow.errors import SourceLine
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import Dims


class TensorView(Protocol):
    """The part of `Tensor` that these modules read."""

    @property
    def op(self) -> NodeView: ...
    @property
    def value_index(self) -> int: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def dims(self) -> Dims: ...
    @property
    def name(self) -> str: ...


class NodeView(Protocol):
    """The part of `Operation` that these modules read. The members without a precise type are nodes and tensors."""

    name: str
    type: str
    attrs: dict[str, Any]
    device: str
    source: SourceLine | None

    @property
    def graph(self) -> object: ...
    @property
    def op_def(self) -> Any: ...
    @property
    def inputs(self) -> Sequence[TensorView]: ...
    @property
    def outputs(self) -> Sequence[TensorView]: ...
    @property
    def waits_for(self) -> Sequence[NodeView]: ...
    @property
    def gradient_function(self) -> object: ...
    @property
    def colocated_with(self) -> tuple[str, ...]: ...
    @property
    def call(self) -> Any: ...
    @property
    def expansion(self) -> Sequence[Any] | None: ...
    @property
    def finish(self) -> Sequence[Any]: ...


class CompositeView(Protocol):
    """The part of `CompositeTensor` that these modules read."""

    @property
    def components(self) -> tuple[TensorView, ...]: ...
