"""The choice of OpenBLAS's kernels and of its threads' spin time before NumPy loads it, and a report of both.

OpenBLAS picks its kernels by processor when the library is loaded, and the one inside NumPy's wheels misjudges some: an
unknown processor family falls back to AVX2 kernels even with AVX-512. Measured on an AVX-512 AMD processor: `Haswell`
230 GFLOP/s, `SkylakeX` 490. Only the environment variable OPENBLAS_CORETYPE, set before the load, changes that. Hence
this is a preload hook, and the module does not import NumPy.

A wrong choice kills the process with an illegal instruction (seen when SkylakeX was forced without AVX-512). So a rule
applies only if the kernel reports every required flag: /proc/cpuinfo omits those that the hypervisor or the operating
system has switched off.

OpenBLAS's worker threads spin for 2**26 cycles after a product before they sleep, in case another product follows. Here
a kernel of another kind follows, and shares its core with them: measured on two cores, the convolution after a product
took 15 to 21 ms instead of 11. OPENBLAS_THREAD_TIMEOUT is that exponent, and also counts only before the load.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

VARIABLE: Final = "OPENBLAS_CORETYPE"
TIMEOUT_VARIABLE: Final = "OPENBLAS_THREAD_TIMEOUT"
_TIMEOUT: Final = "16"  # 2**16 cycles, some 20 microseconds: about the cost of waking a thread

# The CPU flags that OpenBLAS's SkylakeX kernels are compiled for (gcc's -march=skylake-avx512).
_AVX512: Final = frozenset({"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512cd"})


@dataclass(frozen=True, slots=True)
class CoreTypeChoice:
    """The decision about the core type, and its reason.

    Attributes:
        core_type: The value of OPENBLAS_CORETYPE, or None if OpenBLAS's own detection applies.
        reason: The reason.
        set_by: "aioflow", the "user" (the variable was set already), or "openblas" (its own detection).
    """

    core_type: str | None
    reason: str
    set_by: Literal["aioflow", "user", "openblas"]


# Tuples, not data classes: each data class costs the import of aioflow a millisecond.
class TimeoutChoice(NamedTuple):
    """The spin time of idle OpenBLAS threads: the exponent of 2 (None: OpenBLAS's default), the reason, the origin."""

    exponent: str | None
    reason: str
    set_by: Literal["aioflow", "user", "openblas"]


class Processor(NamedTuple):
    """The facts in the first block of /proc/cpuinfo that identify the processor."""

    vendor: str = ""
    family: int = -1
    flags: frozenset[str] = frozenset()
    name: str = ""


class CoreTypeRule(NamedTuple):
    """One row of the table that maps processors to core types.

    `families` empty means every family of the vendor.
    """

    vendor: str
    needed_flags: frozenset[str]
    core_type: str
    because: str
    families: frozenset[int] = frozenset()

    def applies(self, processor: Processor) -> bool:
        """Return whether the processor is of this vendor and family and has every required flag."""
        return (
            processor.vendor == self.vendor
            and (not self.families or processor.family in self.families)
            and self.needed_flags <= processor.flags
        )


RULES: Final[tuple[CoreTypeRule, ...]] = (
    # All families: 25 (Zen 4) is detected as SkylakeX by newer libraries anyway, 26 (Zen 5) is not listed by any
    # library up to 0.3.33, and from 0.3.34 the AVX2 kernels may overrun their stack on these processors (OpenBLAS
    # issues 6013, 6021, 6026), so that SkylakeX is the safe choice there as well as the fast one.
    CoreTypeRule(
        vendor="AuthenticAMD",
        needed_flags=_AVX512,
        core_type="SkylakeX",
        because="an AMD processor with AVX-512, for which OpenBLAS's own detection may choose AVX2 kernels",
    ),
)

_chosen: CoreTypeChoice | None = None
_timeout: TimeoutChoice | None = None


def chosen() -> CoreTypeChoice | None:
    """Return this process's choice, or None if the hook did not run (aioflow_numpy used without aioflow)."""
    return _chosen


def chosen_timeout() -> TimeoutChoice | None:
    """Return the choice of the threads' timeout, like `chosen`."""
    return _timeout


def choose_core_type() -> CoreTypeChoice:
    """Set OPENBLAS_CORETYPE if a rule applies, and OPENBLAS_THREAD_TIMEOUT; the preload hook.

    The first call in a process decides, and later calls return its decision. The user's own settings take precedence.
    Child processes inherit the variables, which is right: they run on the same processor.
    """
    global _chosen, _timeout
    if _chosen is None:
        loaded = "numpy" in sys.modules
        _chosen = decide(os.environ, numpy_loaded=loaded)
        if _chosen.set_by == "aioflow" and _chosen.core_type is not None:
            os.environ[VARIABLE] = _chosen.core_type
        _timeout = decide_timeout(os.environ, numpy_loaded=loaded)
        if _timeout.set_by == "aioflow" and _timeout.exponent is not None:
            os.environ[TIMEOUT_VARIABLE] = _timeout.exponent
    return _chosen


def decide_timeout(environment: Mapping[str, str], *, numpy_loaded: bool) -> TimeoutChoice:
    """Return the decision about the threads' timeout, without applying it."""
    users = environment.get(TIMEOUT_VARIABLE)
    if users:
        return TimeoutChoice(users, f"{TIMEOUT_VARIABLE} was set before aioflow was imported", "user")
    if numpy_loaded:
        why = f"numpy was imported before aioflow; import aioflow first or set {TIMEOUT_VARIABLE}"
        return TimeoutChoice(None, why, "openblas")
    return TimeoutChoice(_TIMEOUT, "idle threads leave their core to the kernels that follow", "aioflow")


def decide(
    environment: Mapping[str, str],
    *,
    numpy_loaded: bool,
    platform: tuple[str, str] | None = None,
    read_cpuinfo: Callable[[], Iterable[str]] | None = None,
) -> CoreTypeChoice:
    """Return the decision about the core type, without applying it.

    Args:
        environment: The environment variables.
        numpy_loaded: Whether NumPy has been imported already.
        platform: (`sys.platform`, machine); by default the ones of this process.
        read_cpuinfo: Returns the lines of /proc/cpuinfo.
    """
    users = environment.get(VARIABLE)
    if users:
        return CoreTypeChoice(users, f"{VARIABLE} was set before aioflow was imported", "user")
    if (platform or _platform()) != ("linux", "x86_64"):
        return CoreTypeChoice(None, "rules exist for Linux on x86-64 only", "openblas")
    try:
        processor = parse_cpuinfo((read_cpuinfo or _read_cpuinfo)())
    except OSError as error:
        return CoreTypeChoice(None, f"the processor is unknown: {error}", "openblas")
    rule = next((r for r in RULES if r.applies(processor)), None)
    if rule is None:
        return CoreTypeChoice(None, "no rule applies: OpenBLAS detects this processor well", "openblas")
    if numpy_loaded:
        why = f"numpy was imported before aioflow, too late to choose {rule.core_type} ({rule.because})"
        return CoreTypeChoice(None, f"{why}; import aioflow first or set {VARIABLE}", "openblas")
    return CoreTypeChoice(rule.core_type, rule.because, "aioflow")


def parse_cpuinfo(lines: Iterable[str]) -> Processor:
    """Read the first processor's block. If a field is missing or odd, no rule applies to the returned Processor."""
    fields: dict[str, str] = {}
    for line in lines:
        key, colon, value = line.partition(":")
        if not colon:
            if fields:
                # A blank line ends the block. The other cores are alike, and there may be hundreds.
                break
            continue
        fields[key.strip()] = value.strip()
    family = fields.get("cpu family", "")
    return Processor(
        vendor=fields.get("vendor_id", ""),
        family=int(family) if family.isdecimal() else -1,
        flags=frozenset(fields.get("flags", "").split()),
        name=fields.get("model name", ""),
    )


def this_processor() -> Processor:
    """Return the processor of /proc/cpuinfo; without that file, one to which no rule applies. Blocks on the disk."""
    try:
        return parse_cpuinfo(_read_cpuinfo())
    except OSError:
        return Processor()


def _platform() -> tuple[str, str]:
    # os.uname costs nothing; the module `platform` would cost milliseconds of the import.
    return sys.platform, os.uname().machine if hasattr(os, "uname") else ""


def _read_cpuinfo() -> Iterator[str]:
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
        yield from lines


class LoadedBlas(NamedTuple):
    """An OpenBLAS loaded in this process, as it reports itself."""

    library: str
    core_type: str
    threads: int
    config: str


def loaded_blas() -> tuple[LoadedBlas, ...]:
    """Return every OpenBLAS in this process, NumPy's own first. Empty with another BLAS (Accelerate, MKL).

    The result is empty before NumPy is imported, because this does not import it.
    """
    found = (_ask(path) for path in sorted(_loaded_libraries(), key=lambda path: "numpy" not in path))
    return tuple(blas for blas in found if blas is not None)


def _loaded_libraries() -> set[str]:
    numpy = sys.modules.get("numpy")
    if numpy is None or numpy.__file__ is None:
        return set()
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if "openblas" in line and ".so" in line}
    except OSError:
        # Without /proc, search the folders where NumPy's wheels put their libraries (Windows, macOS).
        package = os.path.dirname(numpy.__file__)
        folders = (f"{package}.libs", os.path.join(package, ".dylibs"))
        paths = {path for folder in folders for path in glob.glob(os.path.join(folder, "*openblas*"))}
    return paths


def _ask(library: str) -> LoadedBlas | None:
    from ctypes import CDLL, c_char_p, c_int  # imported late: only a report needs it

    try:
        handle = CDLL(library)
    except OSError:
        return None

    def call(name: str, result: type[c_char_p] | type[c_int]) -> object:
        function = symbol(handle, f"openblas_{name}")
        if function is None:
            return None
        function.argtypes, function.restype = [], result
        return function()

    core, config, threads = call("get_corename", c_char_p), call("get_config", c_char_p), call("get_num_threads", c_int)
    return LoadedBlas(
        library,
        core.decode("ascii", "replace") if isinstance(core, bytes) else "unknown",
        threads if isinstance(threads, int) else 0,
        config.decode("ascii", "replace") if isinstance(config, bytes) else "unknown",
    )


def symbol(library: Any, name: str) -> Any:
    """Return a function of an OpenBLAS that ctypes has loaded, or None if the library has no such function."""
    # NumPy's wheels prefix the names with scipy_, and builds with 64-bit integers append 64_.
    for spelling in (f"{before}{name}{after}" for before in ("scipy_", "") for after in ("64_", "")):
        function = getattr(library, spelling, None)
        if function is not None:
            return function
    return None


def describe() -> dict[str, str]:
    """Return this backend's lines of `aioflow doctor` (entry point group `aioflow.doctor`)."""
    import numpy  # not at the top: see the module's docstring

    from aioflow_numpy.compiled.code import describe as compiler

    choice = chosen()
    lines = {"numpy": numpy.__version__}
    if choice is None:
        lines["core type chosen"] = "the preload hook did not run"
    else:
        lines["core type chosen"] = f"{choice.core_type or 'automatic'} by {choice.set_by}: {choice.reason}"
    timeout = chosen_timeout()
    if timeout is not None:
        value = "automatic" if timeout.exponent is None else f"2**{timeout.exponent} cycles"
        lines["idle threads spin for"] = f"{value} by {timeout.set_by}: {timeout.reason}"
    running = loaded_blas()
    if not running:
        lines["blas"] = "no OpenBLAS is loaded (another BLAS, or a build of NumPy without one)"
    for number, blas in enumerate(running):
        name = "blas" if number == 0 else f"blas {number + 1}"
        lines[name] = f"{blas.config}; runs {blas.core_type} on {blas.threads} threads"
    return lines | compiler()
