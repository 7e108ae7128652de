"""The CuPy backend object. The import of this module registers the kernels of the GPU."""

from __future__ import annotations

import warnings

from aioflow.concurrency.forking import generation
from aioflow.errors import NotFoundError
from aioflow_cupy import convolution as _convolution  # noqa: F401
from aioflow_cupy import kernels as _elementwise  # noqa: F401
from aioflow_cupy import kernels as _kernels  # noqa: F401
from aioflow_cupy import pooling as _argmax  # noqa: F401  # importing registers its kernels; so do these:
from aioflow_cupy import pooling as _pooling  # noqa: F401
from aioflow_cupy import volumes as _volumes  # noqa: F401
from aioflow_cupy.device import CupyDevice, CupySettings
from aioflow_cupy.driver import CudaDriver, load_driver


class CupyBackend:
    """NVIDIA GPUs through CuPy. Raises ImportError, with the install command, if CuPy is not installed."""

    name = "cupy"
    device_type = "GPU"

    def __init__(self, driver: CudaDriver | None = None, settings: CupySettings | None = None) -> None:
        self._driver = load_driver() if driver is None else driver
        self._settings = settings or CupySettings()
        self._devices: dict[int, CupyDevice] = {}
        self._counted: tuple[int, int] | None = None

    def count(self) -> int:
        """Return the number of GPUs.

        It is 0 without a driver. It is also 0, with a RuntimeWarning, in a process that was forked after the first
        count, because CUDA does not work there.
        """
        if self._counted is not None and self._counted[0] != generation():
            if self._counted[1]:
                warnings.warn(
                    "this process was forked from one that has used CUDA, and has no GPUs: start it with spawn",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return 0
        count = self._driver.device_count()
        # Remembered for a forked child, in which CUDA must not be called.
        self._counted = generation(), count
        return count

    def describe(self, index: int) -> tuple[int | None, str]:
        """Return the memory in bytes, at most the limit, and the name of the GPU."""
        memory, what = self._driver.describe(index)
        limit = self._settings.memory_limit
        return memory if limit is None else min(limit, memory), what

    def device(self, index: int, threads: int = 0) -> CupyDevice:
        """Return the GPU of that number, the same object every time. Its single thread launches kernels.

        Args:
            index: The number.
            threads: Ignored.

        Raises:
            NotFoundError: there is no such GPU.
        """
        count = self.count()
        if not 0 <= index < count:
            raise NotFoundError(f"there is no GPU {index}", expected=f"one of {count} GPUs", actual=index)
        if index not in self._devices:
            self._devices[index] = CupyDevice(self._driver, index, self._settings)
        return self._devices[index]


def describe() -> dict[str, str]:
    """Return CuPy's version and the GPUs, for `aioflow doctor`."""
    driver = load_driver()
    count = driver.device_count()
    found = {"cupy": str(driver.xp.__version__), "GPUs": str(count) if count else "none: no GPU, or no driver"}
    for index in range(count):
        memory, what = driver.describe(index)
        found[f"GPU {index}"] = f"{what}, {memory / 2**30:.0f} GiB"
    return found
