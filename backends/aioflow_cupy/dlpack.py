"""DLPack: feeds and fetches that are GPU arrays of torch, JAX or CuPy, without a copy.

The consumer of an array names the stream in which it will read it, and the producer makes that stream wait for the
array (https://data-apis.org/array-api/latest/API_specification/generated/array_api.array.__dlpack__.html). CuPy assumes
that an array was made in its thread's *current* stream. Arrays here are made in the device's compute stream, whatever
thread exports them. So the export is a `SharedArray`, which does the waiting itself.
"""

from __future__ import annotations

from typing import Any, Final

from aioflow.errors import InvalidArgumentError
from aioflow_cupy.driver import CudaDriver
from aioflow_cupy.streams import DeviceStreams

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # DLDeviceType
_LEGACY_DEFAULT, _PER_THREAD_DEFAULT = 1, 2  # CUDA's handles of its default streams
_NO_SYNCHRONISATION: Final = -1


def is_on_gpu(value: Any) -> bool:
    """Return whether the value is an array of any library in the memory of a GPU."""
    device = getattr(value, "__dlpack_device__", None)
    return device is not None and hasattr(value, "__dlpack__") and device()[0] in (CUDA, CUDA_MANAGED)


def imported(driver: CudaDriver, streams: DeviceStreams, value: Any) -> Any:
    """Import the array that `value` exports, without a copy, for the compute stream to read.

    Raises:
        InvalidArgumentError: the array is on another device.
    """
    kind, number = value.__dlpack_device__()
    # Managed memory can be read by every GPU.
    if kind not in (CUDA, CUDA_MANAGED) or (kind == CUDA and number != streams.device):
        raise InvalidArgumentError(
            "the array is in the memory of another device",
            expected=f"DLPack device ({CUDA}, {streams.device})",
            actual=(int(kind), number),
        )
    with streams.computing():  # the producer makes the current stream wait
        return driver.import_array(value)


class SharedArray:
    """An array of the device for other libraries: `torch.from_dlpack(shared)`, `jax.dlpack.from_dlpack(shared)`.

    Attributes:
        array: CuPy's array. Before a direct read, wait for the device.
    """

    def __init__(self, driver: CudaDriver, streams: DeviceStreams, array: Any) -> None:
        self.array = array
        self._driver = driver
        self._streams = streams
        # The work that makes the array has been submitted before this; later work does not concern its readers.
        self._made = streams.mark(streams.compute)
        self.shape: tuple[int, ...] = array.shape
        self.dtype = array.dtype

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return (kDLCUDA, device number)."""
        return CUDA, self._streams.device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return the capsule.

        Args:
            stream: The stream in which the consumer reads. None: the legacy default stream, 1; -1: the consumer itself
                waits for the array.
            max_version: The highest DLPack version that the consumer supports.
            dl_device: The device on which the consumer wants the array.
            copy: Whether to export a copy.

        Raises:
            BufferError: the consumer wants the array on another device.
            ValueError: stream 0, which CUDA leaves ambiguous.
        """
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the array is on DLPack device {self.__dlpack_device__()}, not on {tuple(dl_device)}")
        if stream == 0:
            raise ValueError("stream 0 is ambiguous: give 1 for the legacy default stream, 2 for the per-thread one")
        array, made = self.array, self._made
        if copy:
            with self._streams.computing():
                array = array.copy()
            made = self._streams.mark(self._streams.compute)  # the consumer waits for the copy, too
        if stream != _NO_SYNCHRONISATION:
            self._driver.external_stream(self._streams.device, stream or _LEGACY_DEFAULT).wait_event(made)
        # CuPy would make the consumer wait for the thread's current stream, which is the wrong one.
        options: dict[str, Any] = {"stream": _NO_SYNCHRONISATION}
        if max_version is not None:
            options["max_version"] = max_version
        return array.__dlpack__(**options)
