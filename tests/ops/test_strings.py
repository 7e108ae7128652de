"""Strings: what patterns are refused, hashes of published algorithms, and wrong arguments."""

from __future__ import annotations

from typing import Any

import pytest

import aioflow as af
from aioflow import errors
from aioflow.kernels.string_hash import murmur_hash, sip_hash
from aioflow.testing.evaluate import evaluate

PATTERNS = [
    "(",
    "[a",
    "[[:^alpha:]]",
    "[[:foo:]]",
    r"\pL",
    r"(a)\1",
    "(?=a)",
    "(?<!a)",
    "a\\",
    r"\Z",
    "(?P=x)",
    "(?#x)",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_that_are_refused(pattern: str) -> None:
    """Typed, and told apart from a kernel that failed: what RE2 does not have, and what is not supported."""
    for node in (af.regex_replace(["a"], pattern, ""), af.strings.regex_full_match(["a"], pattern)):
        with pytest.raises(errors.InvalidArgumentError, match="the pattern"):
            evaluate([node])


@pytest.mark.parametrize("rewrite", [r"\2", "\\", r"\x"])
def test_rewrites_that_are_refused(rewrite: str) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="the rewrite"):
        evaluate([af.regex_replace(["a"], "(a)", rewrite)])


def test_bytes_that_are_not_utf8_pass_through() -> None:
    (found,) = evaluate([af.regex_replace([b"\xff-\xfe"], "-", "+")])
    assert found.tolist() == [b"\xff+\xfe"]


def test_hashes_of_their_authors_examples() -> None:
    """The vector of the paper on SipHash, appendix A; MurmurHash64A of nothing with seed 0 is 0."""
    assert sip_hash(bytes(range(15)), (0x0706050403020100, 0x0F0E0D0C0B0A0908)) == 0xA129CA6149BE45E5
    assert murmur_hash(b"", 0) == 0


WRONG: list[Any] = [
    lambda: af.string_split(["a"], result_type="RaggedTensor"),
    lambda: af.string_to_hash_bucket(),
    lambda: af.reduce_join(af.placeholder(af.string)),
    lambda: af.reduce_join(["a"], 1),
    lambda: af.string_to_hash_bucket(["a"], 0),
    lambda: evaluate([af.string_to_hash_bucket_strong(["a"], 3, [1])]),
]


@pytest.mark.parametrize("build", WRONG)
def test_wrong_arguments(build: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError):
        build()
