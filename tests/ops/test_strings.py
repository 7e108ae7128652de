"""Strings: refused patterns, hashes of published algorithms, and wrong arguments."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow import errors
from aioflow.formats import regex
from aioflow.formats.string_hash import murmur_hash, sip_hash
from aioflow.ops.apply import make
from aioflow.testing.evaluate import evaluate

PATTERNS = [
    "(",
    "[a",
    "[[:foo:]]",
    r"(a)\1",
    "(?=a)",
    "(?<!a)",
    "a\\",
    r"\Z",
    "(?P=x)",
    "(?#x)",
    "a++",
    "(a|b){2}+",
    "a{1001}",
    "a{2,2000}",
    r"\x{110000}",
    r"[\b]",
    r"[a\C]",
    "(?a:a)",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_unsupported_patterns_are_refused(pattern: str) -> None:
    # Syntax that RE2 lacks, or that is not supported, is a typed error, not a failure of the kernel.
    for node in (af.regex_replace(["a"], pattern, ""), af.strings.regex_full_match(["a"], pattern)):
        with pytest.raises(errors.InvalidArgumentError, match="the pattern"):
            evaluate([node])


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)*b", "(.*)*x", "(a?){64}a{64}b"])
def test_patterns_match_in_linear_time(pattern: str) -> None:
    # A backtracking matcher would need exponential time for each of these.
    text = "a" * 10_000 + "c"
    full, replaced = evaluate([af.strings.regex_full_match([text], pattern), af.regex_replace([text], pattern, "")])
    assert full.tolist() == [False]
    assert replaced.tolist() == [text.encode()]


def test_string_to_number_rejects_long_text() -> None:
    with pytest.raises(errors.InvalidArgumentError, match="not a number"):
        evaluate([af.string_to_number("1" * 200_000 + "x")])


def test_missing_re2_error_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    regex.compiled_pattern.cache_clear()
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(errors.UnimplementedError, match="pip install google-re2"):
        evaluate([af.regex_replace("a", "a", "b")])


@pytest.mark.parametrize("rewrite", [r"\2", "\\", r"\x"])
def test_wrong_rewrites_are_refused(rewrite: str) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="the rewrite"):
        evaluate([af.regex_replace(["a"], "(a)", rewrite)])


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (r"\s", [" ", "\n"], ["\v", "\x85", "a"]),
        (r"\S+", ["é\v"], ["a b"]),
        (r"[\D]", ["é"], ["1"]),
        (r"[^\W]", ["a", "_"], ["é", "-"]),
        ("(?i)é", ["é", "É"], ["e"]),
        (r".*\b-", ["a-"], ["é-"]),
        (".", ["é", b"\x00"], ["\n", b"\xff"]),
        ("(?s).", ["\n"], [b"\xff"]),
        ("[^a]", ["é"], [b"\xff", "a"]),
        (r"\++", ["++"], ["+a"]),
        ("[+]+", ["++"], ["-"]),
        ("a{1000}", ["a" * 1000], ["a" * 999]),
    ],
)
def test_patterns_match_classes_and_quantifiers(pattern: str, yes: list[str | bytes], no: list[str | bytes]) -> None:
    (found,) = evaluate([af.strings.regex_full_match([*yes, *no], pattern)])
    assert found.tolist() == [True] * len(yes) + [False] * len(no)


def test_zero_fill_applies_to_finite_numbers_only() -> None:
    numbers = [1.5, -np.inf, np.nan]
    complexes = np.array([complex(np.nan, 2)], np.complex64)
    unsigned = np.array([7], np.uint8)
    found = evaluate(
        [
            af.as_string(np.array(numbers, np.float32), width=7, precision=1, fill="0"),
            af.as_string(complexes, width=4, precision=0, fill="0"),
            af.as_string(unsigned, fill="+"),
        ]
    )
    assert [texts.tolist() for texts in found] == [[b"00001.5", b"   -inf", b"    nan"], [b"( nan,0002)"], [b"7"]]


def test_bytes_that_are_not_utf8_pass_through() -> None:
    (found,) = evaluate([af.regex_replace([b"\xff-\xfe"], "-", "+")])
    assert found.tolist() == [b"\xff+\xfe"]


def test_hashes_match_published_vectors() -> None:
    # SipHash: the test vector of the paper, appendix A. MurmurHash64A of the empty string with seed 0 is 0.
    assert sip_hash(bytes(range(15)), (0x0706050403020100, 0x0F0E0D0C0B0A0908)) == 0xA129CA6149BE45E5
    assert murmur_hash(b"", 0) == 0


WRONG: list[Any] = [
    lambda: af.string_split(["a"], result_type="RaggedTensor"),  # type: ignore[arg-type]  # wrong on purpose
    lambda: af.string_to_hash_bucket(),
    lambda: af.reduce_join(["a"], 1),
    lambda: af.string_to_hash_bucket(["a"], 0),
    lambda: evaluate([af.string_to_hash_bucket_strong(["a"], 3, [1])]),
]


@pytest.mark.parametrize("build", WRONG)
def test_wrong_arguments_are_refused(build: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError):
        build()


@pytest.mark.parametrize("option", ["width", "precision"])
def test_width_and_precision_of_as_string_are_bounded(option: str) -> None:
    x = af.placeholder(af.float32)
    longer: Any
    long: Any
    longer, long = ({option: size} for size in (2**31, 2**31 - 1))
    with pytest.raises(errors.InvalidArgumentError, match="too long"):
        evaluate([make("AsString", x, **longer)], {x: 1.0})
    with pytest.raises(errors.ResourceExhaustedError):
        evaluate([make("AsString", x, **long)], {x: np.ones((1000, 1000), np.float32)})
