"""The windows of convolutions and pools, computed once for each shape. Kernels of every device use them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Generic, TypeVar

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.registry import Binding
from aioflow.memory.values import Shape
from aioflow.ops.nn.geometry import Window, conv_dims, depthwise_dims, pool_dims, pool_kernel

T = TypeVar("T")
_REMEMBERED = 16


def expect_shape(name: str, actual: Shape, expected: Shape) -> None:
    """Raise InvalidArgumentError if an argument has another shape."""
    if actual != expected:
        raise InvalidArgumentError(f"{name} has the wrong shape", expected=expected, actual=actual)


class Convolution(Generic[T]):
    """The windows of a convolution, or of its gradient with respect to the input or the filter.

    Args:
        binding: The node.
        kind: Makes the result from the six fields of a `Fit`.
    """

    def __init__(self, binding: Binding, kind: Callable[..., T]) -> None:
        self.window = Window.of(binding.attrs)
        self.layout = self.window.layout
        self.depthwise = binding.op_type.startswith("Depthwise")
        self._dims, self._kind = depthwise_dims if self.depthwise else conv_dims, kind
        # A cache of this object: one on the method would keep every node alive.
        self._of = lru_cache(maxsize=_REMEMBERED)(self._work_out)

    def of(self, image: Shape, kernel: Shape) -> tuple[T, Shape]:
        """Return the windows of a filter of shape `kernel`, and the result's shape.

        Raises:
            InvalidArgumentError: the shapes do not fit.
        """
        return self._of(image, kernel)

    def _work_out(self, image: Shape, kernel: Shape) -> tuple[T, Shape]:
        made: Any = self._dims(self.window, image, kernel)
        return self.window.fit(self._kind, image, kernel[:-2], made), made


class Pool(Generic[T]):
    """The windows of a pool or of its gradients; `kind` is as for `Convolution`."""

    def __init__(self, binding: Binding, kind: Callable[..., T]) -> None:
        self.window = Window.of(binding.attrs)
        self.layout = self.window.layout
        self._ksize, self._kind = binding.attrs["ksize"], kind
        self._kernel = pool_kernel(self.window, self._ksize)
        self._of = lru_cache(maxsize=_REMEMBERED)(self._work_out)

    def of(self, image: Shape) -> tuple[T, Shape]:
        """Return the windows over an image of that shape, and the result's shape.

        Raises:
            InvalidArgumentError: the shape does not fit.
        """
        return self._of(image)

    def _work_out(self, image: Shape) -> tuple[T, Shape]:
        made: Any = pool_dims(self.window, self._ksize, image)
        return self.window.fit(self._kind, image, self._kernel, made), made
