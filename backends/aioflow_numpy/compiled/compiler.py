"""The C compiler of this machine: `AIOFLOW_CC` (a path, a name, or `off`), otherwise `cc`, `gcc` or `clang`.

It runs as a separate process (`process.py`), with a deadline, in a temporary folder. The user is responsible for a
program of that name. A name found only through a relative entry of `PATH` is not used, because that depends on the
working directory.

The effect of code depends on the compiler and on the processor. The compiler reports both in its predefined macros,
which contain its version and the instructions of the processor that it uses.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from dataclasses import dataclass
from typing import Final

from aioflow.errors import FailedPreconditionError, NotFoundError
from aioflow.formats.files import file_errors
from aioflow_numpy.compiled.process import answer_of, private_folder, sweep

SETTING: Final = "AIOFLOW_CC"
_NAMES: Final = ("cc", "gcc", "clang")
# Results must be bit-identical to NumPy's, so no fused multiply-add, and integers wrap. errno and floating-point flags
# are not used.
_FLAGS: Final = (
    *("-std=gnu11", "-O3", "-fPIC", "-fwrapv", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-w"),
)
_OF_THIS_PROCESSOR: Final = (("-march=native",), ("-mcpu=native",), ())  # the first set that the compiler accepts
_ANSWER: Final = 20.0  # seconds to report its version
_COMPILE: Final = 60.0  # seconds for a program
_VERSION: Final = re.compile(r'^#define __VERSION__ "(.*)"$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Compiler:
    """A working compiler.

    Attributes:
        path: The path of the program.
        flags: The flags of its calls.
        version: The version that it reports.
        identity: Differs for each compiler, set of flags and kind of processor.
    """

    path: str
    flags: tuple[str, ...]
    version: str
    identity: str

    def __str__(self) -> str:
        processor = next((flag for flag in self.flags if "native" in flag), "for any processor of this architecture")
        return f"{self.path} {self.version} ({processor})"

    def compile(self, text: str) -> bytes:
        """Compile a program to a shared library. Blocks until the compiler is done.

        Raises:
            FailedPreconditionError: the compiler fails; the error has its message.
            DeadlineExceededError: the compiler took too long, and was killed.
            OpError: the system has no room, or no rights, for its files, or the compiler wrote no file.
        """
        with private_folder() as folder:
            made = folder / "made.so"
            command = [self.path, *self.flags, "-shared", "-x", "c", "-", "-o", str(made), "-lm"]
            answer_of(command, text, folder, _COMPILE)
            with file_errors(made):
                return made.read_bytes()


def find() -> Compiler:
    """Find the compiler and query its version. Blocks.

    Raises:
        NotFoundError: there is no compiler.
        FailedPreconditionError: it is disabled, or does not answer as a C compiler does.
        DeadlineExceededError: it does not answer at all.
        OpError: the system has no room, or no rights, for its files.
    """
    path = _path()
    sweep(time.time())
    with private_folder() as folder:
        for processor in _OF_THIS_PROCESSOR:
            flags = (*_FLAGS, *processor)
            try:
                macros = answer_of([path, *flags, "-dM", "-E", "-x", "c", "-"], "", folder, _ANSWER)
            except FailedPreconditionError:
                # Without a flag for the processor, the compiler itself must be at fault.
                if not processor:
                    raise
                continue
            version = _VERSION.search(macros)
            if version is not None:
                # The macros contain the version and the instructions of the processor.
                told = "\0".join((path, *flags, macros))
                return Compiler(path, flags, version[1], hashlib.sha256(told.encode()).hexdigest())
    raise FailedPreconditionError(f"{path} does not report a compiler version")


def _path() -> str:
    setting = os.environ.get(SETTING, "")
    if setting == "off":
        raise FailedPreconditionError(
            "compilation is switched off", expected=f"{SETTING} unset, or a compiler", actual=setting
        )
    if os.name != "posix":
        raise NotFoundError("compilation is supported only on POSIX systems", actual=os.name)
    names = (setting,) if setting else _NAMES
    for name in names:
        found = shutil.which(name)
        if found is not None and os.path.isabs(found):
            return found
    raise NotFoundError("no C compiler was found", expected=f"{' or '.join(names)} in an absolute folder in PATH")
