"""The parts of a graph as plain data: nodes, constants, functions.

They are frozen and validate their fields when they are created, so that definitions decoded from untrusted bytes obey
the same rules as those made by hand. `import_graph_def` checks whether nodes fit together and fit their ops. Inputs are
written as in TensorFlow: "node", "node:1", and "^node" for a control input.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from aioflow.arguments import brief
from aioflow.errors import DTypeError, InvalidArgumentError, OpError
from aioflow.graph.dtypes import DType, as_dtype, string
from aioflow.graph.shapes import Dims
from aioflow.memory.frozen import is_frozen
from aioflow.memory.values import Array

AttrValue: TypeAlias = "bool | int | float | str | DType | TensorData | FunctionRef | tuple[AttrValue, ...] | None"

_NAME: Final = r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*"
NODE_NAME: Final = re.compile(_NAME)
# A nested scope's name follows "parent/", so any of these characters may be its first.
SCOPE_NAME: Final = re.compile(r"[A-Za-z0-9_.\\/>-]*")
_OP: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.>]*")
_FUNCTION: Final = re.compile(r"[\x21-\x7e]+")  # Python puts "<lambda>" into names
_ARGUMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_ATTR: Final = re.compile(r"\w+", re.ASCII)
_DEVICE: Final = re.compile(r"[A-Za-z0-9_.:/@*-]*")
_INPUT: Final = re.compile(rf"(\^?)({_NAME})(?::([0-9]{{1,9}}))?")
_MAX_NAME: Final = 4096
_MAX_RANK: Final = 64  # NumPy's limit
_MAX_BYTES: Final = 2**63 - 1
MAX_DEPTH: Final = 4  # of attribute values: a list of shapes has depth 2
_INT64: Final = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class TensorData:
    """A constant as plain data: little-endian bytes in C order, or one `bytes` per element for strings.

    The bytes may be a view of memory that is never written to, such as that of a mapped file.

    Attributes:
        dtype: The element type.
        shape: The sizes.
        data: The bytes, or a tuple of strings.

    Raises:
        DTypeError: the dtype is a resource or variant, which have no such form.
        InvalidArgumentError: the shape is malformed, or does not fit the data.
    """

    dtype: DType
    shape: tuple[int, ...]
    data: bytes | memoryview | tuple[bytes, ...]

    def __post_init__(self) -> None:
        if not (self.dtype is string or self.dtype.is_plain or self.dtype.is_quantized):
            raise DTypeError("not a dtype of constants", expected="a number, bool or string", actual=self.dtype)
        if len(self.shape) > _MAX_RANK or not all(type(d) is int and d >= 0 for d in self.shape):
            raise InvalidArgumentError("not a shape", expected=f"at most {_MAX_RANK} sizes >= 0", actual=self.shape)
        # NumPy multiplies the nonzero sizes too, and rejects a product that does not fit an index.
        if math.prod(d for d in self.shape if d) * self.dtype.size > _MAX_BYTES:
            raise InvalidArgumentError("the size overflows", expected=f"at most {_MAX_BYTES} bytes", actual=self.shape)
        count = math.prod(self.shape)
        wanted = count if self.dtype is string else count * self.dtype.size
        # The type is checked before the length, which another type may lack.
        if not _holds(self.data, self.dtype) or len(self.data) != wanted:
            given: Any = self.data  # it may be of any type here
            length = f"{len(given)} in " if isinstance(given, bytes | memoryview | tuple) else ""
            raise InvalidArgumentError(
                f"the data does not fit a tensor of {self.dtype.name} with shape {list(self.shape)}",
                expected=f"{wanted} {'strings' if self.dtype is string else 'bytes'}",
                actual=f"{length}{type(given).__name__}",
            )
        if self.dtype.is_bool and np.frombuffer(self.raw, np.uint8).max(initial=0) > 1:
            raise InvalidArgumentError("a bool is neither 0 nor 1", expected="bytes 0 and 1", actual="another byte")

    @classmethod
    def of(cls, array: Array, quantized: DType | None = None) -> TensorData:
        """Return the data of an array; for a quantized type the array holds plain integers."""
        dtype = quantized or as_dtype(array.dtype)
        if dtype is string:
            return cls(dtype, array.shape, tuple(array.reshape(-1).tolist()))
        # The definition is little-endian on every machine.
        stored = array.astype(array.dtype.newbyteorder("<"), copy=False)
        # A frozen array is shared; any other could be written to later, so it is copied.
        shared = is_frozen(stored) and stored.size > 0
        return cls(dtype, array.shape, stored.reshape(-1).view(np.uint8).data if shared else stored.tobytes())

    @property
    def raw(self) -> bytes | memoryview:
        """The bytes of a value that is not a string. Raises DTypeError for strings."""
        if isinstance(self.data, tuple):
            raise DTypeError("strings have no fixed form", expected="numbers or bools", actual=self.dtype)
        return self.data

    def __hash__(self) -> int:
        # Python cannot hash a view of an array, and equal bytes and views must have equal hashes.
        # Collisions only cost a comparison, and the CRC reads a mapped file once.
        return hash((self.dtype, self.shape, self.data if isinstance(self.data, tuple) else zlib.crc32(self.data)))

    def __reduce__(self) -> tuple[Any, ...]:
        # A memoryview cannot be pickled.
        data = bytes(self.data) if isinstance(self.data, memoryview) else self.data
        return TensorData, (self.dtype, self.shape, data)

    def to_array(self) -> Array:
        """Return a read-only array, which shares the memory unless it holds strings."""
        if not isinstance(self.data, tuple):
            stored = np.frombuffer(self.data, self.dtype.np_dtype.newbyteorder("<")).reshape(self.shape)
            return stored.astype(self.dtype.np_dtype, copy=False)
        array = np.empty(len(self.data), dtype=object)
        array[:] = self.data
        array = array.reshape(self.shape)
        array.flags.writeable = False
        return array


def _holds(data: Any, dtype: DType) -> bool:
    if dtype is string:
        return isinstance(data, tuple) and all(isinstance(item, bytes) for item in data)
    if isinstance(data, memoryview):
        # Only a flat, read-only view of bytes has `len` equal to its size and a fixed content.
        return data.readonly and data.c_contiguous and data.format == "B" and data.ndim == 1
    return isinstance(data, bytes)


@dataclass(frozen=True, slots=True)
class FunctionRef:
    """The value of an attribute that names a function. Raises InvalidArgumentError if the name is malformed."""

    name: str

    def __post_init__(self) -> None:
        _require_text(self.name, _FUNCTION, "function name")


class InputRef(NamedTuple):
    """A parsed input of a NodeDef: output `port` of `node`, with `port` -1 for a control input."""

    node: str
    port: int

    @classmethod
    def parse(cls, text: Any) -> InputRef:
        """Parse "node", "node:1" or "^node". Raises InvalidArgumentError for anything else."""
        match = _INPUT.fullmatch(text) if isinstance(text, str) else None
        # A control input has no port.
        if match is None or (match[1] and match[3]):
            raise InvalidArgumentError("not an input", expected="'node', 'node:1' or '^node'", actual=repr(text))
        return cls(match[2], -1 if match[1] else int(match[3] or 0))

    def __str__(self) -> str:
        return f"^{self.node}" if self.port < 0 else self.node if self.port == 0 else f"{self.node}:{self.port}"


@dataclass(frozen=True, slots=True)
class NodeDef:
    """One node.

    Attributes:
        name: The node's name.
        op: The name of its op.
        inputs: Data inputs, then control inputs.
        device: The requested device, "" for any.
        attrs: Attributes by name; a dtype is a `DType`, a shape a tuple with None for each unknown size (or None), a
            constant `TensorData`, a list a tuple.

    Raises:
        InvalidArgumentError: a field is malformed, or an attribute is not plain data; the error names the node.
    """

    name: str
    op: str
    inputs: tuple[str, ...] = ()
    device: str = ""
    attrs: Mapping[str, AttrValue] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        _require_text(self.name, NODE_NAME, "node name")
        _require_text(self.op, _OP, "op name")
        try:
            self._check_fields()
        except OpError as error:
            raise error.at(self.name, self.op, None) from error.__cause__

    def _check_fields(self) -> None:
        require(isinstance(self.inputs, tuple), "tuple of inputs", self.inputs)
        control = False
        # Data inputs are matched to the signature by position, so control inputs come last.
        for text in self.inputs:
            ref = InputRef.parse(text)
            if control and ref.port >= 0:
                raise InvalidArgumentError("a data input after a control input", expected="it before", actual=text)
            control = ref.port < 0
        _require_text(self.device, _DEVICE, "device")
        require(isinstance(self.attrs, Mapping), "mapping of attributes", self.attrs)
        for key, value in self.attrs.items():
            _require_text(key, _ATTR, "attribute name")
            if not _is_plain(value):
                raise InvalidArgumentError(
                    f"attribute {key!r} is not plain data",
                    expected="numbers, text, dtypes, shapes, TensorData, or tuples of those",
                    actual=brief(value),
                )

    @property
    def input(self) -> tuple[str, ...]:
        """The same as `inputs`, under TensorFlow's name."""
        return self.inputs

    def refs(self) -> list[InputRef]:
        """Return the parsed inputs."""
        return [InputRef.parse(text) for text in self.inputs]


class FunctionArg(NamedTuple):
    """One argument or result of a function: its name, dtype and static shape."""

    name: str
    dtype: DType
    dims: Dims = None


@dataclass(frozen=True, slots=True)
class FunctionDef:
    """A function: nodes that refer to its arguments by name.

    Attributes:
        name: The name that calls refer to.
        inputs: The arguments.
        outputs: The results.
        nodes: The body, in any order.
        returns: The source of each output: "node:1", or the name of an argument.
        control_returns: Names of the nodes that always run.
        gradient: Name of the function that computes its gradient from arguments and gradients of results, or "".

    Raises:
        InvalidArgumentError: a field is malformed.
    """

    name: str
    inputs: tuple[FunctionArg, ...] = ()
    outputs: tuple[FunctionArg, ...] = ()
    nodes: tuple[NodeDef, ...] = ()
    returns: tuple[str, ...] = ()
    control_returns: tuple[str, ...] = ()
    gradient: str = ""

    def __post_init__(self) -> None:
        _require_text(self.name, _FUNCTION, "function name")
        for arg in (*self.inputs, *self.outputs):
            require(isinstance(arg.dtype, DType), "argument", arg)
            _require_text(arg.name, _ARGUMENT, "argument name")
            require(_is_plain(arg.dims), "shape", arg.dims)
        # Names inside are not resolved here: `import_graph_def` checks them against the ops.
        for node in self.nodes:
            require(isinstance(node, NodeDef), "node", node)
        if len(self.returns) != len(self.outputs):
            raise InvalidArgumentError(
                f"function {self.name!r} does not return its outputs",
                expected=f"{len(self.outputs)} results",
                actual=len(self.returns),
            )
        for text in (*self.returns, *self.control_returns):
            InputRef.parse(text)
        require(isinstance(self.gradient, str), "name of a gradient function", self.gradient)

    @property
    def signature(self) -> str:
        """Name, arguments and results as text."""
        parts = [", ".join(f"{a.name}: {a.dtype.name}" for a in args) for args in (self.inputs, self.outputs)]
        return f"{self.name}({parts[0]}) -> ({parts[1]})"


def require(condition: bool, what: str, actual: Any) -> None:
    """Raise InvalidArgumentError unless the condition holds."""
    if not condition:
        raise InvalidArgumentError(f"not a valid {what}", actual=brief(actual))


def _require_text(value: Any, pattern: re.Pattern[str], what: str) -> None:
    require(isinstance(value, str) and len(value) <= _MAX_NAME and pattern.fullmatch(value) is not None, what, value)


def _is_plain(value: Any, depth: int = MAX_DEPTH) -> bool:
    # `type(…) is`, because bool is a subclass of int; it is accepted below.
    if type(value) is int:
        return value in _INT64
    if type(value) is str:
        # A million characters at most.
        return len(value) <= 1 << 20 and _is_unicode(value)
    if type(value) is tuple:
        return depth > 0 and all(_is_plain(item, depth - 1) for item in value)
    return value is None or isinstance(value, bool | float | DType | TensorData | FunctionRef)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
