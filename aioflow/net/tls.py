"""Mutual TLS, with certificate files that may be replaced at any time.

Certificates are renewed long before they expire, so every new connection checks whether the files have changed. If the
new files cannot be read or do not match (only one of them has been replaced so far), the old ones stay in use.
"""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path
from typing import Final, TypeAlias

from aioflow.errors import InvalidArgumentError, NotFoundError
from aioflow.formats.files import check_private

_LOGGER: Final = logging.getLogger("aioflow.net")
_State: TypeAlias = tuple[tuple[int, int, int], ...]


class Tls:
    """The certificate of this process and the authorities it trusts.

    Args:
        cert: Path of the certificate chain (PEM, including intermediate certificates), valid for the host's name or
            address in the cluster, and for both servers and clients.
        key: Path of the private key, which no other user may be able to read.
        ca: Path of the authorities that sign the certificates of the cluster's processes, and no others: any process
            with such a certificate may run steps.

    Raises:
        NotFoundError: a file cannot be read.
        InvalidArgumentError: the contents of a file are not as expected, or other users may read the key.
    """

    def __init__(self, cert: str | Path, key: str | Path, ca: str | Path) -> None:
        self._files = tuple(str(path) for path in (cert, key, ca))
        self._tried: _State | None = self._look()  # None if a file was missing at the last attempt
        self._contexts = self._read()

    def __repr__(self) -> str:
        return "Tls(cert={!r}, key={!r}, ca={!r})".format(*self._files)

    @property
    def files(self) -> tuple[str, str, str]:
        """Paths of the certificate, the key and the authorities."""
        cert, key, ca = self._files
        return cert, key, ca

    def listening(self) -> ssl.SSLContext:
        """Return the context for an accepted connection."""
        return self._newest()[ssl.PROTOCOL_TLS_SERVER]

    def connecting(self) -> ssl.SSLContext:
        """Return the context for an outgoing connection."""
        return self._newest()[ssl.PROTOCOL_TLS_CLIENT]

    def _newest(self) -> dict[int, ssl.SSLContext]:
        try:
            now = self._look()
            if now != self._tried:
                # Before reading, so that malformed files are not read again for every connection.
                self._tried = now
                self._contexts = self._read()
        except InvalidArgumentError as error:
            _LOGGER.warning("the certificate in use stays in use: %s", error)
        except NotFoundError as error:
            if self._tried is not None:  # log once
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
            # By default, a server does not ask its clients for a certificate.
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
    """Raise InvalidArgumentError; without a callback, OpenSSL would prompt for the password at the terminal."""
    raise InvalidArgumentError("the key for TLS is encrypted", expected="a key without a password")
