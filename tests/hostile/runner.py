"""Hostile calls in child processes: one that hangs or crashes ends its child, and the next child goes on behind it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.processes import end, start

__all__ = ["Outcome", "run_calls", "table"]

_ROOT: Final = Path(__file__).parents[2]
_START: Final = 120.0  # seconds in which a child must have been started
_FAULTS: Final = ("bare", "hang", "crash", "unexplained", "UnknownError", "InternalError")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one call.

    Attributes:
        kind: "ok", the class of a typed error ("unexplained …" where it only repeats what Python said), "bare …",
            "hang" or "crash …".
        place: Where the first cause was raised, and what it was.
    """

    seed: int
    op: str
    index: int
    kind: str
    place: str

    @property
    def is_fault(self) -> bool:
        """Whether no user should ever see it."""
        return self.kind.startswith(_FAULTS)

    def __str__(self) -> str:
        return f"python -m tests.hostile.child {self.seed} {self.op} {self.index}: {self.kind}: {self.place}"


class _Child:
    def __init__(self, seed: int, patience: float, ops: str) -> None:
        self._patience = patience
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(_ROOT), *(p for p in sys.path if p)]),
            "MALLOC_ARENA_MAX": "2",  # each arena would take 64 MiB of the address space
        }
        more = ["--ops", ops] if ops else []
        self._process = start(
            *("-m", "tests.hostile.child", str(seed), *more),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=_ROOT,
            env=environment,
        )
        self._rest = b""

    def call(self, op: str, index: int) -> tuple[str, str]:
        """Kind and place of the outcome; the child is of no more use after a hang or a crash."""
        try:
            self._send(f"{op} {index}\n".encode())
            self._line(_START)
            found = json.loads(self._line(self._patience))
        except TimeoutError:
            return "hang", f"longer than {self._patience} s"
        except (EOFError, BrokenPipeError):
            return f"crash {self._process.wait(_START)}", "the process ended"
        return found["kind"], found["place"]

    def _send(self, data: bytes) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def _line(self, patience: float) -> bytes:
        stream = self._process.stdout
        while stream is not None and b"\n" not in self._rest:
            if not select.select([stream], [], [], patience)[0]:
                raise TimeoutError
            data = os.read(stream.fileno(), 1 << 16)
            if not data:
                raise EOFError
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def end(self) -> None:
        """Kill it."""
        end(self._process)


def run_calls(
    names: Iterable[str],
    seed: int,
    indices: Sequence[int],
    *,
    children: int = 2,
    patience: float = 60.0,
    ops: str = "",
) -> list[Outcome]:
    """Make the calls of these indices of every op, in children that are started anew after a hang or a crash.

    Args:
        patience: Seconds after which a call hangs.
        ops: A module that defines more ops.
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
        child = _Child(seed, patience, ops)
        try:
            for name, index in tasks():
                kind, place = child.call(name, index)
                found.append(Outcome(seed, name, index, kind, place))
                if kind.startswith(("hang", "crash")):
                    child.end()
                    child = _Child(seed, patience, ops)
        finally:
            child.end()

    threads = [threading.Thread(target=serve) for _ in range(children)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def table(outcomes: Iterable[Outcome]) -> str:
    """Op by outcome, with the number of calls of each kind."""
    counts: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        counts.setdefault(outcome.op, Counter())[outcome.kind] += 1
    kinds = sorted({kind for counter in counts.values() for kind in counter}, key=lambda kind: (kind != "ok", kind))
    total = Counter({kind: sum(counter[kind] for counter in counts.values()) for kind in kinds})
    rows = [["op", *kinds]]
    rows += [[op, *(str(c[k] or "") for k in kinds)] for op, c in [*sorted(counts.items()), ("all", total)]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(cells))
        for cells in (list(zip(row, widths, strict=True)) for row in rows)
    )
