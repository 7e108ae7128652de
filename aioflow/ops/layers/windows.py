"""The arguments that layers of convolutions and pools share."""

from __future__ import annotations

from typing import Any

from aioflow.arguments import whole_number, whole_numbers
from aioflow.errors import InvalidArgumentError
from aioflow.ops.nn.any_rank import spatial_format


def one_per_axis(value: Any, axes: int, what: str) -> list[int]:
    """Return one positive value per spatial axis from one value or one per axis."""
    found = whole_numbers(value, what) if isinstance(value, list | tuple) else [whole_number(value, what)] * axes
    if len(found) != axes or min(found) < 1:
        raise InvalidArgumentError(f"{what} does not fit", expected=f"{axes} positive values, or one", actual=value)
    return found


def padding_of(padding: str, causal: bool = False) -> str:
    """Return the name of a padding scheme in small letters.

    Raises:
        InvalidArgumentError: it is unknown, or causal where that has no meaning.
    """
    given = str(padding).lower()
    known = ("valid", "same", *(("causal",) if causal else ()))
    if given not in known:
        raise InvalidArgumentError("the padding is unknown", expected=f"one of {', '.join(known)}", actual=padding)
    return given


def checked_format(data_format: str) -> str:
    """Return the `data_format` of a layer in small letters. Raise InvalidArgumentError if it is unknown."""
    given = str(data_format).lower()
    if given not in ("channels_last", "channels_first"):
        raise InvalidArgumentError(
            "data_format is unknown", expected="'channels_last' or 'channels_first'", actual=data_format
        )
    return given


def layout(axes: int, data_format: str) -> str:
    """Return the layout of the ops, such as "NHWC", for the `data_format` of a layer with this many spatial axes."""
    first = checked_format(data_format) == "channels_first"
    return spatial_format(axes, "NC" + "DHW"[-axes:] if first else None)


def channels_axis(layout: str) -> int:
    """Return the axis of channels in a layout."""
    return layout.index("C")
