"""The C compiler of this machine: `AIOFLOW_CC` (a path, a name, or `off`), or `cc`, or `gcc` or `clang`.

It runs as a process of its own (`process.py`), with a deadline, and in a folder that is gone afterwards. What a program
of the user's has in its place is the user's affair; a name that only a relative entry of `PATH` knows is not taken,
since that depends on where the process stands.

What code does depends on the compiler and on the processor, both of which the compiler itself tells: by its predefined
macros, which have its version and the instructions of the processor that it will use.
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

__all__ = ["SETTING", "Compiler", "find"]

SETTING: Final = "AIOFLOW_CC"
_NAMES: Final = ("cc", "gcc", "clang")
# NumPy's bits: no fused multiply-add, integers that wrap. Neither errno nor floating-point flags are looked at.
_FLAGS: Final = (
    *("-std=gnu11", "-O3", "-fPIC", "-fwrapv", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-w"),
)
_OF_THIS_PROCESSOR: Final = (("-march=native",), ("-mcpu=native",), ())  # the first that the compiler takes
_ANSWER: Final = 20.0  # seconds until it has said what it is
_COMPILE: Final = 60.0  # seconds for a program
_VERSION: Final = re.compile(r'^#define __VERSION__ "(.*)"$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler that has answered.

    Attributes:
        path: Of the program.
        flags: With which it compiles.
        version: As it says.
        identity: Another one for each compiler, set of flags and kind of processor.
    """

    path: str
    flags: tuple[str, ...]
    version: str
    identity: str

    def __str__(self) -> str:
        processor = next((flag for flag in self.flags if "native" in flag), "for any processor of this kind")
        return f"{self.path} {self.version} ({processor})"

    def compile(self, text: str) -> bytes:
        """The shared library of a program. Blocks for as long as it takes.

        Raises:
            FailedPreconditionError: it fails; what it says is in the error.
            DeadlineExceededError: it takes too long, and was ended.
            OpError: the system has no room, or no rights, for its files; or it has made none.
        """
        with private_folder() as folder:
            made = folder / "made.so"
            command = [self.path, *self.flags, "-shared", "-x", "c", "-", "-o", str(made), "-lm"]
            answer_of(command, text, folder, _COMPILE)
            with file_errors(made):
                return made.read_bytes()


def find() -> Compiler:
    """The compiler, which has been asked what it is. Blocks.

    Raises:
        NotFoundError: there is none.
        FailedPreconditionError: it is switched off, or does not answer as a C compiler does.
        DeadlineExceededError: it does not answer at all.
    """
    path = _path()
    sweep(time.time())
    with private_folder() as folder:
        for processor in _OF_THIS_PROCESSOR:
            flags = (*_FLAGS, *processor)
            try:
                macros = answer_of([path, *flags, "-dM", "-E", "-x", "c", "-"], "", folder, _ANSWER)
            except FailedPreconditionError:
                if not processor:
                    raise
                continue
            version = _VERSION.search(macros)
            if version is not None:
                told = "\0".join((path, *flags, macros))
                return Compiler(path, flags, version[1], hashlib.sha256(told.encode()).hexdigest())
    raise FailedPreconditionError(f"{path} does not say which C compiler it is")


def _path() -> str:
    setting = os.environ.get(SETTING, "")
    if setting == "off":
        raise FailedPreconditionError(
            "compiling is switched off", expected=f"{SETTING} unset, or a compiler", actual=setting
        )
    if os.name != "posix":
        raise NotFoundError("chains are compiled on systems like Unix alone", actual=os.name)
    names = (setting,) if setting else _NAMES
    for name in names:
        found = shutil.which(name)
        if found is not None and os.path.isabs(found):
            return found
    raise NotFoundError("no C compiler was found", expected=f"{' or '.join(names)} in an absolute folder of PATH")
