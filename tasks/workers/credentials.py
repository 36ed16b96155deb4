"""Keys and certificates with which the processes of a Dask cluster authenticate each other.

A cluster of ours trusts one certificate only. Scheduler, workers, nannies and drivers all present it, which requires
its key. A run's own cluster has its certificate in memory only. `fedcore up` writes one to a file of the home at each
start, so it never expires. A user's own cluster has its operator's certificates (`cluster.tls`).
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
"""Validity of a certificate, longer than any cluster of ours runs; its key is lost with the cluster."""

EARLIER = timedelta(days=1)
"""Largest step by which the machine's clock may be set back while a cluster runs."""


@dataclass(frozen=True)
class Credentials:
    """The authority whose certificates are accepted, a certificate and its key: PEM texts, or paths of PEM files.

    `ours`: created here, so both ends support the newest TLS.
    """

    authority: str
    certificate: str
    key: str
    ours: bool = True

    def __repr__(self) -> str:
        return f"Credentials(ours={self.ours})"  # a log must never contain a key


def temporary() -> Credentials:
    """New credentials, in memory only."""
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
    """New credentials in one file (mode 0600) in a folder of its own (mode 0700). Raises InputError, OSError."""
    folder = path.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)  # raises for a folder of another account
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
    """The credentials that `write` stored. Raises InputError unless only this account owns and can open them."""
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
    """The credentials of a user's own cluster.

    Raises InputError, with config key and file, for files that cannot be read, do not match, or are not valid today.
    Also raises it for a private key that every account can read.
    """
    authorities = _parsed("ca", tls.ca, x509.load_pem_x509_certificates)
    chain = _parsed("certificate", tls.certificate, x509.load_pem_x509_certificates)
    key = _parsed("key", tls.key, lambda data: serialization.load_pem_private_key(data, None))
    # A group may be trusted, as its operator decides; all accounts of the machine may not.
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
    except Exception as error:  # cryptography raises many classes for a file of another kind
        raise InputError(f"cluster.tls.{field} = {path} is no PEM file of a {_KINDS[field]}") from error


_KINDS = {"ca": "certificate", "certificate": "certificate", "key": "private key"}


def _check_dates(field: str, path: str, certificate: x509.Certificate) -> None:
    now, first, last = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not first <= now <= last:
        fault, when = ("expired on", last) if now > last else ("is not valid before", first)
        raise InputError(f"cluster.tls.{field} = {path}: this certificate {fault} {when:%Y-%m-%d %H:%M} UTC")
