"""Keys and certificates by which the processes of one Dask cluster know each other; whoever has none is refused.

A cluster of ours trusts one certificate and nothing else: scheduler, workers, nannies and drivers all show it, and only
who has its key can. That of a run's own cluster exists in memory alone; that of `fedcore up` is a file of the home,
made anew by each start, so it never runs out. A cluster of one's own has its operator's (`cluster.tls`).
"""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedcore.bounded_file import read_within
from fedcore.errors import InputError
from fedcore.experiment.config import TlsConfig
from fedcore.limits import LARGEST_KEY

LIFE = timedelta(days=3650)
"""Longer than any cluster of ours lives; its key dies with it."""

EARLIER = timedelta(days=1)
"""By how much the machine's clock may be set back while a cluster runs."""


@dataclass(frozen=True)
class Credentials:
    """The authority whose certificates are accepted, one's own certificate and its key: PEM texts, or paths of such.

    `ours`: made here, so both ends speak the newest TLS.
    """

    authority: str
    certificate: str
    key: str
    ours: bool = True

    def __repr__(self) -> str:
        return f"Credentials(ours={self.ours})"  # a key has no place in a log


def temporary() -> Credentials:
    """New ones, in memory."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"fedcore cluster {uuid.uuid4().hex}")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    public = certificate.public_bytes(serialization.Encoding.PEM).decode()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Credentials(public, public, private.decode())


def write(path: Path) -> Credentials:
    """New ones in one file, with mode 0600, in a folder of their own, with mode 0700. Raises InputError, OSError."""
    folder = path.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)  # that of another account raises
    made = temporary()
    part = folder / f".{path.name}.{uuid.uuid4().hex}"
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(made.key + made.certificate)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return read(path)


def read(path: Path) -> Credentials:
    """Those that `write` made. Raises InputError unless they are there, and nobody's but this account's."""
    again = "run `fedcore down`, then `fedcore up`, which makes new ones"
    try:
        found, folder = path.lstat(), path.parent.lstat()
        read_within(path, LARGEST_KEY)
    except OSError as error:
        raise InputError(f"keys of the cluster {path}: {error.strerror}; {again}") from error
    private = all(each.st_uid == os.geteuid() and not each.st_mode & 0o077 for each in (found, folder))
    if not (stat.S_ISREG(found.st_mode) and private):
        raise InputError(f"keys of the cluster {path}: file or folder are open to other accounts; {again}")
    return Credentials(str(path), str(path), str(path))


def named(tls: TlsConfig) -> Credentials:
    """Those of a cluster of one's own. Raises InputError, with the key of the config and the file, unless the files
    can be read, fit together, are valid today, and the private key is hidden from other accounts."""
    authorities = _parsed("ca", tls.ca, x509.load_pem_x509_certificates)
    chain = _parsed("certificate", tls.certificate, x509.load_pem_x509_certificates)
    key = _parsed("key", tls.key, lambda data: serialization.load_pem_private_key(data, None))
    # Groups are an operator's own affair; every account of the machine is not.
    if os.stat(tls.key).st_mode & 0o007:
        raise InputError(f"cluster.tls.key = {tls.key}: every account of this machine can open it; chmod 600 {tls.key}")
    _check_dates("ca", tls.ca, authorities[0])
    _check_dates("certificate", tls.certificate, chain[0])
    if key.public_key() != chain[0].public_key():
        raise InputError(f"cluster.tls.key = {tls.key} is not the key of cluster.tls.certificate = {tls.certificate}")
    return Credentials(tls.ca, tls.certificate, tls.key, ours=False)


def _parsed(field: str, path: str, parse: Callable[[bytes], Any]) -> Any:
    try:
        return parse(read_within(Path(path), LARGEST_KEY))
    except OSError as error:
        raise InputError(f"cluster.tls.{field} = {path}: cannot be read ({error.strerror})") from error
    except TypeError as error:
        raise InputError(
            f"cluster.tls.{field} = {path} is encrypted; Dask's processes need it without a pass phrase"
        ) from error
    except Exception as error:  # what cryptography raises for a file of something else is of many classes
        raise InputError(f"cluster.tls.{field} = {path} is no PEM file of a {_KINDS[field]}") from error


_KINDS = {"ca": "certificate", "certificate": "certificate", "key": "private key"}


def _check_dates(field: str, path: str, certificate: x509.Certificate) -> None:
    now, first, last = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not first <= now <= last:
        what, when = ("expired on", last) if now > last else ("is not valid before", first)
        raise InputError(f"cluster.tls.{field} = {path}: this certificate {what} {when:%Y-%m-%d %H:%M} UTC")
