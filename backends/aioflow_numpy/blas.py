"""Chooses OpenBLAS's kernels and its threads' patience before NumPy loads it, and reports what runs.

OpenBLAS picks its kernels by processor when the library is loaded, and the one inside NumPy's wheels misjudges some:
a family that it does not list falls back to AVX2 kernels even where AVX-512 is there. Measured on an AVX-512 AMD
processor: `Haswell` 230 GFLOP/s, `SkylakeX` 490. Only the environment variable OPENBLAS_CORETYPE, set before the load,
changes that; hence a preload hook, and no import of NumPy in this module.

A wrong choice kills the process with an illegal instruction (seen when SkylakeX was forced without AVX-512), so a rule
applies only where the kernel reports every flag it needs: /proc/cpuinfo leaves out what the hypervisor or the
operating system has switched off.

OpenBLAS's worker threads spin for 2**26 cycles after a product before they sleep, in case another product follows.
Here it is a kernel of another kind that follows, and it has to share its core: measured on two cores, the convolution
after a product took 15 to 21 ms instead of 11. OPENBLAS_THREAD_TIMEOUT is that exponent, and also counts only before
the load.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

__all__ = [
    "CoreTypeChoice",
    "LoadedBlas",
    "TimeoutChoice",
    "choose_core_type",
    "chosen",
    "chosen_timeout",
    "describe",
    "loaded_blas",
    "symbol",
    "this_processor",
]

VARIABLE: Final = "OPENBLAS_CORETYPE"
TIMEOUT_VARIABLE: Final = "OPENBLAS_THREAD_TIMEOUT"
_TIMEOUT: Final = "16"  # 2**16 cycles, some 20 microseconds: about what waking a thread costs

# The families that OpenBLAS's SkylakeX kernels are compiled for (gcc's -march=skylake-avx512).
_AVX512: Final = frozenset({"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512cd"})


@dataclass(frozen=True, slots=True)
class CoreTypeChoice:
    """What was decided about the core type, and why.

    Attributes:
        core_type: The value of OPENBLAS_CORETYPE, or None where OpenBLAS's own detection stands.
        set_by: "aioflow", the "user" (the variable was there already), or "openblas" (its own detection).
    """

    core_type: str | None
    reason: str
    set_by: Literal["aioflow", "user", "openblas"]


# Tuples and not data classes: each of those costs the import of aioflow a millisecond.
class TimeoutChoice(NamedTuple):
    """How long idle OpenBLAS threads spin: the exponent of 2 (None: OpenBLAS's own default), why, and set by whom."""

    exponent: str | None
    reason: str
    set_by: Literal["aioflow", "user", "openblas"]


class Processor(NamedTuple):
    """The part of the first block of /proc/cpuinfo that tells which processor it is."""

    vendor: str = ""
    family: int = -1
    flags: frozenset[str] = frozenset()
    name: str = ""


class CoreTypeRule(NamedTuple):
    """One row of the table: which processors get which core type.

    `families` empty means every family of the vendor.
    """

    vendor: str
    needed_flags: frozenset[str]
    core_type: str
    because: str
    families: frozenset[int] = frozenset()

    def applies(self, processor: Processor) -> bool:
        """Whether the processor is of this vendor and family and has every needed flag."""
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
    """The choice that this process made, or None where the hook did not run (aioflow_numpy used without aioflow)."""
    return _chosen


def chosen_timeout() -> TimeoutChoice | None:
    """As `chosen`, for the threads' timeout."""
    return _timeout


def choose_core_type() -> CoreTypeChoice:
    """The preload hook: sets OPENBLAS_CORETYPE where a rule applies, and OPENBLAS_THREAD_TIMEOUT, once per process, and
    remembers the choices.

    The user's own settings always stand. Child processes inherit the variables, which is right: they run on the same
    processor.
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
    """The decision about the threads' timeout alone, without its effect."""
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
    """The decision alone, without its effect.

    Args:
        platform: (`sys.platform`, machine); by default the ones of this process.
        read_cpuinfo: Gives the lines of /proc/cpuinfo.
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
    """Reads the first processor's block; a missing or odd field gives a Processor that no rule applies to."""
    fields: dict[str, str] = {}
    for line in lines:
        key, colon, value = line.partition(":")
        if not colon:
            if fields:
                break  # a blank line ends the block; the other cores are alike, and there may be hundreds
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
    """An OpenBLAS that is loaded in this process, as it describes itself."""

    library: str
    core_type: str
    threads: int
    config: str


def loaded_blas() -> tuple[LoadedBlas, ...]:
    """Every OpenBLAS in this process, NumPy's own first. Empty with another BLAS (Accelerate, MKL).

    Nothing is imported: before NumPy is loaded the answer is empty.
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
        # No /proc: look where NumPy's wheels put their libraries (Windows, macOS).
        package = os.path.dirname(numpy.__file__)
        folders = (f"{package}.libs", os.path.join(package, ".dylibs"))
        paths = {path for folder in folders for path in glob.glob(os.path.join(folder, "*openblas*"))}
    return paths


def _ask(library: str) -> LoadedBlas | None:
    from ctypes import CDLL, c_char_p, c_int  # only a report needs it

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
    """A function of an OpenBLAS that ctypes has loaded, or None where it has none of that name."""
    # NumPy's wheels put scipy_ before the names, and builds with 64-bit integers put 64_ behind them.
    for spelling in (f"{before}{name}{after}" for before in ("scipy_", "") for after in ("64_", "")):
        function = getattr(library, spelling, None)
        if function is not None:
            return function
    return None


def describe() -> dict[str, str]:
    """What `aioflow doctor` prints about this backend (entry point group `aioflow.doctor`)."""
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
