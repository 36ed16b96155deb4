"""A shuffler as a process: messages over HTTP and HTTPS, its answers, and its command."""

from __future__ import annotations

import contextlib
import datetime
import http.client
import http.server
import ipaddress
import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedcore.errors import InputError, ShufflerError
from fedcore.home import Home
from fedcore.shuffling.forms import LARGEST_OPENING, Envelope, Opening, Request
from flows.carriers.http import listening
from flows.carriers.own_shuffler import OwnShuffler
from flows.carriers.shuffler import serve
from flows.carriers.shuffler_secret import shuffler_secret
from flows.services.leases import ProcessId
from tasks.shuffling.calls import Mailbox, carry, check_listening
from tests.faults.federation import Federation
from tests.faults.mutations import bent_bytes
from tests.fedcore.shuffling.rounds import KEY, LENGTH, NAMES, OWNER, QUESTION, at, sealed
from tests.patience import HANGS

pytestmark = pytest.mark.slow
SECRET = "0123456789abcdefABCDEF._~+/-0123456789=="
"""A secret in the form of a token of RFC 6750."""


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    """Address of a shuffler without a secret, which ends with the process that it is served for."""
    reason = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    found = listening("127.0.0.1", 0)
    options = {"until": ProcessId.of(reason.pid)}
    served = threading.Thread(target=serve, args=(tmp_path_factory.mktemp("shuffler"), found, 2), kwargs=options)
    served.start()
    yield f"http://127.0.0.1:{found.getsockname()[1]}"
    reason.communicate()
    served.join()
    found.close()


def test_a_runs_own_shuffler_serves_who_knows_its_secret(tmp_path):
    """Another account of the machine can neither fill it nor spoil a round."""
    own = OwnShuffler(Home(tmp_path / "home"), tmp_path / "batches", 2)
    own.start()
    try:
        known = {"Authorization": f"Bearer {own.secret}"}
        envelope = Envelope(at(run="own"), "ash", 2, QUESTION, KEY, sealed("ash")).to_bytes()
        requests = {
            "/open": opening("own").to_bytes(),
            "/message": envelope,
            "/batch": Request(at(run="own"), OWNER).to_bytes(),
        }
        for path, body in requests.items():
            for wrong in ({}, {"Authorization": f"Bearer {'0' * 64}"}, {"Authorization": "Bearer "}):
                assert raw(own.address, "POST", path, body, headers=wrong)[0] == 401
        with pytest.raises(ShufflerError, match="asks its callers for a secret"):
            carry(own.address, envelope, HANGS)
        with pytest.raises(ShufflerError, match="does not know the secret"):
            Mailbox(own.address, HANGS, "0" * 64).open(opening("own"))
        assert raw(own.address, "POST", "/batch", requests["/batch"], headers=known)[0] == 409, "no round was opened"
        a_round(own.address, "own", own.secret)
        assert stat.S_IMODE((tmp_path / "batches" / "secret").stat().st_mode) == 0o600
        assert own.process is not None
        assert own.secret not in " ".join(psutil.Process(own.process.pid).cmdline())
        assert own.secret not in str(psutil.Process(own.process.pid).environ())
    finally:
        own.close()


def opening(run: str, minimum: int = 2, deadline: float = 60.0) -> Opening:
    return Opening(at(run=run), NAMES, minimum, deadline, LENGTH, QUESTION, KEY, OWNER)


def a_round(address: str, run: str, secret: str = "") -> list[bytes]:
    """Carries the messages of a whole round, as sites and a server do."""
    mailbox = Mailbox(address, HANGS, secret)
    assert mailbox.open(opening(run))
    for name in NAMES:
        carry(address, Envelope(at(run=run), name, 2, QUESTION, KEY, sealed(name)).to_bytes(), HANGS, secret)
    found = mailbox.batch(Request(at(run=run), OWNER))
    assert found is not None and sorted(found.messages) == sorted(sealed(name) for name in NAMES)
    assert not mailbox.open(opening(run))
    return list(found.messages)


def test_a_round_over_http(address):
    a_round(address, "http")
    envelope = Envelope(at(run="http"), "ash", 2, QUESTION, KEY, sealed("ash", "other")).to_bytes()
    carry(address, envelope, HANGS)  # late: the batch exists, with or without this message
    assert Mailbox(address, HANGS).batch(Request(at(run="http"), OWNER)) is not None


def test_refusals_cross_with_their_code_and_sentence(address):
    mailbox = Mailbox(address, HANGS)
    with pytest.raises(ShufflerError, match="is not open here") as caught:
        mailbox.batch(Request(at(run="nowhere"), OWNER))
    assert caught.value.code == "unknown"
    with pytest.raises(ShufflerError, match="no batch of fewer than 5") as caught:
        mailbox.open(opening("few", minimum=5))
    assert caught.value.code == "few"
    mailbox.open(opening("late", minimum=3, deadline=0.3))
    carry(address, Envelope(at(run="late"), "ash", 3, QUESTION, KEY, sealed("ash")).to_bytes(), HANGS)
    with pytest.raises(ShufflerError, match=r"1 of 4 messages came within 0\.3 s"):
        mailbox.batch(Request(at(run="late"), OWNER))
    with pytest.raises(ShufflerError, match="takes no part"):
        mailbox.open(opening("stranger"))
        carry(address, Envelope(at(run="stranger"), "elm", 2, QUESTION, KEY, sealed("ash")).to_bytes(), HANGS)


def raw(address: str, method: str, path: str, body: object = None, **options) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=HANGS)
    with contextlib.closing(connection):
        options["headers"] = {"Content-Type": "application/octet-stream"} | options.get("headers", {})
        connection.request(method, path, body, **options)
        answer = connection.getresponse()
        return answer.status, answer.read()


@pytest.mark.parametrize(
    "sentence",
    [
        {"Host": "evil.example:8400"},
        {"Host": "evil.example:8400", "Origin": "http://evil.example:8400"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
    ],
)
def test_a_web_page_opens_no_round(address, sentence):
    status, _ = raw(address, "POST", "/open", opening("by a page").to_bytes(), headers=sentence)
    assert status in (403, 415)
    status, _ = raw(address, "POST", "/message", b"x", headers=sentence)
    assert status in (403, 415)


def test_it_outlives_hostile_callers(address):
    random = Random(11)
    sound = [opening("bent").to_bytes(), Envelope(at(), "ash", 2, QUESTION, KEY, sealed("ash")).to_bytes()]
    sound += [Request(at(), OWNER).to_bytes(), b"", b"\0" * 100, b"null", b"[" * 2000, b'{"run": 1}']
    for _ in range(150):
        body = bent_bytes(random, random.choice(sound), random.choice(sound))
        status, answer = raw(address, "POST", random.choice(["/open", "/message", "/batch"]), body)
        assert status in (200, 204, 409, 413), (status, answer)
        if status >= 400:
            refusal = json.loads(answer)
            assert set(refusal) == {"code", "sentence"}
            assert refusal["sentence"].isprintable() and "Trace" not in refusal["sentence"]
    ways = [("GET", "/open"), ("GET", "/batch"), ("PUT", "/message"), ("GET", "/docs"), ("GET", "/../etc")]
    for method, path in ways:
        assert raw(address, method, path)[0] in (404, 405)
    a_round(address, "after hostile callers")


def test_a_body_is_read_to_its_bound_and_no_further(address):
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while sent < 2 * LARGEST_OPENING:
            sent += 2**16
            yield b"x" * 2**16

    with contextlib.suppress(OSError):  # the shuffler closes the connection of a caller that goes on
        chunked = {"Transfer-Encoding": "chunked"}
        status, answer = raw(address, "POST", "/open", endless(), encode_chunked=True, headers=chunked)
        assert status == 413 and b"at most" in answer
    assert raw(address, "POST", "/batch", b"x" * 5000)[0] == 413
    half = socket.create_connection(tuple(address.removeprefix("http://").split(":")), timeout=HANGS)
    half.sendall(b"POST /open HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhalf")
    half.close()
    a_round(address, "after endless bodies")


def test_an_address_without_a_shuffler_is_a_sentence(address):
    check_listening(address)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        there = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(InputError, match="nobody answers there; start one there with `fedcore shuffler`"):
            check_listening(there)
        began = time.monotonic()
        for act in (lambda: carry(there, b"x", 0.5), lambda: Mailbox(there, 0.5).open(opening("nobody"))):
            with pytest.raises(ShufflerError, match=f"none answers at {there}; it was tried for 0.5 s") as caught:
                act()
            assert caught.value.code == "silent"
        assert time.monotonic() - began < 30

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def do_POST(self) -> None:
            self.send_response(500)
            self.end_headers()
            self.wfile.write(b"<html>a record of ash</html>")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        there = f"http://127.0.0.1:{other.server_address[1]}"
        with pytest.raises(InputError, match="what answers there is no shuffler"):
            check_listening(there)
        with pytest.raises(ShufflerError) as caught:
            carry(there, b"x", 1.0)
        assert str(caught.value) == f"shuffler: {there} answered with status 500"
        other.shutdown()


def test_a_run_without_its_shuffler_leaves_no_file(tmp_path, fedcore, monkeypatch):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        there = f"127.0.0.1:{nobody.getsockname()[1]}"
        federation = Federation.make(
            tmp_path,
            "nobody",
            privacy={"epsilon": 4, "delta": 1e-6, "trust": "shuffler", "ledger": "sqlite"},
            algorithm={"name": "mbsgd", "rounds": 2},
            shuffler={"address": there},
            cluster={"backend": "in-process"},
            tracking={"mlflow": False},
        )
        monkeypatch.setenv("FEDCORE_HOME", str(federation.home))
        code, _, message = fedcore("run", str(federation.config))
        assert code == 2
        assert (
            message.split()
            == (
                f"shuffler.address = http://{there}: nobody answers there; start one there with `fedcore shuffler`"
            ).split()
        )
        code, _, message = fedcore("run", str(federation.config), "shuffler.minimum=7")
        assert code == 2
        assert "shuffler.minimum = 7 must be from 2 to the 6 silos" in message and "Traceback" not in message
    assert not (tmp_path / "runs").exists() and not (tmp_path / "ledgers").exists()


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate of 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shuffler")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "certificate.pem").write_bytes(made.public_bytes(encoding))
    (folder / "key.pem").write_bytes(key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain))
    return folder / "certificate.pem", folder / "key.pem"


@contextlib.contextmanager
def command(home: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`fedcore shuffler` with these options at a free port: the address that it prints, and its process."""
    environment = {**os.environ, "FEDCORE_HOME": str(home), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.commands.app", "shuffler", "--port", "0", *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        yield (words[2].rstrip(",") if len(words) > 2 else ""), process
    finally:
        process.terminate()
        process.communicate(timeout=HANGS)


@pytest.mark.minutes
def test_the_command_serves_https_and_holds_its_folder(tmp_path, monkeypatch):
    mine, key = certificate(tmp_path)
    options = ("--minimum", "3", "--certificate", str(mine), "--private-key", str(key))
    with command(tmp_path / "home", *options) as (address, _):
        assert address.startswith("https://127.0.0.1:")
        with pytest.raises(InputError, match="nobody answers there"):  # no authority of this machine signed it
            check_listening(address)
        from tasks import outgoing

        outgoing.client_of.cache_clear()
        monkeypatch.setenv("SSL_CERT_FILE", str(mine))
        a_round(address, "https")
        with pytest.raises(ShufflerError, match="fewer than 3"):
            Mailbox(address, HANGS).open(Opening(at(run="two"), NAMES[:2], 2, 9.0, LENGTH, QUESTION, KEY, OWNER))
        with command(tmp_path / "home") as (_, second):
            _, err = second.communicate(timeout=HANGS)
            assert second.returncode == 75 and "another shuffler keeps its files there" in " ".join(err.split())
        outgoing.client_of.cache_clear()


def private(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    return path


@pytest.mark.minutes
def test_another_operators_shuffler_serves_callers_with_its_secret(tmp_path, fedcore, monkeypatch):
    """A whole run over the real command; without its secret, or with another one, no run begins."""
    known, line = private(tmp_path / "known", SECRET + "\n"), ""
    wrong = private(tmp_path / "wrong", "w" * 40)
    with command(tmp_path / "operator", "--secret", str(known)) as (address, process):
        for path, body in (("/open", opening("x").to_bytes()), ("/message", b"x"), ("/batch", b"x"), ("/health", b"")):
            for headers in ({}, {"Authorization": f"Bearer {'w' * 40}"}, {"Authorization": f"Basic {SECRET}"}):
                method = "GET" if path == "/health" else "POST"
                assert raw(address, method, path, body or None, headers=headers)[0] == 401, path
        federation = Federation.make(
            tmp_path,
            "asked",
            privacy={"epsilon": 4, "delta": 1e-6, "trust": "shuffler", "ledger": "sqlite"},
            algorithm={"name": "mbsgd", "rounds": 2},
            shuffler={"address": address.removeprefix("http://")},
            cluster={"backend": "in-process"},
        )
        monkeypatch.setenv("FEDCORE_HOME", str(federation.home))
        for override, sentence in (
            ("shuffler.secret=null", "asks its callers for a secret; set shuffler.secret"),
            (f"shuffler.secret={wrong}", "does not know the secret that it was told; set shuffler.secret"),
            (f"shuffler.secret={tmp_path / 'none'}", "cannot be read (No such file or directory)"),
        ):
            code, _, err = fedcore("run", str(federation.config), override)
            line = " ".join(err.split())
            assert code == 2
            assert sentence in line and "shuffler." in line and "Traceback" not in line
        assert not (tmp_path / "runs").exists() and not (tmp_path / "ledgers").exists()
        federation.call("run", str(federation.config), f"shuffler.secret={known}")
        status = psutil.Process(process.pid)
        assert SECRET not in " ".join(status.cmdline()) and SECRET not in str(status.environ())
    results = list((tmp_path / "runs").glob("*/result.json"))
    assert len(results) == 1
    for path in tmp_path.rglob("*"):
        if path.is_file() and path != known:
            assert SECRET.encode() not in path.read_bytes(), path


def test_a_file_of_a_secret_is_private_and_of_one_form(tmp_path):
    long = "a" * 40
    for text in ("short", "a" * 31, "a" * 513, f"{long}\n{long}", "a b" * 20, "\u00e4" * 40, "", f"{long}\n\n"):
        with pytest.raises(InputError, match=r"shuffler.secret = .*one line of 32 to 512"):
            shuffler_secret("shuffler.secret", private(tmp_path / "s", text))
    for text in (SECRET, SECRET + "\n", SECRET + "\r\n"):
        assert shuffler_secret("--secret", private(tmp_path / "s", text)) == SECRET
    for mode in (0o640, 0o604, 0o620, 0o601):
        (tmp_path / "s").chmod(mode)
        with pytest.raises(InputError, match="no other can open: chmod 600"):
            shuffler_secret("--secret", tmp_path / "s")
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "none", "nul\0"):
        with pytest.raises(InputError, match="--secret = "):
            shuffler_secret("--secret", path)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_beyond_loopback_it_starts_with_a_secret_only(tmp_path, host, fedcore):
    code, _, err = fedcore("shuffler", "--port", "0", "--host", host)
    assert code == 2 and "give --secret FILE" in " ".join(err.split())
    known = private(tmp_path / "known", SECRET)
    with command(tmp_path / "home", "--host", host, "--secret", str(known)) as (address, _):
        port = address.rpartition(":")[2]
        assert raw(f"http://127.0.0.1:{port}", "GET", "/health")[0] == 401
        check_listening(f"http://127.0.0.1:{port}", SECRET)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--certificate", "x.pem"), "--certificate and --private-key are given together"),
        (("--certificate", "x.pem", "--private-key", "y.pem"), "--certificate x.pem, --private-key y.pem:"),
        (("--host", "no such host"), "it cannot listen there"),
        (("--home", "/proc/nothing"), "it cannot be written"),
    ],
)
def test_a_mistake_in_the_command_is_a_sentence(fedcore, options, sentence):
    code, _, err = fedcore("shuffler", "--port", "0", *options)
    assert code == 2 and sentence in " ".join(err.split()) and "Traceback" not in err
