"""TLS in which both ends show a certificate, from files that may be replaced at any time.

A certificate ends, and a new one is put in its place long before: every new connection looks whether the files are
still those that were read. Where the new ones cannot be read, or do not fit each other (one of them was replaced, and
the other was not yet), the old ones go on for as long as they are good.
"""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path
from typing import Final, TypeAlias

from aioflow.errors import InvalidArgumentError, NotFoundError
from aioflow.formats.files import check_private

__all__ = ["Tls"]

_LOGGER: Final = logging.getLogger("aioflow.net")
_State: TypeAlias = tuple[tuple[int, int, int], ...]


class Tls:
    """The certificate of this process, and whose certificates it takes.

    Args:
        cert: The file of the certificate (PEM, with those between it and the authority), good for the host's name or
            address in the cluster, and for both servers and clients.
        key: The file of its private key, which no other user may read.
        ca: The file of the authorities that have signed the certificates of all processes of the cluster, and nothing
            else: whoever has a certificate of theirs may run steps.

    Raises:
        NotFoundError: a file cannot be read.
        InvalidArgumentError: one is not what it should be.
    """

    def __init__(self, cert: str | Path, key: str | Path, ca: str | Path) -> None:
        self._files = tuple(str(path) for path in (cert, key, ca))
        self._tried: _State | None = self._look()  # None: they could not be looked at
        self._contexts = self._read()

    def __repr__(self) -> str:
        return "Tls(cert={!r}, key={!r}, ca={!r})".format(*self._files)

    @property
    def files(self) -> tuple[str, str, str]:
        """Those of the certificate, the key and the authorities."""
        cert, key, ca = self._files
        return cert, key, ca

    def listening(self) -> ssl.SSLContext:
        """For a connection that was accepted."""
        return self._newest()[ssl.PROTOCOL_TLS_SERVER]

    def connecting(self) -> ssl.SSLContext:
        """For one that is made."""
        return self._newest()[ssl.PROTOCOL_TLS_CLIENT]

    def _newest(self) -> dict[int, ssl.SSLContext]:
        try:
            now = self._look()
            if now != self._tried:
                self._tried = now
                self._contexts = self._read()
        except InvalidArgumentError as error:
            _LOGGER.warning("the certificate in use stays in use: %s", error)
        except NotFoundError as error:
            if self._tried is not None:  # said once
                _LOGGER.warning("the certificate in use stays in use: %s", error)
            self._tried = None
        return self._contexts

    def _look(self) -> _State:
        try:
            found = [os.stat(path) for path in self._files]
        except OSError as error:
            raise NotFoundError(f"a file for TLS cannot be read: {error}") from error
        return tuple((status.st_mtime_ns, status.st_size, status.st_ino) for status in found)

    def _read(self) -> dict[int, ssl.SSLContext]:
        cert, key, ca = self._files
        made: dict[int, ssl.SSLContext] = {}
        for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
            context = ssl.SSLContext(protocol)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_cert_chain(cert, key, password=_refuse_password)
                context.load_verify_locations(ca)
            except ssl.SSLError as error:
                raise InvalidArgumentError(
                    f"the files for TLS are not a certificate, its key and an authority: {error}",
                    expected="PEM files",
                    actual=self._files,
                ) from error
            except OSError as error:
                raise NotFoundError(f"a file for TLS cannot be read: {error}") from error
            made[protocol] = context
        check_private(key)
        return made


def _refuse_password() -> str:
    """A key that is encrypted would otherwise be asked for at the terminal."""
    raise InvalidArgumentError("the key for TLS is encrypted", expected="a key without a password")
