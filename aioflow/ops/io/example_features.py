"""Descriptions of the features of `Example` messages, and their translation for the parsing ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType, DTypeLike, as_dtype
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import Dims, ShapeLike, dims_of, format_dims, num_elements
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make
from aioflow.ops.array.static_shapes import int_constant
from aioflow.ops.sparse.dense import sparse_merge
from aioflow.ops.sparse.tensor import SparseTensor

__all__ = ["FixedLenFeature", "FixedLenSequenceFeature", "SparseFeature", "VarLenFeature"]


class FixedLenFeature(NamedTuple):
    """A feature that has the same number of values in every example.

    Attributes:
        shape: Shape of the values of one example.
        dtype: float32, int64 or string.
        default_value: Value for an example without the feature; without a default, that is an error.
    """

    shape: ShapeLike
    dtype: DTypeLike
    default_value: TensorLike | None = None


class FixedLenSequenceFeature(NamedTuple):
    """A feature with any number of entries; shorter ones are padded to the longest of the batch.

    Attributes:
        shape: Shape of one entry.
        dtype: float32, int64 or string.
        allow_missing: Whether an example may lack the feature, which then has no entries. Must be True except in a
            `SequenceExample`.
        default_value: Padding value, a scalar; 0 or "" if not given. Not allowed in a `SequenceExample`, whose
            features are not padded.
    """

    shape: ShapeLike
    dtype: DTypeLike
    allow_missing: bool = False
    default_value: TensorLike | None = None


class VarLenFeature(NamedTuple):
    """A feature with any number of values, read as a sparse tensor of one row per example.

    Attributes:
        dtype: float32, int64 or string.
    """

    dtype: DTypeLike


class SparseFeature(NamedTuple):
    """A sparse tensor whose indices and values are two features of the examples.

    Attributes:
        index_key: The feature (or several, one per dimension) that holds the indices, int64.
        value_key: The feature that holds the values.
        dtype: Dtype of the values: float32, int64 or string.
        size: Size of the indexed dimension (or of each).
        already_sorted: Whether the indices ascend in each example.
    """

    index_key: str | Sequence[str]
    value_key: str
    dtype: DTypeLike
    size: int | Sequence[int]
    already_sorted: bool = False


AnyFeature: TypeAlias = FixedLenFeature | FixedLenSequenceFeature | VarLenFeature | SparseFeature


class FeatureSpecs:
    """The inputs and attributes of a parsing op for a set of features.

    Attributes:
        sparse: The dtypes of the features that are read as sparse tensors, by name.
        dense: Dtype, shape and default value of the features that are read as dense tensors, by name.

    Raises:
        InvalidArgumentError: a feature is not of one of `kinds`, has unknown sizes, or conflicts with another one.
    """

    def __init__(
        self, features: Mapping[str, AnyFeature] | None, kinds: tuple[type, ...], in_steps: bool = False
    ) -> None:
        self._features = dict(features or {})
        sparse: dict[str, DType] = {}
        self.dense: dict[str, tuple[DType, Dims, Tensor]] = {}
        for key in sorted(self._features):
            feature = self._features[key]
            if not isinstance(feature, kinds):
                raise InvalidArgumentError(
                    f"feature {key!r} is of a kind that cannot be parsed",
                    expected=" or ".join(kind.__name__ for kind in kinds),
                    actual=repr(feature),
                )
            if isinstance(feature, VarLenFeature):
                _add(sparse, key, as_dtype(feature.dtype))
            elif isinstance(feature, SparseFeature):
                for part in _index_keys(feature):
                    _add(sparse, part, dtypes.int64)
                _add(sparse, feature.value_key, as_dtype(feature.dtype))
            elif isinstance(feature, FixedLenFeature):
                self.dense[key] = _fixed(key, feature)
            else:
                self.dense[key] = _step(key, feature) if in_steps else _sequence(key, feature)
        self.sparse = {key: sparse[key] for key in sorted(sparse)}
        both = sorted(self.sparse.keys() & self.dense.keys())
        if both:
            raise InvalidArgumentError("a feature is parsed in two different ways", expected="one", actual=both)

    @property
    def missing_allowed(self) -> list[str]:
        """The feature lists that may be missing."""
        return [key for key in self.dense if getattr(self._features[key], "allow_missing", False)]

    def assembled(self, sparse: Sequence[SparseTensor], dense: Sequence[Tensor]) -> dict[str, Any]:
        """Return the requested tensors by name, from the op's outputs in the order of `sparse` and `dense`."""
        parts = dict(zip(self.sparse, sparse, strict=True))
        found: dict[str, Any] = dict(zip(self.dense, dense, strict=True))
        for key, feature in self._features.items():
            if isinstance(feature, SparseFeature):
                indices = [parts[name] for name in _index_keys(feature)]
                sizes = list(feature.size) if isinstance(feature.size, list | tuple) else [feature.size]
                found[key] = sparse_merge(
                    indices, parts[feature.value_key], sizes, already_sorted=feature.already_sorted
                )
            elif isinstance(feature, VarLenFeature):
                found[key] = parts[key]
        return {key: found[key] for key in sorted(found)}


def _index_keys(feature: SparseFeature) -> list[str]:
    return [feature.index_key] if isinstance(feature.index_key, str) else list(feature.index_key)


def _add(sparse: dict[str, DType], key: str, dtype: DType) -> None:
    # Several sparse features may read one feature of the examples, as the same dtype.
    if sparse.setdefault(key, dtype) is not dtype:
        raise InvalidArgumentError(
            f"feature {key!r} is parsed as two different dtypes", expected=sparse[key].name, actual=dtype.name
        )


def _known(key: str, shape: ShapeLike) -> tuple[int, ...]:
    dims = dims_of(shape)
    if dims is None or num_elements(dims) is None:
        raise InvalidArgumentError(
            f"feature {key!r} needs a known shape", expected="known sizes", actual=format_dims(dims)
        )
    return tuple(size for size in dims if size is not None)


def _fixed(key: str, feature: FixedLenFeature) -> tuple[DType, Dims, Tensor]:
    dtype, dims = as_dtype(feature.dtype), _known(key, feature.shape)
    # An empty default makes the feature required.
    if feature.default_value is None:
        return dtype, dims, constant([], dtype)
    return dtype, dims, _default(key, feature.default_value, dtype, dims)


def _default(key: str, value: TensorLike, dtype: DType, dims: tuple[int, ...]) -> Tensor:
    """Return the default value in the shape `dims`; its numbers may be listed in any shape."""
    tensor = convert_to_tensor(value, dtype)
    if tensor.dims == dims:
        return tensor
    try:
        return make("Reshape", tensor, int_constant(dims))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"the default of feature {key!r} does not fit", expected=format_dims(dims), actual=format_dims(tensor.dims)
        ) from error


def _sequence(key: str, feature: FixedLenSequenceFeature) -> tuple[DType, Dims, Tensor]:
    dtype, dims = as_dtype(feature.dtype), _known(key, feature.shape)
    if not feature.allow_missing:
        raise InvalidArgumentError(f"feature {key!r}: allow_missing must be True", expected=True, actual=False)
    padding = feature.default_value
    if padding is None:
        padding = "" if dtype is dtypes.string else 0
    return dtype, (None, *dims), _default(key, padding, dtype, (1,))


def _step(key: str, feature: FixedLenSequenceFeature) -> tuple[DType, Dims, Tensor]:
    """Return the spec of the entry at each step of a feature list. Nothing is padded."""
    if feature.default_value is not None:
        raise InvalidArgumentError(
            f"feature {key!r} of a SequenceExample is not padded",
            expected="no default_value",
            actual=feature.default_value,
        )
    dtype = as_dtype(feature.dtype)
    return dtype, _known(key, feature.shape), constant([], dtype)
