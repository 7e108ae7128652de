"""Tests of the settings for OpenBLAS on recorded processors."""

from __future__ import annotations

import pytest

from aioflow_numpy import blas

AVX512 = "avx512f avx512dq avx512bw avx512vl avx512cd"
LINUX = ("linux", "x86_64")


def cpuinfo(vendor: str, family: int, flags: str) -> list[str]:
    first = f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nflags\t\t: fpu avx2 {flags}\n\n"
    # A second block that differs, so that a test fails if more than the first is read.
    return (first + "processor\t: 1\nvendor_id\t: SomebodyElse\n").splitlines(keepends=True)


def decide(lines: list[str], **changes: object) -> blas.CoreTypeChoice:
    arguments: dict[str, object] = {"numpy_loaded": False, "platform": LINUX, "read_cpuinfo": lambda: lines}
    environment = changes.pop("environment", {})
    return blas.decide(environment, **(arguments | changes))  # type: ignore[arg-type]  # a table of keyword arguments


@pytest.mark.parametrize(
    ("vendor", "family", "flags", "core_type"),
    [
        ("AuthenticAMD", 26, AVX512, "SkylakeX"),  # Zen 5
        ("AuthenticAMD", 25, AVX512, "SkylakeX"),  # Zen 4
        ("AuthenticAMD", 25, "", None),  # Zen 3, or Zen 4 under a hypervisor that hides AVX-512
        ("AuthenticAMD", 25, AVX512.replace("avx512vl", ""), None),  # one missing flag is an illegal instruction
        ("GenuineIntel", 6, AVX512, None),  # detected well
        ("HygonGenuine", 24, AVX512, None),  # nothing measured
        ("", -1, "", None),
    ],
)
def test_core_type_by_processor(vendor: str, family: int, flags: str, core_type: str | None) -> None:
    choice = decide(cpuinfo(vendor, family, flags))
    assert choice.core_type == core_type
    assert choice.set_by == ("aioflow" if core_type else "openblas")
    assert choice.reason


def test_core_type_set_by_the_user_is_kept() -> None:
    choice = decide(cpuinfo("AuthenticAMD", 26, AVX512), environment={"OPENBLAS_CORETYPE": "Haswell"})
    assert (choice.core_type, choice.set_by) == ("Haswell", "user")


def test_too_late_once_numpy_is_loaded() -> None:
    choice = decide(cpuinfo("AuthenticAMD", 26, AVX512), numpy_loaded=True)
    assert (choice.core_type, choice.set_by) == (None, "openblas")
    assert "import aioflow first" in choice.reason


def test_numpy_loaded_does_not_matter_where_no_rule_applies() -> None:
    assert "too late" not in decide(cpuinfo("GenuineIntel", 6, AVX512), numpy_loaded=True).reason


@pytest.mark.parametrize("platform", [("darwin", "arm64"), ("win32", ""), ("linux", "aarch64")])
def test_other_platforms_get_no_core_type(platform: tuple[str, str]) -> None:
    assert decide(cpuinfo("AuthenticAMD", 26, AVX512), platform=platform).core_type is None


def test_unreadable_cpuinfo_is_a_reason_and_not_an_error() -> None:
    def read() -> list[str]:
        raise PermissionError("not here")

    choice = decide([], read_cpuinfo=read)
    assert choice.core_type is None
    assert "not here" in choice.reason


@pytest.mark.parametrize("lines", [[], ["\n"], ["no colon at all\n"], ["cpu family : ?\n"]])
def test_odd_cpuinfo_applies_no_rule(lines: list[str]) -> None:
    assert decide(lines).core_type is None


# -- the threads' timeout ------------------------------------------------------------------------------------------


def test_idle_threads_sleep_soon() -> None:
    choice = blas.decide_timeout({}, numpy_loaded=False)
    assert (choice.exponent, choice.set_by) == ("16", "aioflow")


def test_timeout_set_by_the_user_is_kept() -> None:
    for loaded in (False, True):
        choice = blas.decide_timeout({"OPENBLAS_THREAD_TIMEOUT": "26"}, numpy_loaded=loaded)
        assert (choice.exponent, choice.set_by) == ("26", "user")


def test_timeout_is_too_late_once_numpy_is_loaded() -> None:
    choice = blas.decide_timeout({}, numpy_loaded=True)
    assert (choice.exponent, choice.set_by) == (None, "openblas")
    assert "import aioflow first" in choice.reason
