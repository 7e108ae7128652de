"""Mailboxes: they pass values between programs whose steps are independent, each value under the number of a step."""

from __future__ import annotations

from aioflow.graph.dtypes import DType
from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import define_op
from aioflow.graph.scopes import current_scope
from aioflow.graph.traits import waiting
from aioflow.ops.apply import TensorLike, convert_to_tensor, make, make_op

_NAMED = ["T: type", "container: string = ''", "shared_name: string"]

define_op("MailboxPut", "key: int64, value: T", "", _NAMED, traits=waiting(), published=False)
define_op("MailboxTake", "key: int64", "value: T", _NAMED, traits=waiting(), published=False)
not_differentiable("MailboxPut", "MailboxTake")


def mailbox_put(shared_name: str, key: TensorLike, value: Tensor) -> Operation:
    """Return an operation that stores a value under `key` in a mailbox of its device.

    A mailbox has one sender, which uses ascending keys. The value replaces one with the same key. A key smaller than
    the previous one means that the sender has returned to an earlier state: its values under larger keys are dropped.
    """
    return make_op("MailboxPut", key, value, container=_container(value), shared_name=shared_name)


def mailbox_take(shared_name: str, key: TensorLike, dtype: DType) -> Tensor:
    """Return the value under `key`; the node waits for it.

    The same value can be taken again until a value with a larger key has been taken.
    """
    tensor = convert_to_tensor(key)
    return make("MailboxTake", tensor, T=dtype, container=_container(tensor), shared_name=shared_name)


def _container(tensor: Tensor) -> str:
    return current_scope(tensor.graph).container
