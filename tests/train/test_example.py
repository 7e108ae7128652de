"""Example and SequenceExample: the names of features in their bytes."""

from __future__ import annotations

import pytest

from aioflow.errors import InvalidArgumentError
from aioflow.formats.example import encode_example, encode_sequence_example
from aioflow.train import Example, Feature, FeatureList, FeatureLists, Features, SequenceExample

LATIN = "größe".encode("latin-1")  # not UTF-8


def test_names_that_are_not_utf_8_are_written_as_they_were_read() -> None:
    data = encode_example({LATIN: ("int64", [3]), b"x": ("bytes", [b"a"])})
    assert Example.FromString(data).SerializeToString() == data
    data = encode_sequence_example({LATIN: ("int64", [3])}, {LATIN: [("float", [0.5])]})
    assert SequenceExample.FromString(data).SerializeToString() == data


def test_names_that_no_bytes_stand_for_are_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="wrong name"):
        Example(Features({"\ud800": Feature()})).SerializeToString()
    with pytest.raises(InvalidArgumentError, match="wrong name"):
        SequenceExample(feature_lists=FeatureLists({"\ud800": FeatureList()})).SerializeToString()
