"""By what the processes of a cluster know each other: without it they speak on this machine's loopback only.

A secret never stands on a command line, where everybody on the machine can read it: it comes from a file or from the
environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

from aioflow.errors import DTypeError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from aioflow.formats.files import check_private
from aioflow.net.proving import client_secret, is_client_secret
from aioflow.net.tls import Tls

__all__ = ["NAMES", "Credentials", "credentials_at", "introduced", "read_secret"]

_LEAST: Final = 16  # bytes
_MOST: Final = 4096
_SECRET: Final = "AIOFLOW_SECRET"
_SECRET_FILE: Final = "AIOFLOW_SECRET_FILE"
_TLS: Final = ("AIOFLOW_TLS_CERT", "AIOFLOW_TLS_KEY", "AIOFLOW_TLS_CA")
_ANY_BYTES: Final = "surrogateescape"  # how the text of the environment has bytes that are no text
NAMES: Final = (_SECRET, _SECRET_FILE, *_TLS)  # that are looked at in the environment


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a process proves itself by.

    Attributes:
        secret: Known to every process of the cluster and its clients, and to nobody else: 16 to 4096 bytes, at best
            32 random ones (`python -c "import secrets; print(secrets.token_hex(32))"`). Both ends of each connection
            prove that they know it, without sending it. Beyond the loopback every frame has a tag too, so that nothing
            can be put into the connection or changed in it; whoever can read what passes can read the values. A process
            that is to be a client and nothing else gets `client().secret`, which is no secret of a server.
        tls: Certificates. Both ends of each connection show one, and nobody on the way can read or change anything; so
            no frame has a tag, and a secret may be there in addition or not at all.
        seals_loopback: Whether frames have tags on the loopback as well.

    Raises:
        InvalidArgumentError: the secret is too short or too long.
        DTypeError: `tls` is not of its class.
    """

    secret: bytes | None = field(default=None, repr=False)
    tls: Tls | None = None
    seals_loopback: bool = False

    def __post_init__(self) -> None:
        given: Any = self.tls
        if not isinstance(given, Tls | None):
            found = type(given).__name__  # not the value, which may be a key
            raise DTypeError("wrong type for Credentials.tls", expected="aioflow.distributed.Tls", actual=found)
        if self.secret is None:
            return
        size = len(self.secret) if type(self.secret) is bytes else None
        if size is None or not _LEAST <= size <= _MOST:  # which is not shown
            actual = type(self.secret).__name__ if size is None else f"{size} bytes"
            raise InvalidArgumentError("the cluster's secret", expected=f"{_LEAST} to {_MOST} bytes", actual=actual)

    @property
    def is_client(self) -> bool:
        """Whether the secret is one of clients alone."""
        return self.secret is not None and is_client_secret(self.secret)

    def client(self) -> Self:
        """The same for a client that must not be able to say that it is a task of the cluster: its secret follows from
        that of the cluster, which cannot be found from it.

        Raises:
            FailedPreconditionError: there is no secret.
        """
        if self.secret is None:
            raise FailedPreconditionError("a client's secret is made of the cluster's, and there is none")
        return self if self.is_client else replace(self, secret=client_secret(self.secret))

    @property
    def prove(self) -> bool:
        """Whether they prove anything."""
        return self.secret is not None or self.tls is not None

    def environment(self) -> dict[str, str]:
        """Of another process that is to have the same. `from_environment` reads it.

        Raises:
            InvalidArgumentError: the secret is none that an environment can hold.
        """
        if self.secret is not None and (b"\0" in self.secret or self.secret != self.secret.strip()):
            raise InvalidArgumentError(
                "the cluster's secret cannot be handed on in the environment",
                expected="no zero byte, and no white space at its ends",
            )
        found = {} if self.secret is None else {_SECRET: self.secret.decode(errors=_ANY_BYTES)}
        return found if self.tls is None else found | dict(zip(_TLS, self.tls.files, strict=True))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """The secret in AIOFLOW_SECRET, or in the file that AIOFLOW_SECRET_FILE names; and TLS with the files that
        AIOFLOW_TLS_CERT, AIOFLOW_TLS_KEY and AIOFLOW_TLS_CA name. What is not set is not used.

        Raises:
            InvalidArgumentError: both of the first are set, or not all of the others, or something is not as it should
                be.
            NotFoundError: a file cannot be read.
        """
        found = os.environ if environment is None else environment
        text, path = found.get(_SECRET), found.get(_SECRET_FILE)
        if text is not None and path is not None:
            raise InvalidArgumentError(f"{_SECRET} and {_SECRET_FILE} are both set", expected="one of them")
        files = [found.get(name) for name in _TLS]
        if any(files) and not all(files):
            raise InvalidArgumentError("TLS needs three files", expected=", ".join(_TLS), actual=files)
        tls = Tls(*(file for file in files if file)) if any(files) else None
        if path is not None:
            return cls(read_secret(path), tls)
        return cls(None if text is None else text.encode(errors=_ANY_BYTES).strip(), tls)


def read_secret(path: str | Path) -> bytes:
    """The secret in a file, without white space around it.

    Raises:
        NotFoundError: it cannot be read.
        InvalidArgumentError: other users may read it.
    """
    try:
        with open(path, "rb") as file:
            check_private(path, os.fstat(file.fileno()))
            return file.read(_MOST + 2).strip()  # with the end of a line, and to be found too long
    except OSError as error:
        raise NotFoundError(f"the file of the cluster's secret cannot be read: {error}") from error


# Of clusters that this process has started, by the addresses of their tasks.
_INTRODUCED: Final[dict[str, Credentials]] = {}


def credentials_at(address: str) -> Credentials | None:
    """By what this process proves itself at the address of a comm, if it was told."""
    return _INTRODUCED.get(address)


@contextmanager
def introduced(addresses: Iterable[str], credentials: Credentials) -> Iterator[None]:
    """While the block runs, sessions of this process that are told nothing else prove themselves so at these addresses
    of comms.
    """
    known = list(addresses)
    _INTRODUCED.update(dict.fromkeys(known, credentials))
    try:
        yield
    finally:
        for address in known:
            _INTRODUCED.pop(address, None)
