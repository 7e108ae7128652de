"""Ranges of addresses: expansion as by shells and Slurm, and quick typed errors for hostile ones."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aioflow.arguments import brief
from aioflow.distributed.cluster_settings import expand_addresses, expand_hostlist
from aioflow.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1", ["a:1"]),
        ("a:1,b:2", ["a:1", "b:2"]),
        ("job-{0..2}.svc:2222", ["job-0.svc:2222", "job-1.svc:2222", "job-2.svc:2222"]),
        ("127.0.0.1:{2222..2223},ps:1", ["127.0.0.1:2222", "127.0.0.1:2223", "ps:1"]),
        ("r{0..1}n{08..09}:1", ["r0n08:1", "r0n09:1", "r1n08:1", "r1n09:1"]),
        ("n{7..7}:1", ["n7:1"]),
    ],
)
def test_expand_addresses_expands_ranges(text: str, expected: list[str]) -> None:
    assert expand_addresses(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a:1,",
        "n{3..1}:1",
        "n{0..}:1",
        "n{a..b}:1",
        "n{0,1}:1",
        "n}0{:1",
        "n{0..99999999}",
        "n{0..9}" * 6,
        "n{0..65535},b:1",
        "{0..65535}" * 50,
        "n{0..9999999999}",
        "a" * 600,
    ],
    ids=brief,
)
def test_expand_addresses_rejects_invalid_ranges(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        expand_addresses(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("login", ["login"]),
        ("node[1-3,07],login", ["node1", "node2", "node3", "node07", "login"]),
        ("n[08-11]-ib0", ["n08-ib0", "n09-ib0", "n10-ib0", "n11-ib0"]),
        ("r[0-1]n[1,3]", ["r0n1", "r0n3", "r1n1", "r1n3"]),
    ],
)
def test_expand_hostlist_expands_slurm_lists(text: str, expected: list[str]) -> None:
    assert expand_hostlist(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,",
        "n[",
        "n]",
        "n[]",
        "n[1-]",
        "n[3-1]",
        "n[a]",
        "n[[1]]",
        "n[1]]",
        "n[0-65536]",
        "n[0-65535],b",
        "n[0-65535][0-65535][0-65535]",
        "n[1-99999999999]",
        "a[1,2" * 1000,
        "," * 5000,
        "n[" + "0-65535," * 1000 + "1]",
    ],
    ids=brief,
)
def test_expand_hostlist_rejects_invalid_lists(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        expand_hostlist(text)


@given(st.text(alphabet="ab019[]{}-.,:…\0\n", max_size=60))
@example("[0-9][0-9][0-9][0-9][0-9]")
def test_any_text_expands_or_raises_a_typed_error(text: str) -> None:
    for expand in (expand_addresses, expand_hostlist):
        try:
            names = expand(text)
        except InvalidArgumentError:
            continue
        assert 1 <= len(names) <= 65536
        assert all(names)
