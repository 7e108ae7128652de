"""Hostile calls in child processes. A call that hangs or crashes ends its child, and a new child continues after it."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tests.support.processes import SECONDS, end, start

__all__ = ["Outcome", "Patience", "run_calls", "table"]

_ROOT: Final = Path(__file__).parents[3]
_FAULTS: Final = ("bare", "hang", "crash", "unexplained", "UnknownError", "InternalError")
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one call.

    Attributes:
        seed: Seed of the random generator.
        op: Type of the op.
        index: Number of the call.
        kind: "ok", the class of a typed error ("unexplained …" if it only repeats Python's message), "bare …", "hang"
            or
            "crash …".
        place: Line that raised the root cause, and the cause; for a hang or a crash, the stacks of all threads.
        reached: Whether the call reached a kernel.
    """

    seed: int
    op: str
    index: int
    kind: str
    place: str
    reached: bool = False

    @property
    def is_fault(self) -> bool:
        """True if users must never see this outcome."""
        return self.kind.startswith(_FAULTS)

    @property
    def has_ended_its_child(self) -> bool:
        """True if the child process can make no further calls."""
        return self.kind.startswith(("hang", "crash"))

    def __str__(self) -> str:
        return f"python -m tests.sweep.hostile.child {self.seed} {self.op} {self.index}: {self.kind}: {self.place}"


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits after which a call counts as hanging.

    Other load on the machine lengthens only the second.

    Attributes:
        busy: Processor time that a child may use for one call, in seconds.
        idle: Time that a child may take for one call, in seconds.
    """

    busy: float = 30.0
    idle: float = 60.0


class _Child:
    def __init__(self, seed: int, patience: Patience, ops: str) -> None:
        self._seed, self._patience = seed, patience
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(_ROOT), *(p for p in sys.path if p)]),
            "MALLOC_ARENA_MAX": "2",  # each arena would take 64 MiB of the address space
        }
        more = ["--ops", ops] if ops else []
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the child
        self._process = start(
            *("-m", "tests.sweep.hostile.child", str(seed), *more),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            cwd=_ROOT,
            env=environment,
        )
        self._rest = b""

    def call(self, op: str, index: int) -> Outcome:
        """Make a call and return its outcome."""
        try:
            self._send(f"{op} {index}\n".encode())
            self._line(Patience(SECONDS, SECONDS))
            found = json.loads(self._line(self._patience))
        except TimeoutError as error:
            return Outcome(self._seed, op, index, "hang", f"{error}: {self._threads()}")
        except (EOFError, BrokenPipeError):
            code = self._process.wait(SECONDS)
            return Outcome(self._seed, op, index, f"crash {code}", f"the process ended: {self._last_words()}")
        return Outcome(self._seed, op, index, found["kind"], found["place"], found["reached"])

    def _send(self, data: bytes) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def _line(self, patience: Patience) -> bytes:
        stream = self._process.stdout
        begun, used = time.monotonic(), self._processor_time()
        while stream is not None and b"\n" not in self._rest:
            if select.select([stream], [], [], 0.5)[0]:
                data = os.read(stream.fileno(), 1 << 16)
                if not data:
                    raise EOFError
                self._rest += data
            elif self._processor_time() - used > patience.busy:
                raise TimeoutError(f"longer than {patience.busy} s of processor time")
            elif time.monotonic() - begun > patience.idle:
                raise TimeoutError(f"longer than {patience.idle} s")
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _processor_time(self) -> float:
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def _threads(self) -> str:
        """Return the stacks of the child's threads, which its fault handler prints."""
        self._process.send_signal(signal.SIGUSR1)
        # `faulthandler` gives no notice when it has printed all stacks.
        time.sleep(2)
        return self._last_words()

    def _last_words(self) -> str:
        self._said.seek(max(0, os.fstat(self._said.fileno()).st_size - 6000))
        text = self._said.read().decode(errors="replace")
        shown = text[max(text.rfind("Fatal Python"), 0) :]
        return re.sub(r"\s*\n\s*", " | ", shown).strip()

    def end(self) -> None:
        """Kill the child."""
        end(self._process)
        self._said.close()


class _Children:
    """A sequence of children; each starts when a call needs it."""

    def __init__(self, seed: int, patience: Patience, ops: str) -> None:
        self._start = partial(_Child, seed, patience, ops)
        self._child: _Child | None = None

    def call(self, op: str, index: int) -> Outcome:
        """Return the outcome of a call. After a hang, repeat the call in a new child: only a second hang counts."""
        outcome = self._call(op, index)
        return self._call(op, index) if outcome.kind == "hang" else outcome

    def _call(self, op: str, index: int) -> Outcome:
        self._child = self._child or self._start()
        outcome = self._child.call(op, index)
        if outcome.has_ended_its_child:
            self.end()
        return outcome

    def end(self) -> None:
        """Kill the current child."""
        if self._child is not None:
            self._child.end()
            self._child = None


def run_calls(
    names: Iterable[str],
    seed: int,
    indices: Sequence[int],
    *,
    children: int = 2,
    patience: Patience = Patience(),
    ops: str = "",
) -> list[Outcome]:
    """Make the calls of these indices of every op, in children that are restarted after a hang or a crash.

    Args:
        names: Types of the ops.
        seed: Seed of every random generator.
        indices: Numbers of the calls of each op.
        children: Number of children that work at the same time.
        patience: Limits after which a call counts as hanging.
        ops: Name of a module that defines more ops.
    """
    work = iter([(name, index) for name in names for index in indices])
    lock = threading.Lock()
    found: list[Outcome] = []

    def tasks() -> Iterator[tuple[str, int]]:
        while True:
            with lock:
                task = next(work, None)
            if task is None:
                return
            yield task

    def serve() -> None:
        served_by = _Children(seed, patience, ops)
        try:
            for name, index in tasks():
                found.append(served_by.call(name, index))
        finally:
            served_by.end()

    threads = [threading.Thread(target=serve) for _ in range(children)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def table(outcomes: Iterable[Outcome]) -> str:
    """Return a table of the number of calls by op and kind of outcome."""
    counts: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        counts.setdefault(outcome.op, Counter()).update([outcome.kind, *(["(reached)"] if outcome.reached else [])])
    kinds = sorted({kind for counter in counts.values() for kind in counter}, key=lambda kind: (kind != "ok", kind))
    total = Counter({kind: sum(counter[kind] for counter in counts.values()) for kind in kinds})
    rows = [["op", *kinds]]
    rows += [[op, *(str(c[k] or "") for k in kinds)] for op, c in [*sorted(counts.items()), ("all", total)]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(cells))
        for cells in (list(zip(row, widths, strict=True)) for row in rows)
    )
