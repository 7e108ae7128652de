"""The demo's single event loop: a training loop, a web service, a client of it, and a monitor of the loop's lag."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

import aioflow as af
from aioflow.cli.arguments import Parser, file, port, positive
from aioflow.cli.program import StoppedBySignal, run
from aioflow.demo.digits import Digits, load_digits
from aioflow.demo.model import DigitsModel, build
from aioflow.demo.service import Traffic, ask_again_and_again, make_app, serving

# ── the demo's measurements: the loss curve, kept beside the checkpoint, and the numbers at the end ───────────────────

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
        # A timer may fire slightly early.
        lag.samples.append(max(0.0, time.perf_counter() - started - _INTERVAL))


def percentile_ms(samples: list[float], percent: float) -> float:
    """Return a percentile in milliseconds; 0 if there are no samples."""
    return float(np.percentile(samples, percent)) * 1e3 if samples else 0.0


@dataclass(slots=True)
class TrainingHistory:
    """Loss and accuracy by step, over all runs of the demo in a folder."""

    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> TrainingHistory:
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


# ── the program ───────────────────────────────────────────────────────────────────────────────────────────────────────


_BATCH = 64
_KEEP = 0.8
_SHOW_EVERY = 20  # steps


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of the command line."""

    steps: int
    folder: Path
    port: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results that the demo prints at the end."""

    accuracy: float
    step: int
    traffic: Traffic
    lag: Lag
    checkpoint: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo. Return the exit status."""
    options = _parse(arguments)
    _find_out_whether_files_can_be_made(options.folder)
    console = _Console()
    try:
        outcome = run(run_demo(options, console))
    except StoppedBySignal as stopped:
        console.print(_where_it_stopped(options.folder))
        return stopped.status
    _print_outcome(console, outcome, options)
    return 0


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        """Raise BrokenPipeError. The method of rich would exit in the middle of a step."""
        raise BrokenPipeError


def _parse(arguments: Sequence[str] | None) -> DemoOptions:
    parser = Parser(
        prog="aioflow demo",
        description="Train a classifier of handwritten digits while a web service answers from its live variables.",
    )
    parser.add_argument("--steps", type=positive, default=3000, help="training steps of this run (default %(default)s)")
    parser.add_argument(
        "--dir", type=file, default=Path("aioflow-demo"), help="checkpoint and plot (default %(default)s)"
    )
    parser.add_argument("--port", type=port, default=0, help="of the web service on 127.0.0.1 (default: a free one)")
    found = parser.parse_args(arguments)
    return DemoOptions(found.steps, found.dir, found.port)


def _find_out_whether_files_can_be_made(folder: Path) -> None:
    """Raise OSError if the folder is not writable. Otherwise the first write would fail at the end of the training."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def _where_it_stopped(folder: Path) -> str:
    if af.train.latest_checkpoint(str(folder)) is None:
        return "Stopped before there was a checkpoint."
    return f"Stopped. Checkpoint in {folder}; run the same command to go on from there."


async def run_demo(options: DemoOptions, console: Console) -> Outcome:
    """Train, serve, send requests and measure the lag, all in the running event loop.

    When the task is cancelled (Ctrl-C, SIGTERM), it writes a checkpoint first.
    """
    options.folder.mkdir(parents=True, exist_ok=True)
    train, test = load_digits().split(seed=0)
    model = build()
    history = TrainingHistory.load(options.folder / "history.json")
    async with af.Session(graph=model.graph) as session:
        await _start(model, session, options.folder, console)
        traffic, lag, stop = Traffic(), Lag(), asyncio.Event()
        async with serving(make_app(model, session), options.port) as url, asyncio.TaskGroup() as tg:
            console.print(f"Serving predictions at [bold]{url}/predict[/] while training.")
            tg.create_task(ask_again_and_again(url, test, traffic, stop))
            tg.create_task(watch_lag(lag, stop))
            try:
                await _train(model, session, train, options.steps, history, console)
            finally:
                # Also when cancelled: Ctrl-C must not lose the training.
                stop.set()
                checkpoint = await _save(model, session, options.folder, history)
        accuracy = await session.run(model.accuracy, {model.images: test.images, model.labels: test.labels})
        step = int(await session.run(model.global_step))
    # Drawing takes long, and the session is closed already.
    await asyncio.to_thread(history.plot, options.folder / "loss.png")
    return Outcome(float(accuracy), step, traffic, lag, checkpoint)


async def _start(model: DigitsModel, session: af.Session, folder: Path, console: Console) -> None:
    latest = af.train.latest_checkpoint(str(folder))
    if latest is None:
        await session.run(model.initialize)
        console.print("Starting from scratch.")
        return
    await model.saver.restore(session, latest)
    console.print(f"Resumed from {latest}, at step {await session.run(model.global_step)}.")


async def _train(
    model: DigitsModel, session: af.Session, digits: Digits, steps: int, history: TrainingHistory, console: Console
) -> None:
    columns = (TextColumn("training"), BarColumn(), TextColumn("{task.completed}/{task.total}"), TimeRemainingColumn())
    shown = TextColumn("loss {task.fields[loss]:.4f}  accuracy {task.fields[accuracy]:.3f}")
    fetches = [model.train, model.loss, model.accuracy, model.global_step]
    with Progress(*columns, shown, console=console) as progress:
        bar = progress.add_task("train", total=steps, loss=float("nan"), accuracy=float("nan"))
        for number, batch in zip(range(1, steps + 1), _batches(digits), strict=False):
            feeds = {model.images: batch.images, model.labels: batch.labels, model.keep: _KEEP}
            _, loss, accuracy, step = await session.run(fetches, feeds)
            if number % _SHOW_EVERY == 0 or number == steps:
                history.add(int(step), float(loss), float(accuracy))
                progress.update(bar, completed=number, loss=loss, accuracy=accuracy)


def _batches(digits: Digits) -> Iterator[Digits]:
    rng = np.random.default_rng()
    while True:
        order = rng.permutation(len(digits))
        # Only whole batches; the rest of an epoch is dropped.
        for start in range(0, len(order) - _BATCH + 1, _BATCH):
            index = order[start : start + _BATCH]
            yield Digits(digits.images[index], digits.labels[index])


async def _save(model: DigitsModel, session: af.Session, folder: Path, history: TrainingHistory) -> str:
    path = await model.saver.save(session, str(folder / "model"), global_step=model.global_step)
    with suppress(OSError):  # only the checkpoint is essential, not the curve
        history.save(folder / "history.json")
    return str(path)


def _print_outcome(console: Console, outcome: Outcome, options: DemoOptions) -> None:
    traffic, latencies = outcome.traffic, outcome.traffic.latencies
    console.print(f"Test accuracy         {outcome.accuracy:.2%} after step {outcome.step}")
    console.print(f"Requests served       {len(latencies)} ({traffic.right} answered right)")
    console.print(
        f"Latency               p50 {percentile_ms(latencies, 50):.2f} ms, p99 {percentile_ms(latencies, 99):.2f} ms"
    )
    console.print(f"Event-loop lag        p99 {percentile_ms(outcome.lag.samples, 99):.2f} ms")
    console.print(f"Checkpoint            {outcome.checkpoint}")
    console.print(f"Loss curve            {options.folder / 'loss.png'}")
