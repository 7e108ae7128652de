"""`Example` and its parts: records of named lists in TensorFlow's format, without its protocol buffer classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.formats.example import (
    FeatureKind,
    decode_example,
    decode_sequence_example,
    encode_example,
    encode_sequence_example,
)
from aioflow.formats.example import StoredFeature as StoredFeature


class _Values:
    """A list of values of one kind."""

    __slots__ = ("value",)

    def __init__(self, value: Iterable[object] | None = None) -> None:
        self.value: list[Any] = [self._checked(item) for item in (() if value is None else value)]

    @staticmethod
    def _checked(item: Any) -> object:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.value == getattr(other, "value", None)

    __hash__ = None  # type: ignore[assignment]  # it can change

    def __repr__(self) -> str:
        return f"{type(self).__name__}(value={self.value!r})"


class BytesList(_Values):
    """A list of byte strings, `value`."""

    __slots__ = ()

    @staticmethod
    def _checked(item: object) -> bytes:
        if not isinstance(item, bytes):
            raise DTypeError("a BytesList can only hold bytes", expected="bytes", actual=repr(item)[:80])
        return item


class FloatList(_Values):
    """A list of numbers, `value`, written as float32."""

    __slots__ = ()

    @staticmethod
    def _checked(item: Any) -> float:
        if isinstance(item, str | bytes):
            raise DTypeError("a FloatList can only hold numbers", expected="numbers", actual=repr(item)[:80])
        return float(item)


class Int64List(_Values):
    """A list of integers, `value`, of 64 bits."""

    __slots__ = ()

    @staticmethod
    def _checked(item: Any) -> int:
        if not hasattr(item, "__index__"):
            raise DTypeError("an Int64List can only hold integers", expected="integers", actual=repr(item)[:80])
        number = int(item.__index__())
        if not -(2**63) <= number < 2**63:
            raise InvalidArgumentError("the value does not fit", expected="64 bits", actual=number)
        return number


class Feature:
    """One list of values: at most one of the three kinds may be given."""

    __slots__ = ("bytes_list", "float_list", "int64_list")

    def __init__(
        self,
        bytes_list: BytesList | None = None,
        float_list: FloatList | None = None,
        int64_list: Int64List | None = None,
    ) -> None:
        given = [part for part in (bytes_list, float_list, int64_list) if part is not None]
        if len(given) > 1:
            raise InvalidArgumentError("a feature must have exactly one kind", expected="one list", actual=repr(given))
        self.bytes_list = bytes_list or BytesList()
        self.float_list = float_list or FloatList()
        self.int64_list = int64_list or Int64List()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Feature) and _values_of(self) == _values_of(other)

    __hash__ = None  # type: ignore[assignment]  # it can change

    def __repr__(self) -> str:
        return f"Feature({_values_of(self)!r})"


def _values_of(feature: Feature) -> tuple[FeatureKind | None, list[object]]:
    if feature.bytes_list.value:
        return "bytes", feature.bytes_list.value
    if feature.float_list.value:
        return "float", feature.float_list.value
    return ("int64", feature.int64_list.value) if feature.int64_list.value else (None, [])


class Features:
    """Features by name, in the dict `feature`."""

    __slots__ = ("feature",)

    def __init__(self, feature: Mapping[str, Feature] | None = None) -> None:
        self.feature: dict[str, Feature] = dict(feature or {})


class Example:
    """A record: named lists, in `features.feature`.

    `Example(features=Features(feature={"label": Feature(int64_list=Int64List(value=[3]))}))`
    """

    __slots__ = ("features",)

    def __init__(self, features: Features | None = None) -> None:
        self.features = features or Features()

    def SerializeToString(self) -> bytes:
        """Return the bytes to write into a record file. Equal examples produce equal bytes."""
        return encode_example(_stored(self.features))

    @classmethod
    def FromString(cls, data: bytes) -> Example:
        """Parse an example from its bytes.

        Raises:
            DataLossError: the bytes are not an Example.
        """
        return cls(Features({_text(name): _feature(part) for name, part in decode_example(data).items()}))


def _stored(features: Features) -> dict[bytes, tuple[FeatureKind | None, list[object]]]:
    return {_bytes(name): _values_of(part) for name, part in features.feature.items()}


class FeatureList:
    """One feature per step, in the list `feature`."""

    __slots__ = ("feature",)

    def __init__(self, feature: Iterable[Feature] | None = None) -> None:
        self.feature: list[Feature] = list(feature or ())


class FeatureLists:
    """Lists of features by name, in the dict `feature_list`."""

    __slots__ = ("feature_list",)

    def __init__(self, feature_list: Mapping[str, FeatureList] | None = None) -> None:
        self.feature_list: dict[str, FeatureList] = dict(feature_list or {})


class SequenceExample:
    """A record of a sequence.

    Features of the whole are in `context.feature`, those of each step in `feature_lists.feature_list`.
    """

    __slots__ = ("context", "feature_lists")

    def __init__(self, context: Features | None = None, feature_lists: FeatureLists | None = None) -> None:
        self.context = context or Features()
        self.feature_lists = feature_lists or FeatureLists()

    def SerializeToString(self) -> bytes:
        """Return the bytes to write into a record file. Equal examples produce equal bytes."""
        lists = self.feature_lists.feature_list.items()
        return encode_sequence_example(
            _stored(self.context), {_bytes(name): [_values_of(step) for step in part.feature] for name, part in lists}
        )

    @classmethod
    def FromString(cls, data: bytes) -> SequenceExample:
        """Parse a sequence example from its bytes.

        Raises:
            DataLossError: the bytes are not a SequenceExample.
        """
        context, lists = decode_sequence_example(data)
        return cls(
            Features({_text(name): _feature(part) for name, part in context.items()}),
            FeatureLists({_text(name): FeatureList(map(_feature, parts)) for name, parts in lists.items()}),
        )


def _bytes(name: str) -> bytes:
    try:
        return name.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidArgumentError("a feature has a wrong name", expected="text", actual=repr(name)) from error


def _text(name: bytes) -> str:
    return name.decode(errors="surrogateescape")


def _feature(part: StoredFeature) -> Feature:
    values = [v.item() if hasattr(v, "item") else v for v in part.values]
    if part.kind == "bytes":
        return Feature(bytes_list=BytesList(values))
    if part.kind == "float":
        return Feature(float_list=FloatList(values))
    return Feature(int64_list=Int64List(values)) if part.kind == "int64" else Feature()
