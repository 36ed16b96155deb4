"""Authentication of a Dask cluster: attacks on the sockets of a run's own cluster, and keys that a config names."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from cryptography.hazmat.primitives import serialization

from fedcore.errors import InputError
from fedcore.experiment.config import ClusterConfig, TlsConfig
from tasks.workers.cluster import local_cluster, own_cluster, worker_addresses
from tasks.workers.credentials import Credentials, named, read, temporary, write
from tasks.workers.nodes import security
from tests.doors import issued, listening, spoken, stranger
from tests.patience import HANGS, SOON

ANYBODY = 65534
"""The number of an account that has no file here: `nobody`."""


def config(address: str, ca: Path, certificate: Path) -> ClusterConfig:
    files = TlsConfig(ca=str(ca), certificate=str(certificate), key=str(certificate.with_suffix(".key")))
    return ClusterConfig(address=address, tls=files)


@pytest.fixture(scope="module")
def cluster():
    with local_cluster(2) as client:
        yield client


@pytest.fixture(scope="module")
def doors(cluster) -> list[tuple[str, int]]:
    return listening(psutil.Process())


@pytest.mark.slow
def test_a_run_s_own_cluster_listens_on_loopback_at_a_scheduler_and_two_ends_a_worker(cluster, doors):
    assert {host for host, _ in doors} == {"127.0.0.1"}
    assert len(doors) == 1 + 2 * 2, "no page: one scheduler, and a nanny and a worker each"
    addresses = [cluster.scheduler.address, *worker_addresses(cluster).values()]
    assert all(address.startswith("tls://127.0.0.1:") for address in addresses)


@pytest.mark.slow
def test_no_door_of_a_cluster_answers_without_its_key(tmp_path, doors, capfd):
    unknown, forged = stranger(), stranger(issued(tmp_path, "other", None))
    request = b"GET /info/main/workers.html HTTP/1.1\r\nHost: localhost\r\n\r\n"
    began = time.monotonic()
    for door in doors:
        answer = spoken(door, request)
        assert not answer.startswith(b"HTTP"), f"a page at {door}"
        assert answer[:1] in (b"", b"\x15"), f"more than an alert of TLS at {door}: {answer[:40]!r}"
        assert spoken(door, request, unknown) == b"", "a client without a certificate was answered"
        assert spoken(door, request, forged) == b"", "a client with a certificate of its own making was answered"
    assert time.monotonic() - began < SOON
    assert capfd.readouterr() == ("", ""), "what strangers do is not on the user's terminal"


ATTACK = """
import os, sys
from distributed import Client, Security, scheduler, worker  # before: an account may be unable to read Python itself
account, address, keys = sys.argv[1:]
os.setgroups([]), os.setgid(int(account)), os.setuid(int(account)), os.chdir("/")
def own():
    made = Security.temporary()
    made.require_encryption = False
    return made
forms = {
    "plain": lambda: None,
    "its own key": own,
    "our files": lambda: Security(tls_ca_file=keys, tls_client_cert=keys, tls_client_key=keys),
}
for name, security in forms.items():
    for scheme in ("tcp", "tls"):
        try:
            client = Client(f"{scheme}://{address}", timeout=2, security=security())
            print("in", name, scheme, client.run_on_scheduler(os.getpid))
        except Exception as error:
            print("refused", name, scheme, type(error).__name__)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root becomes another account")
def test_another_account_of_the_machine_has_no_way_in(tmp_path, cluster):
    """With Dask's own client, without keys, with keys of its making, and with the path of ours."""
    keys = tmp_path / "tls" / "cluster.pem"
    write(keys)
    tmp_path.chmod(0o755)
    place = cluster.scheduler.address.partition("://")[2]
    arguments = [sys.executable, "-c", ATTACK, str(ANYBODY), place, str(keys)]
    made = subprocess.run(arguments, capture_output=True, text=True, timeout=HANGS)
    attempts = [line.rsplit(" ", 1) for line in made.stdout.splitlines()]
    assert [form for form, _ in attempts] == [
        f"refused {form} {scheme}" for form in ("plain", "its own key", "our files") for scheme in ("tcp", "tls")
    ], (made.stdout, made.stderr)
    # Refused by the door or by the file, and not for want of a module.
    assert {how for _, how in attempts} <= {
        "OSError",
        "TypeError",
        "CommClosedError",
        "PermissionError",
        "TimeoutError",
        "FatalCommClosedError",
        "StreamClosedError",
    }, attempts
    assert attempts[-1][1] == attempts[-2][1] == "PermissionError"


def test_keys_of_a_home_are_this_account_s_alone_and_new_at_each_start(tmp_path):
    path = tmp_path / "tls" / "cluster.pem"
    old = os.umask(0)
    try:
        made = write(path)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["cluster.pem"]
    assert read(path) == made
    first = path.read_text()
    write(path)
    assert path.read_text() != first
    for place, mode in ((path, 0o640), (path.parent, 0o711)):
        kept = place.stat().st_mode & 0o777
        place.chmod(mode)
        with pytest.raises(InputError, match="open to other accounts; run `fedcore down`"):
            read(path)
        place.chmod(kept)
    with pytest.raises(InputError, match="No such file"):
        read(tmp_path / "tls" / "none.pem")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="open to other accounts"):
        read(path)


def test_a_key_is_in_no_representation():
    made = temporary()
    text = repr(made) + repr(security(made))
    assert "PRIVATE KEY" in made.key and "PRIVATE KEY" not in text
    assert pickle.loads(pickle.dumps(security(made))).tls_worker_key == made.key  # as a nanny sends it to its worker


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A user's own cluster, started by Dask's commands with the user's keys: its address and the keys' folder."""
    folder = tmp_path_factory.mktemp("own")
    authority = issued(folder, "authority", None)
    for name in ("scheduler", "driver"):
        issued(folder, name, authority)
    issued(folder, "late", authority, days=-1)
    issued(folder, "stranger", None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    keys = [
        "--tls-ca-file",
        str(authority),
        "--tls-cert",
        str(folder / "scheduler.pem"),
        "--tls-key",
        str(folder / "scheduler.key"),
    ]
    address = f"tls://127.0.0.1:{port}"
    commands = [
        ["distributed.cli.dask_scheduler", "--host", address, "--no-dashboard", "--dashboard-address", "127.0.0.1:0"],
        [
            "distributed.cli.dask_worker",
            address,
            "--nthreads",
            "1",
            "--no-nanny",
            "--no-dashboard",
            "--local-directory",
            str(folder),
            "--name",
            "site-0",
        ],
    ]
    with open(folder / "log", "wb") as log:
        processes = [
            subprocess.Popen([sys.executable, "-m", *command, *keys], stdout=log, stderr=log) for command in commands
        ]
    try:
        until = time.monotonic() + SOON
        while True:
            try:
                with own_cluster(config(address, authority, folder / "driver.pem")):
                    break
            except InputError as error:
                assert time.monotonic() < until, (error, (folder / "log").read_text())
                time.sleep(0.5)
        yield address, folder
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_cluster_of_one_s_own_is_reached_with_keys_from_the_config(own):
    address, folder = own
    with own_cluster(config(address, folder / "authority.pem", folder / "driver.pem")) as client:
        assert list(worker_addresses(client)) == ["site-0"] and client.submit(sum, [1, 2]).result(timeout=SOON) == 3


@pytest.mark.slow
def test_wrong_keys_are_one_sentence_at_once(own, tmp_path, capfd):
    address, folder = own
    ca, driver = folder / "authority.pem", folder / "driver.pem"
    wrong = [
        (ca, folder / "stranger.pem", "does not accept cluster.tls.certificate"),
        (folder / "stranger.pem", driver, "certificate is not accepted.*cluster.tls.ca"),
        (ca, folder / "late.pem", "cluster.tls.certificate = .*expired on"),
        (tmp_path / "none.pem", driver, r"cluster.tls.ca = .*none.pem: cannot be read \(No such file"),
        (ca, tmp_path / "none.pem", r"cluster.tls.certificate = .*cannot be read"),
        (folder / "log", driver, "cluster.tls.ca = .* is no PEM file"),
    ]
    for authority, certificate, says in wrong:
        began = time.monotonic()
        with pytest.raises(InputError, match=says) as refused, own_cluster(config(address, authority, certificate)):
            pass
        assert "\n" not in str(refused.value) and time.monotonic() - began < SOON / 3
    with pytest.raises(InputError, match=r"needs keys.*cluster.tls"), own_cluster(ClusterConfig(address=address)):
        pass
    with (
        pytest.raises(InputError, match="no Dask scheduler answers"),
        own_cluster(ClusterConfig(address=address.replace("tls", "tcp"), insecure=True), deadline=2),
    ):
        pass
    assert capfd.readouterr() == ("", "")


def test_an_authority_is_not_asked_of_a_door_that_speaks_no_tls(tmp_path):
    authority = issued(tmp_path, "authority", None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        asked = config(f"tls://127.0.0.1:{server.getsockname()[1]}", authority, authority)
        silent = pytest.raises(InputError, match="no Dask scheduler answers there within 1 s")
        with silent, own_cluster(asked, deadline=1):
            pass


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.1"])
def test_a_scheduler_without_tls_is_refused_unless_its_operator_takes_the_risk(host):
    with (
        pytest.raises(InputError, match=r"without TLS, whoever reaches the scheduler.*cluster.insecure=true"),
        own_cluster(ClusterConfig(address=f"tcp://{host}:9")),
    ):
        pass


def test_keys_that_do_not_fit_or_are_everybody_s_are_refused(tmp_path):
    a, b = issued(tmp_path, "a", None), issued(tmp_path, "b", None)
    fits = {"ca": str(a), "certificate": str(a), "key": str(a.with_suffix(".key"))}
    assert named(TlsConfig(**fits)) == Credentials(str(a), str(a), fits["key"], ours=False)
    with pytest.raises(InputError, match=r"b.key is not the key of cluster.tls.certificate = .*a.pem"):
        named(TlsConfig(**fits | {"key": str(b.with_suffix(".key"))}))
    with pytest.raises(InputError, match=r"cluster.tls.key = .* is no PEM file of a private key"):
        named(TlsConfig(**fits | {"key": str(a)}))
    key = serialization.load_pem_private_key(b.with_suffix(".key").read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
        )
    )
    with pytest.raises(InputError, match="is encrypted"):
        named(TlsConfig(**fits | {"key": str(locked)}))
    a.with_suffix(".key").chmod(0o644)
    with pytest.raises(InputError, match="every account of this machine can open it; chmod 600"):
        named(TlsConfig(**fits))


def test_keys_without_an_address_of_tls_are_a_mistake():
    tls = {"ca": "a", "certificate": "b", "key": "c"}
    for address in (None, "tcp://127.0.0.1:9"):
        with pytest.raises(ValueError, match="is no address of TLS"):
            ClusterConfig(address=address, tls=tls)
