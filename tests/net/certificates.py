"""Certificates for tests, made by openssl: an authority and the certificates that it signs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from aioflow.net.tls import Tls

__all__ = ["Authority"]


class Authority:
    """A certificate authority that signs certificates in a folder. Skips the test if openssl is missing."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        if shutil.which("openssl") is None:
            pytest.skip("there is no openssl on this machine")
        self.folder = folder
        self.cert, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        self._openssl(
            "req", "-x509", *_NEW, "-keyout", self._key, "-out", self.cert, "-subj", f"/CN={name}", "-days", 9,
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip

    def tls(self, name: str, host: str = "IP:127.0.0.1", days: int = 9, ca: Path | None = None) -> Tls:
        """Make a new certificate for a host, in files named `name`."""
        cert, key, request = (self.folder / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
        extensions = self.folder / f"{name}.ext"
        # Python 3.13 rejects certificates without an authority key identifier.
        extensions.write_text(f"subjectAltName={host}\nauthorityKeyIdentifier=keyid\n")
        self._openssl("req", *_NEW, "-keyout", f"{key}.new", "-out", request, "-subj", f"/CN={name}")
        signed = ("-CA", self.cert, "-CAkey", self._key, "-CAcreateserial", "-extfile", extensions)
        self._openssl("x509", "-req", "-in", request, *signed, "-days", days, "-out", f"{cert}.new")
        for path in (cert, key):
            Path(f"{path}.new").replace(path)
        return Tls(cert, key, ca or self.cert)

    def dated(self, name: str, begins: str, ends: str, host: str = "IP:127.0.0.1") -> Tls:
        """Make a certificate that is valid between two times, such as "200101000000Z"."""
        cert, key, request = (self.folder / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
        config = self.folder / f"{name}.cnf"
        (self.folder / "index").write_text("")
        config.write_text(_CONFIG.format(folder=self.folder, host=host))
        self._openssl("req", *_NEW, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        signed = ("-cert", self.cert, "-keyfile", self._key, "-startdate", begins, "-enddate", ends)
        self._openssl("ca", "-batch", "-notext", "-config", config, "-in", request, "-out", cert, *signed)
        return Tls(cert, key, self.cert)

    def _openssl(self, *arguments: object) -> None:
        made = subprocess.run(
            ["openssl", *map(str, arguments)], capture_output=True, text=True, cwd=self.folder, timeout=60
        )
        assert made.returncode == 0, made.stderr


_NEW = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")

_CONFIG = """
[ca]
default_ca = here
[here]
database = {folder}/index
new_certs_dir = {folder}
rand_serial = yes
default_md = sha256
policy = anything
x509_extensions = names
[anything]
commonName = supplied
[names]
subjectAltName = {host}
"""
