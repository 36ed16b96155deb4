"""Listening sockets of processes, their answers to a stranger, and certificates made without the product's code."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.patience import SOON


def listening(process: psutil.Process) -> list[tuple[str, int]]:
    """Address and port of everything that a process and its descendants listen at."""
    found = []
    for each in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            found += [tuple(c.laddr) for c in each.net_connections(kind="inet") if c.status == psutil.CONN_LISTEN]
    return found


def spoken(door: tuple[str, int], sent: bytes, context: ssl.SSLContext | None = None) -> bytes:
    """The bytes that a socket sends in answer before it hangs up; raises TimeoutError if it does neither."""
    with socket.create_connection(door, timeout=SOON) as plain:
        try:
            with context.wrap_socket(plain) if context else contextlib.nullcontext(plain) as end:
                end.sendall(sent)
                return end.recv(1 << 16)
        except TimeoutError:
            raise
        except OSError:
            return b""


def issued(folder: Path, name: str, authority: Path | None, days: int = 1, hosts: Sequence[str] = ()) -> Path:
    """A key and a certificate NAME.pem for `hosts`, signed by an authority (itself if none), without our code."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer, issuer = key, subject
    if authority is not None:
        signer = serialization.load_pem_private_key(authority.with_suffix(".key").read_bytes(), None)
        issuer = x509.load_pem_x509_certificate(authority.read_bytes()).subject
    now = datetime.datetime.now(datetime.UTC)
    ours = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    theirs = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=9))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
        .add_extension(ours, critical=False)
        .add_extension(theirs, critical=False)
    )
    if hosts:
        made = made.add_extension(x509.SubjectAlternativeName([_general(host) for host in hosts]), critical=False)
    if authority is None:
        made = made.add_extension(_SIGNS, critical=True)
    path = folder / f"{name}.pem"
    path.write_bytes(made.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path.with_suffix(".key").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    path.with_suffix(".key").chmod(0o600)
    return path


_SIGNS = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
"""Python 3.13 takes an authority only if its certificate names its uses."""


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def stranger(own: Path | None = None) -> ssl.SSLContext:
    """A client of TLS that believes everybody, and shows this certificate, if any."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if own is not None:
        context.load_cert_chain(own, own.with_suffix(".key"))
    return context
