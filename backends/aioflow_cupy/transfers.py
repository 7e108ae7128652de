"""Asynchronous copies between host and device, and between devices, which overlap with kernels but keep their order.

A value is copied to the device in pieces: into a lane's page-locked memory, by the upload stream into the lane's device
memory, and by the compute stream into its array. So the upload stream never touches memory of the compute stream's
pool, where a later kernel may already use a freed block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from aioflow.memory.values import Array
from aioflow_cupy.completion import Completions
from aioflow_cupy.driver import CudaDriver
from aioflow_cupy.staging import Lane, Lanes
from aioflow_cupy.streams import DeviceStreams


class Transfers:
    """The copies of one device."""

    def __init__(self, driver: CudaDriver, streams: DeviceStreams, lanes: Lanes, completions: Completions) -> None:
        self._driver = driver
        self._streams = streams
        self._lanes = lanes
        self._completions = completions

    # -- host to device --------------------------------------------------------------------------------------------

    def upload(self, value: npt.ArrayLike) -> Array:
        """Return the device's array of a host value, which may be modified as soon as this returns.

        The array is ready for later work of the compute stream; no other stream may read it.
        """
        # `ascontiguousarray` returns a vector for a scalar, so the shape is restored.
        array = np.ascontiguousarray(value).reshape(np.shape(value))
        with self._streams.computing():
            made: Array = self._driver.xp.empty(array.shape, array.dtype)
            target = made.reshape(-1).view(np.uint8)
        # Bytes, so that pieces may end inside an element.
        source = array.reshape(-1).view(np.uint8)
        for piece in self._pieces(source.nbytes):
            lane = self._lanes.take()
            size = piece.stop - piece.start
            np.copyto(lane.host[:size], source[piece])
            self._through(lane, size, target, piece)
        return made

    def _through(self, lane: Lane, size: int, target: Array, piece: slice) -> None:
        """Copy the first `size` bytes of a lane's host memory into a piece of the target, and give the lane back."""
        streams = self._streams
        if lane.consumed is not None:
            streams.upload.wait_event(lane.consumed)
        elif lane.device_bytes is None:
            _ = lane.device  # allocated in the order of the compute stream, so the copy must come later
            streams.order(streams.compute, streams.upload)
        self._driver.upload(lane.device[:size], lane.host[:size], streams.upload)
        # The host side of the lane is free once the upload is done, its device side once the compute stream has read
        # it.
        arrived = streams.order(streams.upload, streams.compute)
        with streams.computing():
            target[piece] = lane.device[:size]
        lane.consumed = streams.mark(streams.compute)
        self._lanes.give_back(lane, arrived)

    # -- device to host --------------------------------------------------------------------------------------------

    def download(self, array: Array) -> asyncio.Future[Array]:
        """Return a future of the array's value. The copy has been submitted when this returns."""
        streams = self._streams
        with streams.computing():
            source = self._driver.xp.ascontiguousarray(array)
            flat = source.reshape(-1).view(np.uint8)
        shape, dtype, size = array.shape, array.dtype, flat.nbytes
        lane = self._lanes.take() if size <= self._lanes.size else None
        host = self._driver.pinned(size) if lane is None else lane.host[:size]
        # The copy must not begin before the kernels that make the array.
        streams.order(streams.compute, streams.download)
        self._driver.download(host, flat, streams.download)
        done = streams.mark(streams.download)
        kept = [source, flat]  # until the copy is done

        def finish() -> Array:
            kept.clear()
            if lane is None:
                return host.view(dtype).reshape(shape)  # large: the caller gets the page-locked memory itself
            made: Array = host.copy().view(dtype).reshape(shape)
            # Given back only here and without an event: the copy above was the last read of the lane.
            self._lanes.give_back(lane, None)
            return made

        return self._completions.future(done, finish)

    # -- device to device ------------------------------------------------------------------------------------------

    def copy_from(self, array: Array, other: Transfers) -> Array:
        """Return this device's array with the value of another one's, copied between the GPUs directly if possible."""
        own, theirs = self._streams, other._streams
        with theirs.computing():
            source = self._driver.xp.ascontiguousarray(array)
        with own.computing():
            made: Array = self._driver.xp.empty(array.shape, array.dtype)
        if not self._driver.reach(own.device, theirs.device):
            return self._by_the_host(made, source, other)
        theirs.order(theirs.compute, own.compute)
        with own.computing():
            self._driver.copy_between(made, source, own.compute)
        # The source belongs to the other GPU's pool, which does not know that this GPU's stream reads it.
        other._completions.hold(own.mark(own.compute), source)
        return made

    def _by_the_host(self, made: Array, source: Array, other: Transfers) -> Array:
        """Copy one piece at a time: the other's download stream into a lane, this one's upload stream out of it."""
        own, theirs = self._streams, other._streams
        with theirs.computing():
            given = source.reshape(-1).view(np.uint8)
        with own.computing():
            target = made.reshape(-1).view(np.uint8)
        theirs.order(theirs.compute, theirs.download)
        for piece in self._pieces(given.nbytes):
            lane = self._lanes.take()
            size = piece.stop - piece.start
            self._driver.download(lane.host[:size], given[piece], theirs.download)
            # The upload reads what the download writes to the lane.
            theirs.order(theirs.download, own.upload)
            self._through(lane, size, target, piece)
        other._completions.hold(theirs.mark(theirs.download), source)
        return made

    def _pieces(self, size: int) -> Iterator[slice]:
        for start in range(0, size, self._lanes.size):
            yield slice(start, min(start + self._lanes.size, size))
