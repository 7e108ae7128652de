"""A real data set that ships with aioflow, so that the demo, the examples and the tests need no download."""

from __future__ import annotations

import importlib.resources
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Images: TypeAlias = npt.NDArray[np.float32]
    Labels: TypeAlias = npt.NDArray[np.int32]

__all__ = ["Digits", "load_digits"]

_GREY_LEVELS: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class Digits:
    """Handwritten digits.

    Attributes:
        images: float32 (n, 64), the 8×8 pixels by rows, in 0..1.
        labels: int32 (n,), 0..9.
    """

    images: Images
    labels: Labels

    def __len__(self) -> int:
        return len(self.labels)

    def split(self, test_fraction: float = 0.2, *, seed: int = 0) -> tuple[Digits, Digits]:
        """Shuffle by the seed and divide into (train, test).

        Raises:
            ValueError: the fraction is not between 0 and 1, or one side would be empty.
        """
        tests = round(len(self) * test_fraction) if 0 < test_fraction < 1 else 0
        if not 0 < tests < len(self):
            raise ValueError(f"test_fraction={test_fraction} leaves one side of {len(self)} digits empty")
        order = np.random.default_rng(seed).permutation(len(self))
        return self._take(order[tests:]), self._take(order[:tests])

    def _take(self, index: npt.NDArray[np.int64]) -> Digits:
        return Digits(self.images[index], self.labels[index])


def load_digits() -> Digits:
    """Load the 1,797 digits of the test set of UCI optdigits.

    By E. Alpaydin, C. Kaynak; CC BY 4.0. See README.md in this folder.
    """
    packed = importlib.resources.files(__name__).joinpath("optdigits.npz").read_bytes()
    # allow_pickle=False is NumPy's default; it is spelled out because a data file must never run code.
    with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
        images = arrays["images"].astype(np.float32) / np.float32(_GREY_LEVELS)
        labels = arrays["labels"].astype(np.int32)
    return Digits(images, labels)
