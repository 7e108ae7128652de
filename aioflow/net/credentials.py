"""The credentials of the processes of a cluster. Without them, processes communicate only over loopback.

A secret is never passed on a command line, which all users of the machine can read. It comes from a file or from the
environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

from aioflow.errors import DTypeError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from aioflow.formats.files import check_private
from aioflow.net.proving import client_secret, is_client_secret
from aioflow.net.tls import Tls

_LEAST: Final = 16  # bytes of a secret
_MOST: Final = 4096
_SECRET: Final = "AIOFLOW_SECRET"
_SECRET_FILE: Final = "AIOFLOW_SECRET_FILE"
_TLS: Final = ("AIOFLOW_TLS_CERT", "AIOFLOW_TLS_KEY", "AIOFLOW_TLS_CA")
_ANY_BYTES: Final = "surrogateescape"  # `os.environ` decodes bytes that are not text in this way
NAMES: Final = (_SECRET, _SECRET_FILE, *_TLS)  # all environment variables that are read


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of one process.

    Attributes:
        secret: A shared secret of 16 to 4096 bytes, known only to the cluster's processes and its clients. Best are 32
            random bytes (`python -c "import secrets; print(secrets.token_hex(32))"`). Both ends of each connection
            prove that they know it, without sending it. Beyond loopback, every frame also carries an authentication
            tag, so that data cannot be injected or changed. Values are not encrypted: a network observer can read them.
            A process that is only a client should use `client().secret`, which servers do not accept as that of a task.
        tls: Certificates. Both ends of each connection present one, and the connection is encrypted. Frames then have
            no tags. A secret may be used in addition.
        seals_loopback: Whether frames have tags on loopback, too.

    Raises:
        InvalidArgumentError: the secret is too short or too long.
        DTypeError: `tls` has the wrong type.
    """

    secret: bytes | None = field(default=None, repr=False)
    tls: Tls | None = None
    seals_loopback: bool = False

    def __post_init__(self) -> None:
        given: object = self.tls
        if not isinstance(given, Tls | None):
            found = type(given).__name__  # not the value: it may be a key
            raise DTypeError("wrong type for Credentials.tls", expected="aioflow.distributed.Tls", actual=found)
        if self.secret is None:
            return
        size = len(self.secret) if type(self.secret) is bytes else None
        if size is None or not _LEAST <= size <= _MOST:  # the message must not show the secret
            actual = type(self.secret).__name__ if size is None else f"{size} bytes"
            raise InvalidArgumentError("the cluster's secret", expected=f"{_LEAST} to {_MOST} bytes", actual=actual)

    @property
    def is_client(self) -> bool:
        """True if the secret is a client's secret."""
        return self.secret is not None and is_client_secret(self.secret)

    def client(self) -> Self:
        """Return credentials for a process that must not be able to act as a task of the cluster.

        The client's secret is derived from the cluster's secret, which cannot be recovered from it.

        Raises:
            FailedPreconditionError: there is no secret.
        """
        if self.secret is None:
            raise FailedPreconditionError("cannot derive a client secret: there is no cluster secret")
        return self if self.is_client else replace(self, secret=client_secret(self.secret))

    @property
    def prove(self) -> bool:
        """True if there is a secret or a certificate."""
        return self.secret is not None or self.tls is not None

    def environment(self) -> dict[str, str]:
        """Return environment variables that pass these credentials to another process. `from_environment` reads them.

        Raises:
            InvalidArgumentError: an environment cannot hold the secret.
        """
        if self.secret is not None and (b"\0" in self.secret or self.secret != self.secret.strip()):
            raise InvalidArgumentError(
                "the cluster's secret cannot be passed in the environment",
                expected="no zero byte, and no white space at its ends",
            )
        found = {} if self.secret is None else {_SECRET: self.secret.decode(errors=_ANY_BYTES)}
        return found if self.tls is None else found | dict(zip(_TLS, self.tls.files, strict=True))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Return the credentials that environment variables define.

        The secret is in AIOFLOW_SECRET, or in the file named by AIOFLOW_SECRET_FILE. AIOFLOW_TLS_CERT, AIOFLOW_TLS_KEY
        and AIOFLOW_TLS_CA name the files for TLS. Variables that are not set are not used.

        Args:
            environment: Environment variables; `os.environ` by default.

        Raises:
            InvalidArgumentError: both variables of the secret are set, only some of TLS are set, a value is malformed,
                or other users may read the secret's file.
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
    """Return the secret in a file, without surrounding white space.

    Raises:
        NotFoundError: the file cannot be read.
        InvalidArgumentError: other users may read the file.
    """
    try:
        with open(path, "rb") as file:
            # The open file is checked, since the path could lead to another one a moment later.
            check_private(path, os.fstat(file.fileno()))
            # Room for a line ending, and one byte to detect a secret that is too long.
            return file.read(_MOST + 2).strip()
    except OSError as error:
        raise NotFoundError(f"the file of the cluster's secret cannot be read: {error}") from error


# Credentials of clusters that this process has started, by the addresses of their tasks.
_INTRODUCED: Final[dict[str, Credentials]] = {}


def credentials_at(address: str) -> Credentials | None:
    """Return the credentials registered for a comm address, or None."""
    return _INTRODUCED.get(address)


@contextmanager
def introduced(addresses: Iterable[str], credentials: Credentials) -> Iterator[None]:
    """Register credentials for these comm addresses during the block, for sessions without explicit credentials."""
    known = list(addresses)
    _INTRODUCED.update(dict.fromkeys(known, credentials))
    try:
        yield
    finally:
        for address in known:
            _INTRODUCED.pop(address, None)
