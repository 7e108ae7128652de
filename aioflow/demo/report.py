"""The demo's measurements: the loss curve, kept beside the checkpoint, and the numbers at the end."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

_INTERVAL = 1e-3  # seconds


@dataclass(slots=True)
class Lag:
    """Repeated measurements of how late the event loop ran a timer, in seconds."""

    samples: list[float] = field(default_factory=list)


async def watch_lag(lag: Lag, stop: asyncio.Event) -> None:
    """Measure the lag until `stop` is set."""
    while not stop.is_set():
        started = time.perf_counter()
        await asyncio.sleep(_INTERVAL)
        lag.samples.append(max(0.0, time.perf_counter() - started - _INTERVAL))


def percentile_ms(samples: list[float], percent: float) -> float:
    """Return a percentile in milliseconds; 0 if there are no samples."""
    return float(np.percentile(samples, percent)) * 1e3 if samples else 0.0


@dataclass(slots=True)
class History:
    """Loss and accuracy by step, over all runs of the demo in a folder."""

    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> History:
        """Return the history in a file, or an empty one: a damaged curve must not prevent the training."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            steps, losses, accuracies = ([float(x) for x in found[name]] for name in ("steps", "losses", "accuracies"))
            if not len(steps) == len(losses) == len(accuracies):
                return cls()
        except (OSError, KeyError, TypeError, ValueError):
            return cls()
        return cls([int(step) for step in steps], losses, accuracies)

    def add(self, step: int, loss: float, accuracy: float) -> None:
        """Add one point."""
        self.steps.append(step)
        self.losses.append(loss)
        self.accuracies.append(accuracy)

    def save(self, path: Path) -> None:
        """Write the points beside the checkpoint."""
        path.write_text(json.dumps({"steps": self.steps, "losses": self.losses, "accuracies": self.accuracies}))

    def plot(self, path: Path) -> None:
        """Draw the loss and the accuracy over the steps as a PNG."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import, and needed only at the end
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
        FigureCanvasAgg(figure)
        left = figure.add_subplot()
        right = left.twinx()
        (loss,) = left.semilogy(self.steps, self.losses, color="tab:blue", label="training loss")
        (accuracy,) = right.plot(self.steps, self.accuracies, color="tab:orange", label="batch accuracy")
        left.set_xlabel("step")
        left.set_ylabel("cross-entropy (nats)")
        right.set_ylabel("accuracy")
        right.set_ylim(0, 1.02)
        left.grid(alpha=0.3)
        left.legend(handles=[loss, accuracy], loc="center right")
        left.set_title("aioflow demo: 8×8 digits, trained while serving")
        figure.savefig(path)
