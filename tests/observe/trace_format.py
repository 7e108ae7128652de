"""Independent validator of traces, by the published description of the Trace Event Format.

The format: "Trace Event Format" (the Chromium project). Perfetto's importer adds that complete events of one thread are
nested or one after the other, and that a flow event lies within a bar of its thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

_REQUIRED = {
    "X": {"name": str, "cat": str, "ph": str, "ts": float, "dur": float, "pid": int, "tid": int},
    "M": {"name": str, "ph": str, "pid": int, "args": dict},
    "s": {"name": str, "cat": str, "ph": str, "ts": float, "pid": int, "tid": int, "id": int},
    "f": {"name": str, "cat": str, "ph": str, "ts": float, "pid": int, "tid": int, "id": int},
}
_METADATA = {
    "process_name": ("name", str),
    "thread_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_sort_index": ("sort_index", int),
}


def problems(trace: dict[str, Any]) -> list[str]:
    """Return the errors for which a viewer would refuse the trace or draw it wrong."""
    return [*_fields(trace), *_nesting(trace), *_names(trace), *_flows(trace)]


def _fields(trace: dict[str, Any]) -> Iterator[str]:
    if trace.get("displayTimeUnit") not in ("ms", "ns"):
        yield "displayTimeUnit"
    for event in trace["traceEvents"]:
        wanted = _REQUIRED.get(event.get("ph"))
        if wanted is None:
            yield f"an event of kind {event.get('ph')!r}"
            continue
        for name, kind in wanted.items():
            if not isinstance(event.get(name), kind):
                yield f"{event['ph']}: {name} is {event.get(name)!r}"
        if event["ph"] == "M":
            key, kind = _METADATA[event["name"]]
            if not isinstance(event["args"].get(key), kind):
                yield f"{event['name']}: {event['args']}"
        if event.get("ts", 0) < 0 or event.get("dur", 0) < 0:
            yield f"a time before the beginning: {event}"


def _bars(trace: dict[str, Any]) -> dict[tuple[int, int], list[tuple[float, float]]]:
    found = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    return found


def _nesting(trace: dict[str, Any]) -> Iterator[str]:
    for place, bars in _bars(trace).items():
        bars.sort(key=lambda bar: (bar[0], -bar[1]))
        open_until: list[float] = []
        for start, end in bars:
            while open_until and open_until[-1] <= start + 1e-6:
                open_until.pop()
            if open_until and end > open_until[-1] + 1e-6:
                yield f"bars of {place} overlap at {start}"
            open_until.append(end)


def _names(trace: dict[str, Any]) -> Iterator[str]:
    named = {(e["pid"], e.get("tid")) for e in trace["traceEvents"] if e["name"] in ("process_name", "thread_name")}
    for process, thread in _bars(trace):
        if (process, None) not in named or (process, thread) not in named:
            yield f"no name for {process, thread}"


def _flows(trace: dict[str, Any]) -> Iterator[str]:
    bars = _bars(trace)
    flows = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] in "sf":
            flows[event["cat"], event["id"]].append(event)
            if not any(start <= event["ts"] <= end for start, end in bars[event["pid"], event["tid"]]):
                yield f"{event['ph']} of {event['name']} lies in no bar"
            if event["ph"] == "f" and event.get("bp") != "e":
                yield "an arrow that ends at the next bar"
    for key, events in flows.items():
        if [event["ph"] for event in events] != ["s", "f"] or events[0]["ts"] > events[1]["ts"]:
            yield f"arrow {key}: {[(event['ph'], event['ts']) for event in events]}"
