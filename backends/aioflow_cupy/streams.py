"""The streams of one device, and the order between them.

One computes, one copies values to the device, one copies them to the host, so that copies in both directions overlap
with kernels. All arrays belong to the compute stream: they are allocated in its order and so, with a stream-ordered
pool, freed in its order. The copying streams touch an array only between two events of the compute stream.

The fourth runs nothing: work for graphs is recorded in it. Recorded in the compute stream, a graph would also contain
the copies that other threads submit meanwhile, which then would not run, and CUDA would refuse the capture when an
array of the stream-ordered pool is freed.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from aioflow_cupy.driver import Allocator, CudaDriver, CudaStream, Event


class DeviceStreams:
    """The streams of a device.

    Attributes:
        device: The number of the device.
        compute, upload, download, capture: The streams.
        capturing: Whether work is being recorded for a graph (`graphs`).
    """

    def __init__(self, driver: CudaDriver, device: int, allocator: Allocator) -> None:
        self._driver = driver
        self._allocator = allocator
        self.device = device
        self.capturing = False
        self.compute = driver.stream(device)
        self.upload = driver.stream(device)
        self.download = driver.stream(device)
        self.capture = driver.stream(device)

    def computing(self) -> AbstractContextManager[None]:
        """Return a context in which the thread's work goes to the compute stream."""
        return self._driver.current(self.device, self.compute, self._allocator)

    def recording(self, allocator: Allocator) -> AbstractContextManager[None]:
        """Return a context in which the thread's work goes to the stream for captures, with that allocator."""
        return self._driver.current(self.device, self.capture, allocator)

    def mark(self, stream: CudaStream) -> Event:
        """Return a new event after all work submitted to the stream so far."""
        event = self._driver.event(self.device)
        stream.record(event)
        return event

    def order(self, before: CudaStream, after: CudaStream) -> Event:
        """Make later work of `after` wait for the work submitted to `before` so far. Return the event between them."""
        event = self.mark(before)
        after.wait_event(event)
        return event

    def all_marks(self) -> list[Event]:
        """Return an event for each stream, after all work submitted to it so far."""
        return [self.mark(stream) for stream in (self.compute, self.upload, self.download)]
