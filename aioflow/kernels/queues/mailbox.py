"""Kernels of mailboxes. Their nodes have no handle: each names its mailbox, and the first one to run creates it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from aioflow.kernels.convert import as_int
from aioflow.kernels.registry import Binding, binder
from aioflow.kernels.resources import resource_finder
from aioflow.memory.values import Value
from aioflow.sync.mailbox import LetterRequest, MailboxCore
from aioflow.sync.waiting import Waiting, wake_all


def _finder(binding: Binding) -> Callable[[], MailboxCore]:
    return resource_finder(MailboxCore, binding, MailboxCore)


@binder("MailboxPut", device="CPU", host={"key": as_int}, retains=True)
def put(binding: Binding) -> Callable[[int, Value], None]:
    find = _finder(binding)
    return lambda key, value: wake_all(find().put(key, value))


@binder("MailboxTake", device="CPU", is_async=True, host={"key": as_int})
def take(binding: Binding) -> Callable[[int], Waiting]:
    find = _finder(binding)

    def wait(key: int) -> Waiting:
        mailbox = find()
        return Waiting(mailbox.submit, mailbox.withdraw, partial(LetterRequest, key), mailbox.describe)

    return wait
