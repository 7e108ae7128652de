"""Device names: parsing, printing, merging, matching."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioflow.errors import InvalidArgumentError
from aioflow.graph.device_spec import DeviceSpec

FULL = "/job:worker/replica:0/task:3/device:GPU:1"


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("", ""),
        (FULL, FULL),
        ("/gpu:0", "/device:GPU:0"),
        ("gpu:0", "/device:GPU:0"),
        ("/CPU:2", "/device:CPU:2"),
        ("/device:gpu:0", "/device:GPU:0"),
        ("/device:XPU_X:7", "/device:XPU_X:7"),
        ("/gpu", "/device:GPU:*"),
        ("/gpu:*", "/device:GPU:*"),
        ("/device:GPU", "/device:GPU:*"),
        ("/task:1/job:x", "/job:x/task:1"),
        ("/job:w/replica:*/task:*", "/job:w"),
        ("/job:my-job.v2_a", "/job:my-job.v2_a"),
        ("/job:a/cpu:0", "/job:a/device:CPU:0"),
        ("/task:007", "/task:7"),
    ],
)
def test_names_and_their_canonical_form(name: str, canonical: str) -> None:
    spec = DeviceSpec.from_string(name)
    assert spec.to_string() == str(spec) == canonical
    assert DeviceSpec.from_string(canonical) == spec


@pytest.mark.parametrize(
    "name",
    [
        "/foo:1",
        "/job:",
        "/job:1a",
        "/task:x",
        "/task:-1",
        "/gpu:x",
        "/gpux:0",
        "/device:GPU:0:1",
        "/gpu:0/",
        "gpu 0",
        "/cpu:0/gpu:1",
        "/cpu:0/device:GPU:1",
        "/job:a b",
    ],
)
def test_malformed_names(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="malformed device name") as caught:
        DeviceSpec.from_string(name)
    assert caught.value.actual == name


@pytest.mark.parametrize(
    ("outer", "inner", "merged"),
    [
        ("/gpu:0", "/cpu:1", "/device:CPU:1"),
        ("/gpu:0", "/job:w/task:3", "/job:w/task:3/device:GPU:0"),
        ("/job:a/task:1", "/job:b", "/job:b/task:1"),
        ("/gpu:3", "/gpu", "/device:GPU:3"),
        ("/gpu:3", "/cpu", "/device:CPU:3"),  # type and index are two parts
        ("", "/gpu:0", "/device:GPU:0"),
        ("/gpu:0", "", "/device:GPU:0"),
    ],
)
def test_the_inner_name_wins_part_by_part(outer: str, inner: str, merged: str) -> None:
    result = DeviceSpec.from_string(outer).override(DeviceSpec.from_string(inner))
    assert result.to_string() == merged


@pytest.mark.parametrize("partial", ["", "/gpu:1", "/gpu", "/job:worker", "/task:3", "/job:worker/task:3/gpu:*", FULL])
def test_a_partial_name_that_matches(partial: str) -> None:
    assert DeviceSpec.from_string(partial).matches(DeviceSpec.from_string(FULL))


@pytest.mark.parametrize("partial", ["/gpu:0", "/cpu:1", "/job:ps", "/task:1", "/replica:1"])
def test_a_partial_name_that_does_not_match(partial: str) -> None:
    assert not DeviceSpec.from_string(partial).matches(DeviceSpec.from_string(FULL))


numbers = st.one_of(st.none(), st.integers(0, 99))
specs = st.builds(
    lambda job, replica, task, kind, index: DeviceSpec(job, replica, task, kind, index if kind else None),
    st.one_of(st.none(), st.from_regex(r"[A-Za-z][A-Za-z0-9_.\-]{0,8}", fullmatch=True)),
    numbers,
    numbers,
    st.one_of(st.none(), st.sampled_from(["CPU", "GPU", "TPU_X"])),
    numbers,
)


@given(specs)
def test_printing_and_parsing_are_inverse(spec: DeviceSpec) -> None:
    assert DeviceSpec.from_string(spec.to_string()) == spec


@given(specs, specs, specs)
def test_overriding_is_associative(a: DeviceSpec, b: DeviceSpec, c: DeviceSpec) -> None:
    assert a.override(b).override(c) == a.override(b.override(c))
    assert a.override(DeviceSpec()) == a
